"""Checkpoints on disk: asynchronous, atomic, and refused with the reason when they do not fit.

Orbax writes and reads them. Three of its habits are guarded against here: a refused save returns
False, an empty step folder counts as the latest one, and dtypes are cast on restore.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from typing import NamedTuple
from typing import Self

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers

_STATE, _DATA, _META = "state", "data", "meta"
_COMPLETE = (
    "_CHECKPOINT_METADATA",
    f"{_STATE}/_METADATA",
    f"{_DATA}/metadata",
    f"{_META}/metadata",
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, or read, or does not fit."""


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
    """The checkpoints of one run; a context manager.

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
        self._directory = Path(directory).absolute()
        self._best_metric = best_metric
        self._saving: int | None = None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            probe = self._directory / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CheckpointError(
                f"{directory} cannot be written ({error.strerror}); choose a folder you own"
            ) from error
        policies: list[Any] = [checkpoint_managers.LatestN(keep)]
        if best_metric is not None:
            policies.append(
                checkpoint_managers.BestN(
                    get_metric_fn=lambda metrics: -metrics[best_metric],
                    n=1,
                    keep_checkpoints_without_metrics=False,
                )
            )
        for step in sorted(set(_numbered(self._directory)) - set(self.steps())):
            # Half-written: out of the way, or orbax would take it for the latest.
            broken = self._directory / str(step)
            broken.rename(self._directory / f"incomplete-{step}")
        with quiet():
            self._manager = ocp.CheckpointManager(
                self._directory,
                item_names=(_STATE, _DATA, _META),
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
                    best_fn=lambda metrics: -metrics[best_metric] if best_metric else 0.0,
                    cleanup_tmp_directories=True,
                ),
            )

    def steps(self) -> list[int]:
        """Numbers of the complete checkpoints, rising."""
        return complete_steps(self._directory)

    def latest(self) -> int | None:
        """The newest complete checkpoint."""
        return max(self.steps(), default=None)

    def best(self) -> int | None:
        """The checkpoint with the lowest metric, None if none has it."""
        return best_step(self._directory, self._best_metric)

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
          CheckpointError: if the step is not new, or this or the previous save failed.
        """
        self.wait()
        newest = self.latest()
        if newest is not None and step <= newest:
            raise CheckpointError(
                f"step {step} is not newer than the saved step {newest} in {self._directory}"
            )
        facts = {**meta, "metrics": metrics or {}}
        items = ocp.args.Composite(
            **{
                _STATE: ocp.args.StandardSave(state),
                _DATA: ocp.args.JsonSave(data),
                _META: ocp.args.JsonSave(facts),
            }
        )
        self._saving = step
        with self._explained(step), quiet():
            if not self._manager.save(step, args=items, metrics=metrics):
                raise CheckpointError(f"orbax refused to save step {step} in {self._directory}")
        if wait:
            self.wait()

    def restore(self, like: Any, step: int | None = None) -> Restored:
        """Read a checkpoint into the structure, shapes and dtypes of ``like``.

        Args:
          like: pytree of arrays or of ``jax.ShapeDtypeStruct``; shardings are kept.
          step: None for the newest complete one.

        Raises:
          CheckpointError: if there is none, it is damaged, or it is of another run.
        """
        self.wait()
        step = pick_step(self._directory, step)
        abstract = jax.tree.map(_abstract, like)
        path = self._directory / str(step)
        with reading(self._directory, step), quiet():
            data = json.loads((path / _DATA / "metadata").read_text(encoding="utf-8"))
            meta = json.loads((path / _META / "metadata").read_text(encoding="utf-8"))
            check_fits(path / _STATE, abstract)
            with ocp.StandardCheckpointer() as checkpointer:
                state = checkpointer.restore(path / _STATE, abstract)
        return Restored(state, data, meta, step)

    def wait(self) -> None:
        """Wait until the background save is on disk.

        Raises:
          CheckpointError: if it failed; older checkpoints stay usable.
        """
        if self._saving is not None:
            step, self._saving = self._saving, None
            with self._explained(step), quiet():
                self._manager.wait_until_finished()
                self._manager.check_for_errors()

    def close(self) -> None:
        """Finish the background save and free the threads."""
        try:
            self.wait()
        finally:
            with quiet():
                self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _explained(self, step: int) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except (ValueError, OSError, RuntimeError, KeyError) as error:
            self._saving = None
            usable = self.steps()
            older = f"steps {usable} stay usable" if usable else "no older checkpoint exists"
            raise CheckpointError(
                f"saving step {step} in {self._directory} failed: {_first_line(error)}; {older}. "
                "Free some disk space or choose another workdir, then run the same command again"
            ) from error


def complete_steps(directory: Path) -> list[int]:
    """Numbers of the checkpoints in a folder that were written to the end, rising."""
    return sorted(
        step
        for step in _numbered(directory)
        if all((directory / str(step) / name).is_file() for name in _COMPLETE)
    )


def best_step(directory: Path, metric: str | None) -> int | None:
    """The complete checkpoint whose saved metric is lowest, None if none has it."""
    values: dict[int, float] = {}
    for step in complete_steps(directory):
        text = (directory / str(step) / _META / "metadata").read_text(encoding="utf-8")
        metrics = json.loads(text).get("metrics", {})
        if metric in metrics:
            values[step] = metrics[metric]
    return min(values, key=lambda step: values[step], default=None)


def pick_step(directory: Path, step: int | None) -> int:
    """The asked-for or the newest complete checkpoint.

    Raises:
      CheckpointError: if there is none.
    """
    steps = complete_steps(directory)
    if not steps:
        raise CheckpointError(f"{directory} holds no complete checkpoint; train a model first")
    if step is None:
        return steps[-1]
    if step not in steps:
        raise CheckpointError(f"{directory} holds no checkpoint of step {step}; it has {steps}")
    return step


def check_fits(path: Path, like: Any, *, inside: tuple[str, ...] = ()) -> None:
    """Compare saved leaves with wanted ones before anything is read.

    Args:
      path: an orbax folder.
      like: wanted pytree.
      inside: look only at these branches of what is saved; empty for all.

    Raises:
      CheckpointError: naming the first leaf that differs and how.
    """
    with ocp.StandardCheckpointer() as checkpointer:
        saved_tree = checkpointer.metadata(path).item_metadata.tree
    saved = {_name(p): leaf for p, leaf in jax.tree_util.tree_flatten_with_path(saved_tree)[0]}
    if inside:
        saved = {name: leaf for name, leaf in saved.items() if name.split(".")[0] in inside}
    wanted = {_name(p): leaf for p, leaf in jax.tree_util.tree_flatten_with_path(like)[0]}
    for name in sorted(saved.keys() | wanted.keys()):
        if name not in wanted:
            reason = f"it holds {name}, which this run does not have"
        elif name not in saved:
            reason = f"it lacks {name}"
        else:
            have = (tuple(saved[name].shape), str(saved[name].dtype))
            want = (tuple(wanted[name].shape), str(wanted[name].dtype))
            if have == want:
                continue
            reason = f"{name} is {have[1]}{list(have[0])} there and {want[1]}{list(want[0])} here"
        raise CheckpointError(
            f"{path.parent} is a checkpoint of another run: {reason}; use the config it was made "
            "with, or another workdir"
        )


@contextmanager
def reading(directory: Path, step: int) -> Iterator[None]:
    """Turn whatever a damaged checkpoint makes the reader raise into one clear error."""
    try:
        yield
    except CheckpointError:
        raise
    except (ValueError, OSError, RuntimeError, KeyError, TypeError, AttributeError) as error:
        others = [other for other in complete_steps(directory) if other != step]
        advice = f"try step {others[-1]}" if others else "there is no other checkpoint"
        raise CheckpointError(
            f"{directory / str(step)} is damaged ({_first_line(error)}); {advice}, and move the "
            "damaged folder away"
        ) from error


def _numbered(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return [int(p.name) for p in directory.iterdir() if p.name.isdigit() and p.is_dir()]


def _abstract(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _name(path: tuple) -> str:
    """Dotted name of a leaf, the same for a saved tree of dicts and a live one of dataclasses."""
    parts = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))) for key in path)
    return ".".join(str(part) for part in parts)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep orbax's notes off the terminal, for as long as it is at work here."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
