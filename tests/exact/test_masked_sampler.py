"""Laws of the samplers over all 27 outcomes, and what a sampler must never do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dlm_jax.processes import MaskedProcess
from dlm_jax.sampling import ORDERS
from dlm_jax.sampling import sample
from dlm_jax.sampling import time_grid
from tests.exact import oracle

V, L = 3, 3
P = oracle.p_ref(V, L)
BAYES = oracle.bayes_table(P)
PROCESS = MaskedProcess(vocab_size=V + 1, mask_id=V)
SAMPLES = 200_000
FLAT = jnp.asarray(np.log(np.maximum(BAYES, 1e-30)).reshape(-1, L, V), jnp.float32)


def denoise(x_t, t):
    """Bayes-optimal logits by table lookup, with a tempting mask column."""
    del t
    index = x_t[:, 0] * (V + 1) ** 2 + x_t[:, 1] * (V + 1) + x_t[:, 2]
    rows = FLAT[index]
    return jnp.concatenate([rows, jnp.full((*rows.shape[:-1], 1), 5.0)], axis=-1)


@functools.partial(jax.jit, static_argnames=("order", "steps", "temperature"))
def draw(key, *, order, steps, temperature=1.0):
    canvas = jnp.full((SAMPLES, L), V, jnp.int32)
    grid = jnp.asarray(time_grid(steps))
    result = sample(key, denoise, PROCESS, canvas, grid, order=order, temperature=temperature)
    return result.tokens


def chi_square_p(tokens, law):
    counts = np.bincount(np.asarray(tokens) @ [9, 3, 1], minlength=27)
    return stats.chisquare(counts, law.reshape(-1) * SAMPLES).pvalue


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_ancestral_sampler_has_the_enumerated_law(steps):
    """Kills a wrong reveal probability and s and t swapped; it differs from the data law."""
    tokens = draw(jax.random.key(0), order="ancestral", steps=steps)
    law = oracle.ancestral_law(P, BAYES, np.linspace(0, 1, steps + 1))
    assert chi_square_p(tokens, law) > 1e-3
    assert chi_square_p(tokens, P) < 1e-12


@pytest.mark.parametrize("order", [order for order in ORDERS if order != "ancestral"])
def test_one_position_a_step_reproduces_the_data_law(order):
    """Exact for any order, as positions are chosen before tokens; kills draw-then-choose."""
    tokens = draw(jax.random.key(1), order=order, steps=L)
    assert chi_square_p(tokens, P) > 1e-3


def test_process_step_has_the_same_law_as_the_loop():
    """Kills a ``MaskedProcess.step`` that drifts from the sampler's own rule."""
    steps = 2

    @jax.jit
    def run(key):
        x = PROCESS.prior(key, (SAMPLES, L))
        for i in range(steps):
            t = jnp.full((SAMPLES,), 1 - i / steps)
            s = jnp.full((SAMPLES,), 1 - (i + 1) / steps)
            x = PROCESS.step(jax.random.fold_in(key, i), denoise(x, t), x, t, s)
        return x

    law = oracle.ancestral_law(P, BAYES, np.linspace(0, 1, steps + 1))
    assert chi_square_p(run(jax.random.key(2)), law) > 1e-3


def test_corrupt_masks_each_position_alone_at_the_ratio():
    """Kills one draw shared by a row and a ratio taken for alpha."""
    t = jnp.full((SAMPLES,), 0.3)
    x_t = PROCESS.corrupt(jax.random.key(3), jnp.zeros((SAMPLES, L), jnp.int32), t)
    counts = np.bincount((np.asarray(x_t) == V) @ [4, 2, 1], minlength=8)
    law = [0.3**k * 0.7 ** (3 - k) for k in (0, 1, 1, 2, 1, 2, 2, 3)]
    assert stats.chisquare(counts, np.array(law) * SAMPLES).pvalue > 1e-3


def test_low_temperature_two_at_a_time_takes_the_modes():
    """Greedy decoding is deterministic and equals the argmax of each prediction."""
    tokens = np.asarray(draw(jax.random.key(4), order="confidence", steps=3, temperature=0.0))
    assert (tokens == tokens[0]).all()
    x = np.full(L, V)
    for _ in range(L):
        rows = BAYES[tuple(x)]
        scores = np.where(x == V, rows.max(axis=-1), -1)
        at = int(scores.argmax())
        x[at] = rows[at].argmax()
    np.testing.assert_array_equal(tokens[0], x)


@pytest.mark.parametrize(
    ("order", "length", "steps"),
    [(order, 13, 5) for order in ORDERS]
    + [("random", 1, 1), ("ancestral", 33, 1), ("entropy", 7, 7), ("margin", 70, 3)],
)
def test_tokens_are_only_carried_over_or_revealed(order, length, steps):
    """No token ever changes, no mask is left, and what is given stays bit for bit.

    Kills scatter to wrong positions, off-by-one counts, and masks stranded at the end.
    """
    rng = np.random.default_rng(length)
    vocabulary, mask = 6, 2
    process = MaskedProcess(vocab_size=vocabulary, mask_id=mask)
    canvas = rng.integers(3, vocabulary, (4, length)).astype(np.int32)
    canvas[rng.random((4, length)) < 0.7] = mask
    canvas[0] = mask
    table = jnp.asarray(rng.normal(size=(vocabulary, vocabulary)), jnp.float32)

    def network(x_t, t):
        return table[jnp.roll(x_t, 1, axis=1)] + table[x_t]

    result = jax.jit(
        lambda key: sample(key, network, process, canvas, time_grid(steps), order=order, trace=True)
    )(jax.random.key(0))
    frames = np.concatenate([canvas[None], np.asarray(result.trace.tokens)])
    for before, after in zip(frames, frames[1:], strict=False):
        np.testing.assert_array_equal(after[before != mask], before[before != mask])
    assert (frames[-1] != mask).all()
    np.testing.assert_array_equal(frames[-1], result.tokens)
    if order != "ancestral":
        left = (frames[:, 0] == mask).sum(axis=-1)
        expected = np.floor(length * (1 - np.arange(steps + 1) / steps) + 1e-4)
        np.testing.assert_array_equal(left, expected)
    else:
        assert int(result.passes) <= steps
