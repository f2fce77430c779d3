"""Data: sources, tokenizers, splits, rows and the batch pipeline. Nothing here needs JAX."""

from dlm_jax.data.pipeline import Batches
from dlm_jax.data.prepare import Prepared
from dlm_jax.data.prepare import prepare
from dlm_jax.data.python_prose import python_prose
from dlm_jax.data.records import Records
from dlm_jax.data.sources import Document
from dlm_jax.data.sources import read_documents
from dlm_jax.data.spec import DataSpec
from dlm_jax.data.splits import split_documents
from dlm_jax.data.tokenizers import ByteTokenizer
from dlm_jax.data.tokenizers import JsonTokenizer
from dlm_jax.data.tokenizers import SentencePieceTokenizer
from dlm_jax.data.tokenizers import Tokenizer
from dlm_jax.data.tokenizers import load_tokenizer
from dlm_jax.data.tokenizers import train_sentencepiece

__all__ = [
    "Batches",
    "ByteTokenizer",
    "DataSpec",
    "Document",
    "JsonTokenizer",
    "Prepared",
    "Records",
    "SentencePieceTokenizer",
    "Tokenizer",
    "load_tokenizer",
    "prepare",
    "python_prose",
    "read_documents",
    "split_documents",
    "train_sentencepiece",
]
