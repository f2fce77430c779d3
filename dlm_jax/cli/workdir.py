"""A run's folder: who may write into it, which config it belongs to, and how to read it back."""

import dataclasses
import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from typing import Self

import ml_collections

from dlm_jax.checkpoints import complete_steps
from dlm_jax.cli.overrides import flatten
from dlm_jax.config import with_defaults

CONFIG = "config.json"
LOCK = "run.lock"
CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
DATA = "data.json"

_OTHERS = (METRICS, "loss.png", "samples.txt", DATA, CHECKPOINTS, "tokenizer", "tensorboard")
_RUN = (*_OTHERS, CONFIG)
_MARKS = frozenset(("seed", "data", "model", "training"))
_REPLACED, _DISCARDED = ".replaced", ".discarded"
_TEMPORARY = re.compile(r"\.(.+\.(json|jsonl|png|txt)\.\d+|tokenizer\.new)")
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

    A run that ``restart`` replaces is only moved aside until :meth:`commit`, and comes back if the
    new one fails before that, or is killed.

    Attributes:
      path: the folder.
    """

    path: Path
    _lock: Any = None

    @classmethod
    def claim(
        cls, path: str | Path, config: ml_collections.ConfigDict, *, restart: bool = False
    ) -> Self:
        """Make or re-enter the folder of a config, before anything slow starts.

        A run of another config gives way if it has no checkpoint: nothing was learned yet.

        Args:
          path: the folder.
          config: with its defaults filled in.
          restart: replace the run that is there.

        Raises:
          ValueError: if the folder cannot be written, is in use, belongs to another config, or
            holds files that are no run.
        """
        work = cls(Path(path))
        work._lock = _lock(work.path)
        try:
            work._tidy()
            if (work.path / CONFIG).is_file():
                old = read_config(work.path)
                if restart:
                    work._move_aside()
                elif complete_steps(work.path / CHECKPOINTS):
                    _check_same(work.path, old, config)
                elif _differing(old, config):
                    work._clear()
            elif strange := sorted(p.name for p in work.path.iterdir() if p.name != LOCK):
                raise ValueError(
                    f"--workdir={path} holds {strange[0]!r} but no {CONFIG}, so it is no run of "
                    "ours; choose a new or empty folder"
                )
            write_text(work.path / CONFIG, json.dumps(config.to_dict(), indent=2) + "\n")
        except BaseException:
            work.__exit__()
            raise
        return work

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Bring back a run whose replacement did not come to :meth:`commit`; unlock."""
        if self._lock is not None:
            self._tidy()
            self._lock.close()
            self._lock = None

    def commit(self) -> None:
        """Delete the run that was moved aside: the new one is about to train."""
        aside, discarded = self.path / _REPLACED, self.path / _DISCARDED
        if aside.is_dir():
            aside.rename(discarded)
            _remove(discarded)

    def _tidy(self) -> None:
        """Undo what a killed or failed attempt left: a run moved aside, half-written files."""
        aside = self.path / _REPLACED
        if aside.is_dir():
            # The config is the last to go and the first to come back: while it lies aside, all
            # that stands in the folder is the failed attempt's.
            if (aside / CONFIG).is_file():
                self._clear()
                (aside / CONFIG).rename(self.path / CONFIG)
            for kept in aside.iterdir():
                kept.rename(self.path / kept.name)
            aside.rmdir()
        for path in self.path.iterdir():
            if path.name == _DISCARDED or _TEMPORARY.fullmatch(path.name):
                _remove(path)

    def _move_aside(self) -> None:
        aside = self.path / _REPLACED
        aside.mkdir()
        for name in _RUN:
            if (self.path / name).exists():
                (self.path / name).rename(aside / name)

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        for name in _RUN:
            _remove(self.path / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_config(path: Path) -> ml_collections.ConfigDict:
    """The config of the run in a folder.

    Raises:
      ValueError: if there is none, it is damaged, or it is no config of ours.
    """
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"--workdir={path} holds no {CONFIG}; train a model there first")
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{file} is damaged ({error}); restore it, or delete the folder"
        ) from error
    if not isinstance(values, dict) or not _MARKS <= values.keys():
        raise ValueError(
            f"{file} is no config of a run of ours (it lacks some of {', '.join(sorted(_MARKS))}); "
            "choose another folder"
        )
    return with_defaults(ml_collections.ConfigDict(values))


def write_text(path: Path, text: str) -> None:
    """Replace a file in one go, so that a reader never sees half of it.

    Raises:
      OSError: naming the file and the remedy.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"{path} cannot be written ({error.strerror}); free space on the disk or choose a "
            "folder that you can write",
        ) from error


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
    try:
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
    except OSError as error:
        raise ValueError(
            f"--workdir={path} cannot be written ({error.strerror}); free space on its disk"
        ) from error
    return handle


def _differing(old: ml_collections.ConfigDict, new: ml_collections.ConfigDict) -> list[str]:
    """Keys on which two configs differ and that a run cannot change half-way."""
    before, after = _plain(old), _plain(new)
    return [
        key
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not key.startswith(_FREE) and key not in _FREE_KEYS
    ]


def _plain(config: ml_collections.ConfigDict) -> dict[str, Any]:
    return json.loads(json.dumps(flatten(config)))


def _check_same(path: Path, old: ml_collections.ConfigDict, new: ml_collections.ConfigDict) -> None:
    differing = _differing(old, new)
    if differing:
        key = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise ValueError(
            f"--workdir={path} belongs to another config: {key} is {_plain(old).get(key)!r} there "
            f"and {_plain(new).get(key)!r} here{more}; choose another folder, repeat the old "
            "settings, or replace the old run with --restart"
        )
