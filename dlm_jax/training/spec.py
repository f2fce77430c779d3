"""Numbers of a training run that belong to no other room."""

import dataclasses

from dlm_jax.sampling import ORDERS
from dlm_jax.sampling import Filters
from dlm_jax.sampling import check_filters


def _check(spec: object, rules: dict[str, tuple[bool, str]]) -> None:
    for field, (holds, words) in rules.items():
        if not holds:
            raise ValueError(f"{field}={getattr(spec, field)} must be {words}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """Length, batch and bookkeeping of a run.

    Attributes:
      steps: optimiser steps.
      batch_size: rows of the global batch.
      accumulation: microbatches of one update; must divide the batch size.
      ema_decay: decay of the parameter average; None for none.
      log_every: steps between metric lines.
      checkpoint_every: steps between checkpoints; the last step is always saved.
      keep: newest checkpoints to keep, beside the best one.
      tensorboard: also write TensorBoard events.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    steps: int
    batch_size: int
    accumulation: int = 1
    ema_decay: float | None = 0.999
    log_every: int = 10
    checkpoint_every: int = 500
    keep: int = 2
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = ("steps", "batch_size", "accumulation", "log_every", "checkpoint_every", "keep")
        _check(self, {field: (getattr(self, field) >= 1, "at least 1") for field in positive})
        _check(
            self,
            {
                "accumulation": (
                    self.batch_size % self.accumulation == 0,
                    f"a divisor of batch_size={self.batch_size}",
                ),
                "ema_decay": (
                    self.ema_decay is None or 0 <= self.ema_decay < 1,
                    "in [0, 1), or None",
                ),
            },
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """How often and how carefully the validation bound is estimated.

    Attributes:
      every: steps between evaluations; the end of the run is always evaluated.
      rows: validation rows used during training; the whole split at the end.
      samples: draws of each row.
      batch_size: rows of one network call.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    every: int = 500
    rows: int = 64
    samples: int = 2
    batch_size: int = 16

    def __post_init__(self) -> None:
        fields = ("every", "rows", "samples", "batch_size")
        _check(self, {field: (getattr(self, field) >= 1, "at least 1") for field in fields})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingSpec:
    """Defaults of ``dlm sample`` for a run.

    Attributes:
      order: unmasking order.
      steps: denoising steps, at most the positions to fill.
      length: tokens of a canvas.
      temperature: 0 for the likeliest token.
      top_k: number of tokens kept; 0 for all.
      top_p: mass kept.
      min_p: relative floor.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    order: str = "ancestral"
    steps: int = 64
    length: int = 128
    temperature: float = 0.9
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        _check(
            self,
            {
                "order": (self.order in ORDERS, f"one of {', '.join(ORDERS)}"),
                "steps": (self.steps >= 1, "at least 1"),
                "length": (self.length >= 1, "at least 1"),
            },
        )
        _check(
            self,
            {"steps": (self.steps <= self.length, f"at most sampling.length={self.length}")},
        )
        check_filters(Filters(self.temperature, self.top_k, self.top_p, self.min_p))
