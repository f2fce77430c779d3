"""Denoising in a terminal: the canvas after every step, live, or a few frames in a log."""

import time

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from dlm_jax.data import Tokenizer

_FRAME_SECONDS = 0.12
_LOG_FRAMES = 5


def render_canvas(tokenizer: Tokenizer, now: np.ndarray, before: np.ndarray | None) -> Text:
    """A canvas as text: [MASK] as a dot, tokens revealed since ``before`` highlighted.

    Neighbouring tokens of one kind are decoded together, so that a character made of several byte
    tokens shows as itself.
    """
    masked = now == tokenizer.mask_id
    new = ~masked & (before == tokenizer.mask_id) if before is not None else np.zeros_like(masked)
    kinds = np.where(masked, 0, np.where(new, 1, 2))
    text = Text()
    start = 0
    for end in range(1, len(now) + 1):
        if end < len(now) and kinds[end] == kinds[start]:
            continue
        piece = now[start:end].tolist()
        if kinds[start] == 0:
            text.append("·" * len(piece), style="dim")
        else:
            text.append(tokenizer.decode(piece), style="bold green" if kinds[start] == 1 else "")
        start = end
    return text


def show_trace(
    console: Console, tokenizer: Tokenizer, frames: np.ndarray, *, title: str = "denoising"
) -> None:
    """Play the frames of one row, or print a few of them where there is no terminal.

    Args:
      console: where to draw.
      tokenizer: turns ids into text.
      frames: canvases [S + 1, T], the start first.
      title: heading of the panel.
    """
    last = len(frames) - 1

    def panel(index: int) -> Panel:
        before = frames[index - 1] if index else None
        left = int((frames[index] == tokenizer.mask_id).sum())
        heading = f"{title}: step {index} of {last}, {left} masked"
        return Panel(render_canvas(tokenizer, frames[index], before), title=heading)

    if console.is_terminal:
        with Live(panel(0), console=console, refresh_per_second=20) as live:
            for index in range(last + 1):
                live.update(panel(index))
                time.sleep(_FRAME_SECONDS)
    else:
        for index in sorted({round(i * last / _LOG_FRAMES) for i in range(_LOG_FRAMES + 1)}):
            console.print(panel(index))
