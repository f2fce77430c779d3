"""Diffusion processes as pure functions, and the times that training looks at."""

from dlm_jax.processes.draws import categorical
from dlm_jax.processes.draws import categorical_by_row
from dlm_jax.processes.masked import MaskedProcess
from dlm_jax.processes.times import SAMPLERS
from dlm_jax.processes.times import TimeSampler
from dlm_jax.processes.times import make_sampler
from dlm_jax.processes.times import sample_times
from dlm_jax.processes.weights import WEIGHTINGS
from dlm_jax.processes.weights import Weighting
from dlm_jax.processes.weights import loss_weight

__all__ = [
    "SAMPLERS",
    "WEIGHTINGS",
    "MaskedProcess",
    "TimeSampler",
    "Weighting",
    "categorical",
    "categorical_by_row",
    "loss_weight",
    "make_sampler",
    "sample_times",
]
