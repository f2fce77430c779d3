"""Batches in an order that is a pure function of (seed, epoch, record number).

Shuffling and read-ahead are grain's. The position is one integer of our own, the next global
record: grain's iterator state is an index without a meaning, which another seed, data set or number
of processes would accept silently.
"""

import sys
from typing import Any
from typing import Self

import grain
import numpy as np

from dlm_jax.data.records import Records


class Batches:
    """Endless iterator over batches of one process; a context manager.

    The global batch is a run of consecutive records of the shuffled order, and each process takes
    its contiguous share of it. Every record comes once in each epoch; a batch may straddle two.

    Args:
      records: rows of the training split.
      batch_size: rows of the global batch.
      seed: of the shuffle.
      process_index: number of this process.
      process_count: number of processes; must divide the batch size.
      read_ahead: batches prepared in advance by two threads.

    Raises:
      ValueError: for a batch size that does not fit the data or the processes.
    """

    def __init__(
        self,
        records: Records,
        *,
        batch_size: int,
        seed: int,
        process_index: int = 0,
        process_count: int = 1,
        read_ahead: int = 8,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} must be at least 1")
        if len(records) < batch_size:
            raise ValueError(
                f"the training text gives {len(records)} rows of {records.length} tokens, fewer "
                f"than batch_size={batch_size}; use more text, a shorter data.length or a smaller "
                "training.batch_size"
            )
        if batch_size % process_count or not 0 <= process_index < process_count:
            raise ValueError(
                f"batch_size={batch_size} does not divide by {process_count} processes "
                f"(process {process_index}); use a multiple"
            )
        self._records = records
        self._batch_size = batch_size
        self._seed = seed
        self._share = batch_size // process_count
        self._offset = process_index * self._share
        self._read_ahead = read_ahead
        source: Any = records  # random access is all that grain asks of a source
        self._order = grain.MapDataset.source(source).seed(seed).shuffle().repeat(None)
        self._next_record = 0
        self._iterator: grain.DatasetIterator | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        """The next batch of this process: arrays with ``batch_size / process_count`` rows."""
        if self._iterator is None:
            self._iterator = self._start()
        batch = next(self._iterator)
        self._next_record += self._batch_size
        return batch

    def _start(self) -> grain.DatasetIterator:
        source: Any = _BatchSource(
            self._order, self._next_record + self._offset, self._batch_size, self._share
        )
        options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=self._read_ahead)
        return iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def state(self) -> dict:
        """Position of the next batch, as JSON values."""
        return {
            "next_record": self._next_record,
            "seed": self._seed,
            "fingerprint": self._records.fingerprint,
        }

    def restore(self, state: dict) -> None:
        """Go on at the exact next record, whatever the batch size or number of processes now is.

        Raises:
          ValueError: if the state is of another seed or of other data.
        """
        mine = self.state()
        for name, words in (("seed", "seed"), ("fingerprint", "training data")):
            if state.get(name) != mine[name]:
                raise ValueError(
                    f"the checkpoint's position belongs to another {words} ({state.get(name)!r}, "
                    f"now {mine[name]!r}); going on would repeat or skip records: restore the old "
                    f"{words} or start anew"
                )
        self.close()
        self._next_record = int(state["next_record"])

    def close(self) -> None:
        """Stop reading ahead."""
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BatchSource:
    """Random access to the batches of one process."""

    def __init__(self, order: grain.MapDataset, first: int, stride: int, share: int) -> None:
        self._order, self._first, self._stride, self._share = order, first, stride, share

    def __len__(self) -> int:
        return sys.maxsize // (2 * self._stride)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        first = self._first + index * self._stride
        rows: list[Any] = [self._order[first + row] for row in range(self._share)]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
