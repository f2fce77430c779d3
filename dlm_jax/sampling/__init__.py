"""Sampling: denoising loops, unmasking orders and logit filters."""

from dlm_jax.sampling.canvas import check_canvas
from dlm_jax.sampling.canvas import check_steps
from dlm_jax.sampling.canvas import make_canvas
from dlm_jax.sampling.filters import Filters
from dlm_jax.sampling.filters import check_filters
from dlm_jax.sampling.filters import draw_tokens
from dlm_jax.sampling.filters import filter_logits
from dlm_jax.sampling.orders import ORDERS
from dlm_jax.sampling.unmask import Sample
from dlm_jax.sampling.unmask import Trace
from dlm_jax.sampling.unmask import sample
from dlm_jax.schedules import time_grid

__all__ = [
    "ORDERS",
    "Filters",
    "Sample",
    "Trace",
    "check_canvas",
    "check_filters",
    "check_steps",
    "draw_tokens",
    "filter_logits",
    "make_canvas",
    "sample",
    "time_grid",
]
