"""Text comes back exactly, whatever it holds, and never turns into a special token."""

import random

import pytest

from dlm_jax.data import ByteTokenizer
from dlm_jax.data import JsonTokenizer
from dlm_jax.data import load_tokenizer
from dlm_jax.data import train_sentencepiece

TEXTS = ["the cat  sat\n\ton the mat\r\n", "naïve café, 日本語 and emoji 😀"] * 40
NASTY = [
    "",
    " ",
    "  two  spaces  ",
    "tab\tnew\nline\r\n",
    "▁literal▁underline",
    "\ue000\ue0001\ue0000",
    "👩‍👩‍👧 🇫🇷 e\u0301",
    "日本語の文章",
    "\x00\x01\x7f",
    "<mask><s></s><pad><unk><0x0A>",
    "\u2028\u00a0\ufeffx",
]


@pytest.fixture(scope="module", params=["unigram", "bpe", "bytes", "json"])
def tokenizer(request):
    if request.param == "bytes":
        return ByteTokenizer()
    if request.param == "json":
        return byte_level_json()
    return train_sentencepiece(TEXTS, kind=request.param, vocab_size=285)


def byte_level_json():
    """A byte-level BPE, made here with the package itself."""
    import tokenizers
    from tokenizers import decoders
    from tokenizers import models
    from tokenizers import pre_tokenizers
    from tokenizers import trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return JsonTokenizer(made.to_str())


@pytest.mark.parametrize("text", NASTY)
def test_text_round_trips_exactly(tokenizer, text):
    """Kills normalisation, a dummy prefix, and the space that stands for U+2581."""
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_random_text_round_trips_exactly(tokenizer):
    rng = random.Random(0)
    alphabet = "ab \t\n▁\ue00001é日😀<>/s"
    for _ in range(300):
        text = "".join(rng.choices(alphabet, k=rng.randrange(30)))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_names_are_text(tokenizer):
    """Kills a tokenizer that turns '<mask>' into the mask."""
    special = {tokenizer.mask_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}
    assert len(special) == 4
    ids = tokenizer.encode("<mask> <s> </s> <pad> [MASK] <unk>")
    assert special.isdisjoint(ids)
    assert max(special) < tokenizer.vocab_size
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_special_tokens_have_no_text(tokenizer):
    ids = [tokenizer.bos_id, *tokenizer.encode("a b"), tokenizer.mask_id, tokenizer.eos_id]
    assert tokenizer.decode(ids) == "a b"


def test_saved_tokenizer_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t")
    loaded = load_tokenizer(tmp_path / "t")
    assert loaded.fingerprint == tokenizer.fingerprint
    for text in NASTY:
        assert loaded.encode(text) == tokenizer.encode(text)
    assert (loaded.mask_id, loaded.vocab_size) == (tokenizer.mask_id, tokenizer.vocab_size)


def test_imported_ids_are_not_disturbed():
    """Kills a mask token put before the existing ids."""
    tokenizer = byte_level_json()
    assert (tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.mask_id == tokenizer.vocab_size - 1


def test_training_is_deterministic_and_learns_lines_longer_than_the_trainers_limit():
    """SentencePiece drops sentences over 4192 bytes; a one-line corpus must still train."""
    line = ["wordly " * 2000]
    first, second = (train_sentencepiece(line, kind="unigram", vocab_size=275) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    assert len(first.encode("wordly wordly")) < 8


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_vocabulary_larger_than_the_text_allows_names_the_largest(kind):
    with pytest.raises(ValueError, match="vocab_size=5000 is larger than the text allows") as error:
        train_sentencepiece(["few words here"] * 30, kind=kind, vocab_size=5000)
    largest = int(str(error.value).split("use at most ")[1].split(",")[0])
    trained = train_sentencepiece(["few words here"] * 30, kind=kind, vocab_size=largest)
    assert trained.vocab_size == largest


def test_vocabulary_too_small_names_the_smallest():
    with pytest.raises(ValueError, match="cannot hold the characters of the text; use at least"):
        train_sentencepiece(TEXTS, kind="unigram", vocab_size=100)


def test_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
