"""The train step against the large batch, plain autodiff, and a hand-written AdamW."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig
from dlm_jax.models import weighted_cross_entropy
from dlm_jax.processes import MaskedProcess
from dlm_jax.processes import Weighting
from dlm_jax.processes import loss_weight
from dlm_jax.training import MaskedObjective
from dlm_jax.training import OptimizerSpec
from dlm_jax.training import init_state
from dlm_jax.training import learning_rate_schedule
from dlm_jax.training import make_optimizer
from dlm_jax.training import make_train_step

V, B, T = 11, 8, 6
PROCESS = MaskedProcess(vocab_size=V, mask_id=V - 1)


def make_model(**switches):
    return Transformer(TransformerConfig(vocab_size=V, width=16, layers=1, heads=2, **switches))


MODEL = make_model()
SPEC = OptimizerSpec(learning_rate=1e-2, total_steps=20, warmup_steps=2)


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    scored = np.ones((B, T), np.float32)
    segments = np.ones((B, T), np.int32)
    scored[0, 4:] = segments[0, 4:] = 0
    scored[1, :3] = 0  # a prompt
    return {
        "tokens": rng.integers(0, V - 1, (B, T)).astype(np.int32),
        "segments": segments,
        "positions": np.tile(np.arange(T, dtype=np.int32), (B, 1)),
        "weights": scored,
        "index": np.arange(B, dtype=np.int32),
    }


def new_state(model=MODEL, ema=True):
    params = model.init(jax.random.key(0), jnp.zeros((1, T), jnp.int32), jnp.ones(1))
    return init_state(params, make_optimizer(SPEC), ema=ema)


def train(steps, *, accumulation=1, model=MODEL, dropout=False, ema_decay=0.9):
    objective = MaskedObjective(model=model, process=PROCESS)
    step = make_train_step(
        objective,
        make_optimizer(SPEC),
        accumulation=accumulation,
        ema_decay=ema_decay,
        dropout=dropout,
    )
    state = new_state(model)
    for i in range(steps):
        state, metrics = step(state, make_batch(i), jax.random.key(5))
    return state, metrics


def assert_close(left, right, **tolerance):
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def test_accumulated_gradients_make_the_update_of_the_large_batch():
    """Kills averages of microbatch means: rows here have unequal numbers of scored tokens."""
    whole, metrics = train(3)
    for accumulation in (2, 4):
        parts, part_metrics = train(3, accumulation=accumulation)
        # Sums in another order, then Adam's division by sqrt(v): 1e-5 of a step of 1e-2.
        assert_close(whole.params, parts.params, atol=2e-6)
        assert_close(metrics["nats_by_time"], part_metrics["nats_by_time"], rtol=1e-5)


def test_microbatches_get_different_dropout():
    """Equal rows under one dropout key would give equal losses in every microbatch."""
    model = make_model(dropout=0.5)
    objective = MaskedObjective(model=model, process=PROCESS)
    state = new_state(model)
    batch = {name: np.repeat(value[2:3], B, axis=0) for name, value in make_batch().items()}
    noised = objective.corrupt(jax.random.key(1), batch)
    noised = jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], B, axis=0), noised)
    step = make_train_step(objective, make_optimizer(SPEC), accumulation=B, dropout=True)
    rows = [
        float(objective.loss(state.params, noised, jax.random.fold_in(jax.random.key(2), i)).total)
        for i in range(3)
    ]
    assert len({round(row, 5) for row in rows}) == 3
    first, _ = step(new_state(model, ema=False), batch, jax.random.key(0))
    plain = make_train_step(objective, make_optimizer(SPEC), accumulation=B)
    second, _ = plain(new_state(model, ema=False), batch, jax.random.key(0))
    assert not np.allclose(
        first.params["params"]["embedding"], second.params["params"]["embedding"]
    )


def test_loss_is_the_sum_of_weighted_nats_over_scored_tokens():
    """Kills padding or prompt in the loss, and division by anything but the scored tokens."""
    batch = make_batch()
    objective = MaskedObjective(model=MODEL, process=PROCESS)
    state = new_state()
    noised = objective.corrupt(jax.random.key(3), batch)
    scored = batch["weights"] > 0
    x_t = np.asarray(noised.x_t)
    np.testing.assert_array_equal(x_t[~scored], batch["tokens"][~scored])
    assert (x_t[scored] == V - 1).any() and (x_t[scored] != V - 1).any()
    logits = MODEL.apply(
        state.params, noised.x_t, segments=batch["segments"], positions=batch["positions"]
    )
    nats = PROCESS.loss(logits, jnp.asarray(batch["tokens"]), noised.x_t, noised.time)
    expected = np.where(scored, np.asarray(nats), 0)
    sums = objective.loss(state.params, noised, None)
    np.testing.assert_allclose(sums.total, expected.sum(), rtol=1e-5)
    np.testing.assert_allclose(sums.row_nats, expected.sum(axis=1), rtol=1e-4)
    assert float(sums.weight) == scored.sum()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_fused_cross_entropy_has_the_value_and_gradient_of_the_plain_one(share):
    """Odd sizes, both sides of the capacity; kills a lost weight, row or banned column."""
    N, D, vocabulary = 37, 5, 11
    rng = np.random.default_rng(int(share * 10))
    hidden = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(D, vocabulary)), jnp.float32)
    targets = jnp.asarray(rng.integers(0, vocabulary - 1, N))
    weights = jnp.asarray(np.where(rng.random(N) < share, rng.random(N) + 0.1, 0), jnp.float32)
    banned = jnp.arange(vocabulary) == vocabulary - 1

    def fused(hidden, kernel):
        return weighted_cross_entropy(hidden, kernel, targets, weights, banned, "float32")[0]

    def plain(hidden, kernel):
        logits = jnp.where(banned, -jnp.inf, hidden @ kernel)
        nats = -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], 1)[:, 0]
        return (weights * nats).sum()

    for ours, theirs in zip(
        jax.value_and_grad(fused, (0, 1))(hidden, kernel),
        jax.value_and_grad(plain, (0, 1))(hidden, kernel),
        strict=True,
    ):
        assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_update_is_adamw_with_clipping_and_decay_of_matrices_only():
    """One step by hand in numpy; kills decay of norms or embeddings and clipping after Adam."""
    spec = OptimizerSpec(
        learning_rate=0.1, total_steps=10, warmup_steps=0, decay="constant", weight_decay=0.5,
        clip_norm=1.0, b1=0.9, b2=0.98,
    )  # fmt: skip
    params = {
        "kernel": jnp.full((2, 2), 2.0),
        "scale": jnp.full(2, 2.0),
        "embedding": jnp.ones((2, 2)),
    }
    grads = {
        "kernel": jnp.full((2, 2), 3.0),
        "scale": jnp.full(2, -4.0),
        "embedding": jnp.ones((2, 2)),
    }
    optimizer = make_optimizer(spec)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    norm = np.sqrt(4 * 9 + 2 * 16 + 4)
    for name, decay in (("kernel", 0.5), ("scale", 0.0), ("embedding", 0.0)):
        clipped = np.asarray(grads[name]) / norm
        # The first step of Adam: bias correction makes it g / (|g| + eps).
        expected = -0.1 * (clipped / (np.abs(clipped) + 1e-8) + decay * np.asarray(params[name]))
        np.testing.assert_allclose(updates[name], expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("cosine", {0: 0.25, 3: 1.0, 4: 1.0, 12: 0.55, 20: 0.1}),
        ("constant", {0: 0.25, 3: 1.0, 20: 1.0}),
        ("wsd", {0: 0.25, 4: 1.0, 16: 1.0, 18: 0.55, 20: 0.1}),
    ],
)
def test_learning_rate_at_its_corners(decay, expected):
    spec = OptimizerSpec(learning_rate=1.0, total_steps=20, warmup_steps=4, decay=decay)
    schedule = learning_rate_schedule(spec)
    for step, rate in expected.items():
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6), step


def test_average_is_a_side_copy():
    """Training is bitwise the same for every decay; early averages follow the parameters."""
    slow, _ = train(4, ema_decay=0.9999)
    fast, _ = train(4, ema_decay=0.5)
    assert_close(slow.params, fast.params, rtol=0, atol=0)
    states = [train(steps, ema_decay=0.9999)[0] for steps in (1, 2)]
    ema = new_state().params
    for number, state in enumerate(states):
        rate = min(0.9999, (1 + number) / (10 + number))
        ema = jax.tree.map(lambda old, new, r=rate: r * old + (1 - r) * new, ema, state.params)
        assert_close(ema, state.ema, atol=1e-6)


def test_bad_step_leaves_the_state_alone_and_says_so():
    """Kills a guard that looks at the loss only or lets NaN into the moments."""
    objective = MaskedObjective(model=MODEL, process=PROCESS)
    step = make_train_step(objective, make_optimizer(SPEC), ema_decay=0.9)
    state = new_state()
    broken = jax.tree.map(jnp.copy, state.params)
    broken["params"]["embedding"] = broken["params"]["embedding"].at[0, 0].set(jnp.inf)
    state = state.replace(params=broken)
    before = jax.tree.map(np.asarray, state)
    after, metrics = step(state, make_batch(), jax.random.key(0))
    assert float(metrics["finite"]) == 0.0
    for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(a, b)


def test_steps_and_rows_see_different_noise():
    objective = MaskedObjective(model=MODEL, process=PROCESS)
    batch = {name: np.repeat(value[2:3], B, axis=0) for name, value in make_batch().items()}
    x_t = np.asarray(objective.corrupt(jax.random.key(0), batch).x_t)
    assert len(np.unique(x_t == V - 1, axis=0)) > 2
    other = np.asarray(objective.corrupt(jax.random.key(1), batch).x_t)
    assert (x_t != other).any()


def test_batch_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="batch of 8 rows does not divide by accumulation=3"):
        train(1, accumulation=3)


def test_weightings_are_their_formulas():
    t = jnp.asarray([0.05, 0.5, 1.0])
    expected = {
        "elbo": [20, 2, 1],
        "capped": [5, 2, 1],
        "inverse_time": [20, 2, 1],
        "snr": [19, 1, 0],
        "min_snr": [5, 1, 0],
        "none": [2, 2, 2],
    }
    for name, values in expected.items():
        weight = loss_weight(Weighting(name=name), PROCESS, t)
        np.testing.assert_allclose(weight, values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be greater than 0"),
        ({"warmup_steps": 30}, "between 0 and total_steps=20"),
        ({"decay": "linear"}, "'linear' is unknown; choose one of cosine"),
        ({"clip_norm": -1.0}, "greater than 0, or None"),
    ],
)
def test_optimizer_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        OptimizerSpec(**({"total_steps": 20, "warmup_steps": 2} | arguments))
