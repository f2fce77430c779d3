"""FLOPs in closed form against every matrix product in the traced model."""

import math

import jax
import jax.numpy as jnp
import pytest

from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig
from dlm_jax.training.flops import forward_flops_per_token
from dlm_jax.training.flops import mfu
from dlm_jax.training.flops import peak_flops
from dlm_jax.training.flops import training_flops_per_token

B, T = 2, 8
# All sizes differ, so that no two of them can be exchanged unnoticed.
SIZES = dict(vocab_size=37, width=24, layers=3, heads=4, mlp_width=40, time_features=10)
NETWORKS = {
    "multi-head, swiglu": dict(),
    "grouped-query, swiglu": dict(kv_heads=2),
    "multi-query, gelu": dict(kv_heads=1, activation="gelu"),
    "wide heads, tanh gelu": dict(head_width=14, activation="gelu_tanh", position_encoding="none"),
    "default widths, untied": dict(mlp_width=None, tied_embeddings=False, bias=True, qk_norm=True),
    "adaptive norms": dict(time_conditioning="adaln", norm="layernorm"),
    "time added": dict(time_conditioning="add", norm_placement="post"),
}


def matmul_flops(jaxpr) -> int:
    """Two FLOPs for each multiply-add of each dot_general, inner jaxprs included."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            left = equation.invars[0].aval.shape
            depth = math.prod(left[axis] for axis in contracted)
            total += 2 * depth * math.prod(equation.outvars[0].aval.shape)
        assert equation.primitive.name not in ("scan", "while", "cond"), "counted once, not n times"
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += matmul_flops(inner)
    return total


def traced(config: TransformerConfig):
    """(model, abstract parameters, abstract tokens, abstract times)."""
    model = Transformer(config)
    tokens = jax.ShapeDtypeStruct((B, T), jnp.int32)
    time = jax.ShapeDtypeStruct((B,), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, time)
    return model, params, tokens, time


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_flops_are_those_of_the_traced_model(name):
    """Kills G for H, F x 2 for a gate's x 3, D for H N, a lost layer, and a time path per token."""
    config = TransformerConfig(**{**SIZES, **NETWORKS[name]})
    model, params, tokens, time = traced(config)
    counted = matmul_flops(jax.make_jaxpr(model.apply)(params, tokens, time).jaxpr)
    assert forward_flops_per_token(config, T) * B * T == counted


def test_backward_pass_costs_twice_the_forward_pass():
    """Kills a factor of 2 or 4 for training."""
    config = TransformerConfig(**SIZES, kv_heads=2)
    model, params, tokens, _ = traced(config)

    def loss(params, tokens):
        return jnp.square(model.apply(params, tokens)).sum()

    counted = matmul_flops(jax.make_jaxpr(jax.grad(loss))(params, tokens).jaxpr)
    assert training_flops_per_token(config, T) * B * T == counted


def test_head_share_scales_the_output_projection_only():
    """Kills a share applied to the whole network, or to none of it."""
    config = TransformerConfig(**SIZES)
    model, params, tokens, _ = traced(config)

    def quarter(params, tokens):
        hidden = model.apply(params, tokens, method="encode")
        return model.apply(params, hidden[:, : T // 4], method="head")

    counted = matmul_flops(jax.make_jaxpr(quarter)(params, tokens).jaxpr)
    assert forward_flops_per_token(config, T, head_share=0.25) * B * T == counted


def test_causal_attention_counts_half_of_the_pairs():
    """Kills causal = bidirectional. The dense path computes all pairs and masks half of them."""
    config = TransformerConfig(**SIZES, attention="causal")
    model, params, tokens, _ = traced(config)
    counted = matmul_flops(jax.make_jaxpr(model.apply)(params, tokens).jaxpr)
    pairs = 4 * config.layers * config.heads * config.n_head_width * T * T * B
    assert forward_flops_per_token(config, T) * B * T == counted - pairs // 2


def test_only_whole_names_of_devices_have_a_peak():
    """Kills a match by prefix, which gives a v4 lite or a slice of an A100 the peak of a chip."""
    known = "NVIDIA A100-SXM4-40GB"
    assert peak_flops(known) == 312e12
    assert peak_flops("TPU v5 lite") != peak_flops("TPU v5")
    for unknown in ("cpu", "", "TPU v4 lite", "TPU v50", f"{known} MIG 1g.5gb", "NVIDIA H100"):
        assert peak_flops(unknown) is None
        assert mfu(1.0, 1.0, unknown, 1) is None


def test_utilisation_is_flops_done_over_flops_possible():
    """Kills a peak that does not grow with the devices. 312e12 x 4 x 1/2 = 6.24e8 x 1e6."""
    assert mfu(6.24e8, 1e6, "NVIDIA A100-SXM4-40GB", 4) == pytest.approx(0.5)


@pytest.mark.parametrize("wrong", [dict(length=0), dict(length=8, head_share=1.5)])
def test_impossible_arguments_are_named(wrong):
    with pytest.raises(ValueError, match="must"):
        forward_flops_per_token(TransformerConfig(**SIZES), **wrong)
