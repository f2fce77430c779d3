"""What lies in a folder of checkpoints, read without orbax."""

import itertools
import json
import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

from dlm_jax.checkpoints.errors import CheckpointError
from dlm_jax.checkpoints.seal import SEAL
from dlm_jax.checkpoints.seal import read_seal

_LOGGER = logging.getLogger(__name__)

STATE, DATA, META = "state", "data", "meta"
"""Parts of a checkpoint."""

_FILES = (SEAL, f"{STATE}/_METADATA", f"{DATA}/metadata", f"{META}/metadata")


def make(directory: Path) -> None:
    """Make a folder that can be written.

    Raises:
      CheckpointError: if it cannot.
    """
    probe = directory / f".writable-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"{directory} cannot be written ({error.strerror}); choose a folder you own"
        ) from error


def check_space(directory: Path, step: int, size: int) -> None:
    """Refuse to begin what the disk cannot hold; half of it would only fill the disk.

    Args:
      directory: of the checkpoints.
      step: number of the checkpoint.
      size: bytes of its arrays.

    Raises:
      CheckpointError: naming both sizes.
    """
    free = shutil.disk_usage(directory).free
    if free < size:
        steps = complete_steps(directory)
        older = f"checkpoint {steps[-1]} is still usable" if steps else "none is usable yet"
        raise CheckpointError(
            f"step {step} needs {size / 1e6:,.1f} MB and the disk of {directory} has "
            f"{free / 1e6:,.1f} MB left; {older}. Free disk space and start again from there"
        )


def set_incomplete_aside(directory: Path) -> None:
    """Rename half-written step folders, which orbax would take for checkpoints."""
    for step in sorted(set(numbered(directory)) - set(complete_steps(directory))):
        names = (f"incomplete-{step}" + (f"-{n}" if n else "") for n in itertools.count())
        aside = next(directory / name for name in names if not (directory / name).exists())
        (directory / str(step)).rename(aside)
        _LOGGER.warning("the checkpoint of step %d is incomplete; moved it to %s", step, aside)


def numbered(directory: Path) -> list[int]:
    """Numbers of the step folders, complete or not, rising."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if name.isdecimal() and str(int(name)) == name)


def complete_steps(directory: Path) -> list[int]:
    """Numbers of the checkpoints that were written to the end, rising.

    An empty step folder, which orbax takes for the latest checkpoint, is none.
    """
    return [step for step in numbered(directory) if _complete(directory / str(step))]


def best_step(directory: Path, metric: str | None) -> int | None:
    """The checkpoint whose saved metric is lowest, the newest among equals; None if none has it."""
    saved = {step: read_metrics(directory, step) for step in complete_steps(directory)}
    return best_of(saved, metric)


def best_of(saved: dict[int, dict[str, float]], metric: str | None) -> int | None:
    """The step with the lowest finite value of a metric, the newest among equals."""
    values = {step: metrics.get(metric, math.nan) for step, metrics in saved.items() if metric}
    finite = {step: value for step, value in values.items() if math.isfinite(value)}
    return min(finite, key=lambda step: (finite[step], -step), default=None)


def pick_step(directory: Path, step: int | None) -> int:
    """The asked-for or the newest complete checkpoint.

    Raises:
      CheckpointError: if there is none.
    """
    steps = complete_steps(directory)
    if not steps:
        raise CheckpointError(
            f"{directory} holds no complete checkpoint; train a model first, or name the folder "
            "of one that was trained"
        )
    if step is None:
        return steps[-1]
    if step not in steps:
        raise CheckpointError(
            f"{directory} holds no complete checkpoint of step {step}; choose one of {steps}"
        )
    return step


def read_metrics(directory: Path, step: int) -> dict[str, float]:
    """The metrics saved with a checkpoint.

    Raises:
      CheckpointError: if they cannot be read.
    """
    try:
        return read_seal(directory / str(step))["metrics"]
    except ValueError as error:
        raise CheckpointError(damaged(directory, step, str(error))) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
      ValueError: if the file does not hold one.
    """
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds no JSON object")
    return value


def check_json(name: str, value: dict) -> None:
    """Refuse what JSON would give back as something else.

    Raises:
      CheckpointError: for anything but a dict of JSON values.
    """
    try:
        same = isinstance(value, dict) and json.loads(json.dumps(value)) == value
    except TypeError as error:
        raise CheckpointError(f"{name} must hold JSON values only: {error}") from error
    if not same:
        raise CheckpointError(
            f"{name} must be a dict of JSON values (lists, text keys, no NaN) to come back the "
            f"same, got {value!r:.200}"
        )


def damaged(directory: Path, step: int, reason: str) -> str:
    """Message for a checkpoint that cannot be read."""
    others = [other for other in complete_steps(directory) if other != step]
    advice = (
        f"steps {others} are usable: move {step} away to go on from step {others[-1]}"
        if others
        else "there is no other checkpoint to go back to"
    )
    return f"{directory / str(step)} is damaged ({reason}); {advice}"


def _complete(path: Path) -> bool:
    return all((path / name).is_file() and (path / name).stat().st_size for name in _FILES)
