"""What needs a process of its own: sudden death, eight devices, a clean exit."""

import os
import signal
import socket
import subprocess
import sys

import jax.numpy as jnp
import numpy as np

from dlm_jax.checkpoints import CheckpointStore
from dlm_jax.checkpoints import restore_params
from tests.checkpoints.states import abstract
from tests.checkpoints.states import assert_same_bits

TREE = {"params": {"a": jnp.arange(32.0).reshape(16, 2)}, "step": jnp.int32(3)}


def python(script, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


DIES = """
import os, signal, sys, time
import jax.numpy as jnp
import dlm_jax.checkpoints.store as module
tree = {"params": {"a": jnp.arange(32.0).reshape(16, 2)}, "step": jnp.int32(3)}
store = module.CheckpointStore(sys.argv[1], keep=1)
store.save(1, tree, data={}, meta={}, wait=True)
# All files of step 2 are written, and it has not got its name yet.
module.write_seal = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
store.save(2, tree, data={}, meta={})
time.sleep(60)
"""


def test_killed_while_saving_leaves_the_last_complete_checkpoint(tmp_path):
    # Kills: writing in place, and removing the old checkpoint before the new one has its name.
    assert python(DIES, tmp_path).returncode == -signal.SIGKILL
    assert list(tmp_path.glob("2*/state*/*")), "it died too early to prove anything"
    with CheckpointStore(tmp_path) as store:
        assert store.steps() == [1]
        assert_same_bits(store.restore(TREE).state, TREE)
        store.save(2, TREE, data={}, meta={}, wait=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]


EIGHT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
jax.distributed.initialize(sys.argv[3], num_processes=1, process_id=0)
from dlm_jax.checkpoints import CheckpointStore
mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
spread, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
like = {
    "params": {"a": jax.ShapeDtypeStruct((16, 2), jnp.float32, sharding=spread)},
    "step": jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
}
with jax.set_mesh(mesh), CheckpointStore(sys.argv[1]) as store:
    state = store.restore(like).state
assert len(state["params"]["a"].sharding.device_set) == 8
assert state["params"]["a"].addressable_shards[7].data.tolist() == [[28., 29.], [30., 31.]]
assert not jax.config.jax_enable_preemption_service
with CheckpointStore(sys.argv[2]) as store:
    store.save(9, state, data={}, meta={})
"""


def test_one_device_to_eight_and_back_with_the_preemption_service_off(tmp_path):
    # google/orbax#648, #678 and #683, and #3406: the save used to crash without that service.
    with CheckpointStore(tmp_path / "one") as store:
        store.save(1, TREE, data={}, meta={})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    done = python(
        EIGHT,
        tmp_path / "one",
        tmp_path / "eight",
        address,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_ENABLE_PREEMPTION_SERVICE="0",
    )
    assert done.returncode == 0, done.stderr
    with CheckpointStore(tmp_path / "eight") as store:
        assert_same_bits(store.restore(abstract(TREE)).state, TREE)
    params = restore_params(tmp_path / "eight", abstract(TREE["params"]), ema=False)
    np.testing.assert_array_equal(params["a"], TREE["params"]["a"])


LEAVES = """
import logging, sys, threading
logging.basicConfig(level=logging.INFO)
from absl import logging as absl_logging
absl_logging.set_verbosity(absl_logging.INFO)
import jax.numpy as jnp
from dlm_jax.checkpoints import CheckpointError, CheckpointStore, leaves
before = set(threading.enumerate())
tree = {"params": {"a": jnp.arange(32.0).reshape(16, 2)}, "step": jnp.int32(3)}
for step in (1, 2):
    with CheckpointStore(sys.argv[1]) as store:
        store.save(step, tree, data={}, meta={})
        absl_logging.info("the user's line %d", step)
left = [thread for thread in threading.enumerate() if thread not in before]
for thread in left:
    thread.join(10)
print([thread.name for thread in left if thread.is_alive()])
print("from here a save fails", file=sys.stderr)
gone = jnp.ones(2)
gone.delete()
leaves.writable = leaves.named
with CheckpointStore(sys.argv[1]) as store:
    try:
        store.save(3, {"a": gone}, data={}, meta={})
    except CheckpointError as error:
        print(str(error).split("failed: ")[1][:22])
"""


def test_process_ends_quietly_with_its_last_save_on_disk(tmp_path):
    # Kills: close that does not wait, threads that stay, orbax's notes, a silenced absl. The last
    # save fails inside orbax, after which its thread that makes folders sometimes never ended.
    done = python(LEAVES, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\nArray has been deleted\n"
    notes, _ = done.stderr.split("from here a save fails")
    assert notes == "INFO:absl:the user's line 1\nINFO:absl:the user's line 2\n"
    with CheckpointStore(tmp_path) as store:
        assert store.steps() == [1, 2]
        assert_same_bits(store.restore(TREE).state, TREE)
