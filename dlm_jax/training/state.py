"""The state of training: one pytree that a step maps to the next and a checkpoint holds."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int

from dlm_jax.typing import Array

Params = dict[str, Any]


@flax.struct.dataclass
class TrainState:
    """Everything that changes during training except the position in the data.

    Attributes:
      step: optimiser steps done.
      params: parameters, float32.
      opt_state: optimiser state.
      ema: exponential moving average of the parameters, or None. A side copy: training never
        reads it.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    ema: Params | None


def init_state(params: Params, optimizer: optax.GradientTransformation, *, ema: bool) -> TrainState:
    """State before the first step. The average is a copy, so that donating it is safe."""
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        opt_state=optimizer.init(params),
        ema=jax.tree.map(jnp.copy, params) if ema else None,
    )


def update_ema(ema: Params | None, params: Params, step: Array, decay: float) -> Params | None:
    """Move the average towards the parameters.

    The decay rises as (1 + step) / (10 + step) up to ``decay``, so early averages are not noise.
    """
    if ema is None:
        return None
    rate = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda old, new: rate * old + (1 - rate) * new, ema, params)
