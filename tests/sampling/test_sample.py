"""The sampler as a program: rows, compilations, the output head, canvases."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig
from dlm_jax.processes import MaskedProcess
from dlm_jax.sampling import check_steps
from dlm_jax.sampling import make_canvas
from dlm_jax.sampling import sample
from dlm_jax.sampling import time_grid

V, T, MASK = 13, 18, 12
PROCESS = MaskedProcess(vocab_size=V, mask_id=MASK)
MODEL = Transformer(TransformerConfig(vocab_size=V, width=16, layers=1, heads=2, max_length=T))


@pytest.fixture(scope="module")
def params():
    return MODEL.init(jax.random.key(0), jnp.zeros((1, T), jnp.int32))


@functools.partial(jax.jit, static_argnames=("order", "with_head"))
def run(params, key, canvas, grid, temperature, top_p, row_ids, *, order, with_head=True):
    encode = functools.partial(MODEL.apply, params, method="encode")
    head = functools.partial(MODEL.apply, params, method="head")
    network = encode if with_head else functools.partial(MODEL.apply, params)
    return sample(
        key,
        network,
        PROCESS,
        canvas,
        grid,
        head=head if with_head else None,
        order=order,
        temperature=temperature,
        top_p=top_p,
        row_ids=row_ids,
        trace=True,
    )


def call(params, canvas, *, order="confidence", steps=6, seed=0, temperature=0.9, ids=None, **kw):
    ids = np.arange(len(canvas), dtype=np.int32) if ids is None else ids
    return run(
        params,
        jax.random.key(seed),
        jnp.asarray(canvas),
        time_grid(steps, bucket=8),
        np.float32(temperature),
        np.float32(0.95),
        ids,
        order=order,
        **kw,
    )


CANVAS = np.full((3, T), MASK, np.int32)
CANVAS[0, :3] = [1, 2, 3]
CANVAS[1, 9:14] = [4, 5, 6, 7, 8]


@pytest.mark.parametrize("order", ["ancestral", "confidence"])
def test_head_on_chosen_rows_gives_the_same_text_as_all_logits(params, order):
    """Kills a gather of wrong rows and noise that depends on how many rows were gathered."""
    fast, plain = (call(params, CANVAS, order=order, with_head=w) for w in (True, False))
    np.testing.assert_array_equal(fast.tokens, plain.tokens)
    # One matrix product over other rows: float32 rounding of logits of size one.
    np.testing.assert_allclose(fast.trace.log_probs, plain.trace.log_probs, atol=1e-5)


@pytest.mark.parametrize("order", ["ancestral", "random", "entropy"])
def test_a_row_does_not_depend_on_its_batch_mates(params, order):
    """Kills noise shared by the batch or tied to the place in it."""
    together = np.asarray(call(params, CANVAS, order=order).tokens)
    mates = CANVAS[[2, 0, 2]].copy()
    mates[0, :10] = 9
    other = np.asarray(call(params, mates, order=order, ids=np.array([7, 0, 2], np.int32)).tokens)
    np.testing.assert_array_equal(other[1], together[0])
    np.testing.assert_array_equal(other[2], together[2])


def test_rows_and_seeds_differ(params):
    first, second = (np.asarray(call(params, CANVAS[[2, 2, 2]], seed=s).tokens) for s in (0, 1))
    assert len({row.tobytes() for row in (*first, *second)}) == 6


def test_new_prompt_seed_temperature_and_steps_compile_nothing(params):
    call(params, CANVAS)
    compiled = run._cache_size()
    for step, temperature in ((1, 0.0), (5, 0.5), (8, 2.0)):
        other = CANVAS.copy()
        other[:, step] = 5
        call(params, other, steps=step, temperature=temperature, seed=step)
    assert run._cache_size() == compiled


def test_trace_reports_the_log_probability_of_each_token_when_it_was_revealed(params):
    """Kills log-probabilities after filters, of another token, or at another step."""
    result = call(params, CANVAS, temperature=0.0)
    frames = np.concatenate([CANVAS[None], np.asarray(result.trace.tokens)])
    for step in range(6):
        logits = MODEL.apply(params, jnp.asarray(frames[step]), jnp.ones(3))
        log_probs = np.asarray(PROCESS.log_probs(logits))
        revealed = (frames[step] == MASK) & (frames[step + 1] != MASK)
        tokens = np.where(revealed, frames[step + 1], 0)
        expected = np.where(
            revealed, np.take_along_axis(log_probs, tokens[..., None], -1)[..., 0], 0
        )
        np.testing.assert_allclose(result.trace.log_probs[step], expected, atol=1e-5)
        np.testing.assert_array_equal(tokens[revealed], log_probs.argmax(-1)[revealed])


def test_steps_that_reveal_nothing_are_not_run(params):
    """One masked position and eight ancestral steps: exactly one network call."""
    canvas = np.zeros((1, T), np.int32)
    canvas[0, 4] = MASK
    assert int(call(params, canvas, order="ancestral", steps=8).passes) == 1
    canvas[0, 4] = 1
    assert int(call(params, canvas, order="ancestral", steps=8).passes) == 0


def test_unknown_order_names_the_known_ones(params):
    with pytest.raises(ValueError, match="order='best' is unknown; choose one of ancestral"):
        call(params, CANVAS, order="best")


def test_canvas_lays_out_prompt_gap_and_suffix():
    canvas = make_canvas([1, 2], [3], length=6, mask_id=MASK, vocab_size=V, rows=2)
    np.testing.assert_array_equal(canvas, [[1, 2, MASK, MASK, MASK, 3]] * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ([1] * 4, [2] * 2, {"length": 6}),
            "leave no position to fill in length=6; use a length of at least 7",
        ),
        (([1, MASK], [], {"length": 6}), "prompt holds the mask id 12 at position 1"),
        (
            ([], [99], {"length": 6}),
            r"suffix holds id 99 at row 0, position 0; ids lie in \[0, 13\)",
        ),
        (([], [], {"length": 0}), "length=0"),
    ],
)
def test_bad_canvases_are_named(arguments, message):
    prompt, suffix, rest = arguments
    with pytest.raises(ValueError, match=message):
        make_canvas(prompt, suffix, mask_id=MASK, vocab_size=V, **rest)


@pytest.mark.parametrize("steps", [0, -1, 11])
def test_bad_step_counts_are_named(steps):
    with pytest.raises(ValueError, match=f"steps={steps} must be between 1 and the 10 positions"):
        check_steps(steps, 10)
