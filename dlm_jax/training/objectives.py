"""Objectives: what a train step minimises, split where randomness ends.

``corrupt`` draws all noise for the whole global batch, which costs next to nothing; ``loss`` runs
the network on any rows of the result. Gradient accumulation therefore sees the very noise that the
large batch would have seen.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple
from typing import Protocol
from typing import runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Float

from dlm_jax.models import Transformer
from dlm_jax.models import weighted_cross_entropy
from dlm_jax.processes import MaskedProcess
from dlm_jax.processes import TimeSampler
from dlm_jax.processes import Weighting
from dlm_jax.processes import loss_weight
from dlm_jax.processes import sample_times
from dlm_jax.typing import Array
from dlm_jax.typing import PRNGKey
from dlm_jax.typing import Time
from dlm_jax.typing import Tokens
from dlm_jax.typing import Weights

Params = dict[str, Any]
Batch = Mapping[str, Array]


def make_batch(tokens: Tokens) -> Batch:
    """A batch of whole documents, one in each row, every token scored.

    Args:
      tokens: ids [B, T], without padding.

    Returns:
      the arrays that objectives read: ``tokens``, ``segments``, ``positions``, ``weights`` [B, T]
      and ``index`` [B].
    """
    B, T = tokens.shape
    return {
        "tokens": jnp.asarray(tokens, jnp.int32),
        "segments": jnp.ones((B, T), jnp.int32),
        "positions": jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T)),
        "weights": jnp.ones((B, T), jnp.float32),
        "index": jnp.arange(B, dtype=jnp.int32),
    }


class LossSums(NamedTuple):
    """Sums over rows; the step divides them once, by the weight of the global batch.

    Attributes:
      total: weighted nats.
      weight: number of scored tokens.
      row_nats: weighted nats of each row [B], for metrics only.
      row_tokens: scored tokens of each row [B].
      time: diffusion time of each row [B].
    """

    total: Float[Array, ""]
    weight: Float[Array, ""]
    row_nats: Float[Array, " B"]
    row_tokens: Float[Array, " B"]
    time: Time


@runtime_checkable
class Objective(Protocol):
    """What the train step needs of an objective."""

    def corrupt(self, key: PRNGKey, batch: Batch) -> Any:
        """Draw the noise of a global batch; every leaf of the result has B rows."""
        ...

    def loss(self, params: Params, noised: Any, dropout_key: PRNGKey | None) -> LossSums:
        """Run the network on rows of a corrupted batch; None for no dropout."""
        ...


class Noised(NamedTuple):
    """A corrupted batch of masked diffusion.

    Attributes:
      x_0: clean tokens [B, T].
      x_t: corrupted tokens [B, T].
      time: diffusion time of each row [B].
      weights: loss weight of each position, 0 where nothing is to be predicted [B, T].
      scored: 1 where a token counts in the mean [B, T].
      segments: document numbers [B, T].
      positions: positions inside the documents [B, T].
    """

    x_0: Tokens
    x_t: Tokens
    time: Time
    weights: Weights
    scored: Weights
    segments: Tokens
    positions: Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedObjective:
    """Masked diffusion: the continuous-time NELBO in nats per scored token, unless reweighted.

    Attributes:
      model: the network.
      process: the masked process.
      times: where in [0, 1] to look.
      weighting: ``elbo`` for the bound; any other is biased.

    Source: MDLM (Sahoo et al. 2024), equation 11, with importance-weighted times.
    """

    model: Transformer
    process: MaskedProcess
    times: TimeSampler = TimeSampler()
    weighting: Weighting = Weighting()

    def corrupt(self, key: PRNGKey, batch: Batch) -> Noised:
        """Draw a time for each row and mask its scored tokens; prompt and padding stay as given."""
        key_time, key_mask = jax.random.split(key)
        x_0, scored = batch["tokens"], batch["weights"]
        t, importance = sample_times(key_time, x_0.shape[0], self.times)
        x_t = jnp.where(scored > 0, self.process.corrupt(key_mask, x_0, t), x_0)
        masked = self.process.is_masked(x_t) & (scored > 0)
        # Cut before the product: the weight of a time at which nothing is masked may be infinite.
        by_time = importance * loss_weight(self.weighting, self.process, t)
        weights = jnp.where(masked, by_time[:, None], 0.0) * scored
        return Noised(x_0, x_t, t, weights, scored, batch["segments"], batch["positions"])

    def loss(self, params: Params, noised: Noised, dropout_key: PRNGKey | None) -> LossSums:
        """Weighted cross-entropy at the masked positions; no other logits are computed."""
        B, T = noised.x_0.shape
        rngs = None if dropout_key is None else {"dropout": dropout_key}
        hidden: Any = self.model.apply(
            params,
            noised.x_t,
            noised.time,
            segments=noised.segments,
            positions=noised.positions,
            train=dropout_key is not None,
            rngs=rngs,
            method="encode",
        )
        kernel: Any = self.model.apply(params, method="output_projection")
        sums: Any = weighted_cross_entropy(
            hidden.reshape(B * T, -1),
            kernel,
            noised.x_0.reshape(-1),
            noised.weights.reshape(-1),
            self.process.banned(kernel.shape[-1]),
            self.model.config.dtype,
        )
        total, nats = sums
        row_nats = (nats.reshape(B, T) * noised.weights).sum(axis=-1)
        row_tokens = noised.scored.sum(axis=-1)
        return LossSums(total, row_tokens.sum(), row_nats, row_tokens, noised.time)
