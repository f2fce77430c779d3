"""The transformer once more, in numpy float64 with explicit loops over heads and queries.

Written from the equations, not from the library: nothing here is shared with it but the names of
the parameters.
"""

import math

import numpy as np

erf = np.vectorize(math.erf)


def attention(query, key, value, may_attend):
    """[B, T, H, N] from queries [B, T, H, N], keys and values [B, S, G, N], flags [B, T, S]."""
    B, T, H, N = query.shape
    group = H // key.shape[2]
    mixed = np.zeros((B, T, H, N))
    for b in range(B):
        for i in range(T):
            seen = np.flatnonzero(may_attend[b, i])
            if not len(seen):
                continue
            for h in range(H):
                scores = key[b, seen, h // group] @ query[b, i, h] / math.sqrt(N)
                probs = np.exp(scores - scores.max())
                mixed[b, i, h] = probs @ value[b, seen, h // group] / probs.sum()
    return mixed


def pairs(tokens, segments, *, causal, hidden_id=None):
    """Flags [B, T, T] by the definition, one pair at a time."""
    B, T = tokens.shape
    may = np.zeros((B, T, T), bool)
    for b in range(B):
        for i in range(T):
            for j in range(T):
                ok = not (causal and j > i)
                if segments is not None:
                    ok = ok and segments[b, i] == segments[b, j] != 0
                if hidden_id is not None and i != j:
                    ok = ok and tokens[b, j] != hidden_id
                may[b, i, j] = ok
    return may


def norm(params, config, x):
    """Layer norm subtracts the mean, root-mean-square norm does not."""
    if config.norm == "layernorm":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config.norm_epsilon) * params["scale"]
    return x + params["bias"] if "bias" in params else x


def dense(params, x):
    """A matrix, and a bias where there is one."""
    y = x @ params["kernel"]
    return y + params["bias"] if "bias" in params else y


def rope(x, positions, theta):
    """Turn the pair (i, i + N/2) as one complex number."""
    half = x.shape[-1] // 2
    angle = positions[:, :, None, None] * theta ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def self_attention(params, config, x, positions, may_attend):
    """Project, turn, attend, project back."""
    B, T, _ = x.shape

    def heads(name, count):
        return dense(params[name], x).reshape(B, T, count, -1)

    kv_heads = config.kv_heads or config.heads
    query, key = heads("query", config.heads), heads("key", kv_heads)
    value = heads("value", kv_heads)
    if config.qk_norm:
        for name, y in (("query_norm", query), ("key_norm", key)):
            y /= np.sqrt((y**2).mean(axis=-1, keepdims=True) + config.norm_epsilon)
            y *= params[name]["scale"]
    if config.position_encoding == "rope":
        query = rope(query, positions, config.rope_theta)
        key = rope(key, positions, config.rope_theta)
    return dense(params["out"], attention(query, key, value, may_attend).reshape(B, T, -1))


def silu(x):
    return x / (1 + np.exp(-x))


def feed_forward(params, config, x):
    """GELU, its tanh form, or SwiGLU."""
    up = dense(params["up"], x)
    if config.activation == "gelu":
        hidden = up * 0.5 * (1 + erf(up / math.sqrt(2)))
    elif config.activation == "gelu_tanh":
        hidden = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
    else:
        hidden = silu(dense(params["gate"], x)) * up
    return dense(params["down"], hidden)


def modulation(params, condition):
    """Shift, scale, gate, each [B, 1, D]."""
    if condition is None:
        return 0.0, 1.0, 1.0
    shift, scale, gate = np.split(dense(params["dense"], silu(condition))[:, None], 3, axis=-1)
    return shift, 1 + scale, 1 + gate


def forward(params, config, tokens, segments=None, positions=None, time=None):
    """Logits [B, T, V]; ``params`` is the inner dict, in float64."""
    B, T = tokens.shape
    if positions is None:
        positions = np.tile(np.arange(T), (B, 1))
    x = params["embedding"][tokens]
    if config.scale_embeddings:
        x = x * math.sqrt(config.width)
    if config.mask_embedding:
        x = x + (tokens == config.mask_id)[..., None] * params["mask_embedding"]
    if config.position_encoding == "learned":
        x = x + params["position_embedding"][positions]
    condition = None
    if config.time_conditioning != "none":
        half = config.time_features // 2
        angle = 1000 * time[:, None] * np.exp(-math.log(1e4) * np.arange(half) / half)
        features = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
        embed = params["time_embedding"]
        condition = dense(embed["down"], silu(dense(embed["up"], features)))
    if config.time_conditioning == "add":
        x, condition = x + condition[:, None], None
    if config.norm_placement == "post":
        x = norm(params["outer_norm"], config, x)
    hidden_id = config.mask_id if config.hide_mask else None
    may = pairs(tokens, segments, causal=config.attention == "causal", hidden_id=hidden_id)
    for number in range(config.layers):
        layer = params[f"layers_{number}"]
        for name in ("attention", "mlp"):
            shift, scale, gate = modulation(layer.get(f"{name}_modulation"), condition)

            def branch(y, name=name, layer=layer):
                if name == "mlp":
                    return feed_forward(layer["mlp"], config, y)
                return self_attention(layer["attention"], config, y, positions, may)

            weights = layer[f"{name}_norm"]
            if config.norm_placement == "pre":
                x = x + gate * branch(norm(weights, config, x) * scale + shift)
            else:
                x = norm(weights, config, x + gate * branch(x)) * scale + shift
    if config.norm_placement == "pre":
        x = norm(params["outer_norm"], config, x)
    return x @ (params["embedding"].T if config.tied_embeddings else params["output"])
