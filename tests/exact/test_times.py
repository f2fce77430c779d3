"""Time samplers: unbiased under their weights, and evenly spread where they say so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.processes import SAMPLERS
from dlm_jax.processes import TimeSampler
from dlm_jax.processes import make_sampler
from dlm_jax.processes import sample_times

FUNCTIONS = {
    "one": (lambda t: np.ones_like(t), 1.0),
    "t": (lambda t: t, 0.5),
    "square": (lambda t: t**2, 1 / 3),
    "peak": (lambda t: np.exp(-(((t - 0.1) / 0.05) ** 2)), 0.0886227 * 0.99766),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_weighted_mean_is_the_integral(name):
    """Kills a weight that is not 1 / density and a density that misses a part of [0, 1]."""
    draw = jax.jit(jax.vmap(lambda key: sample_times(key, 8, make_sampler(name))))
    t, weight = map(np.asarray, draw(jax.random.split(jax.random.key(0), 20_000)))
    assert t.min() > 0 and t.max() <= 1
    for function, integral in FUNCTIONS.values():
        means = (weight * function(t)).mean(axis=1)
        error = means.std() / np.sqrt(len(means))
        assert abs(means.mean() - integral) < 4 * error + 2e-6


def test_antithetic_puts_one_time_in_each_stratum_for_every_batch_size():
    """Kills arange(0, 1, 1/b), which has the wrong length for 49, 98, 103, ... rows."""
    for batch in (*range(1, 14), 49, 98, 103, 107, 196):
        t, weight = sample_times(jax.random.key(batch), batch, TimeSampler())
        assert t.shape == (batch,)
        # Times lie in (0, 1]; strata are ((i - 1)/B, i/B]. 1e-6 B: float32 next to an edge.
        strata = np.ceil(np.asarray(t, np.float64) * batch - 1e-6 * batch).astype(int)
        assert sorted(strata) == list(range(1, batch + 1))
        np.testing.assert_array_equal(weight, 1.0)


@pytest.mark.parametrize(
    ("name", "edges", "shares"),
    [
        ("stratified", (0, 1 / 3, 2 / 3, 1), (0.2, 0.5, 0.3)),
        ("mid", (0, 0.3, 0.7, 1), (0.15, 0.7, 0.15)),
    ],
)
def test_shares_of_the_bins_are_as_asked(name, edges, shares):
    """Kills shares taken for densities. Evenly spread: within one row of the exact share."""
    t, _ = sample_times(jax.random.key(1), 1000, make_sampler(name))
    counts = np.histogram(np.asarray(t), edges)[0]
    np.testing.assert_allclose(counts, 1000 * np.array(shares), atol=1.01)


def test_different_keys_give_different_times():
    first = sample_times(jax.random.key(0), 5, TimeSampler(low_discrepancy=False))[0]
    second = sample_times(jax.random.key(1), 5, TimeSampler(low_discrepancy=False))[0]
    assert not np.isin(np.asarray(first), np.asarray(second)).any()
    assert len(np.unique(np.asarray(first))) == 5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_sampler("sobol"), "'sobol' is unknown; choose one of uniform"),
        (lambda: TimeSampler(edges=(0.0, 0.5, 1.0), shares=(1.0, 0.0)), "positive and sum to 1"),
        (lambda: TimeSampler(edges=(0.0, 1.0), shares=(0.5, 0.5)), "one entry for each"),
        (lambda: TimeSampler(edges=(0.1, 1.0)), "rise strictly from 0 to 1"),
        (lambda: make_sampler("mid", middle=(0.7, 0.3)), "0 < low < high < 1"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_weights_stay_finite_in_the_smallest_time():
    sampler = make_sampler("antithetic")
    t, weight = sample_times(jax.random.key(0), 1, sampler)
    assert jnp.isfinite(weight / t).all()
