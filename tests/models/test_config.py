"""Every refusal of the configuration says what was given and what is allowed."""

import pytest

from dlm_jax.models import TransformerConfig
from tests.models import cases

REFUSED = {
    "activation='relu' is unknown; choose one of gelu, gelu_tanh, swiglu": {"activation": "relu"},
    "attention='full' is unknown; choose one of bidirectional, causal": {"attention": "full"},
    "norm='batch' is unknown; choose one of layernorm, rmsnorm": {"norm": "batch"},
    "norm_placement='mid' is unknown; choose one of pre, post": {"norm_placement": "mid"},
    "position_encoding='alibi' is unknown": {"position_encoding": "alibi"},
    "time_conditioning='film' is unknown": {"time_conditioning": "film"},
    "dtype='float16' is unknown; choose one of float32, bfloat16": {"dtype": "float16"},
    "vocab_size=0 must be at least 1": {"vocab_size": 0},
    "layers=0 must be at least 1": {"layers": 0},
    "kv_heads=0 must be at least 1, or None for its default": {"kv_heads": 0},
    "mlp_width=-4 must be at least 1, or None for its default": {"mlp_width": -4},
    "dropout=1.0 must lie in [0, 1)": {"dropout": 1.0},
    "attention_dropout=-0.1 must lie in [0, 1)": {"attention_dropout": -0.1},
    "norm_epsilon=0.0 must be greater than 0": {"norm_epsilon": 0.0},
    "rope_theta=nan must be greater than 0": {"rope_theta": float("nan")},
    "width=13 does not divide by heads=2": {"width": 13},
    "heads=2 does not divide by kv_heads=3": {"kv_heads": 3},
    "head width 5 must be even for position_encoding='rope'": {"head_width": 5},
    "time_features=7 must be even": {"time_features": 7},
    "mask_id=11 must lie in [0, vocab_size=11)": {"mask_id": 11},
    "mask_id=-1 must lie in [0, vocab_size=11)": {"mask_id": -1},
    "mask_embedding=True needs mask_id": {"mask_id": None, "mask_embedding": True},
    "hide_mask=True needs mask_id": {"mask_id": None, "hide_mask": True},
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_value_is_named(message):
    """Kills a check that is dropped or speaks of another field."""
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**(cases.SHAPE | REFUSED[message]))
    assert message in str(caught.value)


def test_derived_widths():
    """Kills a wrong default: Llama's 8/3 D, BERT's 4 D, heads that share keys."""
    shape = {"vocab_size": 9, "width": 256, "layers": 1, "heads": 8}
    swiglu, gelu = TransformerConfig(**shape), TransformerConfig(**shape, activation="gelu")
    assert (swiglu.n_mlp_width, gelu.n_mlp_width) == (688, 1024)
    assert (swiglu.groups, swiglu.n_head_width) == (8, 32)
    assert TransformerConfig(**shape, kv_heads=2, head_width=10).n_head_width == 10
    assert TransformerConfig(**shape, kv_heads=2).groups == 2


def test_equal_descriptions_are_one_static_argument():
    """Kills an unhashable or mutable config, which would compile anew at every call."""
    assert hash(TransformerConfig(**cases.SHAPE)) == hash(TransformerConfig(**cases.SHAPE))
    with pytest.raises(AttributeError):
        TransformerConfig(**cases.SHAPE).width = 3
