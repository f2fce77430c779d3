"""Parameters alone."""

import jax
import jax.numpy as jnp
import pytest

from dlm_jax.checkpoints import CheckpointError
from dlm_jax.checkpoints import CheckpointStore
from dlm_jax.checkpoints import export_params
from dlm_jax.checkpoints import load_params
from dlm_jax.checkpoints import restore_params
from tests.checkpoints.states import abstract
from tests.checkpoints.states import assert_same_bits
from tests.checkpoints.states import make_state

LIKE = abstract(make_state().params)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Checkpoints 1, 2 and 3, of which 2 is the best."""
    path = tmp_path_factory.mktemp("run")
    with CheckpointStore(path, best_metric="loss") as store:
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
            store.save(step, make_state(step), data={}, meta={}, metrics={"loss": loss})
    return path


@pytest.mark.parametrize(("step", "seed"), [(None, 3), ("latest", 3), ("best", 2), (1, 1)], ids=str)
@pytest.mark.parametrize("ema", [True, False])
def test_asked_for_parameters_come_back(run, step, seed, ema):
    params = restore_params(run, LIKE, step=step, ema=ema, best_metric="loss")
    state = make_state(seed)
    assert_same_bits(params, state.ema if ema else state.params)


@pytest.mark.parametrize(
    ("step", "message"),
    [(9, r"step 9; choose one of \[1, 2, 3\]"), ("best", "has a nats.*use latest"), ("x", "'x'")],
)
def test_missing_choice_is_refused(run, step, message):
    with pytest.raises(CheckpointError, match=message):
        restore_params(run, LIKE, step=step, best_metric="nats")


def test_parameters_of_another_model_are_refused(run):
    other = abstract(make_state(width=6).params)
    with pytest.raises(CheckpointError, match=r"params\.block\.kernel is float32\[3, 5\] there"):
        restore_params(run, other, ema=False)


def test_missing_average_is_named(tmp_path):
    with CheckpointStore(tmp_path) as store:
        store.save(1, make_state(ema=False), data={}, meta={})
    with pytest.raises(CheckpointError, match=r"no ema; ask for one of \[.*'params'"):
        restore_params(tmp_path, LIKE)


def test_folder_without_checkpoints_is_refused_and_not_made(tmp_path):
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        restore_params(tmp_path / "none", LIKE)
    assert not (tmp_path / "none").exists()


def test_exported_parameters_come_back_bit_for_bit(tmp_path):
    params = make_state(4).params
    export_params(params, tmp_path / "export")
    assert_same_bits(load_params(tmp_path / "export", LIKE), params)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    with pytest.raises(CheckpointError, match="exists already"):
        export_params(params, tmp_path / "export")


def test_export_is_whole_or_not_at_all(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("no space")

    monkeypatch.setattr("dlm_jax.checkpoints.parameters.write_seal", fail)
    with pytest.raises(CheckpointError, match="cannot be written: no space; choose"):
        export_params({"a": jnp.ones(2)}, tmp_path / "export")
    assert not (tmp_path / "export").exists()


def test_unfit_and_damaged_exports_are_refused(tmp_path):
    path = tmp_path / "export"
    params = {"a": jax.random.normal(jax.random.key(0), (1000,))}
    export_params(params, path)
    with pytest.raises(CheckpointError, match=r"a is float32\[1000\] there and bfloat16\[1000\]"):
        load_params(path, {"a": jnp.zeros(1000, jnp.bfloat16)})
    file = max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="is damaged.*export it again"):
        load_params(path, params)
    with pytest.raises(CheckpointError, match="holds no exported parameters"):
        load_params(tmp_path, params)
