"""The README's Python runs as it stands and does what it says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_example_learns_its_sentence(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    assert len(blocks) == 1
    names: dict = {}
    exec(compile(blocks[0], str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("the ") >= 2
    # One sentence to learn: the loss must fall far below ln 27 = 3.3 nats a token.
    assert float(names["metrics"]["loss"]) < 1.0
