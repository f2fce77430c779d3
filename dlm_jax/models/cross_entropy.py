"""Output projection and cross-entropy in one, only at the rows that have a weight.

Half of the tokens of a masked-diffusion batch are visible and have no loss. Their logits are never
computed: rows with a weight are moved to the front, and the smallest static size that holds them is
chosen at run time. The gradient is formed in the forward pass, so no logits are kept for a backward
pass.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int

from dlm_jax.typing import Array

# A batch of spread times masks half of its tokens, give or take a few per cent.
_SHARES = (0.5625, 1.0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def weighted_cross_entropy(
    hidden_ND: Float[Array, "N D"],
    kernel_DV: Float[Array, "D V"],
    targets_N: Int[Array, " N"],
    weights_N: Float[Array, " N"],
    banned_V: Bool[Array, " V"],
    dtype: str = "float32",
) -> tuple[Float[Array, ""], Float[Array, " N"]]:
    """Weighted sum of the cross-entropies of rows, in nats.

    Args:
      hidden_ND: hidden states before the output projection.
      kernel_DV: output projection.
      targets_N: id that each row should predict.
      weights_N: weight of each row; rows with weight 0 cost nothing.
      banned_V: ids that the prediction never gives.
      dtype: dtype of the matrix products; softmax and sums are float32. Static.

    Returns:
      (sum of weights x nats, nats of each row with a weight and 0 elsewhere). Only the sum has a
      gradient, and only with respect to the hidden states and the kernel.
    """
    total, nats, _, _ = _forward(hidden_ND, kernel_DV, targets_N, weights_N, banned_V, dtype, False)
    return total, nats


def _forward(hidden, kernel, targets, weights, banned, dtype, want_gradient):
    N = hidden.shape[0]
    targets, weights = jnp.asarray(targets), jnp.asarray(weights)
    used = weights != 0
    front = jnp.argsort(~used, stable=True)
    compute = jnp.dtype(dtype)
    kernel_cast = kernel.astype(compute)

    def branch(size: int):
        at = front[:size]
        rows, weight = hidden[at].astype(compute), weights[at]
        logits = jnp.matmul(rows, kernel_cast, preferred_element_type=jnp.float32)
        logits = jnp.where(banned, -jnp.inf, logits)
        log_total = jax.nn.logsumexp(logits, axis=-1)
        chosen = jnp.take_along_axis(logits, targets[at][:, None], axis=-1)[:, 0]
        nats = jnp.where(weight != 0, log_total - chosen, 0.0)
        total = jnp.sum(weight * nats)
        nats_N = jnp.zeros((N,), jnp.float32).at[at].set(nats)
        if not want_gradient:
            return total, nats_N, None, None
        column = jnp.arange(logits.shape[-1])
        slope = jnp.exp(logits - log_total[:, None]) - (column == targets[at][:, None])
        slope = (slope * weight[:, None]).astype(compute)
        d_rows = jnp.matmul(slope, kernel_cast.T, preferred_element_type=jnp.float32)
        d_kernel = jnp.matmul(rows.T, slope, preferred_element_type=jnp.float32)
        d_hidden = jnp.zeros(hidden.shape, jnp.float32).at[at].set(d_rows)
        return total, nats_N, d_hidden, d_kernel

    sizes = sorted({max(1, round(share * N)) for share in _SHARES})
    index = jnp.searchsorted(jnp.asarray(sizes), used.sum())
    return jax.lax.switch(index, [functools.partial(branch, size) for size in sizes])


def _vjp_forward(hidden, kernel, targets, weights, banned, dtype):
    total, nats, d_hidden, d_kernel = _forward(
        hidden, kernel, targets, weights, banned, dtype, True
    )
    return (total, nats), (d_hidden.astype(hidden.dtype), d_kernel.astype(kernel.dtype))


def _vjp_backward(dtype, residuals, cotangents):
    del dtype
    d_hidden, d_kernel = residuals
    scale = cotangents[0]
    return scale * d_hidden, scale * d_kernel, None, None, None


weighted_cross_entropy.defvjp(_vjp_forward, _vjp_backward)
