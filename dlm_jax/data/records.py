"""A tokenised split with random access to its rows, in memory or memory-mapped from disk."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlm_jax.data.rows import Piece
from dlm_jax.data.rows import fill_row

_META, _TOKENS, _SCORED, _PIECES, _ROWS = "records.json", "tokens", "scored", "pieces", "rows"


class Encoded(NamedTuple):
    """Documents as one flat array.

    Attributes:
      tokens: ids of all documents, one after the other.
      scored: which tokens are learned; None for all.
      ends: end of each document in ``tokens``.
    """

    tokens: np.ndarray
    scored: np.ndarray | None
    ends: np.ndarray


class Records:
    """Rows of a split; ``records[i]`` assembles row i.

    Attributes:
      tokens: flat ids, uint16 where the vocabulary allows and uint32 elsewhere.
      scored: which tokens are learned; None for all.
      length: T, tokens of a row.
      pad_id: id of padding.
      fingerprint: changes whenever a row would.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        scored: np.ndarray | None,
        rows: Sequence[Sequence[Piece]],
        *,
        length: int,
        pad_id: int,
    ) -> None:
        self.tokens, self.scored, self.length, self.pad_id = tokens, scored, length, pad_id
        flat = [piece for row in rows for piece in row]
        self._pieces = np.asarray(flat, np.int64).reshape(-1, 2)
        self._row_ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
        self.fingerprint = self._digest()

    def _digest(self) -> str:
        digest = hashlib.sha256(f"{self.length} {self.pad_id}".encode())
        for array in (self.tokens, self._pieces, self._row_ends, self.scored):
            digest.update(b"none" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._row_ends)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        """Row number ``row`` as a dict of arrays, with its number as ``index``."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is outside the {len(self)} rows")
        start = self._row_ends[row - 1] if row else 0
        pieces = [(int(a), int(b)) for a, b in self._pieces[start : self._row_ends[row]]]
        filled = fill_row(pieces, self.tokens, self.scored, length=self.length, pad_id=self.pad_id)
        return {**filled, "index": np.asarray(row, np.int32)}

    def save(self, directory: Path) -> None:
        """Write the arrays, so that ``load`` can map them without reading them."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays = {_TOKENS: self.tokens, _PIECES: self._pieces, _ROWS: self._row_ends}
        if self.scored is not None:
            arrays[_SCORED] = self.scored
        for name, array in arrays.items():
            np.save(directory / f"{name}.npy", array)
        meta = {"length": self.length, "pad_id": self.pad_id, "fingerprint": self.fingerprint}
        (directory / _META).write_text(json.dumps(meta) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path) -> "Records":
        """Map a saved split.

        Raises:
          ValueError: if the folder holds none.
        """
        if not (directory / _META).is_file():
            raise ValueError(f"{directory} holds no tokenised split ({_META} is missing)")
        meta = json.loads((directory / _META).read_text(encoding="utf-8"))
        records = cls.__new__(cls)
        records.tokens = np.load(directory / f"{_TOKENS}.npy", mmap_mode="r")
        scored = directory / f"{_SCORED}.npy"
        records.scored = np.load(scored, mmap_mode="r") if scored.is_file() else None
        records._pieces = np.load(directory / f"{_PIECES}.npy", mmap_mode="r")
        records._row_ends = np.load(directory / f"{_ROWS}.npy", mmap_mode="r")
        records.length, records.pad_id = meta["length"], meta["pad_id"]
        records.fingerprint = meta["fingerprint"]
        return records


def check_ids(tokens: np.ndarray, vocab_size: int, name: str) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
      ValueError: naming the position and the id.
    """
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if len(bad):
        raise ValueError(
            f"{name} holds id {tokens[bad[0]]} at position {bad[0]}; ids must lie in "
            f"[0, {vocab_size}): use the tokenizer that made them"
        )
