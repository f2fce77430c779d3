"""Logit filters against a plain numpy version, on random logits with ties and banned tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.sampling import Filters
from dlm_jax.sampling import check_filters
from dlm_jax.sampling import draw_tokens
from dlm_jax.sampling import filter_logits

filtered = jax.jit(filter_logits)


def numpy_kept(logits, temperature, top_k, top_p, min_p):
    """Kept ids: temperature, min-p, top-k, top-p, each on what the one before left."""
    with np.errstate(divide="ignore"):
        scaled = logits.astype(np.float64) / temperature
    kept = np.isfinite(scaled)
    probs = np.where(kept, np.exp(scaled - scaled.max()), 0)
    kept &= probs >= min_p * probs.max() * (1 - 1e-9)
    if top_k > 0:
        order = np.sort(scaled[kept])[::-1]
        kept &= scaled >= order[min(top_k, len(order)) - 1]
    if top_p < 1:
        probs = np.where(kept, probs, 0) / probs[kept].sum()
        order = np.argsort(-probs, kind="stable")
        mass_before = np.cumsum(probs[order]) - probs[order]
        last = order[mass_before < top_p][-1]
        kept &= probs >= probs[last]
    return kept


@pytest.mark.parametrize("vocabulary", [5, 64, 300])
def test_kept_tokens_are_those_of_the_numpy_version(vocabulary):
    """Kills a wrong order of filters, a dropped crossing token, and a top-p cut at 64 tokens."""
    rng = np.random.default_rng(vocabulary)
    rows = 200
    logits = rng.normal(scale=2.0, size=(rows, vocabulary)).astype(np.float32)
    logits[rng.random(logits.shape) < 0.2] = -np.inf
    logits[:, 0] = 0.5
    numbers = Filters(
        temperature=rng.choice([0.5, 1.0, 2.0], rows).astype(np.float32),
        top_k=rng.choice([0, 1, 3, 70, 1000], rows).astype(np.int32),
        top_p=rng.choice([0.05, 0.5, 0.9, 0.999, 1.0], rows).astype(np.float32),
        min_p=rng.choice([0.0, 0.0, 0.05], rows).astype(np.float32),
    )
    kept = np.isfinite(np.asarray(filtered(jnp.asarray(logits), numbers)))
    for row in range(rows):
        expected = numpy_kept(logits[row], *(field[row] for field in numbers))
        np.testing.assert_array_equal(kept[row], expected, err_msg=str([f[row] for f in numbers]))


def test_flat_law_needs_the_full_sort():
    """A nucleus of 250 of 300 equal tokens cannot be seen in the 64 likeliest."""
    logits = jnp.asarray(np.linspace(0, 0.01, 300, dtype=np.float32))[None]
    kept = np.isfinite(np.asarray(filtered(logits, Filters(top_p=0.9))))
    np.testing.assert_array_equal(kept[0], numpy_kept(np.asarray(logits[0]), 1.0, 0, 0.9, 0.0))
    assert kept.sum() > 250


def test_ties_with_the_last_kept_token_stay():
    kept = np.isfinite(filtered(jnp.asarray([[1.0, 1.0, 1.0, 0.0]]), Filters(top_k=2)))
    np.testing.assert_array_equal(kept[0], [True, True, True, False])


def test_no_filter_leaves_logits_divided_by_temperature():
    logits = jnp.asarray([[1.0, -jnp.inf, 3.0]])
    np.testing.assert_allclose(filtered(logits, Filters(temperature=2.0)), [[0.5, -np.inf, 1.5]])


def test_zero_temperature_is_greedy_with_ties_to_the_lowest_id_in_its_row_alone():
    """Kills a greedy row that changes its neighbours, and division by zero."""
    logits = jnp.asarray([[1.0, 5.0, 5.0], [0.0, 0.0, 0.0]])
    keys = jax.random.split(jax.random.key(0), 2)
    filters = Filters(temperature=np.array([0.0, 1.0], np.float32))
    both = np.asarray(draw_tokens(keys, logits, filters))
    alone = np.asarray(draw_tokens(keys[1:], logits[1:], Filters(temperature=1.0)))
    assert both[0] == 1
    assert both[1] == alone[0]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        (Filters(temperature=-0.1), "temperature=-0.1 must be a finite number of at least 0"),
        (Filters(temperature=float("nan")), "temperature=nan must be a finite number"),
        (Filters(top_k=-1), r"top_k=-1 must be in \[0, 2\*\*31\)"),
        (Filters(top_p=0.0), r"top_p=0.0 must be in \(0, 1\]"),
        (Filters(min_p=1.5), r"min_p=1.5 must be in \[0, 1\]"),
    ],
)
def test_mistakes_are_named(filters, message):
    with pytest.raises(ValueError, match=message):
        check_filters(filters)
