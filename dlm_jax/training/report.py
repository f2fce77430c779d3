"""Where metrics go: a live bar or plain lines, ``metrics.jsonl``, and TensorBoard."""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Self

import numpy as np
from rich.console import Console
from rich.console import RenderableType
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress
from rich.progress import TaskProgressColumn
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn
from rich.progress import TimeRemainingColumn
from rich.text import Text

METRICS = "metrics.jsonl"

_LOG = logging.getLogger("dlm_jax")
_OWN = ("step", "kind", "time")


class Reporter:
    """Shows and stores the metrics of a run; a context manager.

    On a terminal a live bar is drawn, elsewhere plain lines without control codes go through the
    logger ``dlm_jax``. Each call of :meth:`train` or :meth:`evaluation` adds one JSON object to
    ``metrics.jsonl``: ``step``, ``kind`` (``train`` or ``evaluation``), ``time`` (seconds since
    1970) and the metrics. NaN and infinity, which JSON does not have, are stored as null.

    Args:
      workdir: gets ``metrics.jsonl``, and ``tensorboard/`` if asked for; made if missing.
      total_steps: length of the run.
      first_step: step of the checkpoint the run goes on from. Lines of later steps, left by an
        attempt that was cut off, are removed, so that each step stands once.
      tensorboard: also write TensorBoard events.
      console: where to draw; None for standard output.
      process_index: only process 0 shows and writes anything.

    Raises:
      ImportError: if TensorBoard is asked for and tensorboardX is missing.
      OSError: if the workdir cannot be written.
      ValueError: if ``metrics.jsonl`` is damaged elsewhere than at its end.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        total_steps: int,
        first_step: int = 0,
        tensorboard: bool = False,
        console: Console | None = None,
        process_index: int = 0,
    ) -> None:
        self._active = process_index == 0
        self._total = total_steps
        self._bar: _Bar | None = None
        self._handler: logging.Handler | None = None
        self._events: Any = None
        if not self._active:
            return
        self._file = _open_history(workdir / METRICS, first_step)
        if tensorboard:
            self._events = _open_events(workdir / "tensorboard", first_step)
        # Asked of the stream itself: FORCE_COLOR, which many CI systems set, makes rich take a
        # log file for a terminal.
        console = console or Console(force_terminal=sys.stdout.isatty())
        if console.is_interactive:
            self._bar = _Bar(console, total_steps, first_step)
            self._bar.start()
        else:
            self._handler = logging.StreamHandler(console.file)
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
            self._level, self._propagate = _LOG.level, _LOG.propagate
            _LOG.addHandler(self._handler)
            _LOG.setLevel(logging.INFO)
            _LOG.propagate = False

    def step(self, step: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.move(step)

    def train(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show and store the training metrics since the last call.

        Args:
          step: steps done.
          metrics: numbers and lists of numbers by name; those of :data:`SHOWN` are displayed.

        Raises:
          ValueError: for a metric named ``step``, ``kind`` or ``time``.
        """
        if not self._active:
            return
        record = self._store(step, "train", metrics)
        words = "  ".join(_words(record))
        if self._bar is not None:
            self._bar.training = words
            self._bar.move(step)
        else:
            _LOG.info("step %d/%d  %s", step, self._total, words)

    def evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show and store the validation metrics of a step; arguments as for :meth:`train`."""
        if not self._active:
            return
        record = self._store(step, "evaluation", metrics)
        words = "validation bound " + ", ".join(_bound_words(record))
        if self._bar is not None:
            self._bar.validation = f"{words} (step {step})"
        self.message(f"step {step}: {words}")

    def message(self, text: str) -> None:
        """Show a line of text."""
        if not self._active:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            _LOG.info("%s", text)

    def close(self) -> None:
        """Leave the terminal, the logger and the files in order."""
        if not self._active:
            return
        if self._bar is not None:
            self._bar.stop()
        if self._handler is not None:
            _LOG.removeHandler(self._handler)
            _LOG.setLevel(self._level)
            _LOG.propagate = self._propagate
            self._handler = None
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _store(self, step: int, kind: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
        taken = [name for name in _OWN if name in metrics]
        if taken:
            raise ValueError(
                f"metric {taken[0]!r} has the name of a field of every line of {METRICS} "
                f"({', '.join(_OWN)}); rename it"
            )
        values = {name: _json_value(value) for name, value in metrics.items()}
        record = {"step": step, "kind": kind, "time": round(time.time(), 3), **values}
        # One write for the line, handed to the system at once: a killed process loses nothing.
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()
        if self._events is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._events.add_scalar(f"{kind}/{name}", value, step)
        return record


class _Bar(Progress):
    """The live display: a bar, and the latest numbers below it, wrapped to the terminal."""

    def __init__(self, console: Console, total: int, first: int) -> None:
        self.training = self.validation = ""
        super().__init__(
            TextColumn("train"),
            BarColumn(),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=4,
            # rich looks back 30 s, too short for an estimate from steps that take that long.
            speed_estimate_period=900,
        )
        self._run = self.add_task("train", total=total, completed=first)

    def move(self, step: int) -> None:
        self.update(self._run, completed=step)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        for words in (self.training, self.validation):
            if words:
                yield Text(words)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a ``metrics.jsonl``, none if it is missing; a last line cut off is left out.

    Raises:
      ValueError: for a broken line before the last.
    """
    return [record for _, record in _read_lines(path)]


def _read_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    kept: list[tuple[str, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            kept.append((line, record))
        elif number < len(lines):
            raise ValueError(
                f"{path} line {number} is not a JSON object with a step: {line[:60]!r}; "
                "remove the line, or move the file away"
            )
    return kept


def _open_history(path: Path, first_step: int) -> Any:
    """Open for appending, after removing later steps and a cut-off line in one replacement."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            kept = [line for line, record in _read_lines(path) if record["step"] <= first_step]
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            with open(temporary, "w", encoding="utf-8") as file:
                file.writelines(line + "\n" for line in kept)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write {path} ({error.strerror}); give a workdir that this user can write, "
            "on a disk with space left",
        ) from error


def _open_events(folder: Path, first_step: int) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "training.tensorboard=True needs the package tensorboardX; "
            "install it with pip install 'dlm_jax[tensorboard]'"
        ) from error
    # Events of an abandoned stretch stay in their file; purge_step makes TensorBoard hide them.
    return SummaryWriter(str(folder), purge_step=first_step + 1)


def _json_value(value: Any) -> Any:
    """Plain Python numbers; NaN and infinity, which JSON does not have, become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


SHOWN = {
    "loss": "loss {:.4f} nats/token",
    "bits_per_byte": "{:.4f} bits/byte",
    "grad_norm": "grad {:.2f}",
    "learning_rate": "lr {:.2e}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "step_seconds": "{:.3f} s/step",
    "mfu": "MFU {:.1%}",
    "data_wait_seconds": "data wait {:.4f} s",
    "peak_memory_gib": "{:.2f} GiB",
}
"""Training metrics that are displayed, in this order and form; the others are only stored."""


def _words(record: Mapping[str, Any]) -> list[str]:
    known = {name: math.nan if record[name] is None else record[name] for name in record}
    return [form.format(known[name]) for name, form in SHOWN.items() if name in known]


def _bound_words(record: Mapping[str, Any]) -> list[str]:
    nats, error = record.get("nats_per_token"), record.get("standard_error")
    spread = "" if error is None else f" ± {error:.4f}"
    words = [f"{math.nan if nats is None else nats:.4f}{spread} nats/token"]
    if record.get("bits_per_byte") is not None:
        words.append(f"{record['bits_per_byte']:.4f} bits/byte")
    return words
