"""Metrics are shown and kept once each, whatever cut the last attempt off; FLOPs are exact."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig
from dlm_jax.training.flops import forward_flops_per_token
from dlm_jax.training.flops import mfu
from dlm_jax.training.flops import peak_flops
from dlm_jax.training.flops import training_flops_per_token
from dlm_jax.training.plots import plot_run
from dlm_jax.training.report import Reporter
from dlm_jax.training.report import read_metrics

METRICS = {
    "loss": 1.5,
    "grad_norm": 0.5,
    "tokens_per_second": 1000.0,
    "nats_by_time": [1.0] * 10,
    "tokens_by_time": [1.0] * 9 + [0.0],
}


def reporter(path, *, terminal=False, **arguments):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    return Reporter(path, total_steps=9, console=console, **arguments), console.file


def test_log_has_plain_lines_and_a_terminal_a_bar(tmp_path):
    for terminal in (False, True):
        report, out = reporter(tmp_path, terminal=terminal)
        with report:
            report.train(3, METRICS)
            report.evaluation(3, {"nats_per_token": 2.0, "standard_error": 0.1})
        text = out.getvalue()
        assert "loss 1.5000 nats/token" in text and "1,000 tokens/s" in text
        assert "2.0000 ± 0.1000 nats/token" in text
        assert ("\x1b" in text) == terminal


def test_lines_of_an_abandoned_stretch_and_a_torn_line_are_dropped(tmp_path):
    """Kills a resumed file that holds a step twice."""
    report, _ = reporter(tmp_path)
    with report:
        for step in (1, 2, 3, 4):
            report.train(step, {"loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "kin')
    report, _ = reporter(tmp_path, first_step=2)
    with report:
        report.train(3, {"loss": 30.0})
    steps = [(r["step"], r["loss"]) for r in read_metrics(tmp_path / "metrics.jsonl")]
    assert steps == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_nan_is_null_in_the_file(tmp_path):
    report, _ = reporter(tmp_path)
    with report:
        report.train(1, {"loss": float("nan"), "nats_by_time": [float("inf"), 1.0]})
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["loss"] is None and line["nats_by_time"] == [None, 1.0]


def test_only_process_zero_writes(tmp_path):
    report, out = reporter(tmp_path, process_index=1)
    with report:
        report.step(1)
        report.train(1, METRICS)
        report.message("hello")
    assert out.getvalue() == "" and not list(tmp_path.iterdir())


def test_tensorboard_events_are_written(tmp_path):
    report, _ = reporter(tmp_path, tensorboard=True)
    with report:
        report.train(1, METRICS)
    assert any((tmp_path / "tensorboard").iterdir())


def test_plot_is_drawn_with_few_points_and_empty_bins(tmp_path):
    """Kills a division by an empty time bin; the picture must hold more than one colour."""
    report, _ = reporter(tmp_path)
    with report:
        report.train(1, METRICS)
        report.evaluation(1, {"nats_per_token": 2.0, "standard_error": float("nan")})
    plot_run(tmp_path / "metrics.jsonl", tmp_path / "loss.png")
    from matplotlib.image import imread

    pixels = imread(tmp_path / "loss.png")[..., :3].reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) > 50
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match="no training metrics"):
        plot_run(tmp_path / "empty.jsonl", tmp_path / "x.png")


def matmul_flops(jaxpr):
    """Two FLOPs for each multiply-add of every dot_general, also inside calls."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contract, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            depth = int(np.prod([left[axis] for axis in contract]))
            total += 2 * depth * int(np.prod(equation.outvars[0].aval.shape))
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += matmul_flops(inner)
    return total


@pytest.mark.parametrize(
    "switches",
    [
        {"activation": "swiglu"},
        {"activation": "gelu", "bias": True},
        {"kv_heads": 2, "head_width": 6, "position_encoding": "learned"},
    ],
)
def test_forward_flops_are_those_of_the_traced_program(switches):
    """Kills a forgotten projection, gate or factor of two."""
    config = TransformerConfig(vocab_size=37, width=16, layers=3, heads=4, **switches)
    model = Transformer(config)
    tokens = jnp.zeros((2, 10), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens)
    jaxpr = jax.make_jaxpr(model.apply)(params, tokens)
    assert matmul_flops(jaxpr.jaxpr) == 2 * 10 * forward_flops_per_token(config, 10)


def test_training_is_three_forwards_and_the_head_only_counts_where_it_runs():
    config = TransformerConfig(vocab_size=37, width=16, layers=3, heads=4)
    whole = forward_flops_per_token(config, 10)
    assert training_flops_per_token(config, 10) == 3 * whole
    assert whole - forward_flops_per_token(config, 10, head_share=0.5) == 16 * 37


def test_unknown_device_has_no_utilisation():
    assert mfu(1e6, 1e9, "cpu", 1) is None
    assert peak_flops("TPU v5p") == 459e12 != peak_flops("TPU v5 lite")
    assert mfu(459e3, 1e9, "TPU v5p", 2) == pytest.approx(0.5)
