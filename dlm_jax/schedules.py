"""Noise schedules: how many tokens survive at time t, with derivative and inverse.

Time runs from t = 0 (clean) to t = 1 (noise). ``alpha(t)`` is the probability that a token is still
itself and ``ratio(t) = 1 - alpha(t)`` the share of masked tokens. Every schedule is written through
its ratio, because the loss weight divides by it and ``1 - alpha`` in float32 has no digits left
near t = 0. Schedules of papers that run backwards are turned round here.
"""

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dlm_jax.typing import Array

TimeFunction = Callable[..., Array]


class _Curve(NamedTuple):
    """A mask ratio as a function of (t, *parameters), its derivative, and its inverse."""

    ratio: TimeFunction
    ratio_prime: TimeFunction
    inverse: TimeFunction
    defaults: dict[str, float]


def _linear() -> _Curve:
    return _Curve(lambda t: t, jnp.ones_like, lambda r: r, {})


def _polynomial() -> _Curve:
    return _Curve(
        lambda t, power: t**power,
        lambda t, power: power * t ** (power - 1),
        lambda r, power: r ** (1 / power),
        {"power": 2.0},
    )


def _cosine() -> _Curve:
    half_pi = math.pi / 2
    return _Curve(
        lambda t: jnp.sin(half_pi * t),
        lambda t: half_pi * jnp.cos(half_pi * t),
        lambda r: jnp.arcsin(r) / half_pi,
        {},
    )


def _cosine_mdlm() -> _Curve:
    half_pi = math.pi / 2
    return _Curve(
        lambda t: 2 * jnp.sin(half_pi * t / 2) ** 2,
        lambda t: half_pi * jnp.sin(half_pi * t),
        lambda r: 2 * jnp.arcsin(jnp.sqrt(r / 2)) / half_pi,
        {},
    )


def _raised_cosine() -> _Curve:
    half_pi = math.pi / 2
    return _Curve(
        lambda t: jnp.sin(half_pi * t) ** 2,
        lambda t: half_pi * jnp.sin(math.pi * t),
        lambda r: jnp.arcsin(jnp.sqrt(r)) / half_pi,
        {},
    )


def _sigmoid() -> _Curve:
    def logistic(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    def ratio(t: Array, start: float, end: float, tau: float) -> Array:
        # sigmoid(y) - sigmoid(x) = sinh((y - x)/2) / (2 cosh(x/2) cosh(y/2)): exact near t = 0.
        low, high = start / tau, end / tau
        at = low + (high - low) * t
        difference = jnp.sinh((at - low) / 2) / (2 * jnp.cosh(at / 2) * math.cosh(low / 2))
        return difference / (logistic(high) - logistic(low))

    def ratio_prime(t: Array, start: float, end: float, tau: float) -> Array:
        low, high = start / tau, end / tau
        at = low + (high - low) * t
        slope = jax.nn.sigmoid(at) * jax.nn.sigmoid(-at) * (high - low)
        return slope / (logistic(high) - logistic(low))

    def inverse(r: Array, start: float, end: float, tau: float) -> Array:
        low, high = start / tau, end / tau
        value = logistic(low) + r * (logistic(high) - logistic(low))
        return (jnp.log(value) - jnp.log1p(-value) - low) / (high - low)

    return _Curve(ratio, ratio_prime, inverse, {"start": -3.0, "end": 3.0, "tau": 1.0})


def _linear_log_snr() -> _Curve:
    def log_snr(t: Array, low: float, high: float) -> Array:
        return high - (high - low) * t

    return _Curve(
        lambda t, low, high: jax.nn.sigmoid(-log_snr(t, low, high)),
        lambda t, low, high: (
            (high - low)
            * jax.nn.sigmoid(log_snr(t, low, high))
            * jax.nn.sigmoid(-log_snr(t, low, high))
        ),
        lambda r, low, high: (high - jnp.log1p(-r) + jnp.log(r)) / (high - low),
        {"low": -10.0, "high": 10.0},
    )


def _geometric() -> _Curve:
    def sigma(t: Array, low: float, high: float) -> Array:
        return low * (high / low) ** t

    return _Curve(
        lambda t, low, high: -jnp.expm1(-sigma(t, low, high)),
        lambda t, low, high: (
            sigma(t, low, high) * math.log(high / low) * jnp.exp(-sigma(t, low, high))
        ),
        lambda r, low, high: jnp.log(-jnp.log1p(-r) / low) / math.log(high / low),
        {"low": 1e-5, "high": 20.0},
    )


def _log_linear() -> _Curve:
    return _Curve(
        lambda t, eps: (1 - eps) * t,
        lambda t, eps: jnp.full_like(t, 1 - eps),
        lambda r, eps: r / (1 - eps),
        {"eps": 1e-3},
    )


def _constant_rate() -> _Curve:
    return _Curve(
        lambda t, rate: -jnp.expm1(-rate * t),
        lambda t, rate: rate * jnp.exp(-rate * t),
        lambda r, rate: -jnp.log1p(-r) / rate,
        {"rate": 10.0},
    )


_CURVES: dict[str, _Curve] = {
    "linear": _linear(),
    "polynomial": _polynomial(),
    "cosine": _cosine(),
    "cosine_mdlm": _cosine_mdlm(),
    "raised_cosine": _raised_cosine(),
    "sigmoid": _sigmoid(),
    "linear_log_snr": _linear_log_snr(),
    "geometric": _geometric(),
    "log_linear": _log_linear(),
    "constant_rate": _constant_rate(),
}

SCHEDULES = tuple(_CURVES)
"""Names that :func:`make` takes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """One schedule: a named curve, its parameters, and the range its mask ratio is squeezed into.

    Attributes:
      name: one of :data:`SCHEDULES`.
      parameters: the curve's numbers in its own order; :func:`make` fills the defaults.
      ratio_range: (low, high); the ratio becomes ``low + (high - low) * ratio``. With anything but
        (0, 1) the bound has end terms, see ``MaskedProcess.end_terms``.

    Raises:
      ValueError: for an unknown name, a wrong number of parameters, a range outside 0 <= low < high
        <= 1, or parameters whose ratio does not rise from t = 0 to t = 1.
    """

    name: str
    parameters: tuple[float, ...] = ()
    ratio_range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.name not in _CURVES:
            raise ValueError(
                f"schedule {self.name!r} is unknown; choose one of {', '.join(_CURVES)}"
            )
        wanted = _CURVES[self.name].defaults
        if len(self.parameters) != len(wanted):
            raise ValueError(
                f"schedule {self.name!r} takes {tuple(wanted)}, got {self.parameters}; "
                "use schedules.make(name, ...) to fill in the defaults"
            )
        low, high = self.ratio_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"ratio_range={self.ratio_range} must satisfy 0 <= low < high <= 1")
        self._check_rises()

    def _check_rises(self) -> None:
        given = dict(zip(_CURVES[self.name].defaults, self.parameters, strict=True))
        if not all(math.isfinite(value) for value in self.parameters):
            raise ValueError(f"schedule {self.name!r} needs finite parameters, got {given}")
        bad = {
            "polynomial": lambda p: p["power"] <= 0,
            "sigmoid": lambda p: p["tau"] <= 0 or p["start"] >= p["end"],
            "linear_log_snr": lambda p: p["low"] >= p["high"],
            "geometric": lambda p: not 0 < p["low"] < p["high"],
            "log_linear": lambda p: not 0 <= p["eps"] < 1,
            "constant_rate": lambda p: p["rate"] <= 0,
        }
        if self.name in bad and bad[self.name](given):
            raise ValueError(
                f"schedule {self.name!r} with {given} does not rise from clean to noise; "
                f"its defaults are {_CURVES[self.name].defaults}"
            )

    def ratio(self, t: Array) -> Array:
        """Mask ratio at time t, in [0, 1]; same shape as t."""
        low, high = self.ratio_range
        return low + (high - low) * _CURVES[self.name].ratio(t, *self.parameters)

    def ratio_prime(self, t: Array) -> Array:
        """Derivative of the mask ratio, per unit of time; same shape as t."""
        low, high = self.ratio_range
        return (high - low) * _CURVES[self.name].ratio_prime(t, *self.parameters)

    def alpha(self, t: Array) -> Array:
        """Probability that a token survives until time t; same shape as t."""
        return 1 - self.ratio(t)

    def alpha_prime(self, t: Array) -> Array:
        """Derivative of alpha, never positive; same shape as t."""
        return -self.ratio_prime(t)

    def inverse(self, alpha: Array) -> Array:
        """Time at which alpha is reached; alphas outside the schedule's range are clipped to it."""
        low, high = self.ratio_range
        ends = _CURVES[self.name].ratio(jnp.array([0.0, 1.0]), *self.parameters)
        ratio = jnp.clip((1 - alpha - low) / (high - low), ends[0], ends[1])
        return jnp.clip(_CURVES[self.name].inverse(ratio, *self.parameters), 0.0, 1.0)


def make(
    name: str, *, ratio_range: tuple[float, float] = (0.0, 1.0), **parameters: float
) -> Schedule:
    """Build a schedule by name, filling in the parameters that are not given.

    Args:
      name: one of :data:`SCHEDULES`.
      ratio_range: smallest and largest mask ratio.
      **parameters: the curve's own numbers, such as ``power=2`` for ``polynomial``.

    Raises:
      ValueError: for an unknown name or parameter, or values that :class:`Schedule` refuses.
    """
    if name not in _CURVES:
        raise ValueError(f"schedule {name!r} is unknown; choose one of {', '.join(_CURVES)}")
    known = _CURVES[name].defaults
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise ValueError(f"schedule {name!r} has no parameter {unknown[0]!r}; it takes {known}")
    values = tuple(float(parameters.get(key, default)) for key, default in known.items())
    low, high = ratio_range
    return Schedule(name=name, parameters=values, ratio_range=(float(low), float(high)))


def parse(text: str, *, ratio_range: tuple[float, float] = (0.0, 1.0)) -> Schedule:
    """Build a schedule from text such as ``cosine`` or ``polynomial(power=3)``.

    Args:
      text: a name of :data:`SCHEDULES`, with its parameters as keywords in brackets if wanted.
      ratio_range: smallest and largest mask ratio.

    Raises:
      ValueError: if the text is of no such form, or :func:`make` refuses it.
    """
    form = (
        f"schedule {text!r} must be a name or name(parameter=number, ...), as polynomial(power=3)"
    )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(form) from error
    if isinstance(tree, ast.Name):
        return make(tree.id, ratio_range=ratio_range)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.args:
        raise ValueError(form)
    parameters: dict[str, float] = {}
    for keyword in tree.keywords:
        try:
            value = ast.literal_eval(keyword.value)
        except ValueError as error:
            raise ValueError(form) from error
        if keyword.arg is None or isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(form)
        parameters[keyword.arg] = float(value)
    return make(tree.func.id, ratio_range=ratio_range, **parameters)


SPACINGS = ("uniform", "cosine")
"""Names of the time grids that :func:`time_grid` takes."""


def time_grid(steps: int, *, spacing: str = "uniform", bucket: int | None = None) -> np.ndarray:
    """Times of a T-step reverse process, from 1 (noise) down to 0 (clean).

    A grid longer than ``steps + 1`` ends in repeated zeros; samplers spend nothing on a step of
    zero length, so one compilation serves every step count in a bucket.

    Args:
      steps: number of steps, at least 1.
      spacing: ``uniform`` (t_i = i / T) or ``cosine`` (short steps near t = 1, where few tokens
        are known).
      bucket: number of steps that the grid is padded to; None for exactly ``steps``.

    Returns:
      float32 [max(steps, bucket) + 1], not increasing.

    Raises:
      ValueError: for steps < 1, an unknown spacing or a bucket smaller than steps.
    """
    if steps < 1:
        raise ValueError(f"steps={steps} must be at least 1")
    if bucket is not None and bucket < steps:
        raise ValueError(f"bucket={bucket} cannot hold steps={steps}; give a bucket >= steps")
    uniform = np.linspace(1.0, 0.0, steps + 1)
    if spacing == "uniform":
        grid = uniform
    elif spacing == "cosine":
        grid = np.cos(np.pi / 2 * (1 - uniform))
        grid[0], grid[-1] = 1.0, 0.0
    else:
        raise ValueError(f"spacing={spacing!r} is unknown; choose one of {', '.join(SPACINGS)}")
    padding = np.zeros((bucket or steps) - steps)
    return np.concatenate([grid, padding]).astype(np.float32)
