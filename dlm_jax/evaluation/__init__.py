"""Evaluation: bounds on the likelihood with standard errors, and baselines."""

from dlm_jax.evaluation.baselines import gzip_bits_per_byte
from dlm_jax.evaluation.baselines import unigram_bits_per_byte
from dlm_jax.evaluation.bounds import Bound
from dlm_jax.evaluation.bounds import estimate_bound
from dlm_jax.evaluation.bounds import make_masked_row_nats

__all__ = [
    "Bound",
    "estimate_bound",
    "gzip_bits_per_byte",
    "make_masked_row_nats",
    "unigram_bits_per_byte",
]
