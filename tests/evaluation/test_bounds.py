"""The reported bound against enumeration, and baselines against their definitions."""

import gzip
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.evaluation import Bound
from dlm_jax.evaluation import estimate_bound
from dlm_jax.evaluation import gzip_bits_per_byte
from dlm_jax.evaluation import make_masked_row_nats
from dlm_jax.evaluation import unigram_bits_per_byte
from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig
from dlm_jax.processes import MaskedProcess
from dlm_jax.training import make_batch

V, T = 6, 4
PROCESS = MaskedProcess(vocab_size=V, mask_id=V - 1)
MODEL = Transformer(TransformerConfig(vocab_size=V, width=16, layers=1, heads=2))


@pytest.fixture(scope="module")
def params():
    return MODEL.init(jax.random.key(1), jnp.zeros((1, T), jnp.int32))


def exact_row_bound(params, tokens):
    """Sum over all sets of masked positions: B(|M|, n - |M| + 1) sum CE."""
    n = len(tokens)
    total = 0.0
    for bits in range(1, 2**n):
        masked = np.array([bits >> i & 1 for i in range(n)], bool)
        x_t = jnp.asarray(np.where(masked, V - 1, tokens))[None]
        log_probs = np.asarray(PROCESS.log_probs(MODEL.apply(params, x_t)))[0]
        k = int(masked.sum())
        beta = math.gamma(k) * math.gamma(n - k + 1) / math.gamma(n + 1)
        total -= beta * log_probs[np.arange(n), tokens][masked].sum()
    return total


def test_estimate_is_the_enumerated_bound_within_its_standard_error(params):
    """Kills a lost n / k, masks of the wrong size, and a standard error of the wrong scale."""
    tokens = np.array([[0, 3, 1, 4], [2, 2, 0, 1]], np.int32)
    expected = sum(exact_row_bound(params, row) for row in tokens) / tokens.size
    row_nats = make_masked_row_nats(MODEL, PROCESS, 400)
    batch = make_batch(jnp.asarray(tokens))
    bounds = [estimate_bound(row_nats, params, [batch], jax.random.key(s)) for s in range(8)]
    means = np.array([bound.nats_per_token for bound in bounds])
    errors = np.array([bound.standard_error for bound in bounds])
    assert abs(means.mean() - expected) < 4 * errors.mean() / np.sqrt(8)
    # The numbers of masked tokens are spread evenly, so the error is, if anything, overstated.
    assert means.std(ddof=1) < 2 * errors.mean()
    assert errors.max() < 0.05


def test_uniform_predictor_has_no_variance_and_costs_log_v():
    """Also with padding and unscored tokens in the row."""
    zeros = jax.tree.map(
        jnp.zeros_like, MODEL.init(jax.random.key(0), jnp.zeros((1, T), jnp.int32))
    )
    batch = dict(make_batch(jnp.zeros((2, T), jnp.int32)))
    batch["weights"] = jnp.asarray([[1.0, 1, 1, 0], [0, 1, 0, 0]])
    bound = estimate_bound(
        make_masked_row_nats(MODEL, PROCESS, 8), zeros, [batch], jax.random.key(0)
    )
    assert bound.tokens == 4
    assert bound.nats_per_token == pytest.approx(math.log(V - 1), abs=1e-6)
    assert bound.standard_error < 1e-7


def test_rows_of_padding_change_nothing(params):
    row_nats = make_masked_row_nats(MODEL, PROCESS, 3)
    batch = make_batch(jnp.asarray([[0, 1, 2, 3], [4, 3, 2, 1]]))
    padded = {name: np.concatenate([value, np.zeros_like(value)]) for name, value in batch.items()}
    one, two = (estimate_bound(row_nats, params, [b], jax.random.key(0)) for b in (batch, padded))
    assert one.nats_per_token == pytest.approx(two.nats_per_token, rel=1e-5)
    assert one.tokens == two.tokens


def test_bits_per_byte_spread_the_nats_over_the_bytes():
    assert Bound(math.log(2), 0.0, 10, "exact").bits_per_byte(20) == pytest.approx(0.5)


def test_stopping_gives_no_bound_and_empty_text_an_error(params):
    row_nats = make_masked_row_nats(MODEL, PROCESS, 2)
    batch = make_batch(jnp.zeros((1, T), jnp.int32))
    stop = estimate_bound(row_nats, params, [batch], jax.random.key(0), should_stop=lambda: True)
    assert stop is None
    with pytest.raises(ValueError, match="no scored token"):
        estimate_bound(row_nats, params, [], jax.random.key(0))


def test_baselines_are_their_definitions():
    text = b"abcabc" * 50
    assert gzip_bits_per_byte(text) == 8 * len(gzip.compress(text, 9, mtime=0)) / len(text)
    train, held = np.array([2, 1, 0]), np.array([1, 0, 1])
    expected = (-math.log2(3 / 6) - math.log2(1 / 6)) / 4
    assert unigram_bits_per_byte(train, held, 4) == pytest.approx(expected)
