"""One train step for every objective."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dlm_jax.training.objectives import Batch
from dlm_jax.training.objectives import LossSums
from dlm_jax.training.objectives import Objective
from dlm_jax.training.state import TrainState
from dlm_jax.training.state import update_ema
from dlm_jax.typing import Array
from dlm_jax.typing import PRNGKey

TIME_BINS = 10
"""Equal bins of diffusion time in which the loss is reported."""

Metrics = dict[str, Array]
TrainStep = Callable[[TrainState, Batch, PRNGKey], tuple[TrainState, Metrics]]


def make_train_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    *,
    accumulation: int = 1,
    ema_decay: float | None = None,
    dropout: bool = False,
    learning_rate: optax.Schedule | None = None,
) -> TrainStep:
    """Build the jit-compiled step: noise, gradients, clipping, update, average.

    Args:
      objective: what to minimise.
      optimizer: optax transformation.
      accumulation: number of microbatches whose summed gradients make one update. The noise is
        that of the whole batch, so the update is the large batch's.
      ema_decay: decay of the parameter average; None if the state holds none.
      dropout: run the network with dropout.
      learning_rate: only for the metric of that name.

    Returns:
      (state, batch, key) -> (state, metrics). The state is donated. The key is the run's; the step
      folds its own number into it. Metrics are float32 scalars: ``loss`` in nats per scored token,
      ``grad_norm`` before clipping, ``tokens``, ``finite`` (0 or 1), and two vectors by time bin.
      A step whose loss or gradient is not finite leaves the state as it was.
    """

    def step(state: TrainState, batch: Batch, key: PRNGKey) -> tuple[TrainState, Metrics]:
        step_key = jax.random.fold_in(key, state.step)
        key_noise, key_dropout = jax.random.split(step_key)
        noised = objective.corrupt(key_noise, batch)
        dropout_key = key_dropout if dropout else None
        grads, sums = _accumulate(objective, state.params, noised, dropout_key, accumulation)
        grads = jax.tree.map(lambda grad: grad / jnp.maximum(sums.weight, 1.0), grads)
        grad_norm = optax.tree.norm(grads)
        loss = sums.total / jnp.maximum(sums.weight, 1.0)
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        moved = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            ema=update_ema(state.ema, params, state.step, ema_decay or 0.0),
        )
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        metrics = {
            "loss": loss,
            "grad_norm": grad_norm,
            "tokens": sums.weight,
            "finite": finite.astype(jnp.float32),
            **_by_time(sums),
        }
        if learning_rate is not None:
            metrics["learning_rate"] = jnp.asarray(learning_rate(state.step), jnp.float32)
        return kept, metrics

    return jax.jit(step, donate_argnums=0)


def _accumulate(
    objective: Objective,
    params: dict,
    noised: Any,
    dropout_key: PRNGKey | None,
    accumulation: int,
) -> tuple[dict, LossSums]:
    """Gradient of the summed loss, over microbatches in a scan."""

    def total(params: dict, rows: Any, key: PRNGKey | None) -> tuple[Array, LossSums]:
        sums = objective.loss(params, rows, key)
        return sums.total, sums

    gradient = jax.grad(total, has_aux=True)
    if accumulation == 1:
        return gradient(params, noised, dropout_key)

    def split(leaf: Array) -> Array:
        if leaf.shape[0] % accumulation:
            raise ValueError(
                f"batch of {leaf.shape[0]} rows does not divide by accumulation={accumulation}; "
                "use a multiple"
            )
        return leaf.reshape(accumulation, -1, *leaf.shape[1:])

    def body(grads: dict, microbatch: tuple[Array, Any]) -> tuple[dict, LossSums]:
        index, rows = microbatch
        # Each microbatch drops other units: one key for all would repeat the same noise.
        key = None if dropout_key is None else jax.random.fold_in(dropout_key, index)
        more, sums = gradient(params, rows, key)
        return jax.tree.map(jnp.add, grads, more), sums

    zeros = jax.tree.map(jnp.zeros_like, params)
    stacked = (jnp.arange(accumulation), jax.tree.map(split, noised))
    grads, sums = jax.lax.scan(body, zeros, stacked)
    return grads, LossSums(
        total=sums.total.sum(),
        weight=sums.weight.sum(),
        row_nats=sums.row_nats.reshape(-1),
        row_tokens=sums.row_tokens.reshape(-1),
        time=sums.time.reshape(-1),
    )


def _by_time(sums: LossSums) -> Metrics:
    """Nats and scored tokens summed in each bin of time; their quotient is the loss there."""
    bins = jnp.clip((sums.time * TIME_BINS).astype(jnp.int32), 0, TIME_BINS - 1)
    zeros = jnp.zeros((TIME_BINS,), jnp.float32)
    return {
        "nats_by_time": zeros.at[bins].add(sums.row_nats),
        "tokens_by_time": zeros.at[bins].add(sums.row_tokens),
    }
