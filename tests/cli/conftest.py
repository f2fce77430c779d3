"""A tiny corpus, a tiny config, and one run of it that all tests share."""

import random
import textwrap

import pytest

from dlm_jax.cli import main

CONFIG = """
    from ml_collections import ConfigDict

    def get_config():
        return ConfigDict({{
            "seed": 3,
            "data": {{"path": {path!r}, "tokenizer": "bytes", "length": 32, "overlap": 8,
                      "validation_fraction": 0.2}},
            "model": {{"width": 16, "layers": 1, "heads": 2, "max_length": 64}},
            "optimizer": {{"learning_rate": 1e-2, "warmup_steps": 5}},
            "training": {{"steps": 40, "batch_size": 4, "ema_decay": 0.9, "log_every": 1,
                          "checkpoint_every": 20}},
            "evaluation": {{"every": 20, "rows": 4, "samples": 2, "batch_size": 4}},
            "sampling": {{"length": 24, "steps": 8}},
        }})
"""


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    words = "the cat sat on a mat and the dog ran to the old barn".split()
    rng = random.Random(0)
    text = "\n".join(" ".join(rng.choices(words, k=9)) + "." for _ in range(80))
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def config(tmp_path_factory, corpus):
    path = tmp_path_factory.mktemp("config") / "tiny.py"
    path.write_text(textwrap.dedent(CONFIG).format(path=str(corpus)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run(tmp_path_factory, config):
    """Folder of a run of 40 steps that was never stopped."""
    workdir = tmp_path_factory.mktemp("runs") / "straight"
    assert main(["train", f"--config={config}", f"--workdir={workdir}"]) == 0
    return workdir
