"""Models: pure functions from parameters and arrays to predictions, ignorant of diffusion."""

from dlm_jax.models.attention import allowed_pairs
from dlm_jax.models.attention import attention
from dlm_jax.models.config import TransformerConfig
from dlm_jax.models.cross_entropy import weighted_cross_entropy
from dlm_jax.models.transformer import Transformer

__all__ = [
    "Transformer",
    "TransformerConfig",
    "allowed_pairs",
    "attention",
    "weighted_cross_entropy",
]
