"""A small training state of every dtype a run holds, and how states are compared."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dlm_jax.training.state import TrainState


def make_state(seed: int = 0, *, width: int = 5, ema: bool = True) -> TrainState:
    """Nested dicts, optax named tuples, float32 with a NaN, bfloat16, int32, bool and scalars."""
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    kernel = jax.random.normal(jax.random.key(seed), (3, width)).at[0, 0].set(jnp.nan)
    params = {
        "block": {"kernel": kernel, "scale": jnp.full((width,), 1 + seed, jnp.bfloat16)},
        "layers": ({"bias": jnp.arange(4.0) + seed}, {"bias": jnp.zeros(4)}),
        "frozen": jnp.array([True, False]),
    }
    # A negative zero is equal to zero and has other bits.
    average = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else -leaf, params)
    return TrainState(
        step=jnp.int32(seed),
        params=params,
        opt_state=optimizer.init(params),
        ema=average if ema else None,
    )


def assert_same_bits(left, right) -> None:
    """Structure, dtypes, shapes and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for one, other in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def abstract(tree):
    """Shapes and dtypes, as from ``jax.eval_shape``."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
