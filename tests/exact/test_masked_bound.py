"""The masked process against full enumeration of a 3-token, length-3 law."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax import schedules
from dlm_jax.processes import MaskedProcess
from tests.exact import oracle

V, L = 3, 3
P = oracle.p_ref(V, L)
BAYES = oracle.bayes_table(P)
UNIFORM = oracle.constant_table(P, np.full(V, 1 / V))
SKEWED = oracle.constant_table(P, np.array([0.7, 0.2, 0.1]))

# Every pair (text, set of masked positions): 27 x 8 rows.
TEXTS = list(itertools.product(range(V), repeat=L))
SETS = list(itertools.product((False, True), repeat=L))
X0 = np.array([x for x in TEXTS for _ in SETS], np.int32)
MASKED = np.array([m for _ in TEXTS for m in SETS])
XT = np.where(MASKED, V, X0).astype(np.int32)


def logits_of(table, x_t):
    """Table lookup as a network would answer; the mask column is large, to prove it is banned."""
    with np.errstate(divide="ignore"):
        rows = np.log(table[tuple(x_t.T)])
    mask_column = np.full((*rows.shape[:-1], 1), 5.0)
    return jnp.asarray(np.concatenate([rows, mask_column], axis=-1), jnp.float32)


def row_probability(ratio):
    """p(x_0) q(x_t | x_0) of each row, for an independently computed mask ratio."""
    count = MASKED.sum(axis=1)
    return P[tuple(X0.T)] * ratio**count * (1 - ratio) ** (L - count)


def process_of(name, ratio_range=(0.0, 1.0)):
    schedule = schedules.make(name, ratio_range=ratio_range)
    return MaskedProcess(vocab_size=V + 1, mask_id=V, schedule=schedule)


def expected_loss(process, table, t, ratio):
    rows = len(X0)
    nats = process.loss(
        logits_of(table, XT), jnp.asarray(X0), jnp.asarray(XT), jnp.full((rows,), t, jnp.float32)
    )
    return float((row_probability(ratio) * np.asarray(nats, np.float64).sum(axis=1)).sum())


def library_bound(process, name, table):
    """Integral over t of the library's integrand, plus its end terms.

    Gauss-Legendre in the mask ratio, where E[loss] / ratio' is a polynomial of degree L - 1, so six
    nodes are exact; time and slope at the nodes come from the independent formulas.
    """
    low, high = process.schedule.ratio_range
    curve = lambda t: low + (high - low) * oracle.RATIOS[name](t)  # noqa: E731
    ends = curve(0.0), curve(1.0)
    nodes, weights = np.polynomial.legendre.leggauss(6)
    integral = 0.0
    for node, weight in zip(nodes, weights, strict=True):
        ratio = ends[0] + (ends[1] - ends[0]) * (node + 1) / 2
        t = _solve(curve, ratio)
        slope = (curve(t + 1e-6) - curve(t - 1e-6)) / 2e-6
        integral += weight * expected_loss(process, table, t, ratio) / slope
    integral *= (ends[1] - ends[0]) / 2
    clean, noise = process.end_terms()
    ce = oracle.masked_cross_entropy(P, table)
    ends_total = clean * oracle.expected_cross_entropy(ce, L, ends[0])
    return integral + ends_total + noise * ce[tuple(range(L))]


def _solve(curve, ratio):
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) < ratio else (low, middle)
    return low


@pytest.mark.parametrize("table", [BAYES, UNIFORM, SKEWED], ids=["bayes", "uniform", "skewed"])
@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_continuous_bound_is_the_same_for_every_schedule(name, table):
    """Kills a wrong weight, a mask column that takes probability, a loss at visible positions.

    A schedule that misses an end by e pays e^2 at most beyond the integral's value: 1e-6 for
    log_linear's 1e-3. The rest is float32.
    """
    bound = library_bound(process_of(name), name, table)
    assert bound == pytest.approx(oracle.continuous_bound(P, table), abs=1e-5)


@pytest.mark.parametrize("name", oracle.FULL_RANGE)
def test_bound_of_the_bayes_predictor_is_the_entropy(name):
    assert library_bound(process_of(name), name, BAYES) == pytest.approx(3.047920457, abs=1e-5)


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_squeezed_schedule_still_bounds_the_entropy(name):
    """Kills lost end terms: without them the value would be below the entropy."""
    process = process_of(name, (0.05, 0.95))
    bound = library_bound(process, name, BAYES)
    ce = oracle.masked_cross_entropy(P, BAYES)
    low, high = (0.05 + 0.9 * oracle.RATIOS[name](t) for t in (0.0, 1.0))
    expected = (
        oracle.continuous_bound(P, BAYES, low, high)
        + oracle.expected_cross_entropy(ce, L, low)
        + (1 - high) * ce[(0, 1, 2)]
    )
    assert bound == pytest.approx(expected, abs=1e-5)
    assert bound > oracle.entropy(P)


@pytest.mark.parametrize("table", [BAYES, SKEWED], ids=["bayes", "skewed"])
@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial"])
def test_step_bound_is_the_enumerated_sum_and_falls_with_steps(name, table):
    """Kills s and t swapped, and a weight of the continuous form in the discrete one."""
    process = process_of(name)
    bounds = []
    for steps in (1, 2, 4, 8):
        times = np.linspace(0, 1, steps + 1)
        ratios = oracle.RATIOS[name](times)
        total = 0.0
        for s, t, ratio in zip(times[:-1], times[1:], ratios[1:], strict=True):
            at = lambda x: jnp.full((len(X0),), x, jnp.float32)  # noqa: E731
            nats = process.discrete_loss(
                logits_of(table, XT), jnp.asarray(X0), jnp.asarray(XT), at(t), at(s)
            )
            total += (row_probability(ratio) * np.asarray(nats, np.float64).sum(axis=1)).sum()
        assert total == pytest.approx(oracle.step_bound(P, table, ratios), abs=1e-5)
        bounds.append(total)
    if table is BAYES:
        assert all(a > b for a, b in zip(bounds, bounds[1:], strict=False))
        assert bounds[0] == pytest.approx(3.277047073, abs=1e-5)


def test_uniform_predictor_costs_exactly_log_v_a_token():
    process = process_of("linear")
    bound = library_bound(process, "linear", UNIFORM)
    assert bound == pytest.approx(L * np.log(V), abs=1e-5)


def test_log_probs_never_give_the_mask_or_padding():
    process = MaskedProcess(vocab_size=4, mask_id=1)
    log_probs = np.asarray(process.log_probs(jnp.asarray([[0.0, 9.0, 1.0, 2.0, 9.0]])))
    assert np.isneginf(log_probs[0, [1, 4]]).all()
    assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 1, "mask_id": 0}, "leaves no real token"),
        ({"vocab_size": 4, "mask_id": 4}, r"mask_id=4 must lie in \[0, vocab_size=4\)"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MaskedProcess(**arguments)
