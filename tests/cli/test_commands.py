"""``dlm``: what it prints, what it keeps, and one clear line for every mistake."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from dlm_jax.cli import main


def fails(capfd, *arguments):
    """Exit code 2, no traceback; returns the message."""
    try:
        code = main(list(arguments))
    except SystemExit as stopped:  # argparse
        code = stopped.code
    captured = capfd.readouterr()
    assert code == 2, captured.out + captured.err
    assert "Traceback" not in captured.err
    return captured.err


def test_run_folder_holds_what_the_readme_says(run):
    names = {path.name for path in run.iterdir()}
    wanted = {"config.json", "tokenizer", "checkpoints", "metrics.jsonl", "loss.png", "data.json"}
    assert wanted <= names
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    first = train[0]
    # An untrained network is close to uniform over the 259 real ids; weights average to 1 but one
    # batch of 4 rows scatters by a factor of two.
    assert 0.3 * math.log(259) < first["loss"] < 3 * math.log(259)
    assert np.mean([r["loss"] for r in train[-5:]]) < 0.8 * np.mean([r["loss"] for r in train[:5]])
    assert {"tokens_per_second", "step_seconds", "data_wait_seconds", "learning_rate"} <= set(first)


def test_sample_is_repeatable_keeps_prompt_and_suffix_and_seeds_differ(run, capfd):
    call = ["sample", f"--workdir={run}", "--prompt=the <mask> ", "--suffix= end", "--length=30"]
    outputs = []
    for seed in ("0", "0", "1"):
        assert main([*call, f"--seed={seed}", "--temperature=1.0"]) == 0
        outputs.append(capfd.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert all(
        out.startswith("the <mask> ") and out.rstrip("\n").endswith(" end") for out in outputs
    )


def test_num_and_show(run, capfd):
    assert main(["sample", f"--workdir={run}", "--num=3", "--show", "--order=confidence"]) == 0
    out = capfd.readouterr().out
    assert [f"sample {i}" in out for i in range(4)] == [True, True, True, False]
    assert "step 0 of 8, 24 masked" in out and "step 8 of 8, 0 masked" in out


def test_eval_reports_bound_and_honest_baselines(run, capfd):
    """Kills a bound on other bytes than the baselines, checked against gzip by hand."""
    assert main(["eval", f"--workdir={run}", "--samples=4", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    per_byte = figures["nats_per_token"] * figures["tokens"] / figures["bytes"] / math.log(2)
    assert figures["bits_per_byte"] == pytest.approx(per_byte)
    assert 0 < figures["standard_error"] < 0.3
    # A unigram coder of this text needs 3.8 bits; 40 steps of training get near it.
    assert figures["unigram_bits_per_byte"] == pytest.approx(3.8, abs=0.3)
    assert figures["bits_per_byte"] < 8
    # Bytes: one end-of-text token more than bytes.
    assert figures["tokens"] == figures["bytes"] + 1


def test_best_checkpoint_and_raw_parameters_can_be_chosen(run, capfd):
    for flags in (["--checkpoint=best"], ["--checkpoint=20"], ["--no_ema"]):
        assert main(["sample", f"--workdir={run}", *flags]) == 0
    texts = capfd.readouterr().out
    assert texts


@pytest.mark.parametrize("command", ["train", "sample", "eval", "demo"])
def test_help_lists_every_flag(command, capfd, config):
    arguments = [command, "--help"]
    if command in ("train", "demo"):
        assert main([*arguments, f"--config={config}"]) == 0
    else:
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 0
    out = capfd.readouterr().out
    assert "--workdir" in out
    if command == "train":
        assert "--config.optimizer.learning_rate=0.01" in out
        assert "--config.optimizer.b1=0.9" in out  # a default that the config leaves out
    if command == "sample":
        for flag in ("--prompt", "--suffix", "--length", "--steps", "--seed", "--num", "--show"):
            assert flag in out


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("--config.optimzer.lr=1", r"optimzer\.lr is no key of the config; did you mean"),
        ("--config.optimizer.learning_rat=1", "did you mean optimizer.learning_rate"),
        ("--config.optimizer.learning_rate=fast", "learning_rate='fast' must be float"),
        ("--config.optimizer.learning_rate=-1", "learning_rate=-1.0 must be greater than 0"),
        ("--config.optimizer.learning_rate=nan", "learning_rate='nan' must be float"),
        ("--config.training.batch_size=None", "batch_size=None must be int"),
        ("--config.training.accumulation=3", "accumulation=3 must be a divisor of batch_size=4"),
        ("--config.data.length=100", "data.length=100 is longer than model.max_length=64"),
        ("--config.model.heads=3", "width=16 does not divide by heads=3"),
        ("--config.model.attention=causal", "cannot denoise"),
        ("--config.process.schedule=cosin", "'cosin' is unknown; choose one of linear"),
        ("--config.times.sampler=sobol", "'sobol' is unknown"),
        ("--config.sampling.order=best", "order=best must be one of ancestral"),
        ("--config.training.batch_size=10000", "fewer than batch_size=10000"),
        ("--config.data.path=/no/such/file.txt", "does not exist"),
        ("--config.data.path=", "data.path is empty"),
        ("--config.seed=-1", r"seed=-1 must lie in \[0, 2\*\*32\)"),
        ("--config.seed=99999999999999999999", "must lie in"),
        ("--config.sampling.top_p=1.5", r"config.sampling: top_p=1.5 must be in \(0, 1\]"),
        ("--config.sampling.steps=99", "steps=99 must be at most sampling.length=24"),
        ("--config.sampling.length=65", "longer than model.max_length=64"),
    ],
)
def test_config_mistakes_are_named(override, message, config, tmp_path, capfd):
    workdir = tmp_path / "run"
    error = fails(capfd, "train", f"--config={config}", f"--workdir={workdir}", override)
    assert re.search(message, error), error
    assert not (workdir / "checkpoints").is_dir() or not any((workdir / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--temperature=-1"], "temperature=-1.0 must be a finite number of at least 0"),
        (["--temperature=inf"], "temperature=inf must be a finite number"),
        (["--top_k=99999999999999999999"], r"must be in \[0, 2\*\*31\)"),
        (["--seed=-1"], r"--seed=-1 must lie in \[0, 2\*\*32\)"),
        (["--length=0"], "--length=0 and --num=1 must be at least 1"),
        (["--prompt=a\udcffb"], "--prompt holds bytes that are not valid UTF-8 at character 1"),
        (["--checkpoint=\u00b2"], "must be latest, best or a step number"),
        (["--temp=1"], "unknown argument --temp=1; did you mean --temperature"),
        (["--seed=x"], r"^dlm sample: error: argument --seed: invalid int value: 'x' \(see"),
        (["--steps=0"], "steps=0 must be between 1 and the 24 positions"),
        (["--steps=25"], "steps=25 must be between 1 and the 24 positions"),
        (["--prompt=aaaaaaaaaaaaaaa", "--suffix=bbbbbbbbbbb"], "leave no position to fill"),
        (["--length=65"], "longer than the model's max_length=64"),
        (["--num=0"], "--num=0 must be at least 1"),
        (["--order=best"], "order='best' is unknown"),
        (["--top_p=0"], r"top_p=0.0 must be in \(0, 1\]"),
        (["--checkpoint=7"], r"no complete checkpoint of step 7; choose one of \[20, 40\]"),
        (["--checkpoint=newest"], "must be latest, best or a step number"),
        (["--promt=x"], "did you mean --prompt"),
        (["--config.seed=1"], "reads the run's own config"),
    ],
)
def test_sample_mistakes_are_named(flags, message, run, capfd):
    assert re.search(message, fails(capfd, "sample", f"--workdir={run}", *flags))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:", "line 1: invalid syntax"),
        ("import nosuchthing", "line 1: ModuleNotFoundError: No module named 'nosuchthing'"),
        ("def get_config():\n    return 1 / 0", "line 2: ZeroDivisionError"),
        ("import sys\nsys.exit(3)", "line 2: SystemExit"),
        ("x = 1", r"defines no get_config\(\)"),
        ("def get_config():\n    return {}", "must return an ml_collections.ConfigDict, got dict"),
        (
            "from ml_collections import ConfigDict\ndef get_config():\n"
            "    return ConfigDict({'data': 3})",
            "config.data must be a group of keys, got 3",
        ),
    ],
)
def test_broken_config_files_are_named_with_their_line(text, message, tmp_path, capfd):
    (tmp_path / "broken.py").write_text(text)
    for flags in ([f"--workdir={tmp_path / 'run'}"], ["--help"]):
        error = fails(capfd, "train", f"--config={tmp_path / 'broken.py'}", *flags)
        assert re.search(message, error), error
        assert f"{tmp_path / 'broken.py'}" in error


def test_help_works_with_a_separate_value_and_outside_a_checkout(
    config, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--config", str(config), "--help"]) == 0
    assert "--config.optimizer.learning_rate=0.01" in capfd.readouterr().out
    assert main(["train", "--help"]) == 0
    assert "--config.training.keep=2" in capfd.readouterr().out
    assert "no such Python file" in fails(capfd, "train", "--config=missing.py", "--help")


def test_text_is_printed_as_it_is(run, capfd):
    """Kills a terminal library between the text and the reader: ':smile:', tabs, long lines."""
    for prompt in (":smile: [bold]", "a\tb", "w" * 60):
        flags = [f"--prompt={prompt}", "--length=64", "--temperature=0"]
        assert main(["sample", f"--workdir={run}", *flags]) == 0
        assert capfd.readouterr().out.startswith(prompt)


def test_default_steps_give_way_to_a_short_canvas(run, capfd):
    assert main(["sample", f"--workdir={run}", "--length=3"]) == 0


def test_eval_says_when_the_text_is_not_that_of_the_run(run, tmp_path, capfd, corpus):
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    assert main(["eval", f"--workdir={copy}"]) == 0
    assert "warning" not in capfd.readouterr().out
    changed = tmp_path / "text.txt"
    changed.write_text(corpus.read_text() + "the dog sat on the barn.\n" * 20)
    values = json.loads((copy / "config.json").read_text())
    values["data"]["path"] = str(changed)
    (copy / "config.json").write_text(json.dumps(values))
    assert main(["eval", f"--workdir={copy}"]) == 0
    assert "validation split is not the one of the training run" in capfd.readouterr().out
    (copy / "data.json").unlink()
    assert main(["eval", f"--workdir={copy}"]) == 0
    assert "data.json is missing or damaged" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", "{"),
        ("tokenizer/tokenizer_kind.json", "[]"),
        ("tokenizer/tokenizer_kind.json", "\ufeff"),
    ],
)
def test_damaged_run_files_are_named(name, text, run, tmp_path, capfd):
    import shutil

    copy = shutil.copytree(run, tmp_path / "run")
    (copy / name).write_text(text)
    error = fails(capfd, "sample", f"--workdir={copy}")
    assert "damaged" in error and str(copy / name).rpartition("/")[0] in error


def test_interrupt_is_no_traceback(run, capfd, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dlm_jax.cli.sample.open_run", interrupt)
    assert main(["sample", f"--workdir={run}"]) == 130
    assert capfd.readouterr().err == "dlm: interrupted\n"


@pytest.mark.parametrize("arguments", [["train", "--help"], ["sample", "--workdir={run}"]])
def test_a_reader_that_leaves_early_is_no_error(arguments, run):
    with subprocess.Popen(
        [sys.executable, "-m", "dlm_jax", *(each.format(run=run) for each in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == b""
        assert command.wait() == 141


def test_folders_that_cannot_be_used_are_named(config, tmp_path, capfd):
    train = ("train", f"--config={config}")
    assert "cannot be written" in fails(capfd, *train, "--workdir=/dev/null/run")
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("precious")
    assert "holds 'thesis.tex' but no config.json" in fails(capfd, *train, f"--workdir={strange}")
    assert "thesis.tex" in fails(capfd, *train, f"--workdir={strange}", "--restart")
    assert (strange / "thesis.tex").read_text() == "precious"
    assert "holds no config.json" in fails(capfd, "sample", f"--workdir={tmp_path / 'none'}")
    assert "no such Python file" in fails(capfd, "train", "--config=x.py", "--workdir=w")


def test_none_means_none(config, tmp_path):
    from dlm_jax.cli.overrides import apply_overrides
    from dlm_jax.cli.overrides import load_config
    from dlm_jax.config import resolve

    changed = apply_overrides(
        load_config(str(config)),
        ["training.ema_decay=None", "optimizer.clip_norm=None", "data.path=None"],
    )
    experiment = resolve(changed)
    assert experiment.training.ema_decay is None
    assert experiment.optimizer.clip_norm is None
    assert experiment.data.path is None


def test_every_shipped_config_builds_its_model():
    from pathlib import Path

    import jax
    import jax.numpy as jnp

    from dlm_jax.cli.overrides import load_config
    from dlm_jax.config import resolve
    from dlm_jax.models import Transformer

    files = sorted((Path(__file__).parents[2] / "configs").glob("*.py"))
    assert files
    for file in files:
        experiment = resolve(load_config(str(file)))
        assert "dlm train --config=configs/" in (file.read_text().split('"""')[1])
        model = Transformer(experiment.model.build(vocab_size=64, mask_id=63))
        tokens = jnp.zeros((1, experiment.data.length), jnp.int32)
        shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, jnp.ones(1))
        logits = jax.eval_shape(model.apply, shapes, tokens, jnp.ones(1))
        assert logits.shape == (1, experiment.data.length, 64)
