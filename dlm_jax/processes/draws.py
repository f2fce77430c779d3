"""Draws from categorical laws that are right in the tails.

The default float32 Gumbel noise of ``jax.random`` has 23 bits and never exceeds 23 ln 2 = 15.94, so
tokens rarer than about 1e-7 are drawn several times too seldom. All draws of the library therefore
use the full-resolution mode, in float32, and only where a token is really needed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Float
from jaxtyping import Int
from jaxtyping import Key

from dlm_jax.typing import Array


def categorical(key: Key[Array, ""], logits: Float[Array, "*N V"]) -> Int[Array, "*N"]:
    """Draw one id for each row of logits by the Gumbel-max rule.

    Args:
      key: consumed.
      logits: unnormalised log-probabilities, any float dtype; computed in float32.

    Returns:
      int32 ids, one for each leading index.
    """
    noise = jax.random.gumbel(key, logits.shape, jnp.float32, mode="high")
    return jnp.argmax(logits.astype(jnp.float32) + noise, axis=-1).astype(jnp.int32)


def categorical_by_row(keys: Key[Array, "*N"], logits: Float[Array, "*N V"]) -> Int[Array, "*N"]:
    """Draw one id for each row, each with its own key, so that no row depends on another.

    Args:
      keys: one key for each leading index of the logits; consumed.
      logits: unnormalised log-probabilities.

    Returns:
      int32 ids, one for each leading index.
    """
    vocabulary = logits.shape[-1]
    flat = jax.vmap(categorical)(keys.reshape(-1), logits.reshape(-1, vocabulary))
    return flat.reshape(logits.shape[:-1])


def fold_in_each(keys: Key[Array, "..."], numbers: Int[Array, "..."]) -> Key[Array, "..."]:
    """Fold one integer into each key; keys and numbers broadcast against each other."""
    shape = jnp.broadcast_shapes(keys.shape, numbers.shape)
    keys_flat = jnp.broadcast_to(keys, shape).reshape(-1)
    numbers_flat = jnp.broadcast_to(numbers, shape).reshape(-1)
    return jax.vmap(jax.random.fold_in)(keys_flat, numbers_flat).reshape(shape)
