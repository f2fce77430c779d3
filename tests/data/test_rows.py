"""Windows, packing and splits: every token where it belongs, none in two splits."""

import numpy as np
import pytest

from dlm_jax.data import DataSpec
from dlm_jax.data import Document
from dlm_jax.data import prepare
from dlm_jax.data import split_documents
from dlm_jax.data.rows import cut_windows
from dlm_jax.data.rows import fill_row
from dlm_jax.data.rows import pack


@pytest.mark.parametrize("overlap", [0, 3, 7])
def test_windows_cover_every_token(overlap):
    """Kills a lost tail, a window past the end, and a stride of the wrong size."""
    for count in range(1, 60):
        windows = cut_windows(5, count, length=8, overlap=overlap)
        covered = np.zeros(count, int)
        for start, size in windows:
            assert 0 < size <= 8
            covered[start - 5 : start - 5 + size] += 1
        assert covered.min() == 1
        if overlap == 0:
            assert covered.max() == 1
        else:
            for (a, size), (b, _) in zip(windows, windows[1:], strict=False):
                assert size == 8 and a < b and a + size - b >= overlap


def test_packing_keeps_every_piece_once_and_fits():
    rng = np.random.default_rng(0)
    pieces = [(i * 10, int(n)) for i, n in enumerate(rng.integers(1, 11, 300))]
    rows = pack(pieces, length=10, open_rows=8)
    assert sorted(piece for row in rows for piece in row) == pieces
    assert all(sum(size for _, size in row) <= 10 for row in rows)
    assert len(rows) < 0.75 * len(pieces)


def test_row_says_which_document_and_position_each_token_has():
    row = fill_row([(2, 3), (7, 2)], np.arange(20), None, length=7, pad_id=99)
    np.testing.assert_array_equal(row["tokens"], [2, 3, 4, 7, 8, 99, 99])
    np.testing.assert_array_equal(row["segments"], [1, 1, 1, 2, 2, 0, 0])
    np.testing.assert_array_equal(row["positions"], [0, 1, 2, 0, 1, 0, 0])
    np.testing.assert_array_equal(row["weights"], [1, 1, 1, 1, 1, 0, 0])


def documents(count):
    return [Document(f"text number {i} " * (3 + i % 5), f"d{i}") for i in range(count)]


def test_split_by_document_holds_out_the_share_and_keeps_equal_texts_together():
    docs = documents(100) + documents(100)
    train, held = split_documents(docs, fraction=0.2)
    assert {d.text for d in train}.isdisjoint({d.text for d in held})
    share = sum(len(d.text) for d in held) / sum(len(d.text) for d in docs)
    assert 0.15 < share < 0.3
    assert sorted(train + held) == sorted(docs)
    assert split_documents(docs, fraction=0.2) == (train, held)


def test_split_by_span_cuts_at_a_line_and_loses_nothing():
    text = "".join(f"line {i}\n" for i in range(1000))
    train, held = split_documents([Document(text, "d")], fraction=0.1)
    assert train[0].text + held[0].text == text
    assert held[0].text.startswith("line ")
    assert 0.08 < len(held[0].text) / len(text) < 0.12


def test_split_that_would_leak_is_refused():
    same = [Document("same text " * 50, f"d{i}") for i in range(2)]
    with pytest.raises(ValueError, match="is in training and in validation"):
        split_documents(same, fraction=0.5, split="span")


def test_prepared_validation_scores_each_token_once_and_prompts_never(tmp_path):
    """Kills overlapping validation windows and scored prompts."""
    path = tmp_path / "data.jsonl"
    lines = [
        f'{{"prompt": "question {i}: ", "completion": "answer {i} {"x" * i}"}}' for i in range(40)
    ]
    path.write_text("\n".join(lines), encoding="utf-8")
    for layout in ("windows", "packed"):
        spec = DataSpec(
            path=str(path), tokenizer="bytes", length=32, overlap=8, layout=layout,
            validation_fraction=0.3,
        )  # fmt: skip
        prepared = prepare(spec, tmp_path / layout)
        rows = [prepared.validation[i] for i in range(len(prepared.validation))]
        scored = np.concatenate([row["tokens"][row["weights"] > 0] for row in rows])
        assert len(scored) == prepared.validation_token_counts.sum()
        text = bytes(token for token in scored.tolist() if token < 256)
        assert sorted(text) == sorted(prepared.validation_text)
        assert b"question" not in text
        assert prepared.tokenizer.eos_id in scored


def test_no_training_row_shares_a_line_with_validation(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"unique{i:04d}" for i in range(400)), encoding="utf-8")
    spec = DataSpec(path=str(path), tokenizer="bytes", length=32, overlap=8)
    prepared = prepare(spec, tmp_path / "run")
    held = prepared.validation_text.decode().split()
    train = prepared.tokenizer.decode(prepared.train.tokens.tolist())
    assert held and not any(word in train for word in held)


def test_tokenizer_of_the_folder_is_kept(tmp_path):
    """A resumed run must not train another tokenizer on other text."""
    path = tmp_path / "text.txt"
    path.write_text("some words to learn\n" * 200, encoding="utf-8")
    spec = DataSpec(path=str(path), tokenizer="unigram", vocab_size=274, length=16, overlap=4)
    first = prepare(spec, tmp_path / "run").tokenizer.fingerprint
    path.write_text("entirely different text\n" * 200, encoding="utf-8")
    assert prepare(spec, tmp_path / "run").tokenizer.fingerprint == first


def test_text_shorter_than_a_window_is_refused(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("short text\n" * 9, encoding="utf-8")
    spec = DataSpec(path=str(path), tokenizer="bytes", length=64, overlap=8)
    with pytest.raises(ValueError, match="fewer than one window of data.length=64"):
        prepare(spec, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokenizer": "wordpiece"}, "'wordpiece' is unknown; choose one of unigram"),
        ({"overlap": 256}, r"overlap=256 must lie in \[0, length=256\)"),
        ({"validation_fraction": 0.0}, r"must lie in \(0, 1\)"),
        ({"tokenizer": "json"}, "needs the path of a tokenizer.json"),
        ({"layout": "ragged"}, "choose one of windows, packed"),
    ],
)
def test_spec_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        DataSpec(**arguments)
