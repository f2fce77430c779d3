"""Tokenizers behind one protocol: SentencePiece, raw bytes, and Hugging Face ``tokenizer.json``.

Encoding and decoding are exact inverses for every string that UTF-8 can hold. Special tokens come
after the ids of text and have no spelling: a prompt that says ``<mask>`` is eight characters.
"""

import hashlib
import io
import json
import re
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece

KINDS = ("unigram", "bpe", "bytes", "json")
"""Tokenizers that a config may choose."""

_FILE = "tokenizer_kind.json"
_MODEL = "sentencepiece.model"
_JSON = "tokenizer.json"


class Tokenizer(Protocol):
    """Text to ids and back.

    Attributes:
      vocab_size: number of ids, special tokens and [MASK] included.
      mask_id: id of [MASK].
      bos_id: id of the beginning of a text.
      eos_id: id of the end of a text.
      pad_id: id of padding.
      fingerprint: changes whenever an id means something else.
    """

    vocab_size: int
    mask_id: int
    bos_id: int
    eos_id: int
    pad_id: int
    fingerprint: str

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; special tokens are left out, broken UTF-8 becomes U+FFFD."""
        ...

    def save(self, directory: Path) -> None:
        """Write all that ``load_tokenizer`` needs."""
        ...


class ByteTokenizer:
    """UTF-8 bytes as ids 0 to 255; needs no training."""

    vocab_size, mask_id, bos_id, eos_id, pad_id = 260, 259, 256, 257, 258
    fingerprint = "bytes"

    def encode(self, text: str) -> list[int]:
        """Bytes of the text."""
        return list(text.encode("utf-8"))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the bytes among the ids."""
        return bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")

    def save(self, directory: Path) -> None:
        """Write the kind; there is nothing else to keep."""
        _save_kind(directory, "bytes")


# SentencePiece writes a space as U+2581, so a text's own U+2581 would come back as a space. It is
# escaped by a private-use character, and so is that character.
_ESCAPES = {"\ue000": "\ue0000", "\u2581": "\ue0001"}
_UNESCAPES = {code: character for character, code in _ESCAPES.items()}


class SentencePieceTokenizer:
    """A SentencePiece model with identity normalisation and byte fallback, and [MASK] behind it."""

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = self._processor.get_piece_size()
        self.bos_id = self._processor.bos_id()
        self.eos_id = self._processor.eos_id()
        self.pad_id = self._processor.pad_id()
        self.mask_id = pieces
        self.vocab_size = pieces + 1
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        escaped = re.sub("[\ue000\u2581]", lambda match: _ESCAPES[match[0]], text)
        return self._processor.encode(escaped)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens are left out."""
        unknown = self._processor.unk_id()  # SentencePiece would write it as " \u2047 "
        special = (self.bos_id, self.eos_id, self.pad_id, self.mask_id, unknown)
        text = self._processor.decode([int(i) for i in ids if i not in special])
        return re.sub("\ue000[01]", lambda match: _UNESCAPES[match[0]], text)

    def save(self, directory: Path) -> None:
        """Write the model file."""
        _save_kind(directory, "sentencepiece")
        (directory / _MODEL).write_bytes(self._model)


class JsonTokenizer:
    """A Hugging Face ``tokenizer.json``; special tokens that it lacks are added behind its ids."""

    def __init__(self, text: str) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "reading tokenizer.json needs the package tokenizers; "
                "install it with pip install 'dlm_jax[hf]'"
            ) from error
        self._text = text
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises bare Exception
            raise ValueError(f"tokenizer.json is not valid: {error}") from error
        # A file may ask to cut and pad every text; rows are cut and padded here.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        # Special tokens keep their ids but lose their spelling: a text never turns into them.
        self._tokenizer.encode_special_tokens = True
        self._added = 0
        self.bos_id = self._find("<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>")
        self.eos_id = self._find("</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>")
        self.pad_id = self._find("<pad>", "[PAD]", "<|padding|>")
        self.mask_id = self._find("<mask>", "[MASK]", "<|mdm_mask|>")
        self.vocab_size = self._size + self._added
        self.fingerprint = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]

    def _find(self, *names: str) -> int:
        for name in names:
            found = self._tokenizer.token_to_id(name)
            if found is not None:
                return found
        self._added += 1
        return self._size + self._added - 1

    def encode(self, text: str) -> list[int]:
        """Ids of the text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens are left out."""
        special = (self.bos_id, self.eos_id, self.pad_id, self.mask_id)
        kept = [int(i) for i in ids if i < self._size and i not in special]
        return self._tokenizer.decode(kept, skip_special_tokens=True)

    def save(self, directory: Path) -> None:
        """Write the tokenizer.json."""
        _save_kind(directory, "json")
        (directory / _JSON).write_text(self._text, encoding="utf-8")


def train_sentencepiece(
    texts: Iterable[str], *, kind: str, vocab_size: int, training_bytes: int = 10_000_000
) -> SentencePieceTokenizer:
    """Train a SentencePiece model on texts.

    Args:
      texts: documents; lines are the trainer's sentences, long ones are cut.
      kind: ``unigram`` or ``bpe``.
      vocab_size: number of ids, [MASK] included.
      training_bytes: lines after this many characters are not looked at.

    Returns:
      The tokenizer. The same texts give the same tokenizer.

    Raises:
      ValueError: if the vocabulary is larger or smaller than the texts allow, with the limit.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, training_bytes),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size - 1,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            byte_fallback=True,
            character_coverage=0.9999,
            pad_id=3,
            num_threads=1,
            minloglevel=3,
        )
    except RuntimeError as error:
        raise ValueError(_explain(str(error), vocab_size)) from error
    return SentencePieceTokenizer(model.getvalue())


def _explain(message: str, vocab_size: int) -> str:
    if high := re.search(r"value <= (\d+)", message):
        return (
            f"data.vocab_size={vocab_size} is larger than the text allows; "
            f"use at most {int(high[1]) + 1}, or more text"
        )
    if low := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"data.vocab_size={vocab_size} cannot hold the characters of the text; "
            f"use at least {int(low[1]) + 2}, or data.tokenizer='bytes'"
        )
    return f"SentencePiece could not be trained with data.vocab_size={vocab_size}: {message}"


def _lines(texts: Iterable[str], limit: int, longest: int = 1000) -> Iterator[str]:
    """Lines of the texts, cut to what the trainer accepts (it drops longer ones silently)."""
    used = 0
    for text in texts:
        escaped = re.sub("[\ue000\u2581\0]", " ", text)
        for line in escaped.splitlines():
            for start in range(0, len(line), longest):
                yield line[start : start + longest]
            used += len(line)
        if used > limit:
            return


def load_tokenizer(directory: Path) -> Tokenizer:
    """Read a tokenizer that was saved.

    Raises:
      ValueError: if the folder holds none, or it is damaged.
    """
    if not (directory / _FILE).is_file():
        raise ValueError(f"{directory} holds no tokenizer ({_FILE} is missing)")
    try:
        kind = json.loads((directory / _FILE).read_text(encoding="utf-8"))["kind"]
        if kind == "bytes":
            return ByteTokenizer()
        if kind == "sentencepiece":
            return SentencePieceTokenizer((directory / _MODEL).read_bytes())
        if kind == "json":
            return JsonTokenizer((directory / _JSON).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"the tokenizer in {directory} is damaged ({error}); restore the folder from a copy: "
            "a new tokenizer would not fit the checkpoints"
        ) from error
    raise ValueError(f"{directory / _FILE} names an unknown kind {kind!r}")


def _save_kind(directory: Path, kind: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _FILE).write_text(json.dumps({"kind": kind}) + "\n", encoding="utf-8")
