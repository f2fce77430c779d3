"""Start, time, dropout and precision of the transformer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.models.transformer import Block
from tests.models import cases

TIMES = np.array([[0.1, 0.1], [0.9, 0.9]], np.float32)


def test_time_modulation_starts_at_nothing_and_can_learn():
    """Kills an adaLN that changes imported weights at the start, or that never gets a gradient."""
    model, apply = cases.build(time_conditioning="adaln", layers=1)
    params, tokens = cases.at_start(model), cases.tokens_of()
    early, late = (apply(params, tokens, t) for t in TIMES)
    np.testing.assert_array_equal(early, late)

    @cases.quick_jit
    def gradient(params, t):
        return jax.grad(lambda p: jnp.sum(jnp.sin(model.apply(p, tokens, t))))(params)

    grads = gradient(params, TIMES[0])
    for name in ("attention_modulation", "mlp_modulation"):
        kernel = grads["params"]["layers_0"][name]["dense"]["kernel"]
        assert np.linalg.norm(kernel) > 1e-3
    moved = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    assert np.abs(apply(moved, tokens, TIMES[0]) - apply(moved, tokens, TIMES[1])).max() > 1e-3
    assert np.linalg.norm(gradient(moved, TIMES[0])["params"]["time_embedding"]["up"]["kernel"]) > 0


def test_added_time_is_seen_from_the_start():
    """Kills a time that is computed and dropped."""
    model, apply = cases.build(time_conditioning="add", layers=1)
    params, tokens = cases.at_start(model), cases.tokens_of()
    assert np.abs(apply(params, tokens, TIMES[0]) - apply(params, tokens, TIMES[1])).max() > 1e-3


def test_model_without_time_ignores_it():
    """Kills a time that leaks in, and one that is asked for in vain."""
    model, apply = cases.build()
    params, tokens = cases.start(model), cases.tokens_of()
    np.testing.assert_array_equal(apply(params, tokens, TIMES[0]), apply(params, tokens))


def test_model_with_time_asks_for_it():
    """Kills a silent default time."""
    model, _ = cases.build(time_conditioning="add", layers=1)
    with pytest.raises(ValueError, match="needs a time for each row; pass time"):
        model.apply(cases.start(model), cases.tokens_of())


def test_longer_sequence_than_max_length_is_refused():
    """Kills an out-of-range position, which JAX would clamp in silence."""
    model, _ = cases.build()
    with pytest.raises(ValueError, match="sequence of 17 tokens is longer than max_length=16"):
        model.apply(cases.start(model), cases.tokens_of(length=17))


V = 512
START = {"vocab_size": V, "width": 64, "mlp_width": 128, "mask_id": V - 1, "layers": 1}


@pytest.mark.parametrize("switches", [{}, cases.BERT, {"tied_embeddings": False}])
def test_untrained_cross_entropy_is_that_of_a_guess(switches):
    """Kills a start whose logits are large: the first loss is within 5 % of ln V at masks."""
    model, apply = cases.build(**switches, **START)
    params = cases.at_start(model)
    tokens = np.random.default_rng(0).integers(0, V - 1, (16, 16)).astype(np.int32)
    masked = np.random.default_rng(1).random(tokens.shape) < 0.5
    logits = np.asarray(apply(params, np.where(masked, V - 1, tokens)), np.float64)[..., :-1]
    log_total = np.log(np.exp(logits).sum(axis=-1))
    nats = log_total - np.take_along_axis(logits, tokens[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(nats[masked].mean(), np.log(V - 1), rtol=0.05)


def test_dropout_acts_in_training_only():
    """Kills dropout at evaluation, and a mask that does not follow the key."""
    model, apply = cases.build(dropout=0.3, attention_dropout=0.3)
    _, bare_apply = cases.build()
    params, tokens = cases.start(model), cases.tokens_of()
    keys = [{"dropout": jax.random.key(seed)} for seed in (0, 1)]
    still = apply(params, tokens)
    np.testing.assert_array_equal(still, bare_apply(params, tokens))
    first, second = (apply(params, tokens, train=True, rngs=key) for key in keys)
    np.testing.assert_array_equal(first, apply(params, tokens, train=True, rngs=keys[0]))
    assert np.abs(first - second).max() > 1e-2
    assert np.abs(first - still).max() > 1e-2


def test_input_dropout_clears_its_share_of_entries():
    """Kills a rate that is the share kept, and input dropout that is declared but not applied.

    With silent branches the root-mean-square norm leaves a cleared entry at zero.
    """
    model, apply = cases.build(dropout=0.3)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: 0 * x if path[-2].key in ("out", "down") else x, cases.start(model)
    )
    tokens = cases.tokens_of(32, 16)
    hidden = apply(params, tokens, train=True, rngs={"dropout": jax.random.key(0)}, method="encode")
    share = float((hidden == 0).mean())
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / hidden.size)
    assert not (apply(params, tokens, method="encode") == 0).any()


@pytest.mark.parametrize("silent", ["out", "down"])
def test_branch_dropout_is_unbiased(silent):
    """Kills a missing 1/(1 - p): with the other branch silent, a block is linear in the drop."""
    model, _ = cases.build(dropout=0.3)
    block = Block(model.config)
    x = np.random.default_rng(0).standard_normal((1, 3, model.config.width)).astype(np.float32)
    rest = (x, jnp.arange(3)[None], None, None)
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0 * leaf if path[-2].key == silent else leaf,
        {"params": cases.start(model)["params"]["layers_0"]},
    )
    still = block.apply(params, *rest, train=False)

    @cases.quick_jit
    @jax.vmap
    def dropped(key):
        return block.apply(params, *rest, train=True, rngs={"dropout": key})

    draws = np.asarray(dropped(jax.random.split(jax.random.key(1), 2000)))
    standard_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.abs(still - x).max() > 0.1
    # 36 entries: 4.5 standard errors are passed by chance once in 4000 such tests.
    assert (np.abs(draws.mean(axis=0) - still) < 4.5 * standard_error + 1e-6).all()


@pytest.mark.parametrize("switches", [{}, cases.BERT], ids=["rope", "bert"])
def test_bfloat16_is_close_and_keeps_float32_outside(switches):
    """Kills a bfloat16 residual stream, softmax or head, and a compute dtype nobody reads."""
    shape = {"width": 48, "mlp_width": 96, "vocab_size": 50}
    wide, apply_wide = cases.build(**switches, **shape)
    narrow, apply_narrow = cases.build(**switches, **shape, dtype="bfloat16")
    params, tokens = cases.at_start(wide), cases.tokens_of(4, 12)
    expected, logits = apply_wide(params, tokens), apply_narrow(params, tokens)
    assert logits.dtype == jnp.float32
    shapes = jax.eval_shape(narrow.init, jax.random.key(0), tokens)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    error = float(np.sqrt(np.mean((expected - logits) ** 2)) / np.std(expected))
    # One rounding of 2^-9 in each of 2 x 6 products and of their inputs: 1 % as root of squares.
    assert 1e-4 < error < 0.01
