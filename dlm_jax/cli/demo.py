"""``dlm demo``: the whole path on the prose of the running Python, shown as it happens."""

import argparse
import io
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from rich.console import Console
from rich.text import Text

from dlm_jax.cli.evaluate import report
from dlm_jax.cli.evaluate import warn_of_other_data
from dlm_jax.cli.run import Run
from dlm_jax.cli.run import open_run
from dlm_jax.cli.sample import make_sampler
from dlm_jax.cli.sample import request
from dlm_jax.cli.sample import trace_frames
from dlm_jax.cli.show import show_trace
from dlm_jax.cli.train import run_training
from dlm_jax.cli.validate import Validation
from dlm_jax.cli.workdir import write_text
from dlm_jax.data import prepare

GAP = ("Return a list of ", " in the current directory.")
"""A sentence with a gap in it."""


def run_demo(
    config: ml_collections.ConfigDict, workdir: str, console: Console, *, restart: bool
) -> int:
    """Train (or resume, or find finished), score, denoise a page, fill a gap, and keep it all.

    Returns:
      exit code; that of the training if a signal stopped it.
    """
    console.rule("1. train", align="left")
    code = run_training(config, workdir, restart=restart)
    if code:
        return code
    run = open_run(workdir)
    params = run.params()

    console.rule("2. score", align="left")
    prepared = prepare(run.experiment.data, run.path)
    warn_of_other_data(run.path, prepared, console)
    validation = Validation(
        run.model, run.process, prepared, run.experiment.evaluation, jax.random.key(0)
    )
    bound = validation(params, True)
    assert bound is not None
    console.print(report(run, prepared, bound))

    written = io.StringIO()
    console.rule("3. write a page", align="left")
    _write_page(run, params, console, written)
    console.rule("4. fill a gap", align="left")
    _fill_gap(run, params, console, written)
    write_text(run.path / "samples.txt", written.getvalue())

    console.rule("5. what is left", align="left")
    for path in sorted(Path(workdir).iterdir()):
        if path.name != "run.lock":
            console.print(f"  {path}", highlight=False)
    console.print(
        f"\nTry: dlm sample --workdir={workdir} --prompt='Return the ' --num=4", highlight=False
    )
    return 0


def _arguments(run: Run, **given: object) -> argparse.Namespace:
    spec = run.experiment.sampling
    values = {
        "prompt": "",
        "suffix": "",
        "num": 1,
        "length": spec.length,
        "steps": spec.steps,
        "temperature": spec.temperature,
        "top_k": spec.top_k,
        "top_p": spec.top_p,
        "min_p": spec.min_p,
    }
    return argparse.Namespace(**(values | given))


def _write_page(run: Run, params: object, console: Console, written: io.StringIO) -> None:
    """Denoise one canvas from nothing, step by step."""
    canvas, grid, filters = request(run, _arguments(run))
    sampler = make_sampler(run.model, run.process, order=run.experiment.sampling.order, trace=True)
    result = sampler(params, jax.random.key(1), jnp.asarray(canvas), grid, filters)
    assert result.trace is not None
    frames = trace_frames(canvas, grid, result.trace)
    show_trace(console, run.tokenizer, frames)
    written.write(f"{run.tokenizer.decode(frames[-1].tolist())}\n\n")


def _fill_gap(run: Run, params: object, console: Console, written: io.StringIO) -> None:
    """Three ways to fill a gap whose two sides are given."""
    prompt, suffix = GAP
    given = len(run.tokenizer.encode(prompt)) + len(run.tokenizer.encode(suffix))
    gap = 8
    canvas, grid, filters = request(
        run, _arguments(run, prompt=prompt, suffix=suffix, num=3, length=given + gap, steps=gap)
    )
    sampler = make_sampler(run.model, run.process, order="confidence")
    tokens = sampler(params, jax.random.key(2), jnp.asarray(canvas), grid, filters).tokens
    for row in np.asarray(tokens):
        text = run.tokenizer.decode(row.tolist())
        middle = text.removeprefix(prompt).removesuffix(suffix)
        # A Text is printed as it is: no markup, no ":smile:", no wrapping.
        console.print(Text.assemble(prompt, (middle, "bold green"), suffix), soft_wrap=True)
        written.write(f"{text}\n")
