"""Filters that shape a token's law before it is drawn: temperature, min-p, top-k and top-p.

Order of application: temperature, then min-p, top-k, top-p (that of vLLM). The vocabulary is sorted
only when the likeliest 64 tokens do not settle a row: a full sort costs a hundred times more.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int
from jaxtyping import Key

from dlm_jax.processes import draws
from dlm_jax.typing import Array

GREEDY_BELOW = 1e-5
"""Temperatures below this mean the likeliest token, ties to the lowest id."""

_FEW = 64


class Filters(NamedTuple):
    """Numbers of the filters, each a scalar or one for each row; traced, so free to change.

    Attributes:
      temperature: divides the logits; below 1e-5 the likeliest token is taken.
      top_k: keep the k likeliest tokens (and those tied with the last one); 0 keeps all.
      top_p: keep the smallest set, likeliest first, whose mass among the top-k reaches p.
      min_p: drop tokens less likely than min_p times the likeliest.
    """

    temperature: Float[Array, "..."] | float = 1.0
    top_k: Int[Array, "..."] | int = 0
    top_p: Float[Array, "..."] | float = 1.0
    min_p: Float[Array, "..."] | float = 0.0


def check_filters(filters: Filters) -> None:
    """Refuse numbers that mean nothing; for concrete values, at the edge of the program.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """
    allowed = {
        "temperature": ("a finite number of at least 0", lambda x: np.isfinite(x) & (x >= 0)),
        "top_k": ("in [0, 2**31), where 0 keeps all", lambda x: (x >= 0) & (x < 2**31)),
        "top_p": ("in (0, 1]", lambda x: (x > 0) & (x <= 1)),
        "min_p": ("in [0, 1]", lambda x: (x >= 0) & (x <= 1)),
    }
    for name, (words, test) in allowed.items():
        value = np.asarray(getattr(filters, name))
        if not np.all(test(value)):
            raise ValueError(f"{name}={value.tolist()} must be {words}")


def filter_logits(logits: Float[Array, "N V"], filters: Filters) -> Float[Array, "N V"]:
    """Divide by the temperature and set the logits of dropped tokens to -inf.

    Args:
      logits: float32; -inf marks a token that can never be drawn.
      filters: scalars or one number for each of the N rows.

    Returns:
      float32 logits; at least one token of each row stays.
    """
    N = logits.shape[0]
    temperature, top_k, top_p, min_p = (
        jnp.broadcast_to(jnp.asarray(number), (N,)) for number in filters
    )
    scaled = logits / jnp.maximum(temperature, GREEDY_BELOW)[:, None]
    used = jnp.any((top_k > 0) | (top_p < 1) | (min_p > 0))

    def drop(scaled: Float[Array, "N V"]) -> Float[Array, "N V"]:
        best = scaled.max(axis=-1, keepdims=True)
        floor = jnp.where(min_p > 0, best[:, 0] + jnp.log(min_p), -jnp.inf)
        kept = jnp.where(scaled >= floor[:, None], scaled, -jnp.inf)
        return jnp.where(kept >= _threshold(kept, top_k, top_p)[:, None], kept, -jnp.inf)

    return jax.lax.cond(used, drop, lambda scaled: scaled, scaled)


def _threshold(
    logits: Float[Array, "N V"], top_k: Int[Array, " N"], top_p: Float[Array, " N"]
) -> Float[Array, " N"]:
    """Smallest logit that top-k and then top-p keep in each row."""
    V = logits.shape[-1]
    log_total = jax.nn.logsumexp(logits, axis=-1)
    few, _ = jax.lax.top_k(logits, min(_FEW, V))
    threshold, settled = _threshold_of_sorted(few, log_total, top_k, top_p, V)
    if V <= _FEW:
        return threshold

    def full() -> Float[Array, " N"]:
        ordered = -jnp.sort(-logits, axis=-1)
        return _threshold_of_sorted(ordered, log_total, top_k, top_p, V)[0]

    return jax.lax.cond(jnp.all(settled), lambda: threshold, full)


def _threshold_of_sorted(
    ordered: Float[Array, "N K"],
    log_total: Float[Array, " N"],
    top_k: Int[Array, " N"],
    top_p: Float[Array, " N"],
    vocabulary: int,
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """The threshold seen from the K largest logits, and whether they were enough to tell."""
    K = ordered.shape[-1]
    column = jnp.arange(K)
    limit = jnp.where((top_k <= 0) | (top_k > vocabulary), vocabulary, top_k)
    inside = column < limit[:, None]
    log_kept = jax.nn.logsumexp(jnp.where(inside, ordered, -jnp.inf), axis=-1)
    # Mass is counted among the top-k; with k beyond the K columns that is the whole vocabulary,
    # which only the K == V call can sum exactly when k < V.
    log_mass = jnp.where(limit <= K, log_kept, log_total)
    before = jnp.cumsum(jnp.exp(ordered - log_mass[:, None]), axis=-1)
    before = jnp.concatenate([jnp.zeros_like(before[:, :1]), before[:, :-1]], axis=-1)
    # A token stays while the mass before it has not reached p: the crossing token stays.
    keep = inside & ((before < top_p[:, None]) | (top_p[:, None] >= 1) | (column == 0))
    threshold = jnp.where(keep, ordered, jnp.inf).min(axis=-1)
    unfiltered = (limit >= vocabulary) & (top_p >= 1)
    crossed = (limit >= vocabulary) & ~keep[:, -1]
    settled = unfiltered | (limit <= K) | crossed | (K == vocabulary)
    return jnp.where(unfiltered, -jnp.inf, threshold), settled


def draw_tokens(
    keys: Key[Array, " N"], logits: Float[Array, "N V"], filters: Filters
) -> Int[Array, " N"]:
    """Draw one id for each row from its filtered law, each with its own key.

    Args:
      keys: one for each row; consumed.
      logits: float32.
      filters: scalars or one number for each row.

    Returns:
      int32 ids.
    """
    temperature = jnp.broadcast_to(jnp.asarray(filters.temperature), logits.shape[:1])
    greedy = temperature < GREEDY_BELOW
    likeliest = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw() -> Int[Array, " N"]:
        return draws.categorical_by_row(keys, filter_logits(logits, filters))

    drawn = jax.lax.cond(jnp.all(greedy), lambda: likeliest, draw)
    return jnp.where(greedy, likeliest, drawn)
