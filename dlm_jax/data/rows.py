"""Rows of a fixed length: overlapping windows of long documents, packing of short ones."""

from collections.abc import Sequence

import numpy as np

Piece = tuple[int, int]
"""(first token, number of tokens) of a stretch in the flat token array."""


def cut_windows(start: int, count: int, *, length: int, overlap: int) -> list[Piece]:
    """Cover ``count`` tokens with windows of at most ``length``.

    Args:
      start: first token of the document.
      count: tokens of the document.
      length: tokens of a window; only a document shorter than that gives a shorter one when the
        windows overlap: the last window is moved back to be full.
      overlap: tokens that neighbouring windows share at least.

    Returns:
      windows that cover every token; with ``overlap`` 0 each exactly once.
    """
    if count <= length or overlap == 0:
        return [(start + at, min(length, count - at)) for at in range(0, count, length)]
    stride = length - overlap
    offsets = [*range(0, count - length, stride), count - length]
    return [(start + at, length) for at in offsets]


def pack(pieces: Sequence[Piece], *, length: int, open_rows: int = 64) -> list[list[Piece]]:
    """Put pieces together into rows of at most ``length`` tokens, first fit.

    Args:
      pieces: stretches of at most ``length`` tokens.
      length: tokens of a row.
      open_rows: rows that are kept open for further pieces.

    Returns:
      rows; every piece stands in exactly one.
    """
    rows: list[list[Piece]] = []
    free: list[tuple[int, int]] = []  # (row, tokens left), oldest first
    for piece in pieces:
        for slot, (row, left) in enumerate(free):
            if piece[1] <= left:
                rows[row].append(piece)
                free[slot] = (row, left - piece[1])
                break
        else:
            rows.append([piece])
            free.append((len(rows) - 1, length - piece[1]))
            if len(free) > open_rows:
                free.remove(min(free, key=lambda entry: entry[1]))
    return rows


def fill_row(
    row: Sequence[Piece],
    tokens: np.ndarray,
    scored: np.ndarray | None,
    *,
    length: int,
    pad_id: int,
) -> dict[str, np.ndarray]:
    """Assemble one row.

    Args:
      row: pieces of the flat arrays.
      tokens: all token ids.
      scored: which tokens are learned; None for all.
      length: T.
      pad_id: fills the rest.

    Returns:
      ``tokens``, ``segments`` (from 1, 0 for padding), ``positions`` (from 0 in each piece) and
      ``weights`` (1 where a token is scored), each [T].
    """
    result = {
        "tokens": np.full(length, pad_id, np.int32),
        "segments": np.zeros(length, np.int32),
        "positions": np.zeros(length, np.int32),
        "weights": np.zeros(length, np.float32),
    }
    at = 0
    for number, (start, count) in enumerate(row, start=1):
        here, there = slice(at, at + count), slice(start, start + count)
        result["tokens"][here] = tokens[there]
        result["segments"][here] = number
        result["positions"][here] = np.arange(count)
        result["weights"][here] = 1.0 if scored is None else scored[there]
        at += count
    return result
