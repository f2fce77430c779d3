"""What may and what may not change a prediction, with nothing to compare to but the model."""

import jax
import numpy as np
import pytest

from tests.models import cases

# Other shapes give other orders of summation: 20 terms of float32, through two layers.
CLOSE = {"rtol": 0, "atol": 2e-4}
ROPE = {"bias": True, "mask_embedding": True, "layers": 1}
LEARNED = cases.BERT | {"layers": 1}
CAUSAL = cases.GPT2 | {"layers": 1}
ONE = np.ones((2, 7), np.int32)


def model_of(**switches):
    """Parameters and a jitted apply; the time is passed where the model wants one."""
    model, apply = cases.build(**switches)
    return cases.start(model), apply


@pytest.mark.parametrize("switches", [ROPE, LEARNED], ids=["rope", "learned"])
def test_padding_does_not_reach_real_tokens(switches):
    """Kills attention to padding, and a norm or position that counts it."""
    params, apply = model_of(**switches)
    tokens = cases.tokens_of()
    alone = apply(params, tokens, segments=ONE)
    padded, segments = np.zeros((2, 12), np.int32), np.zeros((2, 12), np.int32)
    padded[:, :7], segments[:, :7] = tokens, 1
    zeros = apply(params, padded, segments=segments)
    padded[:, 7:] = np.random.default_rng(5).integers(0, 11, (2, 5))
    other = apply(params, padded, segments=segments)
    np.testing.assert_array_equal(zeros[:, :7], other[:, :7])
    np.testing.assert_allclose(zeros[:, :7], alone, **CLOSE)
    assert np.isfinite(other).all()


@pytest.mark.parametrize("switches", [ROPE, LEARNED, CAUSAL], ids=["rope", "learned", "causal"])
def test_packed_documents_are_read_alone(switches):
    """Kills attention across documents and positions that run on."""
    params, apply = model_of(**switches)
    first, second = cases.tokens_of(1, 6, seed=1), cases.tokens_of(1, 6, seed=2)
    packed = np.concatenate([first, second], axis=1)
    segments = np.array([[1] * 6 + [2] * 6], np.int32)
    positions = np.array([[*range(6), *range(6)]], np.int32)
    together = apply(params, packed, segments=segments, positions=positions)
    np.testing.assert_allclose(together[:, :6], apply(params, first), **CLOSE)
    np.testing.assert_allclose(together[:, 6:], apply(params, second), **CLOSE)


def test_rows_do_not_mix():
    """Kills anything that looks at the batch as a whole."""
    params, apply = model_of(**ROPE, time_conditioning="adaln")
    tokens, time = cases.tokens_of(3), np.array([0.1, 0.5, 0.9], np.float32)
    order = np.array([2, 0, 1])
    np.testing.assert_allclose(
        apply(params, tokens[order], time[order]), apply(params, tokens, time)[order], **CLOSE
    )


@pytest.mark.parametrize("causal", [True, False])
def test_later_tokens_reach_earlier_ones_only_if_bidirectional(causal):
    """Kills a mask that is transposed, off by one, or missing."""
    params, apply = model_of(**ROPE, attention="causal" if causal else "bidirectional")
    tokens = cases.tokens_of()
    changed = tokens.copy()
    changed[:, 4] = (changed[:, 4] + 1) % cases.MASK
    before, after = apply(params, tokens), apply(params, changed)
    difference = np.abs(before - after).max(axis=-1)
    assert (difference[:, 4:] > 1e-3).all()
    if causal:
        np.testing.assert_array_equal(difference[:, :4], 0)
    else:
        assert (difference[:, :4] > 1e-3).all()


@pytest.mark.parametrize("hidden", [True, False])
def test_hidden_masks_change_nothing_elsewhere(hidden):
    """Kills a hidden key that is still read, by its contents or by its number."""
    params, apply = model_of(**ROPE, hide_mask=hidden)
    tokens = cases.tokens_of()
    masked = tokens == cases.MASK
    before = np.asarray(apply(params, tokens))
    moved = jax.tree.map(np.copy, params)
    moved["params"]["mask_embedding"] += 1.0
    after = np.asarray(apply(moved, tokens))
    difference = np.abs(before - after).max(axis=-1)
    assert (difference[masked] > 1e-3).all()
    columns = np.flatnonzero(~masked[0])
    positions = np.tile(columns.astype(np.int32), (2, 1))
    without = np.asarray(apply(params, tokens[:, columns], positions=positions))
    if hidden:
        np.testing.assert_array_equal(difference[~masked], 0)
        np.testing.assert_allclose(without, before[:, columns], **CLOSE)
    else:
        assert (difference[~masked] > 1e-3).all()
        assert np.abs(without - before[:, columns]).max() > 1e-2


def test_shift_of_all_positions_is_seen_by_learned_ones_only():
    """Kills absolute positions in RoPE, and learned positions that ignore their index."""
    tokens, shifted = cases.tokens_of(), np.tile(np.arange(9, 16, dtype=np.int32), (2, 1))
    params, apply = model_of(**ROPE)
    np.testing.assert_allclose(
        apply(params, tokens, positions=shifted), apply(params, tokens), **CLOSE
    )
    stretched = 2 * shifted
    assert np.abs(apply(params, tokens, positions=stretched) - apply(params, tokens)).max() > 1e-2
    params, apply = model_of(**LEARNED)
    assert np.abs(apply(params, tokens, positions=shifted) - apply(params, tokens)).max() > 1e-2


def test_without_positions_tokens_are_a_set():
    """Kills a position that leaks in where there should be none."""
    params, apply = model_of(position_encoding="none", layers=1)
    tokens = cases.tokens_of()
    order = np.random.default_rng(0).permutation(7)
    np.testing.assert_allclose(
        apply(params, tokens[:, order]), np.asarray(apply(params, tokens))[:, order], **CLOSE
    )


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_chosen_rows_are_those_of_the_whole(tied):
    """Kills a head that needs the whole sequence."""
    model, apply = cases.build(**ROPE, tied_embeddings=tied)
    params, tokens = cases.start(model), cases.tokens_of()
    hidden = apply(params, tokens, method="encode")
    rows = np.array([5, 0, 2])
    np.testing.assert_allclose(
        apply(params, hidden[1, rows], method="head"), apply(params, tokens)[1, rows], **CLOSE
    )
