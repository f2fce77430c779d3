"""Samplers of the diffusion time: where in [0, 1] the training loss looks.

Every sampler draws from a density g over (0, 1] and returns the weight 1 / g beside the time, so
the expected weighted loss is the NELBO whichever sampler is used; they differ in variance.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from dlm_jax.typing import PRNGKey
from dlm_jax.typing import Time

SAMPLERS = ("uniform", "antithetic", "stratified", "mid")
"""Names that :func:`make_sampler` takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimeSampler:
    """A piecewise-constant density over time.

    Attributes:
      edges: rising bin edges from 0 to 1.
      shares: probability of each bin; they sum to 1 and none is zero.
      low_discrepancy: spread the batch evenly over the density (one time in each of B equal shares)
        instead of drawing rows independently.

    Raises:
      ValueError: for edges or shares that are no density with full support.
    """

    edges: tuple[float, ...] = (0.0, 1.0)
    shares: tuple[float, ...] = (1.0,)
    low_discrepancy: bool = True

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.edges, self.edges[1:], strict=False))
        if not rising or self.edges[0] != 0.0 or self.edges[-1] != 1.0:
            raise ValueError(f"edges={self.edges} must rise strictly from 0 to 1")
        if len(self.shares) != len(self.edges) - 1:
            raise ValueError(
                f"shares={self.shares} must have one entry for each of the "
                f"{len(self.edges) - 1} bins of edges={self.edges}"
            )
        if min(self.shares) <= 0 or not math.isclose(sum(self.shares), 1, abs_tol=1e-6):
            raise ValueError(
                f"shares={self.shares} must be positive and sum to 1; a bin that is never drawn "
                "would make the loss biased"
            )


def make_sampler(
    name: str,
    *,
    shares: tuple[float, ...] = (0.2, 0.5, 0.3),
    middle: tuple[float, float] = (0.3, 0.7),
    middle_share: float = 0.7,
) -> TimeSampler:
    """Build a sampler by name.

    Args:
      name: ``uniform`` (independent rows), ``antithetic`` (one offset, rows spread evenly),
        ``stratified`` (equal-width bins of time drawn with ``shares``) or ``mid`` (the times in
        ``middle`` drawn with probability ``middle_share``).
      shares: probability of each equal-width bin of ``stratified``.
      middle: the favoured times of ``mid``. For a linear schedule they are mask ratios; otherwise
        pass ``schedule.inverse(1 - ratio)``.
      middle_share: probability of the favoured times.

    Raises:
      ValueError: for an unknown name or numbers that make no density.
    """
    if name == "uniform":
        return TimeSampler(low_discrepancy=False)
    if name == "antithetic":
        return TimeSampler()
    if name == "stratified":
        edges = tuple(float(edge) for edge in np.linspace(0.0, 1.0, len(shares) + 1))
        return TimeSampler(edges=edges, shares=tuple(shares))
    if name == "mid":
        low, high = middle
        if not 0 < low < high < 1 or not 0 < middle_share < 1:
            raise ValueError(
                f"mid sampler needs 0 < low < high < 1 and 0 < middle_share < 1, "
                f"got middle={middle}, middle_share={middle_share}"
            )
        outside = (1 - middle_share) / (low + 1 - high)
        return TimeSampler(
            edges=(0.0, low, high, 1.0),
            shares=(low * outside, middle_share, (1 - high) * outside),
        )
    raise ValueError(f"time sampler {name!r} is unknown; choose one of {', '.join(SAMPLERS)}")


def sample_times(key: PRNGKey, batch: int, sampler: TimeSampler) -> tuple[Time, Time]:
    """Draw one time for each row of a batch.

    Args:
      key: consumed.
      batch: number of rows B, any number from 1.
      sampler: the density.

    Returns:
      (times in (0, 1] [B], weights 1 / g(t) [B] whose expectation is 1).

    Source: Kingma et al. 2021, "Variational Diffusion Models", appendix I.1, for the spread batch.
    """
    if sampler.low_discrepancy:
        offset = jax.random.uniform(key, (), jnp.float32)
        uniform = (offset + jnp.arange(batch, dtype=jnp.float32) / batch) % 1.0
    else:
        uniform = jax.random.uniform(key, (batch,), jnp.float32)
    # From [0, 1) to (0, 1]: at t = 0 nothing is masked and the loss weight is infinite.
    uniform = 1 - uniform
    cumulative = jnp.asarray(np.concatenate([[0.0], np.cumsum(sampler.shares)]), jnp.float32)
    edges = jnp.asarray(sampler.edges, jnp.float32)
    bins = jnp.clip(
        jnp.searchsorted(cumulative, uniform, side="left") - 1, 0, len(sampler.shares) - 1
    )
    share = jnp.asarray(sampler.shares, jnp.float32)[bins]
    width = edges[bins + 1] - edges[bins]
    times = edges[bins] + width * (uniform - cumulative[bins]) / share
    return jnp.clip(times, jnp.finfo(jnp.float32).tiny, 1.0), width / share
