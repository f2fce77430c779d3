"""Rare tokens are drawn at their rate, which low-resolution Gumbel noise does not do."""

import jax
import jax.numpy as jnp
import numpy as np

from dlm_jax.processes import categorical
from dlm_jax.sampling import Filters
from dlm_jax.sampling import draw_tokens


def _count(draw_block, blocks):
    """Number of draws that are not token 0, over many blocks in one scan."""

    def body(total, index):
        drawn = draw_block(jax.random.fold_in(jax.random.key(7), index))
        return total + (drawn != 0).sum(), None

    return int(
        jax.jit(lambda: jax.lax.scan(body, jnp.zeros((), jnp.int32), jnp.arange(blocks)))()[0]
    )


def test_rare_tokens_are_drawn_at_their_rate():
    """7 tokens of logit -16.5 against one of 0: probability 7 e^-16.5 = 4.8e-7 a draw.

    2^25 draws: 16.0 expected; within 4 sigma of Poisson. Noise of 23 bits cannot exceed 15.94, so
    it needs the winner to be unlucky as well and gives about 3.
    """
    block, blocks = 2**16, 2**9
    logits = jnp.asarray([0.0] + [-16.5] * 7)
    rows = jnp.broadcast_to(logits, (block, 8))
    expected = block * blocks * 7 * np.exp(-16.5)
    count = _count(lambda key: categorical(key, rows), blocks)
    assert abs(count - expected) < 4 * np.sqrt(expected)


def test_token_of_one_in_a_hundred_million_can_be_drawn():
    """p = 1e-8 against a rest of equal rivals: with its noise it must be able to win at all.

    The margin of the rare token over token 0 follows a logistic law; its share among draws where
    token 0 has noise below -2 is checked through importance: here we only need that the noise
    exceeds 18.4 = -ln 1e-8 as often as it should: 2^27 numbers, 1.34 expected of 1e-8 each.
    """
    numbers, blocks = 2**18, 2**9

    def block(key):
        noise = jax.random.gumbel(key, (numbers,), jnp.float32, mode="high")
        return jnp.where(noise > 16.2, 1, 0)

    expected = numbers * blocks * -np.expm1(-np.exp(-16.2))
    count = _count(block, blocks)
    assert abs(count - expected) < 4 * np.sqrt(expected)


def test_low_resolution_noise_would_fail():
    """The reason for the mode, kept as a fact: default noise has a ceiling of 23 ln 2."""
    noise = jax.random.gumbel(jax.random.key(0), (2**22,), jnp.float32)
    assert float(noise.max()) < 15.95


def test_draw_tokens_frequency_matches_the_filtered_law():
    """Kills temperature applied after the filter and top-p that drops the crossing token."""
    probs = np.array([0.5, 0.3, 0.2])
    rows = 100_000
    logits = jnp.broadcast_to(jnp.log(jnp.asarray(probs)), (rows, 3))
    keys = jax.random.split(jax.random.key(0), rows)
    drawn = np.asarray(jax.jit(draw_tokens)(keys, logits, Filters(top_p=0.7)))
    share = np.bincount(drawn, minlength=3) / rows
    # Two tokens stay: .5/.8 and .3/.8; standard error sqrt(.23 / 1e5) = 0.0015.
    np.testing.assert_allclose(share, [0.625, 0.375, 0.0], atol=0.006)
