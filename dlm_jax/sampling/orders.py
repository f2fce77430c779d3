"""Unmasking orders: which masked positions a reverse step reveals.

A position is always chosen before its token is drawn, so revealing one position a step is exact for
every order. ``ancestral`` reveals a random number of positions (the law of the T-step model); the
others reveal a fixed number, the ones with the highest score.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Float
from jaxtyping import Int
from jaxtyping import Key

from dlm_jax.processes.masked import MaskedProcess
from dlm_jax.typing import Array
from dlm_jax.typing import TokenMask
from dlm_jax.typing import Tokens

Score = Callable[[Float[Array, "*N V"]], Float[Array, "*N"]]


def confidence(log_probs: Float[Array, "*N V"]) -> Float[Array, "*N"]:
    """Log-probability of the likeliest token, in nats."""
    return log_probs.max(axis=-1)


def margin(log_probs: Float[Array, "*N V"]) -> Float[Array, "*N"]:
    """Probability of the likeliest token minus that of the second."""
    best = jax.lax.top_k(log_probs, 2)[0]
    return jnp.exp(best[..., 0]) - jnp.exp(best[..., 1])


def negative_entropy(log_probs: Float[Array, "*N V"]) -> Float[Array, "*N"]:
    """Minus the entropy of the prediction, in nats."""
    probs = jnp.exp(log_probs)
    return jnp.where(probs > 0, probs * log_probs, 0.0).sum(axis=-1)


SCORES: dict[str, Score] = {
    "confidence": confidence,
    "margin": margin,
    "entropy": negative_entropy,
}
"""Orders that look at the prediction; the highest score is revealed first."""

ORDERS = ("ancestral", "random", *SCORES)
"""Names of all orders."""


def reveal_count(
    process: MaskedProcess,
    start: Float[Array, ""],
    s: Float[Array, ""],
    total: Int[Array, " B"],
    masked: Int[Array, " B"],
) -> Int[Array, " B"]:
    """Number of positions that a fixed-count order reveals in the step that ends at s.

    After the step floor(total ratio(s) / ratio(start)) positions are still masked, none at s = 0;
    every step reveals at least one while any is masked.

    Args:
      process: supplies the schedule.
      start: time at which sampling began.
      s: end of the step.
      total: positions of each row that were masked at the start.
      masked: positions of each row that are masked now.
    """
    share = process.stay_probability(start, s)
    # 1e-4 of a position: L i / T in float32 must not fall below the whole number it stands for.
    target = jnp.floor(total * share + 1e-4).astype(jnp.int32)
    return jnp.clip(masked - target, jnp.minimum(1, masked), masked)


def best_positions(
    score: Float[Array, "B T"], masked: TokenMask, count: Int[Array, " B"]
) -> TokenMask:
    """Mark the ``count`` masked positions of each row with the highest score, ties to the left."""
    ordered = jnp.argsort(jnp.where(masked, -score, jnp.inf), axis=-1, stable=True)
    rank = jnp.argsort(ordered, axis=-1)
    return (rank < count[:, None]) & masked


def uniform_by_row(row_keys: Key[Array, " B"], length: int) -> Float[Array, "B T"]:
    """One number in [0, 1) for each position, from each row's own key."""
    return jax.vmap(lambda key: jax.random.uniform(key, (length,), jnp.float32))(row_keys)


def ancestral_positions(
    process: MaskedProcess,
    uniform: Float[Array, "B T"],
    x_t: Tokens,
    t: Float[Array, ""],
    s: Float[Array, ""],
) -> TokenMask:
    """Reveal each masked position with the probability of the ancestral step from t to s."""
    return (uniform >= process.stay_probability(t, s)) & process.is_masked(x_t)
