"""The file that says what a checkpoint consists of: size and CRC-32 of every file, and metrics.

Orbax protects the index of a checkpoint and not the arrays: a flipped byte in them would be
restored as another number, and a truncated file makes its reader threads print tracebacks. So
the files are compared with their seal before orbax opens any. The seal is written before the
checkpoint gets its name, by the thread that saves.
"""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

SEAL = "seal.json"
"""Name of the file."""

# Orbax still writes to these after the seal: the time of the commit, and marks of completeness.
_UNSEALED = (SEAL, "_CHECKPOINT_METADATA", "commit_success.txt")
_CHUNK = 1 << 22


def write_seal(directory: Path, name: str, metrics: dict[str, float]) -> None:
    """Seal a checkpoint that orbax has written but not yet given its name.

    Args:
      directory: where the checkpoint will be.
      name: of the checkpoint.
      metrics: kept in the seal.
    """
    written = sorted(directory.glob(f"{name}.orbax-checkpoint-tmp*"))
    path = written[-1] if written else directory / name
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.name not in _UNSEALED]
    with ThreadPoolExecutor(4) as pool:
        sums = dict(
            zip([str(file.relative_to(path)) for file in files], pool.map(_sum, files), strict=True)
        )
    (path / SEAL).write_text(json.dumps({"files": sums, "metrics": metrics}), encoding="utf-8")


def replace_metrics(path: Path, metrics: dict[str, float]) -> None:
    """Give a complete checkpoint other metrics, in one replacement of its seal."""
    seal = {**read_seal(path), "metrics": metrics}
    temporary = path / f".{SEAL}"
    temporary.write_text(json.dumps(seal), encoding="utf-8")
    temporary.replace(path / SEAL)


def read_seal(path: Path) -> dict[str, Any]:
    """The seal of a checkpoint.

    Raises:
      ValueError: if it is missing or damaged.
    """
    try:
        seal = json.loads((path / SEAL).read_text(encoding="utf-8"))
        return {"files": dict(seal["files"]), "metrics": dict(seal["metrics"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{SEAL} cannot be read: {error}") from error


def check_seal(path: Path) -> None:
    """Compare the files of a checkpoint with its seal; processes share the work.

    Raises:
      ValueError: naming the first file that differs and how.
    """
    sealed = sorted(read_seal(path)["files"].items())
    for name, (size, _) in sealed:
        file = path / name
        if not file.is_file():
            raise ValueError(f"{name} is missing")
        if file.stat().st_size != size:
            raise ValueError(f"{name} has {file.stat().st_size} bytes, {size} were written")
    mine = sealed[jax.process_index() :: jax.process_count()]
    with ThreadPoolExecutor(4) as pool:
        for (name, wrote), found in zip(
            mine, pool.map(_sum, [path / name for name, _ in mine]), strict=True
        ):
            if list(found) != list(wrote):
                raise ValueError(f"the checksum of {name} differs from the one written")


def _sum(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc
