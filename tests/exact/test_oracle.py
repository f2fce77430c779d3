"""The enumeration itself, against published golden numbers, before it judges anything else."""

import numpy as np
import pytest

from tests.exact import oracle

P33 = oracle.p_ref(3, 3)
BAYES33 = oracle.bayes_table(P33)


def test_reference_law_has_its_entropy_and_total_correlation():
    marginals = [P33.sum(axis=tuple(j for j in range(3) if j != i)) for i in range(3)]
    assert oracle.entropy(P33) == pytest.approx(3.047920457, abs=1e-9)
    correlation = sum(map(oracle.entropy, marginals)) - oracle.entropy(P33)
    assert correlation == pytest.approx(0.229126615, abs=1e-9)


def test_continuous_bound_of_the_bayes_predictor_is_the_entropy():
    assert oracle.continuous_bound(P33, BAYES33) == pytest.approx(oracle.entropy(P33), abs=1e-12)


@pytest.mark.parametrize(
    ("steps", "gap"), [(2, 0.119906714), (4, 0.061289209), (8, 0.030978567), (16, 0.015572774)]
)
def test_gap_of_the_step_bound(steps, gap):
    bound = oracle.step_bound(P33, BAYES33, np.linspace(0, 1, steps + 1))
    assert bound - oracle.entropy(P33) == pytest.approx(gap, abs=1e-9)


@pytest.mark.parametrize(("steps", "distance"), [(1, 0.285467), (2, 0.153184), (4, 0.079205)])
def test_distance_of_the_ancestral_law(steps, distance):
    law = oracle.ancestral_law(P33, BAYES33, np.linspace(0, 1, steps + 1))
    assert oracle.total_variation(law, P33) == pytest.approx(distance, abs=1e-6)


def test_uniform_predictor_costs_log_v_a_token():
    table = oracle.constant_table(P33, np.full(3, 1 / 3))
    assert oracle.continuous_bound(P33, table) == pytest.approx(3 * np.log(3), abs=1e-12)
    assert oracle.step_bound(P33, table, np.linspace(0, 1, 5)) == pytest.approx(3 * np.log(3))
