"""``dlm eval``: the validation bound of a run beside two baselines."""

import argparse
import dataclasses
import json
import math

import jax
from rich.console import Console
from rich.table import Table

from dlm_jax.cli.run import Run
from dlm_jax.cli.run import open_run
from dlm_jax.cli.validate import Validation
from dlm_jax.data import Prepared
from dlm_jax.data import prepare
from dlm_jax.evaluation import Bound
from dlm_jax.evaluation import gzip_bits_per_byte
from dlm_jax.evaluation import unigram_bits_per_byte


def run_evaluation(arguments: argparse.Namespace, console: Console) -> int:
    """Score the validation split and print a table, and one JSON line with ``--json``."""
    if arguments.samples < 2:
        raise ValueError(
            f"--samples={arguments.samples} must be at least 2: one draw of each row has no "
            "standard error"
        )
    run = open_run(arguments.workdir)
    params = run.params(checkpoint=arguments.checkpoint, ema=not arguments.no_ema)
    prepared = prepare(run.experiment.data, run.path)
    spec = dataclasses.replace(run.experiment.evaluation, samples=arguments.samples)
    validation = Validation(run.model, run.process, prepared, spec, jax.random.key(arguments.seed))
    with console.status("scoring the validation split"):
        bound = validation(params, True)
    assert bound is not None
    console.print(report(run, prepared, bound))
    if arguments.json:
        print(json.dumps(figures(prepared, bound)))
    return 0


def figures(prepared: Prepared, bound: Bound) -> dict[str, float | int | str]:
    """All numbers of the report by name."""
    text_bytes = prepared.validation_bytes
    return {
        "kind": bound.kind,
        "nats_per_token": bound.nats_per_token,
        "standard_error": bound.standard_error,
        "perplexity": math.exp(bound.nats_per_token),
        "bits_per_byte": bound.bits_per_byte(text_bytes),
        "tokens": bound.tokens,
        "bytes": text_bytes,
        "unigram_bits_per_byte": unigram_bits_per_byte(
            prepared.train_token_counts, prepared.validation_token_counts, text_bytes
        ),
        "gzip_bits_per_byte": gzip_bits_per_byte(prepared.validation_text),
    }


def report(run: Run, prepared: Prepared, bound: Bound) -> Table:
    """The bound and the baselines, in bits for each byte of the same text."""
    numbers = figures(prepared, bound)
    table = Table(title=f"validation text: {bound.tokens:,} tokens, {numbers['bytes']:,} bytes")
    table.add_column("model")
    table.add_column("bits per byte", justify="right")
    table.add_column("nats per token", justify="right")
    table.add_column("kind")
    error = bound.standard_error * bound.bits_per_byte(prepared.validation_bytes)
    error /= bound.nats_per_token
    table.add_row(
        f"{run.experiment.process.name} diffusion",
        f"{numbers['bits_per_byte']:.4f} ± {error:.4f}",
        f"{bound.nats_per_token:.4f} ± {bound.standard_error:.4f}",
        bound.kind,
    )
    per_token = prepared.validation_bytes * math.log(2) / bound.tokens
    for name, key in (
        ("token unigram of the training split", "unigram_bits_per_byte"),
        ("gzip -9 of the validation text", "gzip_bits_per_byte"),
    ):
        value = float(numbers[key])
        table.add_row(name, f"{value:.4f}", f"{value * per_token:.4f}", "exact")
    return table
