"""Documents from text files, folders and JSON lines, with every bad input named exactly."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dlm_jax.data.python_prose import python_prose

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".text")
"""Files read whole, one document each."""


class Document(NamedTuple):
    """One piece of text that belongs together.

    Attributes:
      text: what is learned and scored.
      name: where it came from.
      prompt: text before it that is given, never noised and never scored.
    """

    text: str
    name: str
    prompt: str = ""


def read_documents(path: str | None) -> list[Document]:
    """Read all documents of a source, in a fixed order.

    Args:
      path: a ``.txt``, ``.md``, ``.rst`` or ``.text`` file, a ``.jsonl`` file with ``text`` or
        ``prompt`` and ``completion`` on each line, a folder of such files, or None for the prose of
        the running Python.

    Raises:
      ValueError: for input that is missing, empty, binary, no UTF-8, or no valid JSON lines; names
        the file and the line or byte.
    """
    if path == "":
        raise ValueError("data.path is empty; give a file or a folder, or None for Python's prose")
    if path is None:
        return [Document(text, name) for name, text in python_prose()]
    source = Path(path)
    if source.is_dir():
        known = (*TEXT_SUFFIXES, ".jsonl")
        files = sorted(file for file in source.rglob("*") if file.suffix.lower() in known)
        if not files:
            raise ValueError(f"data.path={path} is a folder without {', '.join(known)} files")
    elif source.is_file():
        files = [source]
    else:
        raise ValueError(f"data.path={path} does not exist; give a file or a folder")
    documents = [document for file in files for document in _read_file(file)]
    if not documents:
        raise ValueError(f"data.path={path} holds no text: every file in it is empty")
    return documents


def _read_file(file: Path) -> Iterator[Document]:
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        yield from _read_json_lines(file)
    elif suffix in TEXT_SUFFIXES:
        text = read_text(file)
        if not text.strip():
            raise ValueError(f"{file} is empty; remove it or give it some text")
        yield Document(text, str(file))
    else:
        known = ", ".join((*TEXT_SUFFIXES, ".jsonl"))
        raise ValueError(f"{file} has an unknown suffix {file.suffix!r}; known ones are {known}")


def read_text(file: Path) -> str:
    """Decode a file as UTF-8, without newline translation and without a byte-order mark.

    Raises:
      ValueError: for a binary file or invalid UTF-8, with the byte offset.
    """
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    zero = raw.find(b"\0")
    if zero >= 0:
        raise ValueError(f"{file} is a binary file (zero byte at offset {zero}); give text files")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{file} is not valid UTF-8 at byte offset {error.start} (line {line}); convert it, "
            f"for example with iconv -f latin1 -t utf-8"
        ) from error


def _read_json_lines(file: Path) -> Iterator[Document]:
    # Only "\n" ends a line: JSON strings may hold other line separators.
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{where} is not valid JSON: {error.msg} at column {error.colno}"
            ) from error
        except RecursionError as error:
            raise ValueError(f"{where} is nested too deeply; give plain records") from error
        if not isinstance(record, dict):
            raise ValueError(f"{where} must be a JSON object, got {type(record).__name__}")
        if "text" in record:
            wanted = ("text",)
        elif "completion" in record:
            wanted = ("completion", "prompt")
        else:
            raise ValueError(
                f"{where} has no 'text' (nor 'prompt' and 'completion'); "
                f"its keys are {sorted(record)}"
            )
        for key in wanted:
            if not isinstance(record.get(key, ""), str):
                kind = type(record[key]).__name__
                raise ValueError(f"{where}: {key!r} must be a string, got {kind}")
        text = record[wanted[0]]
        if not text:
            raise ValueError(f"{where}: {wanted[0]!r} is empty; remove the line")
        try:
            (text + record.get("prompt", "")).encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{where} holds a lone surrogate; it cannot be written as UTF-8"
            ) from error
        yield Document(text, where, record.get("prompt", "") if len(wanted) > 1 else "")
