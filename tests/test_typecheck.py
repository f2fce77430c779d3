"""The switch in conftest.py is on: a wrong shape or dtype stops at the library's own signature."""

import os

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from dlm_jax.processes import MaskedProcess

pytestmark = pytest.mark.skipif(
    os.environ.get("DLM_JAX_TYPECHECK", "1") != "1", reason="DLM_JAX_TYPECHECK=0"
)

PROCESS = MaskedProcess(vocab_size=5, mask_id=4)


# Kills: a hook installed after dlm_jax was imported, or for the wrong modules.
def test_tokens_without_a_batch_axis_are_refused() -> None:
    tokens = jnp.zeros([8], jnp.int32)
    with pytest.raises(TypeCheckError, match="parameter .x_0."):
        PROCESS.corrupt(jax.random.key(0), tokens, jnp.zeros([8]))


# Kills: annotations checked one by one, so that B may differ between arguments.
def test_two_sizes_of_one_dimension_letter_are_refused() -> None:
    tokens = jnp.zeros([2, 8], jnp.int32)
    with pytest.raises(TypeCheckError, match="parameter .t."):
        PROCESS.corrupt(jax.random.key(0), tokens, jnp.zeros([3]))


# Kills: shapes checked without dtypes.
def test_tokens_of_a_float_dtype_are_refused() -> None:
    tokens = jnp.zeros([2, 8], jnp.float32)
    with pytest.raises(TypeCheckError, match="parameter .x_0."):
        PROCESS.corrupt(jax.random.key(0), tokens, jnp.zeros([2]))
