"""Parameters alone: read out of a training checkpoint, or exported and loaded by themselves."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from dlm_jax.checkpoints.store import CheckpointError
from dlm_jax.checkpoints.store import best_step
from dlm_jax.checkpoints.store import check_fits
from dlm_jax.checkpoints.store import pick_step
from dlm_jax.checkpoints.store import quiet
from dlm_jax.checkpoints.store import reading


def restore_params(
    directory: str | Path,
    like: Any,
    *,
    step: int | str = "latest",
    ema: bool = True,
    best_metric: str = "nats_per_token",
) -> Any:
    """Read the parameters of a training checkpoint and nothing else of it.

    Args:
      directory: folder of the checkpoints.
      like: parameters, or their ``jax.ShapeDtypeStruct``s.
      step: ``latest``, ``best`` or a number.
      ema: the averaged parameters instead of the raw ones.
      best_metric: what ``best`` means; lower is better.

    Raises:
      CheckpointError: if there is no such checkpoint, it is damaged, or it does not fit.
    """
    directory = Path(directory).absolute()
    if step == "best":
        chosen = best_step(directory, best_metric)
        if chosen is None:
            raise CheckpointError(
                f"no checkpoint in {directory} was evaluated, so none is the best; use latest"
            )
    else:
        chosen = pick_step(directory, None if step == "latest" else int(step))
    path = directory / str(chosen) / "state"
    name = "ema" if ema else "params"
    with reading(directory, chosen), quiet():
        check_fits(path, {name: like}, inside=(name,))
        with ocp.PyTreeCheckpointer() as checkpointer:
            wanted = {name: like}
            restored = checkpointer.restore(
                path,
                args=ocp.args.PyTreeRestore(
                    item=wanted,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
                    partial_restore=True,
                ),
            )
    return restored[name]


def export_params(params: Any, path: str | Path) -> None:
    """Write parameters by themselves, whole or not at all.

    Raises:
      CheckpointError: if the path exists already.
    """
    target = Path(path).absolute()
    if target.exists():
        raise CheckpointError(f"{path} exists already; choose a new path")
    with quiet(), ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(target, params)
        checkpointer.wait_until_finished()


def load_params(path: str | Path, like: Any) -> Any:
    """Read exported parameters.

    Raises:
      CheckpointError: if there are none, or they do not fit ``like``.
    """
    target = Path(path).absolute()
    if not (target / "_METADATA").is_file():
        raise CheckpointError(f"{path} holds no exported parameters")
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)
    with quiet(), ocp.StandardCheckpointer() as checkpointer:
        check_fits(target, abstract)
        return checkpointer.restore(target, abstract)
