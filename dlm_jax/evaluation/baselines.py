"""Two baselines that any language model should be compared with before it is believed."""

import gzip

import numpy as np


def unigram_bits_per_byte(train_counts: np.ndarray, counts: np.ndarray, text_bytes: int) -> float:
    """Code length of a text under the token frequencies of the training split.

    Args:
      train_counts: occurrences of each id in the training split [V]; one is added to each, so no
        token of the text costs infinitely much.
      counts: occurrences of each id in the text [V].
      text_bytes: UTF-8 bytes of the text.

    Returns:
      bits per byte.
    """
    smoothed = train_counts.astype(np.float64) + 1.0
    bits = -np.log2(smoothed / smoothed.sum())
    return float((counts * bits).sum() / text_bytes)


def gzip_bits_per_byte(text: bytes) -> float:
    """Size of ``gzip -9`` of a text, in bits per byte."""
    return 8 * len(gzip.compress(text, compresslevel=9, mtime=0)) / len(text)
