"""A run's folder: who may write into it, which config it belongs to, and how to read it back."""

import dataclasses
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any
from typing import Self

import ml_collections

from dlm_jax.cli.overrides import flatten
from dlm_jax.config import with_defaults

CONFIG = "config.json"
LOCK = "run.lock"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"

_FILES = (CONFIG, METRICS, "loss.png", "samples.txt", "data.json")
_FOLDERS = (CHECKPOINTS, "tokenizer", "tensorboard")
_FREE = ("evaluation.", "sampling.")
_FREE_KEYS = (
    "training.log_every",
    "training.checkpoint_every",
    "training.keep",
    "training.tensorboard",
)


@dataclasses.dataclass
class Workdir:
    """A folder that one process trains in; a context manager that holds its lock.

    Attributes:
      path: the folder.
      resumed: whether it held a run of this config already.
    """

    path: Path
    resumed: bool = False
    _lock: Any = None

    @classmethod
    def claim(
        cls, path: str | Path, config: ml_collections.ConfigDict, *, restart: bool = False
    ) -> Self:
        """Make or re-enter the folder of a config, before anything slow starts.

        Args:
          path: the folder.
          config: with its defaults filled in.
          restart: throw away the run that is there.

        Raises:
          ValueError: if the folder cannot be written, is in use, belongs to another config, or
            holds files that are no run.
        """
        work = cls(Path(path))
        work._lock = _lock(work.path)
        try:
            if restart:
                work._clear()
            work.resumed = (work.path / CONFIG).is_file()
            if work.resumed:
                _check_same(work.path, read_config(work.path), config)
            elif strange := sorted(p.name for p in work.path.iterdir() if p.name != LOCK):
                raise ValueError(
                    f"--workdir={path} holds {strange[0]!r} but no {CONFIG}, so it is no run of "
                    "ours; choose a new or empty folder"
                )
            write_text(work.path / CONFIG, json.dumps(config.to_dict(), indent=2) + "\n")
        except BaseException:
            work.release()
            raise
        return work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Let another process in."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)


def read_config(path: Path) -> ml_collections.ConfigDict:
    """The config of the run in a folder.

    Raises:
      ValueError: if there is none, or it is damaged.
    """
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"--workdir={path} holds no {CONFIG}; train a model there first")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is damaged ({error}); restore it or start anew") from error
    return with_defaults(ml_collections.ConfigDict(values))


def write_text(path: Path, text: str) -> None:
    """Replace a file in one go, so that a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _lock(path: Path) -> Any:
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = open(path / LOCK, "a+", encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"--workdir={path} cannot be written ({error.strerror}); choose a folder you own"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        handle.close()
        raise ValueError(
            f"--workdir={path} is in use by process {owner}; wait for it, or choose another folder"
        ) from error
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle


def _check_same(path: Path, old: ml_collections.ConfigDict, new: ml_collections.ConfigDict) -> None:
    before = json.loads(json.dumps(flatten(old)))
    after = json.loads(json.dumps(flatten(new)))
    differing = [
        key
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(_FREE) and key not in _FREE_KEYS
    ]
    if differing:
        key = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise ValueError(
            f"--workdir={path} belongs to another config: {key} is {before.get(key)!r} there and "
            f"{after.get(key)!r} here{more}; choose another folder, repeat the old settings, or "
            "throw the old run away with --restart"
        )
