"""Parameters alone: read out of a training checkpoint, or exported and loaded by themselves."""

from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from dlm_jax.checkpoints import folder
from dlm_jax.checkpoints import leaves
from dlm_jax.checkpoints.errors import CheckpointError
from dlm_jax.checkpoints.errors import Quiet
from dlm_jax.checkpoints.errors import explained
from dlm_jax.checkpoints.seal import check_seal
from dlm_jax.checkpoints.seal import write_seal


def restore_params(
    directory: str | Path,
    like: Any,
    *,
    step: int | str | None = "latest",
    ema: bool = True,
    best_metric: str = "nats_per_token",
) -> Any:
    """Read the parameters of a training checkpoint and nothing else of it.

    Args:
      directory: folder of the checkpoints.
      like: parameters, or their ``jax.ShapeDtypeStruct``s; a leaf without sharding goes to the
        first device.
      step: ``latest``, ``best`` or a number.
      ema: the averaged parameters instead of the raw ones.
      best_metric: what ``best`` means; lower is better.

    Raises:
      CheckpointError: if there is no such checkpoint, it is damaged, or it does not fit.
    """
    directory = Path(directory).absolute()
    chosen = _choose(directory, step, best_metric)
    path = directory / str(chosen) / folder.STATE
    name = "ema" if ema else "params"
    wanted = leaves.abstract({name: like})

    def read() -> Any:
        check_seal(path.parent)
        leaves.check_fits(path, wanted, inside=name)
        tree = leaves.plain(wanted)
        with ocp.PyTreeCheckpointer() as checkpointer:
            restored = checkpointer.restore(
                path,
                args=ocp.args.PyTreeRestore(
                    item=tree,
                    restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
                    partial_restore=True,
                ),
            )
        return leaves.rebuild({name: like}, restored)[name]

    with Quiet():
        return explained(read, lambda cause: folder.damaged(directory, chosen, cause))


def export_params(params: Any, path: str | Path) -> None:
    """Write parameters by themselves, whole or not at all.

    Raises:
      CheckpointError: if the path exists already or cannot be written.
    """
    target = Path(path).absolute()
    if target.exists():
        raise CheckpointError(f"{path} exists already; choose a new path, or remove it first")
    saved = leaves.writable(params)

    def write() -> None:
        options = ocp.AsyncOptions(
            post_finalization_callback=lambda: write_seal(target.parent, target.name, {}),
            create_directories_asynchronously=False,
        )
        with ocp.StandardCheckpointer(async_options=options) as checkpointer:
            checkpointer.save(target, leaves.plain(saved))
            checkpointer.wait_until_finished()

    with Quiet():
        explained(write, lambda cause: f"{path} cannot be written: {cause}; choose another path")


def load_params(path: str | Path, like: Any) -> Any:
    """Read exported parameters.

    Args:
      path: where they were exported to.
      like: parameters, or their ``jax.ShapeDtypeStruct``s; a leaf without sharding goes to the
        first device.

    Raises:
      CheckpointError: if there are none, they are damaged, or they do not fit ``like``.
    """
    target = Path(path).absolute()
    if not (target / "_METADATA").is_file():
        raise CheckpointError(
            f"{path} holds no exported parameters; write them with export_params, or read a "
            "training checkpoint with restore_params"
        )
    wanted = leaves.abstract(like)

    def read() -> Any:
        check_seal(target)
        leaves.check_fits(target, wanted)
        with ocp.StandardCheckpointer() as checkpointer:
            params = checkpointer.restore(target, leaves.plain(wanted))
        return leaves.rebuild(like, params)

    with Quiet():
        return explained(read, lambda cause: f"{path} is damaged ({cause}); export it again")


def _choose(directory: Path, step: int | str | None, best_metric: str) -> int:
    if step == "best":
        best = folder.best_step(directory, best_metric)
        if best is None:
            raise CheckpointError(
                f"no checkpoint in {directory} has a {best_metric}, so none is the best; use latest"
            )
        return best
    if step is None or step == "latest":
        return folder.pick_step(directory, None)
    if isinstance(step, str):
        raise CheckpointError(f"step={step!r} must be 'latest', 'best' or a number")
    return folder.pick_step(directory, step)
