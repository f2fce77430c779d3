"""Parts of a transformer block: norms, rotary positions, feed-forward and self-attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int

from dlm_jax.models.attention import attention
from dlm_jax.models.config import TransformerConfig
from dlm_jax.typing import Array


def projection(config: TransformerConfig, features: int, name: str, *, residual: bool = False):
    """A dense layer in the compute dtype.

    Args:
      config: supplies dtype, bias and depth.
      features: output width.
      name: parameter name.
      residual: the output is added to the residual stream; its start is scaled by 1/sqrt(2 L), so
        that the stream's variance does not grow with depth (GPT-2).
    """
    scale = 1.0 / (2 * config.layers) if residual else 1.0
    return nn.Dense(
        features,
        use_bias=config.bias,
        dtype=jnp.dtype(config.dtype),
        kernel_init=nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal"),
        name=name,
    )


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the last axis, computed in float32."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "*N D"]) -> Float[Array, "*N D"]:
        """Normalise; returns the dtype that came in."""
        config = self.config
        wide = x.astype(jnp.float32)
        if config.norm == "layernorm":
            wide = wide - wide.mean(axis=-1, keepdims=True)
        variance = jnp.square(wide).mean(axis=-1, keepdims=True)
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        wide = wide * jax.lax.rsqrt(variance + config.norm_epsilon) * scale
        if config.norm == "layernorm" and config.bias:
            wide = wide + self.param("bias", nn.initializers.zeros, (x.shape[-1],))
        return wide.astype(x.dtype)


def rotate(
    x_BTHN: Float[Array, "B T H N"], positions: Int[Array, "#B T"], theta: float
) -> Float[Array, "B T H N"]:
    """Rotary position encoding; pairs entry i of a head with entry i + N/2.

    Source: Su et al. 2021, "RoFormer", equation 34, in the half-split layout of Llama weights.
    """
    half = x_BTHN.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[:, :, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    first, second = jnp.split(x_BTHN.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BTHN.dtype)


class SelfAttention(nn.Module):
    """Multi-head or grouped-query self-attention."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        positions: Int[Array, "#B T"],
        allowed: Bool[Array, "#B T T"] | None,
        *,
        train: bool,
    ) -> Float[Array, "B T D"]:
        """Project, attend, project back."""
        config = self.config
        B, T, _ = x_BTD.shape
        N = config.n_head_width

        def heads(name: str, count: int) -> Array:
            return projection(config, count * N, name)(x_BTD).reshape(B, T, count, N)

        query, key = heads("query", config.heads), heads("key", config.groups)
        value = heads("value", config.groups)
        if config.qk_norm:
            epsilon = config.norm_epsilon
            query = nn.RMSNorm(epsilon=epsilon, dtype=jnp.float32, name="query_norm")(query)
            key = nn.RMSNorm(epsilon=epsilon, dtype=jnp.float32, name="key_norm")(key)
            query, key = query.astype(value.dtype), key.astype(value.dtype)
        if config.position_encoding == "rope":
            query = rotate(query, positions, config.rope_theta)
            key = rotate(key, positions, config.rope_theta)
        drop = None
        if config.attention_dropout and train:
            drop = nn.Dropout(config.attention_dropout, deterministic=False)
        mixed = attention(query, key, value, allowed, drop).reshape(B, T, config.heads * N)
        return projection(config, config.width, "out", residual=True)(mixed)


class FeedForward(nn.Module):
    """Position-wise feed-forward: GELU, or the gated SwiGLU (Shazeer 2020)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x_BTD: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Widen, activate, narrow."""
        config = self.config
        up = projection(config, config.n_mlp_width, "up")(x_BTD)
        if config.activation == "swiglu":
            hidden = nn.silu(projection(config, config.n_mlp_width, "gate")(x_BTD)) * up
        else:
            hidden = jax.nn.gelu(up, approximate=config.activation == "gelu_tanh")
        return projection(config, config.width, "down", residual=True)(hidden)
