"""AdamW with warm-up and decay, as a frozen spec and an optax transformation."""

import dataclasses

import jax
import optax

DECAYS = ("cosine", "constant", "wsd")
"""Names of the learning-rate decays: ``wsd`` is warm-up, stable, then linear decay."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """Numbers of the optimiser.

    Attributes:
      learning_rate: peak.
      total_steps: optimiser steps of the whole run.
      warmup_steps: linear rise from 0.
      decay: one of :data:`DECAYS`.
      decay_fraction: share of the run that ``wsd`` spends decaying.
      final_fraction: learning rate at the end, as a share of the peak.
      weight_decay: decoupled; matrices only, never norms, biases or embeddings.
      b1: decay of the first moment.
      b2: decay of the second moment.
      epsilon: added to the root of the second moment.
      clip_norm: largest global gradient norm; None for no clipping.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    learning_rate: float = 3e-4
    total_steps: int
    warmup_steps: int = 100
    decay: str = "cosine"
    decay_fraction: float = 0.2
    final_fraction: float = 0.1
    weight_decay: float = 0.01
    b1: float = 0.9
    b2: float = 0.98
    epsilon: float = 1e-8
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"decay={self.decay!r} is unknown; choose one of {', '.join(DECAYS)}")
        rules = {
            "learning_rate": (self.learning_rate > 0, "greater than 0"),
            "total_steps": (self.total_steps >= 1, "at least 1"),
            "warmup_steps": (
                0 <= self.warmup_steps <= self.total_steps,
                f"between 0 and total_steps={self.total_steps}",
            ),
            "decay_fraction": (0 < self.decay_fraction <= 1, "in (0, 1]"),
            "final_fraction": (0 <= self.final_fraction <= 1, "in [0, 1]"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "b1": (0 <= self.b1 < 1, "in [0, 1)"),
            "b2": (0 <= self.b2 < 1, "in [0, 1)"),
            "epsilon": (self.epsilon > 0, "greater than 0"),
            "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "greater than 0, or None"),
        }
        for field, (holds, words) in rules.items():
            if not holds:
                raise ValueError(f"{field}={getattr(self, field)} must be {words}")


def learning_rate_schedule(spec: OptimizerSpec) -> optax.Schedule:
    """Learning rate by step: linear warm-up to the peak, then the decay."""
    peak, last = spec.learning_rate, spec.learning_rate * spec.final_fraction
    rest = max(1, spec.total_steps - spec.warmup_steps)
    if spec.decay == "cosine":
        after = optax.cosine_decay_schedule(peak, rest, alpha=spec.final_fraction)
    elif spec.decay == "constant":
        after = optax.constant_schedule(peak)
    else:
        decay_steps = max(1, min(rest, round(spec.decay_fraction * spec.total_steps)))
        after = optax.linear_schedule(peak, last, decay_steps, transition_begin=rest - decay_steps)
    if spec.warmup_steps == 0:
        return after
    # The first step already learns: step 0 has rate peak / warmup_steps.
    warmup = optax.linear_schedule(peak / spec.warmup_steps, peak, max(1, spec.warmup_steps - 1))
    return optax.join_schedules([warmup, after], [spec.warmup_steps])


def decays(params: dict) -> dict:
    """Mask of the leaves that weight decay shrinks: matrices, but no embedding table."""

    def rule(path: tuple, leaf: jax.Array) -> bool:
        return leaf.ndim >= 2 and "embedding" not in str(path[-1])

    return jax.tree_util.tree_map_with_path(rule, params)


def make_optimizer(spec: OptimizerSpec) -> optax.GradientTransformation:
    """Clip by global norm, then AdamW.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
    """
    adamw = optax.adamw(
        learning_rate_schedule(spec),
        b1=spec.b1,
        b2=spec.b2,
        eps=spec.epsilon,
        weight_decay=spec.weight_decay,
        mask=decays,
    )
    if spec.clip_norm is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(spec.clip_norm), adamw)
