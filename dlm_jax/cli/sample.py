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
from dlm_jax.models import Transformer
from dlm_jax.processes import MaskedProcess
from dlm_jax.sampling import Filters
from dlm_jax.sampling import Sample
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
    if arguments.num < 1:
        raise ValueError(f"--num={arguments.num} must be at least 1")
    canvas = make_canvas(
        run.tokenizer.encode(arguments.prompt),
        run.tokenizer.encode(arguments.suffix),
        length=length,
        mask_id=run.tokenizer.mask_id,
        vocab_size=run.tokenizer.vocab_size,
        rows=arguments.num,
    )
    steps = arguments.steps
    check_steps(steps, int((canvas[0] == run.tokenizer.mask_id).sum()))
    filters = Filters(
        temperature=np.asarray(arguments.temperature, np.float32),
        top_k=np.asarray(arguments.top_k, np.int32),
        top_p=np.asarray(arguments.top_p, np.float32),
        min_p=np.asarray(arguments.min_p, np.float32),
    )
    check_filters(filters)
    return canvas, time_grid(steps, bucket=1 << (steps - 1).bit_length()), filters


def run_sample(arguments: argparse.Namespace, console: Console) -> int:
    """Sample, and print each text between its prompt and its suffix."""
    run = open_run(arguments.workdir)
    defaults = run.experiment.sampling
    for name in ("order", "steps", "length", "temperature", "top_k", "top_p", "min_p"):
        if getattr(arguments, name) is None:
            setattr(arguments, name, getattr(defaults, name))
    canvas, grid, filters = request(run, arguments)
    params = run.params(checkpoint=arguments.checkpoint, ema=not arguments.no_ema)
    sampler = make_sampler(run.model, run.process, order=arguments.order, trace=arguments.show)
    result = sampler(params, jax.random.key(arguments.seed), jnp.asarray(canvas), grid, filters)
    if arguments.show and result.trace is not None:
        frames = np.concatenate([canvas[None], np.asarray(result.trace.tokens)])
        show_trace(console, run.tokenizer, frames[: arguments.steps + 1, 0])
    for number, row in enumerate(np.asarray(result.tokens)):
        if arguments.num > 1:
            console.rule(f"sample {number}", align="left")
        console.print(run.tokenizer.decode(row.tolist()), markup=False, highlight=False)
    return 0
