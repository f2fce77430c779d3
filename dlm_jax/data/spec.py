"""The data of a run, described and checked."""

import dataclasses

from dlm_jax.data.tokenizers import KINDS

LAYOUTS = ("windows", "packed")
"""How documents become rows: overlapping windows, or several documents packed into each row."""

SPLITS = ("auto", "document", "span")
"""What goes to validation: whole documents, or the last span of the text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Source, tokenizer, split and layout.

    Attributes:
      path: see ``read_documents``; None for the prose of the running Python.
      tokenizer: one of ``tokenizers.KINDS``.
      tokenizer_path: a ``tokenizer.json`` for ``json``.
      vocab_size: ids of a trained tokenizer, [MASK] included.
      length: T, tokens of a row.
      overlap: tokens that neighbouring training windows share; validation windows share none.
      layout: one of :data:`LAYOUTS`.
      validation_fraction: share of the text that is held out.
      split: one of :data:`SPLITS`; ``auto`` takes documents where there are at least 10.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    path: str | None = None
    tokenizer: str = "unigram"
    tokenizer_path: str | None = None
    vocab_size: int = 8192
    length: int = 256
    overlap: int = 64
    layout: str = "windows"
    validation_fraction: float = 0.05
    split: str = "auto"

    def __post_init__(self) -> None:
        for field, allowed in (("tokenizer", KINDS), ("layout", LAYOUTS), ("split", SPLITS)):
            value = getattr(self, field)
            if value not in allowed:
                raise ValueError(
                    f"{field}={value!r} is unknown; choose one of {', '.join(allowed)}"
                )
        if (self.tokenizer == "json") != (self.tokenizer_path is not None):
            raise ValueError(
                f"tokenizer={self.tokenizer!r} with tokenizer_path={self.tokenizer_path!r}: "
                "'json' needs the path of a tokenizer.json, the others take none"
            )
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size={self.vocab_size} must be at least 2")
        if self.length < 2:
            raise ValueError(f"length={self.length} must be at least 2 tokens")
        if not 0 <= self.overlap < self.length:
            raise ValueError(f"overlap={self.overlap} must lie in [0, length={self.length})")
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction} must lie in (0, 1)")
