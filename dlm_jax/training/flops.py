"""Model FLOPs in closed form, and the share of a device's peak that they make up.

The compiler's own count sees a scanned layer once, so it is not used. Counted are the matrix
products, two FLOPs for each multiply-add; norms, activations, softmax and the optimiser are left
out (a few per cent), and so is any recomputation: that is what makes it model FLOPs.
"""

from dlm_jax.models import TransformerConfig

_PEAK_BF16 = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 2307e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}
"""Dense bfloat16 FLOP/s of a chip, from the vendors' public data sheets."""


def forward_flops_per_token(
    config: TransformerConfig, length: int, *, head_share: float = 1.0
) -> float:
    """FLOPs of one forward pass for each token of a sequence.

    Per layer: 2 D N (2 H + 2 G) for the projections, 4 T N H for scores and mixing (half of that
    for causal attention), and 2 D F times 2 (3 with a gate) for the feed-forward; plus 2 D V for
    the output at a share of the positions.

    Args:
      config: the network.
      length: T, tokens of a sequence.
      head_share: share of the positions whose logits are computed.

    Returns:
      FLOPs per token.
    """
    D, H, G, N = config.width, config.heads, config.groups, config.n_head_width
    projections = 2 * D * N * (2 * H + 2 * G)
    attention = 4 * length * N * H * (0.5 if config.attention == "causal" else 1.0)
    feed_forward = 2 * D * config.n_mlp_width * (3 if config.activation == "swiglu" else 2)
    output = 2 * D * config.vocab_size * head_share
    return config.layers * (projections + attention + feed_forward) + output


def training_flops_per_token(
    config: TransformerConfig, length: int, *, head_share: float = 1.0
) -> float:
    """FLOPs of forward and backward, three times the forward pass."""
    return 3 * forward_flops_per_token(config, length, head_share=head_share)


def peak_flops(device_kind: str) -> float | None:
    """Peak bfloat16 FLOP/s of a device kind as JAX names it; None if it is not known."""
    matching = [name for name in _PEAK_BF16 if device_kind.startswith(name)]
    return _PEAK_BF16[max(matching, key=len)] if matching else None


def mfu(
    tokens_per_second: float, flops_per_token: float, device_kind: str, devices: int
) -> float | None:
    """Model FLOPs utilisation: counted FLOP/s over the devices' peak; None without a known peak."""
    peak = peak_flops(device_kind)
    return None if peak is None else tokens_per_second * flops_per_token / (peak * devices)
