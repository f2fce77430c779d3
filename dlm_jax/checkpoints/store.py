"""The checkpoints of a run: asynchronous, atomic, and refused with the reason when they do not fit.

Orbax writes and reads them. Four of its habits are guarded against: a refused save returns False,
an empty step folder counts as the latest one, dtypes are cast on restore, and arrays have
no checksum.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import Self

import jax
import orbax.checkpoint as ocp

from dlm_jax.checkpoints import folder
from dlm_jax.checkpoints import leaves
from dlm_jax.checkpoints.errors import CheckpointError
from dlm_jax.checkpoints.errors import Quiet
from dlm_jax.checkpoints.errors import explained
from dlm_jax.checkpoints.seal import check_seal
from dlm_jax.checkpoints.seal import replace_metrics
from dlm_jax.checkpoints.seal import write_seal

_LOGGER = logging.getLogger(__name__)


class Restored(NamedTuple):
    """What a checkpoint holds.

    Attributes:
      state: pytree like the one asked for.
      data: position in the data.
      meta: facts about the run.
      step: number of the checkpoint.
    """

    state: Any
    data: dict
    meta: dict
    step: int


class CheckpointStore:
    """The checkpoints of one run, for the one job that writes them; a context manager.

    Args:
      directory: made if it does not exist.
      keep: newest checkpoints that are kept.
      best_metric: metric, lower is better, by which one more is kept.

    Raises:
      CheckpointError: if the directory cannot be written.
    """

    def __init__(
        self, directory: str | Path, *, keep: int = 3, best_metric: str | None = None
    ) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep} must be at least 1, or no run could be resumed")
        self._directory = Path(directory).absolute()
        self._keep = keep
        self._best_metric = best_metric
        self._saving: int | None = None
        self._closed = False
        folder.make(self._directory)
        if jax.process_index() == 0:
            folder.set_incomplete_aside(self._directory)
        self._metrics = {step: folder.read_metrics(self._directory, step) for step in self.steps()}
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,
            cleanup_tmp_directories=True,
            lightweight_initialize=True,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._seal,
                # Else a save that fails early can leave a thread that never lets the process end.
                create_directories_asynchronously=False,
            ),
        )
        self._quiet = Quiet()
        self._manager = ocp.CheckpointManager(
            self._directory, item_names=(folder.STATE, folder.DATA, folder.META), options=options
        )

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, rising."""
        return folder.complete_steps(self._directory)

    def latest(self) -> int | None:
        """The newest complete checkpoint."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The complete checkpoint with the lowest metric, None if none has it."""
        return folder.best_step(self._directory, self._best_metric)

    def save(
        self,
        step: int,
        state: Any,
        *,
        data: dict,
        meta: dict,
        metrics: dict[str, float] | None = None,
        wait: bool = False,
    ) -> None:
        """Write a checkpoint in the background.

        The arrays have been copied off the device when this returns, so they may be donated.

        Args:
          step: greater than every saved one.
          state: pytree of arrays.
          data: position in the data, JSON values.
          meta: facts about the run, JSON values.
          metrics: validation metrics of this state.
          wait: return only when the checkpoint is on disk.

        Raises:
          TypeError: if ``state`` holds what is no array.
          ValueError: if ``state`` holds an array that was donated, or that JAX would cast.
          CheckpointError: if the step is not new, or this or the previous save failed.
        """
        self.wait()
        newest = self.latest()
        if step < 0 or (newest is not None and step <= newest):
            raise CheckpointError(
                f"step {step} cannot be saved in {self._directory}: it must be greater than the "
                f"saved steps {self.steps()}; restore the newest first, or choose another folder"
            )
        saved = leaves.writable(state)
        folder.check_space(self._directory, step, sum(leaf.nbytes for leaf in saved.values()))
        folder.check_json("data", data)
        folder.check_json("meta", meta)
        values = {name: float(value) for name, value in (metrics or {}).items()}

        def start() -> None:
            items = {
                folder.STATE: ocp.args.StandardSave(leaves.plain(saved)),
                folder.DATA: ocp.args.JsonSave(data),
                folder.META: ocp.args.JsonSave(meta),
            }
            if not self._manager.save(step, args=ocp.args.Composite(**items)):
                raise CheckpointError(f"orbax refused to save step {step} in {self._directory}")

        self._saving, self._metrics[step] = step, values
        self._attempt(step, start)
        if wait:
            self.wait()

    def set_metrics(self, step: int, metrics: dict[str, float]) -> None:
        """Give a saved checkpoint its metrics, when it was scored after it was written.

        Raises:
          CheckpointError: if there is no such complete checkpoint.
        """
        self.wait()
        folder.pick_step(self._directory, step)
        values = {name: float(value) for name, value in metrics.items()}
        if jax.process_index() == 0:
            replace_metrics(self._directory / str(step), values)
        self._metrics[step] = values

    def restore(self, like: Any, step: int | None = None) -> Restored:
        """Read a checkpoint into the structure, shapes and dtypes of ``like``.

        Args:
          like: pytree of arrays or of ``jax.ShapeDtypeStruct``. Shardings are kept; a leaf without
            one goes to the first device.
          step: None for the newest complete one.

        Raises:
          CheckpointError: if there is none, it is damaged, or it is of another run.
        """
        self.wait()
        step = folder.pick_step(self._directory, step)
        wanted = leaves.abstract(like)
        path = self._directory / str(step)

        def read() -> Restored:
            check_seal(path)
            data = folder.read_json(path / folder.DATA / "metadata")
            meta = folder.read_json(path / folder.META / "metadata")
            leaves.check_fits(path / folder.STATE, wanted)
            with ocp.StandardCheckpointer() as checkpointer:
                state = checkpointer.restore(path / folder.STATE, leaves.plain(wanted))
            return Restored(leaves.rebuild(like, state), data, meta, step)

        return explained(read, lambda cause: folder.damaged(self._directory, step, cause))

    def wait(self) -> None:
        """Wait until the background save is on disk.

        Raises:
          CheckpointError: if it failed, once; older checkpoints stay usable.
        """
        if self._closed:
            raise CheckpointError(f"the store of {self._directory} is closed; open a new one")
        if self._saving is not None:
            self._attempt(self._saving, self._manager.wait_until_finished)
            self._saving = None

    def close(self) -> None:
        """Finish the background save and free the threads.

        Raises:
          CheckpointError: if that save failed.
        """
        if self._closed:
            return
        try:
            self.wait()
        finally:
            self._closed = True
            self._manager.close()
            self._quiet.remove()

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Which checkpoints stay; orbax asks when it has accepted a new one."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        saved = {step: self._metrics.get(step, {}) for step in steps}
        best = folder.best_of(saved, self._best_metric)
        return [step in steps[-self._keep :] or step == best for step in steps]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except CheckpointError as failure:
            if error is None:
                raise
            # The error that ended the run must reach the user, and this one beside it.
            error.add_note(str(failure))
            _LOGGER.error("%s", failure)

    def _seal(self) -> None:
        """Called by orbax's thread when all files are written, before the step gets its name."""
        assert self._saving is not None
        write_seal(self._directory, str(self._saving), self._metrics[self._saving])

    def _attempt(self, step: int, action: Any) -> None:
        def explain(cause: str) -> str:
            usable = self.steps()
            older = f"checkpoint {usable[-1]} is still usable" if usable else "none is usable yet"
            return (
                f"saving step {step} in {self._directory} failed: {cause}; {older}. Mend the cause "
                "(free disk space, if the disk is full) and start again from there"
            )

        try:
            explained(action, explain)
        except CheckpointError:
            self._saving = None
            self._metrics.pop(step, None)
            # Orbax has forgotten the checkpoints that it would have removed after this one.
            self._manager.reload()
            raise
