"""The denoising loop of masked diffusion: one ``lax.scan`` over a time grid.

The network runs only on steps that reveal something, and its output head only on the rows that a
step needs: all masked positions where the order looks at the prediction, else just the positions
about to be revealed. Row counts are rounded up to a few static sizes, chosen at run time.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int

from dlm_jax.processes.draws import fold_in_each
from dlm_jax.processes.masked import MaskedProcess
from dlm_jax.sampling import orders
from dlm_jax.sampling.filters import Filters
from dlm_jax.sampling.filters import draw_tokens
from dlm_jax.typing import Array
from dlm_jax.typing import PRNGKey
from dlm_jax.typing import Time
from dlm_jax.typing import TokenMask
from dlm_jax.typing import Tokens

Denoise = Callable[[Tokens, Time], Array]
Head = Callable[[Array], Array]

_CHOOSE, _DRAW = 0, 1  # named streams of a row's key


class Trace(NamedTuple):
    """What every step did.

    Attributes:
      tokens: the canvas after each step, [S, B, T].
      log_probs: log-probability (nats, unfiltered prediction) of each token in the step that
        revealed it, 0 elsewhere, [S, B, T].
    """

    tokens: Int[Array, "S B T"]
    log_probs: Float[Array, "S B T"]


class Sample(NamedTuple):
    """A finished canvas.

    Attributes:
      tokens: ids [B, T].
      passes: number of network calls that were made.
      trace: every step, if asked for.
    """

    tokens: Tokens
    passes: Int[Array, ""]
    trace: Trace | None


def sample(
    key: PRNGKey,
    denoise: Denoise,
    process: MaskedProcess,
    canvas: Tokens,
    grid: Float[Array, " G"],
    *,
    head: Head | None = None,
    order: str = "ancestral",
    temperature: Float[Array, "..."] | float = 1.0,
    top_k: Int[Array, "..."] | int = 0,
    top_p: Float[Array, "..."] | float = 1.0,
    min_p: Float[Array, "..."] | float = 0.0,
    row_ids: Int[Array, " B"] | None = None,
    trace: bool = False,
) -> Sample:
    """Fill the [MASK] positions of a canvas; everything else is kept bit for bit.

    Args:
      key: consumed. Noise depends on (key, row id, position, step) alone, so a row's text does not
        depend on the other rows.
      denoise: (tokens [B, T], time [B]) -> logits [B, T, V], parameters already bound; or, with
        ``head``, hidden states [B, T, D].
      process: the masked process.
      canvas: ids [B, T]; [MASK] where a token is wanted.
      grid: S + 1 falling times from the canvas's own time (1 if nothing is known of it) to 0, see
        ``schedules.time_grid``. Steps of zero length cost nothing.
      head: hidden states at chosen positions [B, K, D] -> logits [B, K, V]; saves the head
        wherever no prediction is needed.
      order: one of ``orders.ORDERS``; static.
      temperature: see :class:`~dlm_jax.sampling.filters.Filters`; this and the next three are
        scalars or one number for each row.
      top_k: number of tokens kept.
      top_p: mass kept.
      min_p: relative floor.
      row_ids: number of each row for its noise; None for 0 .. B-1.
      trace: also return every step; static.

    Returns:
      :class:`Sample`. No [MASK] is left if the grid ends at 0.

    Raises:
      ValueError: for an unknown order.

    Source: MDLM (Sahoo et al. 2024), section 4; Zheng et al. 2024, "Masked Diffusion Models are
    Secretly Time-Agnostic Masked Models", for skipping passes that reveal nothing.
    """
    if order not in orders.ORDERS:
        raise ValueError(f"order={order!r} is unknown; choose one of {', '.join(orders.ORDERS)}")
    B, T = canvas.shape
    filters = Filters(
        *(jnp.broadcast_to(jnp.asarray(x), (B,)) for x in (temperature, top_k, top_p, min_p))
    )
    ids = jnp.arange(B) if row_ids is None else row_ids
    head = head or (lambda logits: logits)
    grid = jnp.asarray(grid, jnp.float32)
    total = process.is_masked(canvas).sum(axis=-1)
    reveal = functools.partial(_reveal, process, head, filters)

    def run(x_t: Tokens, keys: Array, t: Array, s: Array) -> tuple[Tokens, Array, Array]:
        masked = process.is_masked(x_t)
        uniform = orders.uniform_by_row(fold_in_each(keys, jnp.array(_CHOOSE)), T)
        if order == "ancestral":
            chosen = orders.ancestral_positions(process, uniform, x_t, t, s)
        else:
            count = orders.reveal_count(process, grid[0], s, total, masked.sum(axis=-1))
            chosen = orders.best_positions(uniform, masked, count)

        def call(x_t: Tokens) -> tuple[Tokens, Array]:
            hidden = denoise(x_t, jnp.broadcast_to(t, (B,)))
            picked = chosen
            if order in orders.SCORES:
                score = _score(process, head, orders.SCORES[order], hidden, masked)
                picked = orders.best_positions(score, masked, count)
            return reveal(fold_in_each(keys, jnp.array(_DRAW)), hidden, x_t, picked)

        needed = chosen.any()
        x_s, log_probs = jax.lax.cond(needed, call, lambda x: (x, jnp.zeros(x.shape)), x_t)
        return x_s, log_probs, needed.astype(jnp.int32)

    def body(carry: tuple[Tokens, Array], step: tuple[Array, Array, Array]):
        x_t, passes = carry
        index, t, s = step
        keys = fold_in_each(jax.random.fold_in(key, index), ids)

        def idle(x_t: Tokens, *_: Array) -> tuple[Tokens, Array, Array]:
            return x_t, jnp.zeros(x_t.shape), jnp.zeros((), jnp.int32)

        x_s, log_probs, called = jax.lax.cond(t > s, run, idle, x_t, keys, t, s)
        return (x_s, passes + called), Trace(x_s, log_probs) if trace else None

    steps = (jnp.arange(grid.shape[0] - 1), grid[:-1], grid[1:])
    start = (canvas.astype(jnp.int32), jnp.zeros((), jnp.int32))
    (tokens, passes), traced = jax.lax.scan(body, start, steps)
    return Sample(tokens, passes, traced)


def _score(
    process: MaskedProcess,
    head: Head,
    score: orders.Score,
    hidden: Float[Array, "B T D"],
    masked: TokenMask,
) -> Float[Array, "B T"]:
    """Score every masked position from the prediction there; other positions get -inf."""
    T = masked.shape[-1]

    def branch(size: int) -> Float[Array, "B T"]:
        at, valid = _positions(masked, size)
        rows = score(process.log_probs(head(_take(hidden, at))))
        return _put(jnp.full(masked.shape, -jnp.inf), at, jnp.where(valid, rows, -jnp.inf))

    return _by_size(masked, (-(-T // 8), -(-T // 4), -(-T // 2), T), branch)


def _reveal(
    process: MaskedProcess,
    head: Head,
    filters: Filters,
    keys: Array,
    hidden: Float[Array, "B T D"],
    x_t: Tokens,
    chosen: TokenMask,
) -> tuple[Tokens, Float[Array, "B T"]]:
    """Draw a token at every chosen position; also the log-probability of each drawn token."""
    T = x_t.shape[-1]

    def branch(size: int) -> tuple[Tokens, Float[Array, "B T"]]:
        at, valid = _positions(chosen, size)
        log_probs = process.log_probs(head(_take(hidden, at)))
        V = log_probs.shape[-1]
        by_position = Filters(*(jnp.repeat(number, size) for number in filters))
        position_keys = fold_in_each(keys[:, None], at)
        drawn = draw_tokens(position_keys.reshape(-1), log_probs.reshape(-1, V), by_position)
        drawn = drawn.reshape(at.shape)
        of_drawn = jnp.take_along_axis(log_probs, drawn[..., None], axis=-1)[..., 0]
        tokens = jnp.where(valid, drawn, jnp.take_along_axis(x_t, at, axis=-1))
        x_s = _put(x_t, at, tokens)
        return x_s, _put(jnp.zeros(x_t.shape), at, jnp.where(valid, of_drawn, 0.0))

    return _by_size(chosen, (1, 4, 16, 64, T), branch)


def _by_size(mask: TokenMask, sizes: tuple[int, ...], branch: Callable):
    """Run ``branch(size)`` with the smallest size that holds every row's marked positions."""
    T = mask.shape[-1]
    fitting = sorted({size for size in sizes if 0 < size < T} | {T})
    most = mask.sum(axis=-1).max()
    index = jnp.searchsorted(jnp.asarray(fitting), most)
    return jax.lax.switch(index, [functools.partial(branch, size) for size in fitting])


def _positions(mask: TokenMask, size: int) -> tuple[Int[Array, "B K"], Bool[Array, "B K"]]:
    """Marked positions of each row first, then others; and which of the K are marked."""
    at = jnp.argsort(~mask, axis=-1, stable=True)[:, :size]
    return at, jnp.take_along_axis(mask, at, axis=-1)


def _take(values: Float[Array, "B T D"], at: Int[Array, "B K"]) -> Float[Array, "B K D"]:
    return jnp.take_along_axis(values, at[..., None], axis=1)


def _put(values: Array, at: Int[Array, "B K"], new: Array) -> Array:
    return jax.vmap(lambda row, index, value: row.at[index].set(value))(values, at, new)
