"""Every schedule against formulas written down independently, autodiff, and its own inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax import schedules
from tests.exact import oracle

NAMES = schedules.SCHEDULES
RANGES = ((0.0, 1.0), (0.05, 0.95))
T = jnp.linspace(0.0, 1.0, 201)


def test_every_schedule_has_an_independent_formula():
    assert set(NAMES) == set(oracle.RATIOS)


@pytest.mark.parametrize("ratio_range", RANGES)
@pytest.mark.parametrize("name", NAMES)
def test_alpha_is_the_formula_and_falls_from_end_to_end(name, ratio_range):
    """Kills a wrong curve, a range applied to alpha instead of the ratio, a reversed time."""
    low, high = ratio_range
    schedule = schedules.make(name, ratio_range=ratio_range)
    expected = 1 - (low + (high - low) * oracle.RATIOS[name](np.asarray(T, np.float64)))
    alpha = np.asarray(schedule.alpha(T))
    # float32 sines and exponentials: a few units of 2^-24, scaled by the steepest slope (20).
    np.testing.assert_allclose(alpha, expected, atol=3e-6)
    assert np.all(np.diff(alpha) <= 0)
    assert np.all(np.diff(alpha)[10:-10] < 0) or name in ("geometric", "linear_log_snr")


@pytest.mark.parametrize("ratio_range", RANGES)
@pytest.mark.parametrize("name", NAMES)
def test_alpha_prime_is_the_derivative(name, ratio_range):
    """Kills a lost chain-rule factor or sign."""
    schedule = schedules.make(name, ratio_range=ratio_range)
    inner = T[1:-1]
    by_autodiff = jax.vmap(jax.grad(schedule.alpha))(inner)
    # Slopes reach 20 and autodiff forms expm1(x) + 1, which has 2^-24 of absolute error.
    np.testing.assert_allclose(schedule.alpha_prime(inner), by_autodiff, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("ratio_range", RANGES)
@pytest.mark.parametrize("name", NAMES)
def test_inverse_undoes_alpha(name, ratio_range):
    """Kills an inverse that forgets the range or a parameter."""
    schedule = schedules.make(name, ratio_range=ratio_range)
    # Where alpha is within 0.02 of its ends float32 cannot tell times apart; look inside.
    ratio = jnp.linspace(ratio_range[0] + 0.02, ratio_range[1] - 0.02, 101)
    back = schedule.ratio(schedule.inverse(1 - ratio))
    np.testing.assert_allclose(back, ratio, atol=5e-6)


@pytest.mark.parametrize("name", sorted(oracle.WEIGHTS))
def test_loss_weight_is_the_published_one(name):
    """Kills cancellation in 1 - alpha near t = 0, where the weight is largest."""
    schedule = schedules.make(name)
    t = np.concatenate([[1e-5, 1e-4], np.linspace(1e-3, 0.99, 50)])
    weight = schedule.ratio_prime(jnp.asarray(t)) / schedule.ratio(jnp.asarray(t))
    np.testing.assert_allclose(weight, oracle.WEIGHTS[name](t), rtol=2e-5, atol=1e-5)


def test_cosine_grid_and_padding():
    grid = schedules.time_grid(4, spacing="cosine", bucket=6)
    expected = [np.cos(np.pi / 2 * i / 4) for i in range(4)] + [0.0] * 3
    np.testing.assert_allclose(grid, expected, atol=1e-7)


def test_parse_reads_names_and_parameters():
    assert schedules.parse("cosine") == schedules.make("cosine")
    assert schedules.parse("polynomial(power=3)") == schedules.make("polynomial", power=3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedules.make("cosin"), "'cosin' is unknown; choose one of linear"),
        (lambda: schedules.make("linear", power=2), "no parameter 'power'"),
        (lambda: schedules.make("polynomial", power=-1), "does not rise"),
        (lambda: schedules.make("linear", ratio_range=(0.9, 0.1)), "0 <= low < high <= 1"),
        (lambda: schedules.parse("polynomial(3)"), "name or name\\(parameter=number"),
        (lambda: schedules.parse("__import__('os')"), "name or name\\(parameter=number"),
        (lambda: schedules.time_grid(0), "steps=0 must be at least 1"),
        (lambda: schedules.time_grid(4, bucket=2), "bucket=2 cannot hold steps=4"),
        (lambda: schedules.time_grid(4, spacing="log"), "'log' is unknown"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
