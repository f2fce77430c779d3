"""A run that is cut off and goes on is bitwise the run that never stopped."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dlm_jax.checkpoints import CheckpointStore
from dlm_jax.cli import main

# Runs `dlm train` and sends itself a signal once a step has been dispatched; a kill waits until the
# save in the background is on disk, for the step it would otherwise be lost from is not fixed.
INTERRUPTED = """
import os, pathlib, sys
from dlm_jax.checkpoints.folder import complete_steps
from dlm_jax.cli import main
from dlm_jax.training.report import Reporter
step_of = Reporter.step
def step(self, number):
    step_of(self, number)
    if number == int(sys.argv[1]):
        folder = pathlib.Path(sys.argv[-1].partition("=")[2]) / "checkpoints"
        while sys.argv[2] == "9" and complete_steps(folder) != [20]:
            pass
        os.kill(os.getpid(), int(sys.argv[2]))
Reporter.step = step
sys.exit(main(sys.argv[3:]))
"""


def interrupt(step, signal, *arguments):
    command = [sys.executable, "-c", INTERRUPTED, str(step), str(signal), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def leaves(workdir, like_of):
    """Every array of the newest checkpoint as bytes, with its position in the data."""
    import jax

    from dlm_jax.cli.run import init_params
    from dlm_jax.cli.run import open_run
    from dlm_jax.training import init_state
    from dlm_jax.training import make_optimizer

    opened = open_run(like_of)
    params = init_params(opened.model, jax.random.key(0))
    like = init_state(params, make_optimizer(opened.experiment.optimizer), ema=True)
    with CheckpointStore(workdir / "checkpoints", best_metric="nats_per_token") as store:
        restored = store.restore(like)
    arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(restored.state)]
    return restored.step, arrays, restored.data


def losses(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(r["step"], r["loss"], r["grad_norm"]) for r in lines if r["kind"] == "train"]


@pytest.mark.parametrize(
    ("step", "signal", "code", "saved"), [(27, 9, -9, 20), (26, 15, 143, 26)], ids=["kill", "term"]
)
def test_interrupted_run_equals_the_straight_one(tmp_path, config, run, step, signal, code, saved):
    """20 + kill -9 + 20, and SIGTERM + rest: parameters, optimiser, average, data, every loss.

    Kills a lost data position, noise that depends on process age, and metrics written twice.
    """
    workdir = tmp_path / "run"
    arguments = ("train", f"--config={config}", f"--workdir={workdir}")
    stopped = interrupt(step, signal, *arguments)
    assert stopped.returncode == code, stopped.stderr
    with CheckpointStore(workdir / "checkpoints", best_metric="nats_per_token") as store:
        assert store.latest() == saved
    assert main(list(arguments)) == 0
    assert leaves(workdir, run) == leaves(run, run)
    assert losses(workdir) == losses(run)
    assert [step for step, _, _ in losses(run)] == list(range(1, 41))


def test_finished_run_is_left_alone_and_restart_throws_it_away(tmp_path, config, capfd):
    workdir = tmp_path / "run"
    arguments = ["train", f"--config={config}", f"--workdir={workdir}"]
    short = ["--config.training.steps=5", "--config.training.log_every=5"]
    assert main([*arguments, *short]) == 0
    before = (workdir / "metrics.jsonl").read_text()
    assert main([*arguments, *short]) == 0
    assert (workdir / "metrics.jsonl").read_text() == before
    assert "is finished at step 5" in capfd.readouterr().out
    assert main([*arguments, *short, "--config.seed=4"]) == 2
    assert "seed is 3 there and 4 here" in capfd.readouterr().err
    assert (workdir / "metrics.jsonl").read_text() == before
    assert main([*arguments, *short, "--config.seed=4", "--restart"]) == 0
    assert (workdir / "metrics.jsonl").read_text() != before


def test_second_writer_is_refused(tmp_path, config, capfd):
    """Kills a lock that is not held while the run goes on."""
    from dlm_jax.cli.overrides import load_config
    from dlm_jax.cli.workdir import Workdir

    with Workdir.claim(tmp_path / "run", load_config(str(config))):
        assert main(["train", f"--config={config}", f"--workdir={tmp_path / 'run'}"]) == 2
    assert "is in use by process" in capfd.readouterr().err


def test_nan_stops_the_run_keeps_the_batch_and_the_checkpoint(tmp_path, config, capfd, monkeypatch):
    """Kills a guard that saves the broken state or forgets the batch."""
    import dlm_jax.training.objectives as objectives

    loss = objectives.MaskedObjective.loss

    def explode(self, params, noised, dropout_key):
        import jax.numpy as jnp

        sums = loss(self, params, noised, dropout_key)
        learned = jnp.sum(jnp.square(params["params"]["outer_norm"]["scale"] - 1)) > 3e-2
        return sums._replace(total=jnp.where(learned, jnp.nan, sums.total))

    monkeypatch.setattr(objectives.MaskedObjective, "loss", explode)
    workdir = tmp_path / "run"
    overrides = ["--config.training.checkpoint_every=1"]
    assert main(["train", f"--config={config}", f"--workdir={workdir}", *overrides]) == 2
    message = capfd.readouterr().err
    assert "gave loss nan" in message and "lower optimizer.learning_rate" in message
    kept = list(workdir.glob("non_finite_step_*.npz"))
    assert len(kept) == 1
    assert np.load(kept[0])["tokens"].shape == (4, 32)
    step = int(kept[0].stem.rpartition("_")[2])
    with CheckpointStore(workdir / "checkpoints", best_metric="nats_per_token") as store:
        assert store.latest() == step - 1
