"""Attention against explicit loops in float64, in value and gradient, and its masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.models import allowed_pairs
from dlm_jax.models import attention
from dlm_jax.models.layers import rotate
from tests.models import reference

# float32 eps 6e-8 x 13 keys x a few roundings of a softmax of entries up to 4.
TOLERANCE = 2e-5


def draw(shape, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def inputs(B=2, T=13, S=13, H=6, G=2, N=5):
    return draw((B, T, H, N), 0), draw((B, S, G, N), 1), draw((B, S, G, N), 2)


def masks(T=13):
    """Name -> (allowed or None, flags by definition)."""
    segments = np.array([[1] * 5 + [2] * 6 + [0] * 2, [1] * 13], np.int32)[:, :T]
    tokens = np.random.default_rng(3).integers(0, 3, (2, T)).astype(np.int32)
    causal = functools.partial(reference.pairs, tokens, None)
    return {
        "full": (None, causal(causal=False)),
        "causal": (allowed_pairs(T, causal=True), causal(causal=True)),
        "segments": (
            allowed_pairs(T, causal=False, segments=segments),
            reference.pairs(tokens, segments, causal=False),
        ),
        "all": (
            allowed_pairs(T, causal=True, segments=segments, hidden_keys=tokens == 2),
            reference.pairs(tokens, segments, causal=True, hidden_id=2),
        ),
    }


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
@pytest.mark.parametrize("mask", ["full", "causal", "segments", "all"])
def test_value_and_gradient_are_those_of_the_loops(kv_heads, mask):
    """Kills a wrong scale, a wrong group of a head, a wrong mask and a wrong backward pass."""
    query, key, value = inputs(G=kv_heads)
    allowed, may = masks()[mask]
    expected = reference.attention(*(x.astype(np.float64) for x in (query, key, value)), may)
    cotangent = draw(expected.shape, 4)

    @jax.jit
    def pull(query, key, value):
        mixed, back = jax.vjp(lambda *x: attention(*x, allowed), query, key, value)
        return mixed, back(jnp.asarray(cotangent))

    mixed, grads = pull(query, key, value)
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=TOLERANCE)
    for number, grad in enumerate(grads):
        direction = draw(grad.shape, 5 + number).astype(np.float64)

        def along(step, number=number, direction=direction):
            moved = [x.astype(np.float64) for x in (query, key, value)]
            moved[number] = moved[number] + step * direction
            return np.sum(reference.attention(*moved, may) * cotangent)

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        # 780 products of size about 1.
        np.testing.assert_allclose(np.sum(grad * direction), slope, rtol=0, atol=1e-3)


def test_query_without_keys_gives_zeros_and_no_gradient():
    """Kills a softmax over nothing: NaN, or a mean over forbidden values."""
    query, key, value = inputs()
    allowed = np.ones((2, 13, 13), bool)
    allowed[1, 4:] = False
    # Loss only at the rows that see nothing.
    seen_nothing = ~allowed.any(axis=-1)

    def loss(*x):
        mixed = attention(*x, jnp.asarray(allowed))
        return jnp.sum(mixed * seen_nothing[:, :, None, None]), mixed

    grads, mixed = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(query, key, value)
    np.testing.assert_array_equal(np.asarray(mixed)[seen_nothing], 0.0)
    assert np.isfinite(mixed).all() and np.asarray(mixed)[~seen_nothing].all()
    for grad in grads:
        np.testing.assert_array_equal(grad, 0.0)


def test_huge_scores_stay_finite():
    """Kills a softmax without its shift: scores of 4e4 overflow the exponential."""
    query, key, value = inputs()
    allowed, may = masks()["causal"]
    mixed = attention(100 * query, 100 * key, value, allowed)
    expected = reference.attention(*(x.astype(np.float64) for x in (query, 1e4 * key, value)), may)
    # A rounding of a score of 4e4 moves it by 4e-3, and the weights by as much.
    np.testing.assert_allclose(mixed, expected, rtol=0, atol=3e-2)


def test_fewer_queries_than_keys():
    """Kills a confusion of the query length with the key length."""
    query, key, value = inputs(T=4, S=9)
    expected = reference.attention(query, key, value, np.ones((2, 4, 9), bool))
    np.testing.assert_allclose(attention(query, key, value, None), expected, atol=TOLERANCE)


def test_no_restriction_is_no_mask():
    """Kills a dense mask on the path that needs none."""
    assert allowed_pairs(5, causal=False) is None


def test_drop_is_unbiased_and_reaches_the_weights():
    """Kills a missing 1/(1 - p), and dropout of something else than the weights."""
    query, key, _ = inputs(B=1, T=3, S=400, H=1, G=1)
    value = np.ones((1, 400, 1, 5), np.float32)
    rate = 0.25

    def once(key_drop):
        def drop(probs):
            return jnp.where(jax.random.bernoulli(key_drop, 1 - rate, probs.shape), probs, 0) / (
                1 - rate
            )

        return attention(query, key, value, None, drop)[0, :, 0, 0]

    draws = np.asarray(jax.jit(jax.vmap(once))(jax.random.split(jax.random.key(0), 500)))
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (draws.std(axis=0) > 0).all()
    assert (np.abs(draws.mean(axis=0) - 1) < 4 * standard_error).all()


def test_rotated_products_depend_on_the_distance_alone():
    """Kills a wrong sign or a frequency that differs between queries and keys."""
    query, key = draw((1, 1, 1, 8), 0), draw((1, 1, 1, 8), 1)

    def product(m, n):
        at = [rotate(x, jnp.full((1, 1), p), 100.0) for x, p in ((query, m), (key, n))]
        return float(jnp.sum(at[0] * at[1]))

    near = [product(m, m + 3) for m in (0, 5, 40)]
    np.testing.assert_allclose(near, near[0], atol=2e-5)
    assert abs(product(0, 4) - near[0]) > 1e-2
    assert abs(product(3, 0) - near[0]) > 1e-2


def test_rotation_keeps_lengths_and_position_zero():
    """Kills a scale in the rotation."""
    x = draw((2, 6, 3, 8), 2)
    turned = np.asarray(rotate(x, jnp.arange(6)[None], 100.0))
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
    )
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])
