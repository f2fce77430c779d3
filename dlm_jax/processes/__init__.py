"""Diffusion processes as pure functions, and the times that training looks at."""

from dlm_jax.processes.draws import categorical
from dlm_jax.processes.draws import categorical_by_row
from dlm_jax.processes.masked import MaskedProcess
from dlm_jax.processes.times import SAMPLERS
from dlm_jax.processes.times import TimeSampler
from dlm_jax.processes.times import make_sampler
from dlm_jax.processes.times import sample_times

__all__ = [
    "SAMPLERS",
    "MaskedProcess",
    "TimeSampler",
    "categorical",
    "categorical_by_row",
    "make_sampler",
    "sample_times",
]
