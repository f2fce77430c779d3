"""``dlm train``: from a config and a folder to a finished run."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_collections

from dlm_jax.checkpoints import CheckpointStore
from dlm_jax.checkpoints import complete_steps
from dlm_jax.cli.run import build
from dlm_jax.cli.run import init_params
from dlm_jax.cli.validate import Validation
from dlm_jax.cli.workdir import CHECKPOINTS
from dlm_jax.cli.workdir import DATA
from dlm_jax.cli.workdir import METRICS
from dlm_jax.cli.workdir import Workdir
from dlm_jax.cli.workdir import write_text
from dlm_jax.config import Experiment
from dlm_jax.config import resolve
from dlm_jax.data import Batches
from dlm_jax.data import Prepared
from dlm_jax.data import prepare
from dlm_jax.training import MaskedObjective
from dlm_jax.training import TrainState
from dlm_jax.training import init_state
from dlm_jax.training import learning_rate_schedule
from dlm_jax.training import make_optimizer
from dlm_jax.training import make_train_step
from dlm_jax.training import train
from dlm_jax.training.flops import mfu
from dlm_jax.training.flops import training_flops_per_token
from dlm_jax.training.loop import BEST_METRIC
from dlm_jax.training.preemption import StopRequest
from dlm_jax.training.report import Reporter
from dlm_jax.training.report import read_metrics


def run_training(config: ml_collections.ConfigDict, workdir: str, *, restart: bool = False) -> int:
    """Train, or go on with, the run of a config.

    Args:
      config: with defaults filled in.
      workdir: the run's folder.
      restart: throw away what the folder holds.

    Returns:
      exit code: 0 when finished, 128 + signal when a signal stopped it.

    Raises:
      ValueError: for a user's mistake, before anything slow.
    """
    experiment = resolve(config)
    with StopRequest() as stop, Workdir.claim(workdir, config, restart=restart) as work:
        path = work.path
        steps = experiment.training.steps
        first = max(complete_steps(path / CHECKPOINTS), default=0)
        reporter = Reporter(
            path,
            total_steps=steps,
            first_step=first,
            tensorboard=experiment.training.tensorboard,
        )
        with reporter:
            if first >= steps and _is_scored(path, steps):
                reporter.message(
                    f"{path} is finished at step {first}; nothing to do (--restart trains anew)"
                )
                return 0
            prepared = _prepare(experiment, path, reporter)
            return _train(experiment, prepared, work, reporter, stop)


def _is_scored(path: Path, step: int) -> bool:
    """Whether the evaluation that ends a run was completed."""
    records = read_metrics(path / METRICS)
    return any(record["kind"] == "evaluation" and record["step"] == step for record in records)


def _prepare(experiment: Experiment, path: Path, reporter: Reporter) -> Prepared:
    reporter.message(f"data: {experiment.data.path or 'prose of the running Python'}")
    prepared = prepare(experiment.data, path)
    facts = prepared.facts()
    # A run that goes on keeps the record of the data it began with.
    if not complete_steps(path / CHECKPOINTS):
        prints = {"validation_fingerprint": prepared.validation.fingerprint}
        write_text(path / DATA, json.dumps(facts | prints, indent=2) + "\n")
    reporter.message("  ".join(f"{name}={value}" for name, value in facts.items()))
    return prepared


def _train(
    experiment: Experiment,
    prepared: Prepared,
    work: Workdir,
    reporter: Reporter,
    stop: StopRequest,
) -> int:
    training = experiment.training
    path = work.path
    model, process = build(experiment, prepared.tokenizer)
    optimizer = make_optimizer(experiment.optimizer)
    key_init, key_train, key_evaluate = jax.random.split(jax.random.key(experiment.seed), 3)
    with (
        Batches(prepared.train, batch_size=training.batch_size, seed=experiment.seed) as batches,
        CheckpointStore(path / CHECKPOINTS, keep=training.keep, best_metric=BEST_METRIC) as store,
    ):
        state = init_state(
            init_params(model, key_init), optimizer, ema=training.ema_decay is not None
        )
        if store.latest() is not None:
            state = _restore(store, state, batches, reporter)
        train_step = make_train_step(
            MaskedObjective(
                model=model,
                process=process,
                times=experiment.time_sampler(),
                weighting=experiment.weighting(),
            ),
            optimizer,
            accumulation=training.accumulation,
            ema_decay=training.ema_decay,
            dropout=bool(model.config.dropout or model.config.attention_dropout),
            learning_rate=learning_rate_schedule(experiment.optimizer),
        )
        validation = Validation(model, process, prepared, experiment.evaluation, key_evaluate, stop)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
        reporter.message(
            f"model: {parameters:,} parameters on {jax.device_count()} "
            f"{jax.devices()[0].device_kind}; compiling the train step"
        )
        flops = training_flops_per_token(model.config, experiment.data.length, head_share=0.5)

        def rates(tokens_per_second: float) -> dict[str, float]:
            share = mfu(tokens_per_second, flops, jax.devices()[0].device_kind, jax.device_count())
            return {} if share is None else {"mfu": share}

        if not stop.requested:  # a restart that is called off brings the old run back
            work.commit()
        outcome = train(
            state,
            train_step,
            batches,
            key=key_train,
            training=training,
            evaluation=experiment.evaluation,
            evaluate=validation,
            store=store,
            reporter=reporter,
            stop=stop,
            meta={
                "tokenizer": prepared.tokenizer.fingerprint,
                "jax": jax.__version__,
                "parameters": parameters,
            },
            workdir=path,
            rates=rates,
        )
    if not outcome.finished:
        reporter.message(
            f"stopped by signal {stop.signal} at step {int(outcome.state.step)}; "
            "the same command goes on from there"
        )
        return stop.exit_code
    _plot(path, reporter)
    return 0


def _restore(
    store: CheckpointStore, state: TrainState, batches: Batches, reporter: Reporter
) -> TrainState:
    restored = store.restore(state)
    batches.restore(restored.data)
    reporter.message(f"going on from the checkpoint of step {restored.step}")
    return jax.tree.map(jnp.asarray, restored.state)


def _plot(path: Path, reporter: Reporter) -> None:
    try:
        from dlm_jax.training.plots import plot_run

        plot_run(path / METRICS, path / "loss.png")
    except ImportError as error:
        reporter.message(f"no plot was drawn: {error}")
