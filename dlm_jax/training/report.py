"""Where metrics go: a live bar or plain lines, ``metrics.jsonl``, and TensorBoard."""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Self

from rich.console import Console
from rich.progress import BarColumn
from rich.progress import MofNCompleteColumn
from rich.progress import Progress
from rich.progress import TextColumn
from rich.progress import TimeElapsedColumn
from rich.progress import TimeRemainingColumn

METRICS = "metrics.jsonl"

_LOG = logging.getLogger("dlm_jax")


class Reporter:
    """Shows and stores the metrics of a run; a context manager.

    Args:
      workdir: gets ``metrics.jsonl``, and ``tensorboard/`` if asked for.
      total_steps: length of the run.
      first_step: step of the checkpoint the run goes on from. Lines of later steps, left by an
        attempt that was cut off, are removed, so that each step stands once.
      tensorboard: also write TensorBoard events.
      console: where to draw; None for standard output.
      process_index: only process 0 shows and writes anything.

    Raises:
      ImportError: if TensorBoard is asked for and tensorboardX is missing.
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
        self._console = console or Console()
        self._progress: Progress | None = None
        self._handler: logging.Handler | None = None
        self._file: Any = None
        self._events: Any = _open_events(workdir) if tensorboard and self._active else None
        if not self._active:
            return
        _drop_after(workdir / METRICS, first_step)
        self._file = open(workdir / METRICS, "a", encoding="utf-8")
        if self._console.is_terminal:
            self._progress = Progress(
                TextColumn("train"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=self._console,
            )
            self._task = self._progress.add_task(
                "train", total=total_steps, completed=first_step, numbers=""
            )
            self._progress.start()
        else:
            self._handler = logging.StreamHandler(self._console.file)
            self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
            _LOG.addHandler(self._handler)
            _LOG.setLevel(logging.INFO)
            _LOG.propagate = False

    def step(self, step: int) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=step)

    def train(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show and store the training metrics since the last call."""
        if not self._active:
            return
        words = _words(metrics)
        if self._progress is not None:
            self._progress.update(self._task, completed=step, numbers=words)
        else:
            _LOG.info("step %d/%d  %s", step, self._total, words)
        self._write(step, "train", metrics)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show and store the validation metrics of a step."""
        if not self._active:
            return
        shown = f"{metrics['nats_per_token']:.4f} ± {metrics['standard_error']:.4f} nats/token"
        if "bits_per_byte" in metrics:
            shown += f", {metrics['bits_per_byte']:.4f} bits/byte"
        self.message(f"step {step}: validation bound {shown}")
        self._write(step, "evaluation", metrics)

    def message(self, text: str) -> None:
        """Show a line of text."""
        if not self._active:
            return
        if self._progress is not None:
            self._progress.console.print(text, markup=False, highlight=False)
        else:
            _LOG.info("%s", text)

    def close(self) -> None:
        """Leave the terminal and the files in order."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        if self._handler is not None:
            _LOG.removeHandler(self._handler)
            self._handler = None
        for sink in (self._file, self._events):
            if sink is not None:
                sink.close()
        self._file = self._events = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, step: int, kind: str, metrics: Mapping[str, Any]) -> None:
        record = {"step": step, "kind": kind, "time": round(time.time(), 3), **metrics}
        self._file.write(json.dumps(_finite(record), allow_nan=False) + "\n")
        self._file.flush()
        if self._events is not None:
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    self._events.add_scalar(f"{kind}/{name}", value, step)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Lines of a ``metrics.jsonl``; a last line that was cut off is left out."""
    if not path.is_file():
        return []
    records: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def _drop_after(path: Path, step: int) -> None:
    """Keep the lines up to a step, in one atomic replacement."""
    if not path.is_file():
        return
    kept = [record for record in read_metrics(path) if record["step"] <= step]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("".join(json.dumps(r) + "\n" for r in kept), encoding="utf-8")
    temporary.replace(path)


def _finite(value: Any) -> Any:
    """NaN and infinity are no JSON: they become null."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_SHOWN = (
    ("loss", "loss {:.4f} nats/token"),
    ("grad_norm", "grad {:.2f}"),
    ("learning_rate", "lr {:.2e}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("step_seconds", "{:.3f} s/step"),
    ("mfu", "MFU {:.1%}"),
    ("data_wait_seconds", "data wait {:.4f} s"),
    ("peak_memory_gib", "{:.2f} GiB"),
)


def _words(metrics: Mapping[str, Any]) -> str:
    return "  ".join(form.format(metrics[name]) for name, form in _SHOWN if name in metrics)


def _open_events(workdir: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "training.tensorboard=True needs the package tensorboardX; "
            "install it with pip install 'dlm_jax[tensorboard]'"
        ) from error
    return SummaryWriter(str(workdir / "tensorboard"))
