"""The training loop: steps, metrics, evaluation, checkpoints, and the ways to stop early."""

import dataclasses
import resource
import time
from collections.abc import Callable
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Protocol

import jax
import numpy as np

from dlm_jax.checkpoints import CheckpointStore
from dlm_jax.evaluation import Bound
from dlm_jax.training.preemption import StopRequest
from dlm_jax.training.report import Reporter
from dlm_jax.training.spec import EvaluationSpec
from dlm_jax.training.spec import TrainingSpec
from dlm_jax.training.state import TrainState
from dlm_jax.training.step import TrainStep
from dlm_jax.typing import PRNGKey

BEST_METRIC = "nats_per_token"
"""Validation metric by which the best checkpoint is kept."""


class Batches(Protocol):
    """The part of the data pipeline that the loop uses."""

    def __next__(self) -> dict[str, np.ndarray]:
        """The next batch."""
        ...

    def state(self) -> dict:
        """Where the next batch comes from, as JSON values."""
        ...


class NonFiniteError(RuntimeError):
    """The loss or its gradient became NaN or infinite."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
      state: last state.
      bound: validation bound of the finished run; None if it was stopped.
      finished: whether all steps were done.
    """

    state: TrainState
    bound: Bound | None
    finished: bool


Evaluate = Callable[[Any, bool], Bound | None]
"""(params, whole split?) -> bound, or None if a stop was requested meanwhile."""


def train(
    state: TrainState,
    train_step: TrainStep,
    batches: Batches,
    *,
    key: PRNGKey,
    training: TrainingSpec,
    evaluation: EvaluationSpec,
    evaluate: Evaluate,
    store: CheckpointStore,
    reporter: Reporter,
    stop: StopRequest,
    meta: dict,
    workdir: Path,
    rates: Callable[[float], Mapping[str, float]] = lambda tokens_per_second: {},
) -> Outcome:
    """Train from ``state.step`` to ``training.steps``.

    Metrics of a step are fetched after the next one has been dispatched, so the device never waits
    for the host.

    Args:
      state: first state; donated.
      train_step: from ``make_train_step``.
      batches: data, positioned at the batch of ``state.step``.
      key: key of the whole run.
      training: length and bookkeeping.
      evaluation: how often to evaluate.
      evaluate: validation bound of parameters.
      store: where checkpoints go.
      reporter: where metrics go.
      stop: polled before every step and inside ``evaluate``.
      meta: written beside each checkpoint.
      workdir: where an offending batch is kept.
      rates: extra metrics from tokens per second, such as MFU.

    Raises:
      NonFiniteError: if a step gave NaN or infinity. Its batch is kept and no checkpoint touched.
    """
    log = _Log(training, reporter, rates, workdir, store)
    saved = first = int(state.step)

    def save(step: int, bound: Bound | None) -> None:
        nonlocal saved
        metrics = {} if bound is None else {BEST_METRIC: bound.nats_per_token}
        if saved != step:
            store.save(step, state, data=batches.state(), meta=meta, metrics=metrics)
            saved = step
        elif metrics:  # the last steps were saved by an attempt that did not come to score them
            store.set_metrics(step, metrics)

    def validate(step: int, whole: bool) -> Bound | None:
        bound = evaluate(state.params if state.ema is None else state.ema, whole)
        if bound is not None:
            reporter.evaluation(step, _bound_metrics(bound))
        return bound

    for step in range(first + 1, training.steps + 1):
        if stop.requested:
            break
        started = time.perf_counter()
        batch = next(batches)
        log.waited(time.perf_counter() - started)
        state, metrics = train_step(state, batch, key)
        log.dispatched(step, metrics, batch)
        reporter.step(step)
        due = step < training.steps
        if due and (step % evaluation.every == 0 or step % training.checkpoint_every == 0):
            log.settle()
            bound = validate(step, False) if step % evaluation.every == 0 else None
            if step % training.checkpoint_every == 0:
                save(step, bound)
            log.restart()
    log.settle()
    bound = None if stop.requested else validate(training.steps, True)
    save(int(state.step), bound)
    store.wait()
    return Outcome(state=state, bound=bound, finished=bound is not None)


def _bound_metrics(bound: Bound) -> dict[str, float]:
    return {
        BEST_METRIC: bound.nats_per_token,
        "standard_error": bound.standard_error,
        "tokens": float(bound.tokens),
    }


class _Log:
    """Fetches metrics one step late, guards against NaN, and averages them between log lines."""

    def __init__(
        self,
        training: TrainingSpec,
        reporter: Reporter,
        rates: Callable[[float], Mapping[str, float]],
        workdir: Path,
        store: CheckpointStore,
    ) -> None:
        self._training = training
        self._reporter = reporter
        self._rates = rates
        self._workdir = workdir
        self._store = store
        self._pending: tuple[int, dict, dict] | None = None
        self._rows: list[dict[str, np.ndarray]] = []
        self.restart()

    def restart(self) -> None:
        """Forget the clock, after an evaluation or a save that training time should not pay for."""
        self._started = time.perf_counter()
        self._timed = 0
        self._tokens = 0.0
        self._data_wait = 0.0

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for data."""
        self._data_wait += seconds

    def dispatched(self, step: int, metrics: dict, batch: dict) -> None:
        """Take in the metrics of a step just dispatched, after fetching those of the one before."""
        self.settle()
        self._pending = (step, metrics, batch)

    def settle(self) -> None:
        """Fetch what is pending; raises NonFiniteError for a step that went wrong."""
        if self._pending is None:
            return
        step, metrics, batch = self._pending
        self._pending = None
        values = {name: np.asarray(value) for name, value in metrics.items()}
        if not values["finite"]:
            raise NonFiniteError(_keep_batch(self._workdir, step, batch, values, self._store))
        self._rows.append(values)
        self._timed += 1
        self._tokens += float(values["tokens"])
        if step % self._training.log_every == 0 or step == self._training.steps:
            self._reporter.train(step, self._flush())

    def _flush(self) -> dict[str, float | list[float]]:
        seconds = max(time.perf_counter() - self._started, 1e-9)
        tokens = np.array([row["tokens"] for row in self._rows])
        result: dict[str, float | list[float]] = {
            "loss": float(
                (np.array([r["loss"] for r in self._rows]) * tokens).sum() / tokens.sum()
            ),
            "grad_norm": float(np.mean([row["grad_norm"] for row in self._rows])),
        }
        if "learning_rate" in self._rows[-1]:
            result["learning_rate"] = float(self._rows[-1]["learning_rate"])
        if self._timed:
            rate = self._tokens / seconds
            result |= {
                "tokens_per_second": rate,
                "step_seconds": seconds / self._timed,
                "data_wait_seconds": self._data_wait / self._timed,
                **self._rates(rate),
            }
        result["peak_memory_gib"] = _peak_memory_gib()
        for name in ("nats_by_time", "tokens_by_time"):
            result[name] = np.sum([row[name] for row in self._rows], axis=0).tolist()
        self._rows = []
        self.restart()
        return result


def _peak_memory_gib() -> float:
    """Peak memory of the fullest local device, or of this process where devices do not tell."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peak = max(stat.get("peak_bytes_in_use", 0) for stat in stats)
    if not peak:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak / 2**30


def _keep_batch(workdir: Path, step: int, batch: dict, values: dict, store: CheckpointStore) -> str:
    """Write the batch that broke the run and say what to do about it."""
    path = workdir / f"non_finite_step_{step}.npz"
    np.savez(path, **batch)
    latest = store.latest()
    kept = f"checkpoint of step {latest} is intact" if latest else "no checkpoint was written yet"
    return (
        f"step {step} gave loss {values['loss']} with gradient norm {values['grad_norm']}; "
        f"its batch is kept in {path} and the {kept}. Try, in this order: a lower "
        "optimizer.learning_rate, more optimizer.warmup_steps, a lower optimizer.clip_norm, "
        "model.dtype='float32'."
    )
