"""Canvases: what is given, and where [MASK] asks for a token."""

from collections.abc import Sequence

import numpy as np


def make_canvas(
    prompt: Sequence[int],
    suffix: Sequence[int],
    *,
    length: int,
    mask_id: int,
    vocab_size: int,
    rows: int = 1,
) -> np.ndarray:
    """Lay prompt, [MASK] positions and suffix out on a canvas.

    Args:
      prompt: ids at the left end.
      suffix: ids at the right end.
      length: T, tokens of the whole canvas.
      mask_id: id of [MASK].
      vocab_size: ids must lie in [0, vocab_size).
      rows: number of equal rows.

    Returns:
      int32 [rows, length].

    Raises:
      ValueError: if the given ids leave no position to fill, hold [MASK], or lie outside the
        vocabulary.
    """
    if length < 1 or rows < 1:
        raise ValueError(f"length={length} and rows={rows} must be at least 1")
    given = len(prompt) + len(suffix)
    if given >= length:
        raise ValueError(
            f"prompt ({len(prompt)} tokens) and suffix ({len(suffix)} tokens) leave no position to "
            f"fill in length={length}; use a length of at least {given + 1} or shorten them"
        )
    for name, ids in (("prompt", prompt), ("suffix", suffix)):
        check_canvas(np.asarray(ids, np.int64)[None], vocab_size=vocab_size, name=name)
        if mask_id in ids:
            raise ValueError(
                f"{name} holds the mask id {mask_id} at position {list(ids).index(mask_id)}; "
                "given tokens must be real ones (a gap is what lies between prompt and suffix)"
            )
    middle = [mask_id] * (length - given)
    return np.tile(np.asarray([*prompt, *middle, *suffix], np.int32), (rows, 1))


def check_canvas(canvas: np.ndarray, *, vocab_size: int, name: str = "canvas") -> None:
    """Refuse ids outside the vocabulary, which an embedding lookup would silently clamp.

    Raises:
      ValueError: naming the first bad id with its row and position.
    """
    bad = np.argwhere((canvas < 0) | (canvas >= vocab_size))
    if len(bad):
        row, position = bad[0]
        raise ValueError(
            f"{name} holds id {canvas[row, position]} at row {row}, position {position}; "
            f"ids lie in [0, {vocab_size})"
        )


def check_steps(steps: int, positions: int) -> None:
    """Refuse step counts that cannot be run on a canvas.

    Args:
      steps: denoising steps.
      positions: masked positions of the row with the most.

    Raises:
      ValueError: if steps is below 1 or above the number of positions.
    """
    if not 1 <= steps <= positions:
        raise ValueError(
            f"steps={steps} must be between 1 and the {positions} positions to fill: "
            "more steps than positions would reveal nothing in some of them"
        )
