"""Signals that ask a run to save and leave."""

import signal
import types
from typing import Self


class StopRequest:
    """Remembers SIGTERM and SIGINT, for loops to poll; a context manager.

    The first signal only sets ``signal``; a second SIGINT interrupts at once.

    Attributes:
      signal: number of the signal that arrived, or None.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        del frame
        if number == signal.SIGINT and self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 plus the signal, as shells report it; 143 after SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal
