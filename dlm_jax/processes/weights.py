"""Loss weights by time: the bound's own, and the biased ones that a user may ask for by name.

With ``elbo`` the expected loss is the NELBO. Its weight 1 / t (linear schedule) makes rows with few
masked tokens dominate the gradient's variance, so short runs with small batches learn faster under
one of the others; their loss is no bound, and only evaluation tells nats per token.
"""

import dataclasses

import jax.numpy as jnp

from dlm_jax.processes.masked import MaskedProcess
from dlm_jax.typing import Time

WEIGHTINGS = ("elbo", "capped", "inverse_time", "snr", "min_snr", "none")
"""Names of the weightings; all but ``elbo`` are biased."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighting:
    """Which weight the loss has at time t.

    Attributes:
      name: one of :data:`WEIGHTINGS`. ``capped`` is the bound's weight, at most ``limit``;
        ``inverse_time`` is 1 / t; ``snr`` is alpha / (1 - alpha) and ``min_snr`` the same, at most
        ``limit`` (Hang et al. 2023, "Efficient Diffusion Training via Min-SNR Weighting");
        ``none`` is 2 everywhere, which keeps the scale of the others for a linear schedule.
      limit: largest weight of ``capped`` and ``min_snr``.

    Raises:
      ValueError: for an unknown name or a limit that is not positive.
    """

    name: str = "elbo"
    limit: float = 5.0

    def __post_init__(self) -> None:
        if self.name not in WEIGHTINGS:
            raise ValueError(
                f"weighting {self.name!r} is unknown; choose one of {', '.join(WEIGHTINGS)}"
            )
        if not self.limit > 0:
            raise ValueError(f"weight limit={self.limit} must be greater than 0")


def loss_weight(weighting: Weighting, process: MaskedProcess, t: Time) -> Time:
    """Weight of the cross-entropy of a masked token at time t, for each row.

    Args:
      weighting: which one.
      process: supplies the bound's weight and the schedule.
      t: times in (0, 1].

    Returns:
      weights [B]; infinite where the bound's weight is.
    """
    if weighting.name == "elbo":
        return process.weight(t)
    if weighting.name == "capped":
        return jnp.minimum(process.weight(t), weighting.limit)
    if weighting.name == "inverse_time":
        return 1 / t
    if weighting.name == "none":
        return jnp.full_like(t, 2.0)
    snr = process.schedule.alpha(t) / process.schedule.ratio(t)
    return snr if weighting.name == "snr" else jnp.minimum(snr, weighting.limit)
