"""Models: pure functions from parameters and arrays to predictions; nothing here knows diffusion."""

from dlm_jax.models.attention import allowed_pairs
from dlm_jax.models.attention import attention
from dlm_jax.models.config import TransformerConfig
from dlm_jax.models.transformer import Transformer

__all__ = ["Transformer", "TransformerConfig", "allowed_pairs", "attention"]
