"""Upper bounds on the negative log-likelihood of a text, with their Monte-Carlo standard error.

For masked diffusion the integral over time has a closed form over the number k of masked tokens
(LLaDA, any-order autoregression): for a row of n tokens

    NELBO = n E_{k ~ U{1..n}} (1 / k) E_{|M| = k} sum_{i in M} -log p(x_i | x_t).

It has the expectation of the continuous-time bound and far less variance than drawing t: none at
all for a predictor that does not look at its input.
"""

from collections.abc import Callable
from collections.abc import Iterable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from dlm_jax.models import Transformer
from dlm_jax.models import weighted_cross_entropy
from dlm_jax.processes import MaskedProcess
from dlm_jax.processes.draws import fold_in_each
from dlm_jax.typing import Array
from dlm_jax.typing import PRNGKey

LN_2 = float(np.log(2.0))


class Bound(NamedTuple):
    """Nats per token of a text.

    Attributes:
      nats_per_token: estimate.
      standard_error: of the estimate, from the spread of repeated draws on the same text.
      tokens: scored tokens.
      kind: ``upper bound`` or ``exact``.
    """

    nats_per_token: float
    standard_error: float
    tokens: int
    kind: str

    def bits_per_byte(self, text_bytes: int) -> float:
        """Bits for each UTF-8 byte of the scored text."""
        return self.nats_per_token * self.tokens / (LN_2 * text_bytes)


RowNats = Callable[[Any, dict, PRNGKey], Float[Array, "R B"]]


def make_masked_row_nats(model: Transformer, process: MaskedProcess, samples: int) -> RowNats:
    """Build the compiled estimator of a row's NELBO.

    Args:
      model: the network.
      process: the masked process.
      samples: R, draws of each row; their numbers of masked tokens are spread over 1..n.

    Returns:
      (params, batch, key) -> nats of each draw of each row [R, B]. Noise depends on a row's
      ``index``, not on its place in the batch.

    Source: Nie et al. 2025, "Large Language Diffusion Models" (LLaDA), equation 6; Ou et al. 2024,
    "Your Absorbing Discrete Diffusion Secretly Models the Conditional Distributions of Clean Data".
    """

    def row_nats(params: Any, batch: dict, key: PRNGKey) -> Float[Array, "R B"]:
        scored = batch["weights"] > 0
        count = scored.sum(axis=-1)
        row_keys = fold_in_each(key, batch["index"])
        offset = jax.vmap(lambda row_key: jax.random.uniform(row_key, ()))(row_keys)

        def draw(sample: Array) -> Float[Array, " B"]:
            uniform = (offset + sample / samples) % 1.0
            k = jnp.minimum(jnp.floor(uniform * count).astype(jnp.int32) + 1, count)
            draw_keys = fold_in_each(row_keys, 1 + sample)
            return _nats_with_k_masked(params, model, process, batch, draw_keys, k)

        return jax.lax.map(draw, jnp.arange(samples))

    return jax.jit(row_nats)


def _nats_with_k_masked(
    params: Any,
    model: Transformer,
    process: MaskedProcess,
    batch: dict,
    row_keys: Array,
    k: Array,
) -> Float[Array, " B"]:
    """(n / k) times the nats of k scored tokens of each row, masked at random."""
    tokens, scored = batch["tokens"], batch["weights"] > 0
    B, T = tokens.shape
    noise = jax.vmap(lambda key: jax.random.uniform(key, (T,)))(row_keys)
    rank = jnp.argsort(jnp.argsort(jnp.where(scored, noise, jnp.inf), axis=-1), axis=-1)
    masked = scored & (rank < k[:, None])
    count = scored.sum(axis=-1)
    share = k / jnp.maximum(count, 1)
    hidden: Any = model.apply(
        params,
        jnp.where(masked, process.mask_id, tokens),
        process.schedule.inverse(1 - share),
        segments=batch["segments"],
        positions=batch["positions"],
        method="encode",
    )
    kernel: Any = model.apply(params, method="output_projection")
    scored_rows: Any = weighted_cross_entropy(
        hidden.reshape(B * T, -1),
        kernel,
        tokens.reshape(-1),
        masked.reshape(-1).astype(jnp.float32),
        process.banned(kernel.shape[-1]),
        model.config.dtype,
    )
    nats = scored_rows[1]
    return nats.reshape(B, T).sum(axis=-1) / jnp.maximum(share, 1.0 / T)


def estimate_bound(
    row_nats: RowNats,
    params: Any,
    batches: Iterable[dict],
    key: PRNGKey,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Bound | None:
    """Sum an estimator over a text.

    Args:
      row_nats: from :func:`make_masked_row_nats`.
      params: parameters.
      batches: rows of the text, all batches of one shape; rows without weights are padding.
      key: consumed.
      should_stop: polled before each batch, so that a signal does not wait for the whole text.

    Returns:
      The bound, or None if stopped.

    Raises:
      ValueError: if the batches hold no scored token.
    """
    total, variance, tokens = 0.0, 0.0, 0.0
    for batch in batches:
        if should_stop():
            return None
        draws = np.asarray(row_nats(params, batch, key), np.float64)
        total += draws.mean(axis=0).sum()
        if len(draws) > 1:
            variance += (draws.var(axis=0, ddof=1) / len(draws)).sum()
        else:
            variance = float("nan")
        tokens += float(np.asarray(batch["weights"]).sum())
    if tokens == 0:
        raise ValueError("the text to evaluate holds no scored token; check the validation split")
    return Bound(total / tokens, float(np.sqrt(variance)) / tokens, round(tokens), "upper bound")
