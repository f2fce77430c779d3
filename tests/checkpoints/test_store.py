"""Saving, restoring and keeping. What is broken on disk is in test_damage, processes apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.checkpoints import CheckpointError
from dlm_jax.checkpoints import CheckpointStore
from tests.checkpoints.states import abstract
from tests.checkpoints.states import assert_same_bits
from tests.checkpoints.states import make_state

SMALL = {"a": jnp.arange(3.0)}


def put(store, step, state=SMALL, **kwargs):
    store.save(step, state, data={"index": step}, meta={}, wait=True, **kwargs)


def test_state_data_and_meta_come_back_bit_for_bit(tmp_path):
    # Kills: comparing by value (NaN, -0.0), casting, dicts in place of optax's named tuples.
    state = make_state(3)
    data = {"index": 7, "nested": {"list": [1, 2.5, None, "é"]}}
    meta = {"vocabulary": "abc", "metrics": "mine"}
    with CheckpointStore(tmp_path) as store:
        store.save(3, state, data=data, meta=meta, metrics={"loss": 1.0}, wait=True)
    with CheckpointStore(tmp_path) as store:
        restored = store.restore(make_state(0))
        shapes = store.restore(abstract(vars(make_state(0))))
    assert_same_bits(restored.state, state)
    assert_same_bits(shapes.state, vars(state))
    assert (restored.data, restored.meta, restored.step) == (data, meta, 3)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(restored.state))


def test_arrays_may_be_donated_and_deleted_as_soon_as_save_returns(tmp_path):
    # Kills: a device-to-host copy that is still to be made when save returns.
    def fresh():
        return {"a": jax.random.normal(jax.random.key(1), (1024, 1024)), "b": jnp.arange(7)}

    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: 0 * x - 1, tree), donate_argnums=0)
    jax.block_until_ready(overwrite(fresh()))
    state = fresh()
    with CheckpointStore(tmp_path) as store:
        store.save(1, state, data={}, meta={})
        jax.block_until_ready(overwrite(state))
        for leaf in jax.tree.leaves(state):
            assert leaf.is_deleted() or not leaf.delete()
        restored = store.restore(abstract(fresh()))
    assert_same_bits(restored.state, fresh())


def test_numpy_arrays_may_be_changed_as_soon_as_save_returns(tmp_path):
    state = {"a": np.arange(100_000, dtype=np.float32)}
    with CheckpointStore(tmp_path) as store:
        store.save(1, state, data={}, meta={})
        state["a"][:] = -1
        restored = store.restore(state)
    np.testing.assert_array_equal(restored.state["a"], np.arange(100_000, dtype=np.float32))


def test_newest_two_and_the_best_are_kept(tmp_path):
    # Kills: no garbage collection; best by highest, forgotten, NaN, or without the metric.
    metrics = [{"loss": 5.0}, {"loss": 1.0}, {"loss": 3.0}, {"loss": float("nan")}, None, {"x": 0}]
    with CheckpointStore(tmp_path, keep=2, best_metric="loss") as store:
        assert (store.steps(), store.latest(), store.best()) == ([], None, None)
        for step, values in enumerate(metrics, start=1):
            put(store, step, metrics=values)
        assert (store.steps(), store.latest(), store.best()) == ([2, 5, 6], 6, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "5", "6"]


def test_best_outlives_a_restart_and_gives_way_to_a_better_one(tmp_path):
    for step, loss in ((1, 2.0), (2, 9.0), (3, 8.0), (4, 1.0), (5, 7.0)):
        with CheckpointStore(tmp_path, keep=1, best_metric="loss") as store:
            put(store, step, metrics={"loss": loss})
            assert store.steps() == {1: [1], 2: [1, 2], 3: [1, 3], 4: [4], 5: [4, 5]}[step]


def test_without_a_metric_only_the_newest_are_kept(tmp_path):
    with CheckpointStore(tmp_path, keep=2) as store:
        for step in (10, 9_999, 100_000):
            put(store, step, metrics={"loss": float(step)})
        assert (store.steps(), store.best()) == ([9_999, 100_000], None)


@pytest.mark.parametrize("step", [4, 5, -1])
def test_step_that_is_not_new_is_refused(tmp_path, step):
    # Kills: passing orbax's False on, which loses the checkpoint without a word.
    with CheckpointStore(tmp_path) as store:
        put(store, 5)
        with pytest.raises(CheckpointError, match=rf"step {step} cannot be saved.*\[5\]"):
            put(store, step, {"a": jnp.zeros(3)})
        assert_same_bits(store.restore(SMALL).state, SMALL)


def test_save_that_orbax_refuses_raises(tmp_path, monkeypatch):
    with CheckpointStore(tmp_path) as store:
        monkeypatch.setattr(store._manager, "save", lambda *args, **kwargs: False)
        with pytest.raises(CheckpointError, match="orbax refused to save step 1"):
            put(store, 1)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": jnp.zeros(3), "b": jnp.zeros(4)}, r"b is float32\[2\] there and float32\[4\] here"),
        (
            {"a": jnp.zeros(3, jnp.bfloat16), "b": jnp.zeros(2)},
            r"a is float32\[3\] there and bfloat16\[3\] here",
        ),
        (
            {"a": jnp.zeros(3, jnp.int32), "b": jnp.zeros(2)},
            r"a is float32\[3\] there and int32\[3\] here",
        ),
        ({"a": jnp.zeros(3)}, r"b is float32\[2\] there and does not exist here"),
        (
            {"a": jnp.zeros(3), "b": jnp.zeros(2), "c": jnp.zeros(1)},
            r"c does not exist there and is float32\[1\] here",
        ),
        ({"a": jnp.zeros(3), "b": (jnp.zeros(2),)}, r"b.0 does not exist there"),
    ],
    ids=["shape", "bfloat16", "int32", "left-out", "added", "nesting"],
)
def test_checkpoint_of_another_model_is_refused_by_leaf(tmp_path, like, message):
    # Kills: orbax's silent cast, padding, and restoring a part.
    with CheckpointStore(tmp_path) as store:
        put(store, 1, {"a": jnp.zeros(3), "b": jnp.zeros(2)})
        with pytest.raises(CheckpointError, match=f"another model.*: {message}.*use the config"):
            store.restore(like)


def test_state_without_the_saved_average_is_refused(tmp_path):
    with CheckpointStore(tmp_path) as store:
        put(store, 1, make_state())
        with pytest.raises(CheckpointError, match=r"ema\.block\.kernel.*does not exist here"):
            store.restore(make_state(ema=False))


@pytest.mark.parametrize(
    ("leaf", "error", "message"),
    [
        (3, TypeError, "a is a int; checkpoints hold arrays only"),
        (np.zeros(2, np.float64), ValueError, "a is float64, which JAX turns into float32"),
        (jax.random.key(0), TypeError, "a is a key<.*key_data"),
    ],
    ids=["int", "float64", "key"],
)
def test_leaf_that_would_change_is_refused_before_writing(tmp_path, leaf, error, message):
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(error, match=message):
            put(store, 1, {"a": leaf})
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [{"a": np.int32(1)}, {"a": (1, 2)}, {1: 2}, {"a": float("nan")}])
def test_data_that_json_would_change_is_refused(tmp_path, data):
    with CheckpointStore(tmp_path) as store, pytest.raises(CheckpointError, match="^data must"):
        store.save(1, SMALL, data=data, meta={})


def test_restore_without_a_checkpoint_says_so(tmp_path):
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(CheckpointError, match="holds no complete checkpoint; train"):
            store.restore(SMALL)
        put(store, 2)
        with pytest.raises(CheckpointError, match=r"no complete checkpoint of step 7.*\[2\]"):
            store.restore(SMALL, step=7)


def test_folder_that_cannot_be_written_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written.*choose a folder"):
        CheckpointStore(tmp_path / "file" / "checkpoints")
    with pytest.raises(ValueError, match="keep=0"):
        CheckpointStore(tmp_path, keep=0)


def test_closed_store_is_not_used_again(tmp_path):
    store = CheckpointStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(CheckpointError, match="closed"):
        put(store, 1)


def test_restore_works_under_a_mesh(tmp_path):
    # google/orbax#3164
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    with CheckpointStore(tmp_path) as store, jax.set_mesh(mesh):
        put(store, 1)
        assert_same_bits(store.restore(abstract(SMALL)).state, SMALL)
