"""Small models for the tests: three known families and a spread of switch combinations."""

import functools

import jax
import numpy as np

from dlm_jax.models import Transformer
from dlm_jax.models import TransformerConfig

MASK = 10
SHAPE = {"vocab_size": 11, "width": 12, "layers": 2, "heads": 2, "mlp_width": 20, "max_length": 16}
SHAPE |= {"time_features": 6, "mask_id": MASK, "norm_epsilon": 1e-5}

BERT = {"norm": "layernorm", "norm_placement": "post", "position_encoding": "learned"}
BERT |= {"activation": "gelu", "bias": True, "scale_embeddings": False}
GPT2 = BERT | {"attention": "causal", "norm_placement": "pre", "activation": "gelu_tanh"}
LLAMA = {"attention": "causal", "tied_embeddings": False, "scale_embeddings": False}
FAMILIES = {"bert": BERT, "gpt2": GPT2, "llama": LLAMA}

SPREAD = {
    "norm": ("layernorm", "rmsnorm"),
    "norm_placement": ("pre", "post"),
    "attention": ("bidirectional", "causal"),
    "position_encoding": ("rope", "learned", "none"),
    "activation": ("gelu", "gelu_tanh", "swiglu"),
    "time_conditioning": ("none", "adaln", "add"),
    "bias": (True, False),
    "tied_embeddings": (True, False),
    "qk_norm": (True, False),
    "scale_embeddings": (True, False),
    "mask_embedding": (True, False),
    "hide_mask": (True, False),
    "kv_heads": (None, 1),
    "head_width": (None, 4),
}


def combinations(count: int) -> list[dict]:
    """Each row takes one value of every switch; over three rows every value occurs."""
    rng = np.random.default_rng(0)
    columns = {
        field: np.concatenate(
            [rng.permutation(len(values)) for _ in range(-(-count // len(values)))]
        )
        for field, values in SPREAD.items()
    }
    return [
        {field: SPREAD[field][column[row]] for field, column in columns.items()}
        for row in range(count)
    ]


# Tiny models run once or twice: time in LLVM is wasted on them (a third of these tests' time).
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def build(**switches):
    """(model, jitted apply with static ``train``); equal switches share the compiled function."""
    return _build(TransformerConfig(**(SHAPE | switches)))


@functools.cache
def _build(config):
    model = Transformer(config)
    return model, quick_jit(model.apply, static_argnames=("train", "method"))


def tokens_of(batch=2, length=7, seed=0):
    """Ids [B, T] with some [MASK] among them."""
    tokens = np.random.default_rng(seed).integers(0, MASK, (batch, length)).astype(np.int32)
    tokens[:, 1::3] = MASK
    return tokens


def start(model, seed=0, spread=0.4):
    """Parameters in which no leaf is all zeros or ones, drawn by numpy: nothing to compile."""
    time = np.zeros((1,), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 4), np.int32), time)
    rng = np.random.default_rng(seed)

    def leaf(path, shape):
        centre = 1.0 if path[-1].key == "scale" else 0.0
        return (centre + spread * rng.standard_normal(shape.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def at_start(model, seed=0):
    """The initial parameters themselves."""
    tokens, time = np.zeros((1, 4), np.int32), np.zeros((1,), np.float32)
    return quick_jit(model.init)(jax.random.key(seed), tokens, time)
