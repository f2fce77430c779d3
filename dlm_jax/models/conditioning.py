"""Conditioning on the diffusion time: sinusoidal features, and adaptive layer norm."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Float

from dlm_jax.models.config import TransformerConfig
from dlm_jax.typing import Array
from dlm_jax.typing import Time


def time_features(t: Time, width: int) -> Float[Array, "B E"]:
    """Sines and cosines of 1000 t at geometrically spaced frequencies from 1 to 1/10000.

    Source: Ho et al. 2020, "Denoising Diffusion Probabilistic Models", appendix B (the transformer
    position encoding), with continuous time stretched to its 1000 steps.
    """
    half = width // 2
    frequencies = jnp.exp(-math.log(10_000.0) * jnp.arange(half, dtype=jnp.float32) / half)
    angle = 1000.0 * t[:, None].astype(jnp.float32) * frequencies
    return jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=-1)


class TimeEmbedding(nn.Module):
    """Two-layer network from time features to the model width."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, t: Time) -> Float[Array, "B D"]:
        """Embed each row's time."""
        features = time_features(t, self.config.time_features)
        hidden = nn.silu(nn.Dense(self.config.width, name="up")(features))
        return nn.Dense(self.config.width, name="down")(hidden)


class Modulation(nn.Module):
    """Shift, scale and gate of one residual branch; starts as shift 0, scale 1, gate 1.

    Source: Peebles and Xie 2023, "Scalable Diffusion Models with Transformers" (adaLN). Unlike
    adaLN-Zero the gate starts open, so imported weights keep their function.
    """

    config: TransformerConfig

    @nn.compact
    def __call__(self, condition: Float[Array, "B D"] | None) -> tuple[Array, Array, Array]:
        """Return (shift, scale, gate), each [B, 1, D], or scalars that do nothing."""
        if condition is None:
            return jnp.zeros(()), jnp.ones(()), jnp.ones(())
        width = self.config.width
        raw = nn.Dense(3 * width, kernel_init=nn.initializers.zeros, name="dense")(
            nn.silu(condition)
        )
        shift, scale, gate = jnp.split(raw[:, None, :], 3, axis=-1)
        return shift, 1 + scale, 1 + gate
