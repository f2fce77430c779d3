"""Checkpoints that are half-written, truncated or corrupted, and saves that fail."""

import logging
import resource
import shutil
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import pytest

from dlm_jax.checkpoints import CheckpointError
from dlm_jax.checkpoints import CheckpointStore
from tests.checkpoints.states import assert_same_bits

# Tensorstore's writers report to an event loop that the first failure has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

STATE = {"a": jax.random.normal(jax.random.key(0), (300, 100)), "b": jnp.arange(3)}


def put(store, step, **kwargs):
    store.save(step, STATE, data={"index": step}, meta={"seed": 5}, **kwargs)


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints 1 and 2."""
    with CheckpointStore(tmp_path) as store:
        put(store, 1, wait=True)
        put(store, 2, wait=True)
    return tmp_path


def largest(path):
    return max((p for p in path.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@contextmanager
def full_disk():
    """Files stop growing at 20 kB."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_empty_and_temporary_step_folders_are_no_checkpoints(saved, caplog):
    # Kills: orbax's own latest_step, for which an empty folder is the latest checkpoint.
    (saved / "3").mkdir()
    (saved / "4.orbax-checkpoint-tmp").mkdir()
    (saved / "005").mkdir()
    (saved / "6").write_text("")
    with caplog.at_level(logging.WARNING), CheckpointStore(saved) as store:
        assert (store.steps(), store.latest()) == ([1, 2], 2)
        assert store.restore(STATE).step == 2
        put(store, 3, wait=True)
        assert store.latest() == 3
    assert (saved / "incomplete-3").is_dir()
    assert "step 3 is incomplete" in caplog.text


@pytest.mark.parametrize("broken", ["removed", "emptied"])
@pytest.mark.parametrize(
    "name", ["seal.json", "data/metadata", "meta/metadata", "state/_METADATA", "state"]
)
def test_half_written_checkpoint_is_not_the_latest(saved, name, broken):
    path = saved / "2" / name
    if path.is_dir():
        shutil.rmtree(path)
    elif broken == "removed":
        path.unlink()
    else:
        path.write_bytes(b"")
    with CheckpointStore(saved) as store:
        assert store.latest() == 1
        assert store.restore(STATE).data == {"index": 1}


@pytest.mark.parametrize("how", ["truncated", "removed", "flipped"])
def test_damaged_arrays_are_refused_with_the_file_and_the_way_back(saved, how, capfd):
    # A flipped byte: orbax alone restores other numbers from it without a word.
    path = largest(saved / "2")
    content = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    reason = {
        "truncated": f"has {len(content) - 1} bytes, {len(content)} were written",
        "removed": "is missing",
        "flipped": "the checksum of .* differs",
    }[how]
    with CheckpointStore(saved) as store:
        with pytest.raises(CheckpointError) as caught:
            store.restore(STATE)
        assert caught.match(rf"{saved}/2 is damaged \(.*{reason}.*\); steps \[1\] are usable")
        assert caught.match(path.name)
        assert caught.value.__cause__ is None
        assert_same_bits(store.restore(STATE, step=1).state, STATE)
    assert capfd.readouterr().err == ""


def test_every_file_that_restoring_reads_is_protected(saved):
    # Kills: leaving a file out of the seal. One bit of each file, and the seal cut in half.
    # In the JSON files the bit makes one digit another.
    harmless = {"_CHECKPOINT_METADATA", "commit_success.txt"}
    with CheckpointStore(saved) as store:
        for path in sorted(p for p in (saved / "2").rglob("*") if p.is_file()):
            content = bytearray(path.read_bytes())
            content[-2] ^= 1
            path.write_bytes(content[:9] if path.name == "seal.json" else content)
            content[-2] ^= 1
            if path.name in harmless:
                assert_same_bits(store.restore(STATE).state, STATE)
            else:
                with pytest.raises(CheckpointError, match="/2 is damaged"):
                    store.restore(STATE)
            path.write_bytes(content)
        assert_same_bits(store.restore(STATE).state, STATE)


@pytest.mark.parametrize("call", ["wait", "save", "close", "restore"])
def test_failed_background_save_is_told_at_the_next_call_and_leaves_the_last_one(tmp_path, call):
    # Kills: swallowing the background error, and collecting garbage before a save has succeeded.
    store = CheckpointStore(tmp_path, keep=1)
    put(store, 1, wait=True)
    with full_disk():
        put(store, 2)
        with pytest.raises(CheckpointError) as caught:
            {
                "wait": store.wait,
                "save": lambda: put(store, 3),
                "close": store.close,
                "restore": lambda: store.restore(STATE),
            }[call]()
    assert caught.match(
        f"saving step 2 in {tmp_path} failed: .*too large.*checkpoint 1 is still usable"
    )
    assert caught.value.__cause__ is None
    store.close()
    with CheckpointStore(tmp_path, keep=1) as store:
        assert store.steps() == [1]
        assert_same_bits(store.restore(STATE).state, STATE)


def test_store_goes_on_after_a_failed_save(tmp_path):
    # Kills: forgetting what was to be removed after the save that failed.
    with CheckpointStore(tmp_path, keep=1) as store:
        put(store, 1, wait=True)
        with full_disk(), pytest.raises(CheckpointError):
            put(store, 2, wait=True)
        store.wait()
        put(store, 2, wait=True)
        assert store.steps() == [2]


def test_error_that_ended_the_run_is_not_hidden_by_a_failed_save(tmp_path):
    with pytest.raises(KeyError) as caught, full_disk():
        with CheckpointStore(tmp_path) as store:
            put(store, 1)
            raise KeyError("first")
    assert "saving step 1" in caught.value.__notes__[0]


def test_deleted_array_is_refused_before_writing(tmp_path):
    # Kills: leaving it to orbax, whose threads then write on into the folder of the next save.
    gone = jnp.ones(3)
    gone.delete()
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(ValueError, match="^x.a was donated or deleted"):
            store.save(1, {"x": {"a": gone}}, data={}, meta={})
        assert list(tmp_path.iterdir()) == []
        put(store, 1, wait=True)
        assert store.steps() == [1]


def test_save_that_the_disk_cannot_hold_is_refused_before_it_begins(saved, monkeypatch):
    # Kills: half a checkpoint that fills the disk, and an error without the two sizes.
    usage = shutil.disk_usage(saved)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=5))
    with CheckpointStore(saved) as store:
        with pytest.raises(CheckpointError, match=r"step 3 needs .* MB .* has 0\.0 MB left; check"):
            put(store, 3, wait=True)
        assert store.latest() == 2
        assert not list(saved.glob("3*"))
        monkeypatch.undo()
        put(store, 3, wait=True)
        assert store.latest() == 3


def test_metrics_can_be_given_to_a_checkpoint_later(saved):
    # Kills: metrics that live in memory only, or that break the seal.
    with CheckpointStore(saved, best_metric="loss") as store:
        store.set_metrics(1, {"loss": 0.5})
        with pytest.raises(CheckpointError, match="no complete checkpoint of step 9"):
            store.set_metrics(9, {"loss": 0.1})
    with CheckpointStore(saved, best_metric="loss") as store:
        assert store.best() == 1
        assert store.restore(STATE, 1).step == 1
