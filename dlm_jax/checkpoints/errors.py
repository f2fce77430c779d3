"""What a user is told when orbax fails, and what is kept off the terminal meanwhile."""

import logging
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import orbax.checkpoint as ocp

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)

_ORBAX = ocp.__path__[0]


class CheckpointError(ValueError):
    """A checkpoint that cannot be written, or read, or does not fit."""


class Quiet(logging.Filter):
    """Keeps orbax's log lines off the terminal, those of its threads too, until removed.

    Orbax logs through absl, so only records from its own files are dropped. Its errors are among
    them: every one is raised here as a :class:`CheckpointError`.
    """

    def __init__(self) -> None:
        super().__init__()
        logging.getLogger("absl").addFilter(self)
        self._excepthook = sys.excepthook
        sys.excepthook = self._hook

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record passes."""
        return not record.pathname.startswith(_ORBAX)

    def remove(self) -> None:
        """Let orbax speak again."""
        logging.getLogger("absl").removeFilter(self)
        if sys.excepthook == self._hook:
            sys.excepthook = self._excepthook

    def _hook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        """Drop what tensorstore's threads print for each array they still had after a failure."""
        if str(error) != "Event loop is closed" or "asyncio" not in _file_of(trace):
            self._excepthook(kind, error, trace)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.remove()


def _file_of(trace: TracebackType | None) -> str:
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def explained(action: Callable[[], T], explain: Callable[[str], str]) -> T:
    """Do what may fail inside orbax, and raise one clear error if it does.

    Args:
      action: calls orbax.
      explain: message for a cause.

    Raises:
      CheckpointError: without orbax's and tensorstore's tracebacks, which hide the reason.
    """
    try:
        return action()
    except CheckpointError:
        raise
    except Exception as error:  # Orbax raises bare Exception for an array it cannot read.
        _LOGGER.debug("orbax failed", exc_info=True)
        message = explain(_cause(error))
    raise CheckpointError(message)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    # Tensorstore appends specs and source lines in brackets, thousands of characters long.
    text = lines[0].split(" [tensorstore_spec")[0].split(" [source locations")[0]
    text = text.split(" [os_error_code")[0]
    if len(text) > 300:  # Paths make it long, and the reason stands at the end.
        text = f"{text[:60]} ... {text[-200:]}"
    return text or type(error).__name__
