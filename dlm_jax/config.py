"""From a ConfigDict of plain values to typed, checked specs: read once, at the edge.

Each section of a config maps one to one to a frozen dataclass, so every key is read and an unknown
one is an error. No ConfigDict goes further than this file.
"""

import dataclasses
import difflib
import math
import types
import typing
from typing import Any
from typing import TypeVar

import ml_collections
import numpy as np

from dlm_jax import schedules
from dlm_jax.data import DataSpec
from dlm_jax.models import TransformerConfig
from dlm_jax.processes import MaskedProcess
from dlm_jax.processes import TimeSampler
from dlm_jax.processes import Weighting
from dlm_jax.processes import make_sampler
from dlm_jax.training.optimizer import OptimizerSpec
from dlm_jax.training.spec import EvaluationSpec
from dlm_jax.training.spec import SamplingSpec
from dlm_jax.training.spec import TrainingSpec

Spec = TypeVar("Spec")

PROCESSES = ("masked",)
"""Names of the diffusion processes a config may choose."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """The ``process`` section: which process, and how it corrupts.

    Attributes:
      name: one of :data:`PROCESSES`.
      schedule: text for ``schedules.parse``, as ``linear`` or ``polynomial(power=3)``.
      ratio_range: smallest and largest mask ratio.
      weighting: loss weight by time, one of ``processes.WEIGHTINGS``; all but ``elbo`` are biased.
      weight_limit: largest weight of ``capped`` and ``min_snr``.
    """

    name: str = "masked"
    schedule: str = "linear"
    ratio_range: tuple[float, float] = (0.0, 1.0)
    weighting: str = "elbo"
    weight_limit: float = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimesSpec:
    """The ``times`` section: arguments of ``processes.make_sampler``.

    Attributes:
      sampler: one of ``processes.SAMPLERS``.
      shares: probability of each equal-width bin of ``stratified``.
      middle: favoured mask ratios of ``mid``.
      middle_share: probability of the favoured mask ratios.
    """

    sampler: str = "antithetic"
    shares: tuple[float, ...] = (0.2, 0.5, 0.3)
    middle: tuple[float, float] = (0.3, 0.7)
    middle_share: float = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The ``model`` section: fields of ``TransformerConfig`` that the tokenizer does not decide."""

    values: tuple[tuple[str, Any], ...]

    def build(self, *, vocab_size: int, mask_id: int) -> TransformerConfig:
        """The full description of the network."""
        return TransformerConfig(vocab_size=vocab_size, mask_id=mask_id, **dict(self.values))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A whole config, resolved."""

    seed: int
    data: DataSpec
    model: ModelSpec
    process: ProcessSpec
    times: TimesSpec
    optimizer: OptimizerSpec
    training: TrainingSpec
    evaluation: EvaluationSpec
    sampling: SamplingSpec

    def masked_process(self, *, vocab_size: int, mask_id: int) -> MaskedProcess:
        """The diffusion process over a tokenizer's vocabulary."""
        return MaskedProcess(vocab_size=vocab_size, mask_id=mask_id, schedule=self.schedule())

    def schedule(self) -> schedules.Schedule:
        """The noise schedule."""
        return schedules.parse(self.process.schedule, ratio_range=self.process.ratio_range)

    def weighting(self) -> Weighting:
        """The loss weight by time."""
        return Weighting(name=self.process.weighting, limit=self.process.weight_limit)

    def time_sampler(self) -> TimeSampler:
        """The sampler of training times; ``mid`` is given as mask ratios and turned into times."""
        low, high = self.schedule().inverse(1 - np.asarray(self.times.middle)).tolist()
        return make_sampler(
            self.times.sampler,
            shares=self.times.shares,
            middle=(low, high),
            middle_share=self.times.middle_share,
        )


_SECTIONS: dict[str, type] = {
    "data": DataSpec,
    "model": TransformerConfig,
    "process": ProcessSpec,
    "times": TimesSpec,
    "optimizer": OptimizerSpec,
    "training": TrainingSpec,
    "evaluation": EvaluationSpec,
    "sampling": SamplingSpec,
}
_DECIDED = {"model": ("vocab_size", "mask_id"), "optimizer": ("total_steps",)}
"""Fields that something else decides: the tokenizer, and ``training.steps``."""


def with_defaults(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Add every key that the config leaves to its default, so that all can be listed and set."""
    full: Any = ml_collections.ConfigDict(config.to_dict(), convert_dict=True, type_safe=False)
    for name, cls in _SECTIONS.items():
        if name not in full:
            full[name] = ml_collections.ConfigDict()
        if not isinstance(full[name], ml_collections.ConfigDict):
            raise ValueError(f"config.{name} must be a group of keys, got {full[name]!r}")
        for field in dataclasses.fields(cls):
            decided = field.name in _DECIDED.get(name, ())
            if field.default is not dataclasses.MISSING and not decided:
                if field.name not in full[name]:
                    full[name][field.name] = field.default
    return full


def hint_of(dotted: str) -> Any:
    """Annotation of a dotted key, as ``model.width``; None for an unknown one."""
    if dotted == "seed":
        return int
    name, _, field = dotted.partition(".")
    return typing.get_type_hints(_SECTIONS[name]).get(field) if name in _SECTIONS else None


def resolve(config: ml_collections.ConfigDict) -> Experiment:
    """Check a config and turn it into specs.

    Raises:
      ValueError: for unknown or missing keys, values of a wrong type, and values that a spec
        refuses, each named by its dotted key.
    """
    values = config.to_dict()
    _refuse_unknown(values, ("seed", *_SECTIONS), prefix="")
    missing = [name for name in ("seed", "data", "model", "training") if name not in values]
    if missing:
        raise ValueError(f"config has no {missing[0]!r}; it needs seed, data, model and training")
    seed = _typed(values["seed"], int, "seed")
    check_seed(seed, "seed")
    training = _section(TrainingSpec, values["training"], "training")
    experiment = Experiment(
        seed=seed,
        data=_section(DataSpec, values["data"], "data"),
        model=_model(values["model"]),
        process=_section(ProcessSpec, values.get("process", {}), "process"),
        times=_section(TimesSpec, values.get("times", {}), "times"),
        optimizer=_section(
            OptimizerSpec, values.get("optimizer", {}), "optimizer", total_steps=training.steps
        ),
        training=training,
        evaluation=_section(EvaluationSpec, values.get("evaluation", {}), "evaluation"),
        sampling=_section(SamplingSpec, values.get("sampling", {}), "sampling"),
    )
    _cross_check(experiment)
    return experiment


def check_seed(seed: int, name: str) -> None:
    """Refuse seeds that a key cannot hold.

    Raises:
      ValueError: naming the seed and its range.
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"{name}={seed} must lie in [0, 2**32)")


def _cross_check(experiment: Experiment) -> None:
    if experiment.process.name not in PROCESSES:
        raise ValueError(
            f"process.name={experiment.process.name!r} is unknown; "
            f"choose one of {', '.join(PROCESSES)}"
        )
    experiment.time_sampler()
    experiment.weighting()
    model = experiment.model.build(vocab_size=2, mask_id=1)
    if experiment.data.length > model.max_length:
        raise ValueError(
            f"data.length={experiment.data.length} is longer than "
            f"model.max_length={model.max_length}; shorten one or lengthen the other"
        )
    if experiment.sampling.length > model.max_length:
        raise ValueError(
            f"sampling.length={experiment.sampling.length} is longer than "
            f"model.max_length={model.max_length}; shorten one or lengthen the other"
        )
    if model.attention != "bidirectional":
        raise ValueError(
            "model.attention='causal' cannot denoise: masked diffusion predicts from both sides; "
            "use model.attention='bidirectional'"
        )


def _model(section: dict) -> ModelSpec:
    decided = {"vocab_size": 2, "mask_id": 1}
    for key in decided:
        if key in section:
            raise ValueError(f"model.{key} is decided by the tokenizer; remove it from the config")
    spec = _section(TransformerConfig, section, "model", **decided)
    chosen = {key: getattr(spec, key) for key in section}
    return ModelSpec(values=tuple(sorted(chosen.items())))


def _section(cls: type[Spec], values: dict, prefix: str, **decided: Any) -> Spec:
    if not isinstance(values, dict):
        raise ValueError(f"config.{prefix} must be a group of keys, got {values!r}")
    hints = typing.get_type_hints(cls)
    _refuse_unknown(values, [key for key in hints if key not in decided], prefix=f"{prefix}.")
    typed = {key: _typed(value, hints[key], f"{prefix}.{key}") for key, value in values.items()}
    required = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.name not in (*typed, *decided)
    ]
    if required:
        raise ValueError(f"config has no {prefix}.{required[0]}; it has no default, so set it")
    try:
        return cls(**typed, **decided)
    except ValueError as error:
        raise ValueError(f"config.{prefix}: {error}") from error


def _refuse_unknown(values: dict, known: typing.Iterable[str], prefix: str) -> None:
    known = sorted(known)
    for key in values:
        if key not in known:
            raise ValueError(f"config has no key {prefix}{key}; {nearest(key, known, prefix)}")


def nearest(key: str, known: typing.Sequence[str], prefix: str = "") -> str:
    """Advice that names the nearest known key, or all of them."""
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {prefix}{close[0]}?"
    return f"known keys: {', '.join(prefix + name for name in known)}"


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Check a plain value against an annotation; whole numbers may stand for floats."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    if isinstance(value, list | tuple):
        for option in options:
            if typing.get_origin(option) is tuple:
                return _typed_tuple(tuple(value), typing.get_args(option), name)
    if isinstance(value, bool) and bool in options:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        if int in options and isinstance(value, int):
            return value
        if float in options:
            if not math.isfinite(value):
                raise ValueError(f"{name}={value} must be finite")
            return float(value)
    if isinstance(value, str) and str in options:
        return value
    words = " or ".join(
        "None" if o is type(None) else getattr(o, "__name__", str(o)) for o in options
    )
    raise ValueError(f"{name}={value!r} must be {words}, got {type(value).__name__}")


def _typed_tuple(values: tuple, hints: tuple, name: str) -> tuple:
    if hints[-1] is Ellipsis:
        hints = (hints[0],) * len(values)
    if len(hints) != len(values):
        raise ValueError(f"{name}={values} must have {len(hints)} entries, got {len(values)}")
    return tuple(
        _typed(value, hint, f"{name}[{index}]")
        for index, (value, hint) in enumerate(zip(values, hints, strict=True))
    )
