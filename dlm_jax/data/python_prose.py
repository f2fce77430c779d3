"""English prose that every machine has: the docstrings and help topics of the running Python."""

import ast
import inspect
import sysconfig
from pathlib import Path

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


def python_prose() -> list[tuple[str, str]]:
    """Read the docstrings of the standard library and the topics of ``pydoc_data``.

    Nothing is imported and nothing is copied: the source files of the running interpreter are
    parsed. A module's docstrings form one document, blank lines between them.

    Returns:
      (name, text) pairs, sorted by name, without repeated docstrings.

    Raises:
      ValueError: if this Python ships without the source of its standard library.
    """
    root = Path(sysconfig.get_path("stdlib"))
    documents: list[tuple[str, str]] = []
    seen: set[str] = set()
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root)
        if _SKIPPED.isdisjoint(inside.parts):
            fresh = [text for text in _docstrings(file) if text not in seen]
            seen.update(fresh)
            if fresh:
                name = ".".join(inside.with_suffix("").parts)
                documents.append((name, "\n\n".join(dict.fromkeys(fresh)) + "\n"))
    documents += _help_topics(root)
    if not documents:
        raise ValueError(
            f"{root} holds no Python source, so there is no prose to read; set data.path to a text "
            "file, a folder or a .jsonl file"
        )
    return documents


def _docstrings(file: Path) -> list[str]:
    """Docstrings of a module and of what it defines, in order, indentation removed."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return []  # templates of packaging tools are no valid Python
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [text.strip() for text in found if text and len(text) > 20]


def _help_topics(root: Path) -> list[tuple[str, str]]:
    file = root / "pydoc_data" / "topics.py"
    if not file.is_file():
        return []
    topics: dict[str, str] = {}  # by text: "if" and "else" share one
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    topics.setdefault(inspect.cleandoc(str(value.value)) + "\n", str(key.value))
    return [(f"topic {name}", text) for text, name in topics.items()]
