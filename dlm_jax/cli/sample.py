"""``dlm sample``: fill a canvas from a trained run."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dlm_jax.cli.run import Run
from dlm_jax.cli.run import open_run
from dlm_jax.cli.show import show_trace
from dlm_jax.config import check_seed
from dlm_jax.models import Transformer
from dlm_jax.processes import MaskedProcess
from dlm_jax.sampling import Filters
from dlm_jax.sampling import Sample
from dlm_jax.sampling import Trace
from dlm_jax.sampling import check_filters
from dlm_jax.sampling import check_steps
from dlm_jax.sampling import make_canvas
from dlm_jax.sampling import sample
from dlm_jax.sampling import time_grid

Sampler = Callable[..., Sample]


def make_sampler(
    model: Transformer, process: MaskedProcess, *, order: str, trace: bool = False
) -> Sampler:
    """Compile-once sampler: (params, key, canvas, grid, filters) -> Sample."""

    @jax.jit
    def run(params: Any, key: Any, canvas: Any, grid: Any, filters: Filters) -> Sample:
        encode: Any = functools.partial(model.apply, params, method="encode")
        head: Any = functools.partial(model.apply, params, method="head")
        return sample(
            key,
            encode,
            process,
            canvas,
            grid,
            head=head,
            order=order,
            trace=trace,
            **filters._asdict(),
        )

    return run


def request(run: Run, arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, Filters]:
    """Check a request against a run before anything slow: canvas, time grid and filters.

    Raises:
      ValueError: naming the flag, its value and what is allowed.
    """
    length = arguments.length
    longest = run.model.config.max_length
    if length > longest:
        raise ValueError(f"--length={length} is longer than the model's max_length={longest}")
    if length < 1 or arguments.num < 1:
        raise ValueError(f"--length={length} and --num={arguments.num} must be at least 1")
    for name in ("prompt", "suffix"):
        try:
            getattr(arguments, name).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"--{name} holds bytes that are not valid UTF-8 at character {error.start}; "
                "check the encoding of your terminal"
            ) from error
    canvas = make_canvas(
        run.tokenizer.encode(arguments.prompt),
        run.tokenizer.encode(arguments.suffix),
        length=length,
        mask_id=run.tokenizer.mask_id,
        vocab_size=run.tokenizer.vocab_size,
        rows=arguments.num,
    )
    free = int((canvas[0] == run.tokenizer.mask_id).sum())
    steps = min(run.experiment.sampling.steps, free) if arguments.steps is None else arguments.steps
    check_steps(steps, free)
    check_filters(Filters(arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p))
    filters = Filters(
        temperature=np.asarray(arguments.temperature, np.float32),
        top_k=np.asarray(arguments.top_k, np.int32),
        top_p=np.asarray(arguments.top_p, np.float32),
        min_p=np.asarray(arguments.min_p, np.float32),
    )
    return canvas, time_grid(steps, bucket=1 << (steps - 1).bit_length()), filters


def run_sample(arguments: argparse.Namespace, console: Console) -> int:
    """Sample, and print each text between its prompt and its suffix."""
    run = open_run(arguments.workdir)
    check_seed(arguments.seed, "--seed")
    defaults = run.experiment.sampling
    for name in ("order", "length", "temperature", "top_k", "top_p", "min_p"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(defaults, name))
    canvas, grid, filters = request(run, arguments)
    params = run.params(checkpoint=arguments.checkpoint, ema=not arguments.no_ema)
    sampler = make_sampler(run.model, run.process, order=arguments.order, trace=arguments.show)
    result = sampler(params, jax.random.key(arguments.seed), jnp.asarray(canvas), grid, filters)
    if arguments.show and result.trace is not None:
        show_trace(console, run.tokenizer, trace_frames(canvas, grid, result.trace))
    for number, row in enumerate(np.asarray(result.tokens)):
        if arguments.num > 1:
            console.rule(f"sample {number}", align="left")
        # Past rich, which wraps lines, expands tabs and draws ":smile:".
        console.file.write(run.tokenizer.decode(row.tolist()) + "\n")
    return 0


def trace_frames(canvas: np.ndarray, grid: np.ndarray, trace: Trace) -> np.ndarray:
    """Canvases of the first row [S + 1, T]: the given one, then one after each step."""
    steps = int((grid[:-1] > grid[1:]).sum())  # the grid is padded to its bucket by equal times
    return np.concatenate([canvas[None], np.asarray(trace.tokens)])[: steps + 1, 0]
