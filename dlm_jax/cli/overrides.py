"""Config files and ``--config.x.y=z`` overrides."""

import ast
import importlib.util
import traceback
from collections.abc import Callable
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections

from dlm_jax.config import hint_of
from dlm_jax.config import nearest
from dlm_jax.config import with_defaults

PREFIX = "--config."


def load_config(path: str) -> ml_collections.ConfigDict:
    """Run ``get_config()`` of a Python file and add the defaults it leaves out.

    Raises:
      ValueError: if there is no such file, or it has no ``get_config`` that returns a config.
    """
    file = Path(path)
    if not file.is_file() or file.suffix != ".py":
        raise ValueError(f"--config={path}: no such Python file; see configs/ for examples")
    spec = importlib.util.spec_from_file_location(f"dlm_config_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    _run_user_code(path, lambda: loader.exec_module(module))
    if not callable(getattr(module, "get_config", None)):
        raise ValueError(f"--config={path} defines no get_config(); see configs/ for examples")
    config = _run_user_code(path, module.get_config)
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(
            f"get_config() of {path} must return an ml_collections.ConfigDict, "
            f"got {type(config).__name__}"
        )
    try:
        return with_defaults(config)
    except ValueError as error:
        raise ValueError(f"--config={path}: {error}") from error


def default_config() -> ml_collections.ConfigDict:
    """Every key that has a default, for people without a config file at hand."""
    return with_defaults(ml_collections.ConfigDict())


def _run_user_code(path: str, action: Callable[[], Any]) -> Any:
    """Call code of a config file, and turn whatever it raises into one line that names the place.

    Raises:
      ValueError: with the file, the line and the reason.
    """
    try:
        return action()
    except SyntaxError as error:
        raise ValueError(f"--config={path} line {error.lineno}: {error.msg}") from error
    except (Exception, SystemExit) as error:  # the file may raise anything
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
        where = f" line {lines[-1]}" if lines else ""
        raise ValueError(f"--config={path}{where}: {type(error).__name__}: {error}") from error


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate ``--config.x=y`` and ``--config.x y`` from the other arguments.

    Returns:
      (other arguments, overrides as ``x=y``).

    Raises:
      ValueError: for an override without a value.
    """
    others: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith(PREFIX):
            others.append(argument)
            continue
        name = argument.removeprefix(PREFIX)
        if "=" not in name:
            value = next(rest, None)
            if value is None:
                raise ValueError(f"{argument} needs a value, as {argument}=...")
            name = f"{name}={value}"
        overrides.append(name)
    return others, overrides


def apply_overrides(
    config: ml_collections.ConfigDict, overrides: Sequence[str]
) -> ml_collections.ConfigDict:
    """A copy of the config with ``x.y=z`` applied; values are checked later, by ``resolve``.

    Raises:
      ValueError: for a key the config does not have, naming the nearest one that it has.
    """
    changed = config.copy_and_resolve_references()
    known = list(flatten(config))
    for override in overrides:
        name, _, text = override.partition("=")
        if name not in known:
            raise ValueError(f"{PREFIX}{name} is no key of the config; {nearest(name, known)}")
        section, _, field = name.rpartition(".")
        target: Any = changed[section] if section else changed
        with target.ignore_type():
            target[field] = _parse(text, hint_of(name))
    return changed


def flatten(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """Values by dotted key, sorted."""
    result: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        if isinstance(value, dict):
            result |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            result[key] = value
    return dict(sorted(result.items()))


def _parse(text: str, hint: Any) -> Any:
    """Read a value: ``None`` means None, text stays text, the rest are Python literals."""
    if text == "None":
        return None
    if hint is str or "str" in str(hint):
        return text.strip("'\"") if text[:1] in "'\"" else text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
