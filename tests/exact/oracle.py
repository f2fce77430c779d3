"""Masked diffusion on a tiny vocabulary, worked out by enumeration in float64 numpy.

Nothing here imports the library. V real tokens, L positions, the mask id is V. A law over texts is
an array [V] * L; states of a canvas are tuples over 0..V.
"""

import functools
import itertools

import numpy as np


def p_ref(V: int, L: int) -> np.ndarray:
    """The reference law: weights 1 + (7 n^2 + 3 n) mod 11 over the C-order index n."""
    n = np.arange(V**L)
    weights = 1 + (7 * n**2 + 3 * n) % 11
    return (weights / weights.sum()).reshape((V,) * L)


def product_law(*marginals: list[float]) -> np.ndarray:
    return functools.reduce(np.multiply.outer, [np.asarray(m) for m in marginals])


def entropy(p: np.ndarray) -> float:
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def bayes_table(p: np.ndarray) -> np.ndarray:
    """p(x_0^i | x_t) for every state of the canvas: [V + 1] * L + [L, V]."""
    V, L = p.shape[0], p.ndim
    table = np.zeros((V + 1,) * L + (L, V))
    for state in itertools.product(range(V + 1), repeat=L):
        joint = p[tuple(slice(None) if s == V else slice(s, s + 1) for s in state)]
        for i in range(L):
            marginal = joint.sum(axis=tuple(j for j in range(L) if j != i))
            if state[i] == V:
                table[state][i] = marginal / marginal.sum()
            else:
                table[state][i, state[i]] = 1.0
    return table


def constant_table(p: np.ndarray, row: np.ndarray) -> np.ndarray:
    """A predictor that says the same everywhere."""
    V, L = p.shape[0], p.ndim
    return np.broadcast_to(row, (V + 1,) * L + (L, V)).copy()


def masked_cross_entropy(p: np.ndarray, table: np.ndarray) -> dict[tuple[int, ...], float]:
    """E_{x_0} sum_{i in M} -log p(x_0^i | x_0 outside M), for every set M of masked positions."""
    V, L = p.shape[0], p.ndim
    result = {}
    for size in range(L + 1):
        for masked in itertools.combinations(range(L), size):
            total = 0.0
            for x in itertools.product(range(V), repeat=L):
                state = tuple(V if i in masked else x[i] for i in range(L))
                total -= p[x] * sum(np.log(table[state][i, x[i]]) for i in masked)
            result[masked] = total
    return result


def expected_cross_entropy(ce: dict[tuple[int, ...], float], L: int, ratio: float) -> float:
    """E sum over masked positions when each is masked with probability ``ratio``."""
    return sum(ratio ** len(m) * (1 - ratio) ** (L - len(m)) * v for m, v in ce.items())


def continuous_bound(
    p: np.ndarray, table: np.ndarray, low: float = 0.0, high: float = 1.0
) -> float:
    """Integral of E sum CE / ratio over the mask ratio, by Gauss-Legendre (a polynomial: exact)."""
    L = p.ndim
    ce = masked_cross_entropy(p, table)
    nodes, weights = np.polynomial.legendre.leggauss(2 * L + 2)
    ratios = low + (high - low) * (nodes + 1) / 2
    values = [expected_cross_entropy(ce, L, r) / r for r in ratios]
    return float((high - low) / 2 * np.dot(weights, values))


def step_bound(p: np.ndarray, table: np.ndarray, ratios: np.ndarray) -> float:
    """T-step bound on a grid of mask ratios that rises from 0 to 1."""
    ce = masked_cross_entropy(p, table)
    return sum(
        (1 - s / t) * expected_cross_entropy(ce, p.ndim, t)
        for s, t in zip(ratios[:-1], ratios[1:], strict=True)
    )


def ancestral_law(p: np.ndarray, table: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """Law of the T-step ancestral sampler over all texts, by propagating every state."""
    V, L = p.shape[0], p.ndim
    law = np.zeros((V + 1,) * L)
    law[(V,) * L] = 1.0
    for s, t in zip(ratios[:-1][::-1], ratios[1:][::-1], strict=True):
        stay = s / t
        after = np.zeros_like(law)
        for state in itertools.product(range(V + 1), repeat=L):
            if law[state] == 0:
                continue
            rows = []
            for i in range(L):
                row = np.zeros(V + 1)
                if state[i] == V:
                    row[:V] = (1 - stay) * table[state][i]
                    row[V] = stay
                else:
                    row[state[i]] = 1.0
                rows.append(row)
            after += law[state] * product_law(*rows)
        law = after
    assert abs(law.sum() - law[(slice(0, V),) * L].sum()) < 1e-12
    return law[(slice(0, V),) * L]


def total_variation(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.abs(p - q).sum() / 2)


# Mask ratios 1 - alpha(t), written down from the formulas and not from the library.
RATIOS = {
    "linear": lambda t: t,
    "polynomial": lambda t: t**2,
    "cosine": lambda t: np.cos(np.pi * (1 - t) / 2),
    "cosine_mdlm": lambda t: 1 - np.cos(np.pi * t / 2),
    "raised_cosine": lambda t: 1 - (1 + np.cos(np.pi * t)) / 2,
    "sigmoid": lambda t: (
        (1 / (1 + np.exp(3 - 6 * t)) - 1 / (1 + np.exp(3)))
        / (1 / (1 + np.exp(-3)) - 1 / (1 + np.exp(3)))
    ),
    "linear_log_snr": lambda t: 1 / (1 + np.exp(10 - 20 * t)),
    "geometric": lambda t: 1 - np.exp(-(1e-5 ** (1 - t) * 20.0**t)),
    "log_linear": lambda t: (1 - 1e-3) * t,
    "constant_rate": lambda t: 1 - np.exp(-10 * t),
}
FULL_RANGE = ("linear", "polynomial", "cosine", "cosine_mdlm", "raised_cosine", "sigmoid")

# Loss weights -alpha'/(1 - alpha), from the table of the literature.
WEIGHTS = {
    "linear": lambda t: 1 / t,
    "polynomial": lambda t: 2 / t,
    "cosine": lambda t: np.pi / 2 * np.tan(np.pi * (1 - t) / 2),
    "cosine_mdlm": lambda t: np.pi / 2 / np.tan(np.pi * t / 4),
    "raised_cosine": lambda t: np.pi / np.tan(np.pi * t / 2),
    "linear_log_snr": lambda t: 20 / (1 + np.exp(-(10 - 20 * t))),
    "geometric": lambda t: (
        1e-5 ** (1 - t) * 20.0**t * np.log(20 / 1e-5) / np.expm1(1e-5 ** (1 - t) * 20.0**t)
    ),
    "log_linear": lambda t: 1 / t,
    "constant_rate": lambda t: 10 / np.expm1(10 * t),
}
