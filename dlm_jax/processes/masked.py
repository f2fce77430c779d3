"""Masked (absorbing-state) diffusion: corrupt, bound and reverse step.

Each token is replaced by [MASK], independently, with probability ``ratio(t)``; a masked token stays
masked. The prediction follows SUBS: it never gives [MASK] and copies what is visible.

Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models" (MDLM), equations
7-11; Shi et al. 2024, "Simplified and Generalized Masked Diffusion" (MD4), equations 4-6.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int

from dlm_jax.processes import draws
from dlm_jax.schedules import Schedule
from dlm_jax.schedules import make
from dlm_jax.typing import Array
from dlm_jax.typing import Logits
from dlm_jax.typing import Nats
from dlm_jax.typing import PRNGKey
from dlm_jax.typing import Time
from dlm_jax.typing import TokenMask
from dlm_jax.typing import Tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedProcess:
    """Absorbing-state diffusion over a vocabulary with one [MASK] id.

    Attributes:
      vocab_size: number of ids including [MASK]; columns of the logits beyond it are padding and
        get probability zero.
      mask_id: the id of [MASK], inside the vocabulary.
      schedule: how the mask ratio rises with time.

    Raises:
      ValueError: if the mask id is outside the vocabulary or no real token is left.
    """

    vocab_size: int
    mask_id: int
    schedule: Schedule = make("linear")

    def __post_init__(self) -> None:
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size={self.vocab_size} leaves no real token beside [MASK]")
        if not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(
                f"mask_id={self.mask_id} must lie in [0, vocab_size={self.vocab_size}); "
                "count the mask token into vocab_size"
            )

    def prior(self, key: PRNGKey, shape: tuple[int, ...]) -> Int[Array, "*N"]:
        """x_1: every position is [MASK]. The key is not needed; all processes take one."""
        del key
        return jnp.full(shape, self.mask_id, jnp.int32)

    def corrupt(self, key: PRNGKey, x_0: Tokens, t: Time) -> Tokens:
        """Draw x_t from q(x_t | x_0): each position is masked with probability ratio(t).

        Args:
          key: consumed; noise is drawn for the whole batch at once.
          x_0: clean tokens [B, T].
          t: time of each row [B].

        Returns:
          tokens [B, T].
        """
        # 1 - uniform lies in (0, 1]: a ratio of 0 masks nothing and a ratio of 1 everything.
        uniform = 1 - jax.random.uniform(key, x_0.shape, jnp.float32)
        return jnp.where(uniform <= self.schedule.ratio(t)[:, None], self.mask_id, x_0)

    def is_masked(self, x_t: Tokens) -> TokenMask:
        """Positions that hold [MASK]."""
        return x_t == self.mask_id

    def log_probs(self, logits: Float[Array, "*N V"]) -> Float[Array, "*N V"]:
        """Log-probabilities over the real tokens in nats: [MASK] and padding columns get -inf."""
        return jax.nn.log_softmax(self.ban(logits.astype(jnp.float32)), axis=-1)

    def ban(self, logits: Float[Array, "*N V"]) -> Float[Array, "*N V"]:
        """Set the columns that the prediction must never give to -inf."""
        return jnp.where(self.banned(logits.shape[-1]), -jnp.inf, logits)

    def banned(self, columns: int) -> Bool[Array, " V"]:
        """Which columns of the logits the prediction must never give."""
        column = jnp.arange(columns)
        return (column == self.mask_id) | (column >= self.vocab_size)

    def cross_entropy(
        self, logits: Float[Array, "*N V"], targets: Int[Array, "*N"]
    ) -> Float[Array, "*N"]:
        """-log p(target) in nats under the prediction at masked positions."""
        logits = self.ban(logits.astype(jnp.float32))
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jax.nn.logsumexp(logits, axis=-1) - chosen

    def weight(self, t: Time) -> Time:
        """-alpha'(t) / (1 - alpha(t)), the rate at which masked tokens are revealed."""
        return self.schedule.ratio_prime(t) / self.schedule.ratio(t)

    def loss(self, prediction: Logits, x_0: Tokens, x_t: Tokens, t: Time) -> Nats:
        """Integrand of the continuous-time NELBO at t, zero at visible positions.

        Args:
          prediction: logits [B, T, V].
          x_0: clean tokens [B, T].
          x_t: corrupted tokens [B, T].
          t: time of each row [B], in (0, 1].

        Returns:
          nats per unit of time [B, T]. The integral over t plus :meth:`end_terms` bounds
          -log p(x_0) from above.

        Source: MDLM, equation 10; MD4, equation 5.
        """
        return self._at_masked(self.weight(t), prediction, x_0, x_t)

    def discrete_loss(self, prediction: Logits, x_0: Tokens, x_t: Tokens, t: Time, s: Time) -> Nats:
        """Term of the T-step NELBO for the reverse step from t to s, zero at visible positions.

        Args:
          prediction: logits [B, T, V] for x_t.
          x_0: clean tokens [B, T].
          x_t: corrupted tokens [B, T].
          t: time of each row [B].
          s: earlier time of each row [B], s < t.

        Returns:
          nats [B, T].

        Source: MDLM, equation 8 (the Kullback-Leibler divergence under SUBS).
        """
        ratio = self.schedule.ratio
        return self._at_masked(1 - ratio(s) / ratio(t), prediction, x_0, x_t)

    def end_terms(self) -> tuple[float, float]:
        """Weights that make the integral a bound where alpha misses its ends.

        Returns:
          (clean, noise). ``clean`` multiplies the cross-entropy of masked positions of
          x_0 ~ q(. | clean) at t = 0: what is still masked there is revealed in one jump. ``noise``
          multiplies the cross-entropy of the fully masked canvas: the first reverse step, from
          the all-mask prior to alpha(1). A weight is zero where the schedule reaches its end.
        """
        starts_clean = float(self.schedule.ratio(jnp.zeros(()))) == 0.0
        return 0.0 if starts_clean else 1.0, float(self.schedule.alpha(jnp.ones(())))

    def reveal(self, key: PRNGKey, x_t: Tokens, t: Time, s: Time) -> TokenMask:
        """Choose the masked positions that the ancestral step from t to s reveals.

        Each masked position is revealed with probability (alpha_s - alpha_t) / (1 - alpha_t).
        """
        uniform = jax.random.uniform(key, x_t.shape, jnp.float32)
        return (uniform >= self.stay_probability(t, s)[:, None]) & self.is_masked(x_t)

    def stay_probability(self, t: Float[Array, "..."], s: Float[Array, "..."]) -> Array:
        """Probability that a position masked at t is still masked at s < t.

        It is 0 at s = 0, where sampling ends, and counts t = 1 as fully masked.
        """
        ratio_t = jnp.where(t >= 1, 1.0, self.schedule.ratio(t))
        return jnp.where(s <= 0, 0.0, self.schedule.ratio(s) / ratio_t)

    def step(self, key: PRNGKey, prediction: Logits, x_t: Tokens, t: Time, s: Time) -> Tokens:
        """Draw x_s from p(x_s | x_t), the ancestral reverse step between any s < t.

        Args:
          key: consumed.
          prediction: logits [B, T, V] for x_t.
          x_t: tokens [B, T].
          t: time of each row [B].
          s: earlier time of each row [B]; s = 0 reveals whatever is still masked.

        Returns:
          tokens [B, T]; visible tokens are carried over unchanged.

        Source: MDLM, equation 7.
        """
        key_reveal, key_token = jax.random.split(key)
        drawn = draws.categorical(key_token, self.ban(prediction.astype(jnp.float32)))
        return jnp.where(self.reveal(key_reveal, x_t, t, s), drawn, x_t)

    def _at_masked(self, weight: Time, prediction: Logits, x_0: Tokens, x_t: Tokens) -> Nats:
        # The weight is cut before the product: at t = 0 it is infinite, and infinity times the zero
        # gradient of a visible position would be NaN.
        weight_BT = jnp.where(self.is_masked(x_t), weight[:, None], 0.0)
        return weight_BT * self.cross_entropy(prediction, x_0)
