"""``dlm eval``: the validation bound of a run beside two baselines."""

import argparse
import dataclasses
import json
import math
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dlm_jax.cli.run import Run
from dlm_jax.cli.run import open_run
from dlm_jax.cli.validate import Validation
from dlm_jax.cli.workdir import DATA
from dlm_jax.config import check_seed
from dlm_jax.data import Prepared
from dlm_jax.data import prepare
from dlm_jax.evaluation import Bound
from dlm_jax.evaluation import gzip_bits_per_byte
from dlm_jax.evaluation import unigram_bits_per_byte


def run_evaluation(arguments: argparse.Namespace, console: Console) -> int:
    """Score the validation split and print a table, and one JSON line with ``--json``."""
    check_seed(arguments.seed, "--seed")
    if not 2 <= arguments.samples < 2**16:
        raise ValueError(
            f"--samples={arguments.samples} must be at least 2 (one draw of each row has no "
            "standard error) and below 65536"
        )
    run = open_run(arguments.workdir)
    params = run.params(checkpoint=arguments.checkpoint, ema=not arguments.no_ema)
    prepared = prepare(run.experiment.data, run.path)
    warn_of_other_data(run.path, prepared, console)
    spec = dataclasses.replace(run.experiment.evaluation, samples=arguments.samples)
    validation = Validation(run.model, run.process, prepared, spec, jax.random.key(arguments.seed))
    with console.status("scoring the validation split"):
        bound = validation(params, True)
    assert bound is not None
    console.print(report(run, prepared, bound))
    if arguments.json:
        print(json.dumps(figures(prepared, bound)))
    return 0


def warn_of_other_data(path: Path, prepared: Prepared, console: Console) -> None:
    """Say so when the text has changed since the run was trained: a new split may hold old text."""
    now = prepared.validation.fingerprint
    try:
        then = json.loads((path / DATA).read_text(encoding="utf-8"))["validation_fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        warning = f"{path / DATA} is missing or damaged, so the text may not be that of the run"
    else:
        if now == then:
            return
        warning = (
            f"the validation split is not the one of the training run (fingerprint {now}, was "
            f"{then}), so the model may have been trained on some of this text"
        )
    console.print(Text(f"warning: {warning}", style="bold yellow"), soft_wrap=True)


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
