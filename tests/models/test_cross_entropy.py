"""Fused cross-entropy against numpy: value and gradient by the closed form, at every capacity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.models import weighted_cross_entropy

N, D, V = 32, 6, 9


def draw(used, seed=0):
    """Hidden states, kernel, targets, weights of which ``used`` are not zero, banned ids."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(N, np.float32)
    weights[rng.permutation(N)[:used]] = rng.uniform(0.5, 3, used)
    hidden, kernel = rng.standard_normal((N, D)), rng.standard_normal((D, V))
    targets = rng.integers(0, V - 2, N).astype(np.int32)
    banned = np.arange(V) >= V - 2
    return hidden.astype(np.float32), kernel.astype(np.float32), targets, weights, banned


def numpy_version(hidden, kernel, targets, weights, banned):
    """Nats of the rows and gradients of the weighted sum, by p - onehot."""
    hidden, kernel = hidden.astype(np.float64), kernel.astype(np.float64)
    logits = np.where(banned, -np.inf, hidden @ kernel)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    nats = -np.log(probs[np.arange(N), targets]) * (weights != 0)
    slope = (probs - np.eye(V)[targets]) * weights[:, None]
    return nats, slope @ kernel.T, hidden.T @ slope


fused = jax.jit(jax.value_and_grad(weighted_cross_entropy, argnums=(0, 1), has_aux=True))


# 0.5625 x 32 = 18 rows fit the first capacity: both sides of the border, and both ends.
@pytest.mark.parametrize("used", [0, 1, 17, 18, 19, 32])
def test_value_and_gradient_are_the_closed_form(used):
    """Kills rows lost or doubled at a capacity's border, and a gradient off by a weight."""
    arrays = draw(used)
    (total, nats), grads = fused(*arrays)
    expected_nats, *expected_grads = numpy_version(*arrays)
    # float32 eps x V terms x the largest weighted entry.
    np.testing.assert_allclose(nats, expected_nats, atol=1e-5)
    np.testing.assert_allclose(total, np.sum(arrays[3] * expected_nats), rtol=1e-5, atol=1e-6)
    for grad, expected in zip(grads, expected_grads, strict=True):
        np.testing.assert_allclose(grad, expected, atol=5e-5)


def test_outer_factor_reaches_the_gradient():
    """Kills a backward pass that forgets its cotangent."""
    arrays = draw(12)

    @jax.jit
    def scaled(hidden, kernel):
        return 0.25 * weighted_cross_entropy(hidden, kernel, *arrays[2:])[0]

    grads = jax.grad(scaled, argnums=(0, 1))(*arrays[:2])
    for grad, expected in zip(grads, numpy_version(*arrays)[1:], strict=True):
        np.testing.assert_allclose(grad, 0.25 * expected, atol=2e-5)


def test_bfloat16_products_are_close():
    """Kills a softmax in bfloat16 (errors of 2^-8 x ln V in the nats)."""
    arrays = draw(20)
    total, nats = jax.jit(weighted_cross_entropy, static_argnums=5)(*arrays, "bfloat16")
    expected = numpy_version(*arrays)[0]
    assert total.dtype == jnp.float32
    assert 1e-5 < np.abs(nats - expected).max() < 0.05
