"""The whole model against the numpy transformer, in value and in gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import cases
from tests.models import reference

# Two layers of six products over at most 20 terms: 12 x 20 x 6e-8 = 1.4e-5 of the largest entry,
# times 3 for the norms and softmaxes between them.
TOLERANCE = 5e-5
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0], [1, 1, 2, 3, 3, 0, 0]], np.int32)
POSITIONS = np.array([[0, 1, 2, 0, 1, 2, 0], [0, 1, 0, 0, 1, 0, 0]], np.int32)
TIME = np.array([0.13, 0.82], np.float32)
CASES = list(cases.FAMILIES.values()) + cases.combinations(4)
NAMES = [*cases.FAMILIES, *(f"mixed{i}" for i in range(4))]


def wide(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def moved(params, direction, distance):
    return jax.tree.map(lambda p, d: p + distance * d, params, direction)


@pytest.mark.parametrize("switches", CASES, ids=NAMES)
def test_logits_and_gradient_are_those_of_numpy(switches):
    """Kills any wrong term of the forward pass, and any wrong hand-written gradient.

    The gradient is compared along one random direction through all parameters, where numpy takes
    a central difference.
    """
    model, _ = cases.build(**switches)
    params, tokens = cases.start(model), cases.tokens_of()
    inputs = {"segments": SEGMENTS, "positions": POSITIONS}
    expected = reference.forward(wide(params)["params"], model.config, tokens, time=TIME, **inputs)
    rng = np.random.default_rng(1)
    cotangent = rng.standard_normal(expected.shape).astype(np.float32)

    @cases.quick_jit
    def pull(params):
        logits, back = jax.vjp(lambda p: model.apply(p, tokens, TIME, **inputs), params)
        return logits, back(jnp.asarray(cotangent))[0]

    logits, grads = jax.tree.map(np.asarray, pull(params))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=TOLERANCE * scale)

    direction = jax.tree.map(lambda x: rng.standard_normal(x.shape), wide(params))
    step = 1e-5
    ahead, behind = (
        reference.forward(
            moved(wide(params), direction, sign * step)["params"],
            model.config,
            tokens,
            time=TIME,
            **inputs,
        )
        for sign in (1, -1)
    )
    expected_slope = np.sum((ahead - behind) * cotangent) / (2 * step)
    products = jax.tree.leaves(jax.tree.map(lambda g, d: g * d, grads, direction))
    slope = sum(float(np.sum(x)) for x in products)
    size = np.sqrt(sum(float(np.sum(x**2)) for x in products))
    np.testing.assert_allclose(slope, expected_slope, rtol=0, atol=5 * TOLERANCE * size)
    check_every_leaf_learns(model.config, grads)


def check_every_leaf_learns(config, grads):
    """Only a key bias that meets neither rotation nor norm has no effect: softmax cancels it."""
    whole = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(grads)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        name = jax.tree_util.keystr(path)
        share = np.linalg.norm(leaf) / whole
        cancels = "['key']['bias']" in name and not config.qk_norm
        if cancels and config.position_encoding != "rope":
            assert share < 1e-5, name
        else:
            assert share > 1e-5, name


def test_default_positions_count_from_zero_without_segments():
    """Kills an offset of the default positions."""
    model, apply = cases.build(**cases.BERT)
    params, tokens = cases.start(model), cases.tokens_of(length=5)
    expected = reference.forward(wide(params)["params"], model.config, tokens)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(apply(params, tokens), expected, rtol=0, atol=TOLERANCE * scale)
