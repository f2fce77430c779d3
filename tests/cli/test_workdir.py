"""A run's folder never loses a finished run, and a mistake never blocks the corrected command."""

import json
import os
import signal

import pytest

from dlm_jax.checkpoints.folder import best_step
from dlm_jax.cli import main
from dlm_jax.cli import workdir as folder
from dlm_jax.cli.overrides import apply_overrides
from dlm_jax.cli.overrides import load_config
from dlm_jax.cli.validate import Validation
from dlm_jax.cli.workdir import Workdir

SHORT = ["--config.training.steps=5", "--config.training.log_every=5"]


def contents(path):
    """Every file below a folder with its bytes, but for the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "run.lock"
    }


@pytest.fixture(scope="module")
def short_run(tmp_path_factory, config):
    path = tmp_path_factory.mktemp("runs") / "short"
    assert main(["train", f"--config={config}", f"--workdir={path}", *SHORT]) == 0
    return path


@pytest.fixture
def finished(short_run, tmp_path):
    """A copy of a finished run of five steps."""
    import shutil

    return shutil.copytree(short_run, tmp_path / "run")


@pytest.mark.parametrize(
    "mistake",
    ["--config.data.path=/no/such.txt", "--config.training.batch_size=10000"],
)
def test_restart_that_fails_brings_the_old_run_back(finished, config, mistake, capfd):
    """Kills a restart that deletes before it knows that the new run can start."""
    before = contents(finished)
    train = ["train", f"--config={config}", f"--workdir={finished}", *SHORT]
    assert main([*train, mistake, "--restart"]) == 2
    assert contents(finished) == before
    assert main(train) == 0
    assert "is finished at step 5" in capfd.readouterr().out


def test_restart_called_off_before_its_first_step_brings_the_old_run_back(
    finished, config, monkeypatch
):
    """Kills a commit that does not ask whether a signal came during the preparation."""
    from dlm_jax.cli import train as command

    before = contents(finished)
    prepare = command.prepare

    def stopped(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return prepare(*arguments)

    monkeypatch.setattr(command, "prepare", stopped)
    train = ["train", f"--config={config}", f"--workdir={finished}", *SHORT]
    assert main([*train, "--restart"]) == 143
    assert contents(finished) == before


@pytest.mark.parametrize("moved", [1, len(folder._RUN) - 1, len(folder._RUN), "restoring"])
def test_restart_that_is_killed_brings_the_old_run_back(finished, config, moved, monkeypatch):
    """Killed after some, all but the config, all, and again while coming back."""
    before = contents(finished)
    other = apply_overrides(load_config(str(config)), ["seed=9"])
    aside = finished / ".replaced"
    aside.mkdir()
    names = [name for name in folder._RUN if (finished / name).exists()]
    for name in names[: len(names) if moved == "restoring" else moved]:
        (finished / name).rename(aside / name)
    if not (finished / "config.json").exists():  # the new run had begun to write
        (finished / "config.json").write_text(json.dumps(other.to_dict()))
        (finished / "metrics.jsonl").write_text("{}")
    if moved == "restoring":
        (aside / "config.json").replace(finished / "config.json")
        (finished / "metrics.jsonl").unlink()
    same = apply_overrides(
        load_config(str(config)), [text.removeprefix("--config.") for text in SHORT]
    )
    with Workdir.claim(finished, same):
        pass
    assert contents(finished) == before


def test_committed_restart_deletes_the_old_run(finished, config):
    with Workdir.claim(finished, load_config(str(config)), restart=True) as work:
        assert (finished / ".replaced" / "checkpoints" / "5").is_dir()
        work.commit()
        assert {path.name for path in finished.iterdir()} == {"config.json", "run.lock"}


def test_mistake_in_the_first_command_does_not_block_the_second(tmp_path, config, capfd):
    """Kills a folder that belongs for ever to a config that never trained a step."""
    train = ["train", f"--config={config}", f"--workdir={tmp_path / 'run'}", *SHORT]
    assert main([*train, "--config.data.path=/no/such.txt"]) == 2
    assert main([*train, "--config.training.batch_size=10000"]) == 2
    assert main(train) == 0


def test_leftovers_of_killed_writes_do_not_block(tmp_path, config):
    (tmp_path / "run" / ".tokenizer.new").mkdir(parents=True)
    (tmp_path / "run" / ".config.json.123").write_text("{")
    with Workdir.claim(tmp_path / "run", load_config(str(config))):
        assert not (tmp_path / "run" / ".config.json.123").exists()
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"config.json", "run.lock"}


@pytest.mark.parametrize("text", ['{"name": "my-web-page"}', "[1]", "{broken"])
def test_config_json_of_somebody_else_is_left_alone(tmp_path, config, text, capfd):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "samples.txt").write_text("precious")
    for flags in ([], ["--restart"]):
        assert main(["train", f"--config={config}", f"--workdir={tmp_path}", *flags]) == 2
        assert str(tmp_path / "config.json") in capfd.readouterr().err
    assert (tmp_path / "config.json").read_text() == text
    assert (tmp_path / "samples.txt").read_text() == "precious"


def test_run_stopped_in_its_last_evaluation_is_scored_later(tmp_path, config, run, monkeypatch):
    """Kills a run that counts as finished without bound, metric and plot."""
    path = tmp_path / "run"
    train = ["train", f"--config={config}", f"--workdir={path}"]
    call = Validation.__call__

    def stopped(self, params, whole):
        if whole:
            os.kill(os.getpid(), signal.SIGTERM)
        return call(self, params, whole)

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "__call__", stopped)
        assert main(train) == 143
    assert not (path / "loss.png").exists()
    assert best_step(path / "checkpoints", "nats_per_token") == 20
    assert main(train) == 0

    def scores(path):
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        return [(r["step"], r["nats_per_token"]) for r in lines if r["kind"] == "evaluation"]

    assert scores(path) == scores(run)
    assert (path / "loss.png").exists()
    assert best_step(path / "checkpoints", "nats_per_token") == best_step(
        run / "checkpoints", "nats_per_token"
    )
