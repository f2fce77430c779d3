"""Documents are read whole, and each bad input is named by file and line or byte."""

import pytest

from dlm_jax.data import Document
from dlm_jax.data import python_prose
from dlm_jax.data import read_documents


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def test_folder_is_read_in_order_without_touching_newlines(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path / "b.md", "two\r\n")
    write(tmp_path / "sub" / "a.txt", "three")
    write(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"prompt": "p", "completion": "c"}\n')
    write(tmp_path / "ignored.bin", b"\0")
    documents = read_documents(str(tmp_path))
    assert [(d.prompt, d.text) for d in documents] == [
        ("", "one"),
        ("p", "c"),
        ("", "two\r\n"),
        ("", "three"),
    ]


def test_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfhello")
    assert read_documents(str(path)) == [Document("hello", str(path))]


def test_python_prose_is_plentiful_clean_and_without_repetition():
    documents = python_prose()
    names = [name for name, _ in documents]
    assert "os" in names or "os.__init__" in names
    assert len(names) == len(set(names))
    assert sum(len(text) for _, text in documents) > 500_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt is empty"),
        ("a.txt", b"  \n", r"a\.txt is empty"),
        ("a.txt", b"good\nbad \xff\xfe", r"a\.txt is not valid UTF-8 at byte offset 9 \(line 2\)"),
        ("a.txt", b"abc\0def", r"a\.txt is a binary file \(zero byte at offset 3\)"),
        ("a.pdf", b"x", r"unknown suffix '\.pdf'; known ones are \.txt"),
        ("a.jsonl", '{"text": "x"}\n{"txt": "y"}', r"a\.jsonl:2 has no 'text'.*\['txt'\]"),
        ("a.jsonl", '{"text": "x"}\n{"text": ', r"a\.jsonl:2 is not valid JSON"),
        ("a.jsonl", "[1]", r"a\.jsonl:1 must be a JSON object, got list"),
        ("a.jsonl", '{"text": 3}', r"a\.jsonl:1: 'text' must be a string, got int"),
        ("a.jsonl", '{"text": ""}', r"a\.jsonl:1: 'text' is empty"),
        ("a.jsonl", '{"text": "\\ud800"}', r"a\.jsonl:1 holds a lone surrogate"),
        ("a.jsonl", "\n", "holds no text"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    path = write(tmp_path / name, content)
    with pytest.raises(ValueError, match=message):
        read_documents(str(path))


def test_missing_and_empty_paths_are_named(tmp_path):
    with pytest.raises(ValueError, match="does not exist; give a file or a folder"):
        read_documents(str(tmp_path / "none"))
    with pytest.raises(ValueError, match="is a folder without .txt"):
        read_documents(str(tmp_path))
