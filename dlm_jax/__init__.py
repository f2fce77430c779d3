"""dlm_jax: diffusion language models in JAX, from a laptop to TPU pods and GPU clusters."""

__version__ = "0.1.0"
