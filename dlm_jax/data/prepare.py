"""From a spec to a tokenizer and two splits."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dlm_jax.data.records import Encoded
from dlm_jax.data.records import Records
from dlm_jax.data.records import check_ids
from dlm_jax.data.rows import Piece
from dlm_jax.data.rows import cut_windows
from dlm_jax.data.rows import pack
from dlm_jax.data.sources import Document
from dlm_jax.data.sources import read_documents
from dlm_jax.data.sources import read_text
from dlm_jax.data.spec import DataSpec
from dlm_jax.data.splits import split_documents
from dlm_jax.data.tokenizers import ByteTokenizer
from dlm_jax.data.tokenizers import JsonTokenizer
from dlm_jax.data.tokenizers import Tokenizer
from dlm_jax.data.tokenizers import load_tokenizer
from dlm_jax.data.tokenizers import train_sentencepiece


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """The data of a run.

    Attributes:
      tokenizer: trained, or loaded from the run's folder.
      train: rows of the training split.
      validation: rows of the validation split; every scored token of it stands in exactly one.
      validation_text: the text that the validation rows score, UTF-8.
      train_token_counts: scored occurrences of each id in the training documents [V].
      validation_token_counts: the same for validation [V].
    """

    tokenizer: Tokenizer
    train: Records
    validation: Records
    validation_text: bytes
    train_token_counts: np.ndarray
    validation_token_counts: np.ndarray

    @property
    def validation_bytes(self) -> int:
        """UTF-8 bytes of the text that the validation rows score."""
        return len(self.validation_text)

    def facts(self) -> dict[str, int]:
        """Sizes, for people."""
        return {
            "vocabulary": self.tokenizer.vocab_size,
            "train_tokens": int(self.train_token_counts.sum()),
            "train_rows": len(self.train),
            "validation_tokens": int(self.validation_token_counts.sum()),
            "validation_rows": len(self.validation),
            "validation_bytes": self.validation_bytes,
        }


def prepare(spec: DataSpec, directory: Path) -> Prepared:
    """Read, split, tokenise and cut.

    Args:
      spec: what to read and how.
      directory: the run's folder. A tokenizer in ``directory/tokenizer`` is used as it is, so that
        ids never change under a checkpoint; otherwise one is made from the training split alone and
        saved there.

    Raises:
      ValueError: for any input that cannot be used, naming the file, the line and the remedy.
    """
    documents = read_documents(spec.path)
    train, held = split_documents(documents, fraction=spec.validation_fraction, split=spec.split)
    tokenizer = _tokenizer(spec, train, directory / "tokenizer")
    encoded = {name: encode(tokenizer, docs) for name, docs in (("t", train), ("v", held))}
    records = {
        "t": lay_out(encoded["t"], spec, tokenizer.pad_id, overlap=spec.overlap),
        "v": lay_out(encoded["v"], spec, tokenizer.pad_id, overlap=0),
    }
    for name, words in (("t", "training"), ("v", "validation")):
        if len(encoded[name].tokens) < spec.length:
            raise ValueError(
                f"the {words} split has {len(encoded[name].tokens)} tokens, fewer than one window "
                f"of data.length={spec.length}; use more text or a shorter window"
            )
    return Prepared(
        tokenizer=tokenizer,
        train=records["t"],
        validation=records["v"],
        validation_text="".join(document.text for document in held).encode("utf-8"),
        train_token_counts=_counts(encoded["t"], tokenizer.vocab_size),
        validation_token_counts=_counts(encoded["v"], tokenizer.vocab_size),
    )


def _tokenizer(spec: DataSpec, train: Sequence[Document], directory: Path) -> Tokenizer:
    if directory.is_dir():
        return load_tokenizer(directory)
    if spec.tokenizer == "bytes":
        tokenizer: Tokenizer = ByteTokenizer()
    elif spec.tokenizer == "json":
        file = Path(spec.tokenizer_path or "")
        if not file.is_file():
            raise ValueError(f"data.tokenizer_path={file} does not exist; give a tokenizer.json")
        tokenizer = JsonTokenizer(read_text(file))
    else:
        texts = [document.prompt + document.text for document in train]
        tokenizer = train_sentencepiece(texts, kind=spec.tokenizer, vocab_size=spec.vocab_size)
    # Written beside and renamed: a half-written tokenizer must never be taken for the run's own.
    temporary = directory.with_name(".tokenizer.new")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.save(temporary)
    temporary.rename(directory)
    return tokenizer


def encode(tokenizer: Tokenizer, documents: Sequence[Document]) -> Encoded:
    """Tokenise documents, each followed by the end-of-text token."""
    small = tokenizer.vocab_size <= np.iinfo(np.uint16).max
    parts: list[np.ndarray] = []
    given: list[np.ndarray] = []
    for document in documents:
        prompt = tokenizer.encode(document.prompt) if document.prompt else []
        ids = np.asarray([*prompt, *tokenizer.encode(document.text), tokenizer.eos_id])
        check_ids(ids, tokenizer.vocab_size, document.name)
        parts.append(ids.astype(np.uint16 if small else np.uint32))
        given.append(np.arange(len(ids)) >= len(prompt))
    scored = np.concatenate(given)
    return Encoded(
        np.concatenate(parts),
        None if scored.all() else scored,
        np.cumsum([len(part) for part in parts]),
    )


def lay_out(encoded: Encoded, spec: DataSpec, pad_id: int, *, overlap: int) -> Records:
    """Cut documents into windows, and pack the windows into rows if the spec says so.

    A stretch without any scored token (the inside of a long prompt) makes no row.
    """
    pieces: list[Piece] = []
    start = 0
    for end in encoded.ends:
        pieces += cut_windows(start, int(end) - start, length=spec.length, overlap=overlap)
        start = int(end)
    if encoded.scored is not None:
        pieces = [(at, count) for at, count in pieces if encoded.scored[at : at + count].any()]
    rows = (
        pack(pieces, length=spec.length)
        if spec.layout == "packed"
        else [[piece] for piece in pieces]
    )
    return Records(encoded.tokens, encoded.scored, rows, length=spec.length, pad_id=pad_id)


def _counts(encoded: Encoded, vocab_size: int) -> np.ndarray:
    tokens = encoded.tokens if encoded.scored is None else encoded.tokens[encoded.scored]
    return np.bincount(tokens, minlength=vocab_size)
