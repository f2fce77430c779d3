"""Model FLOPs in closed form, and the share of a device's peak that they make up.

The compiler's own count sees a scanned layer once, so it is not used. Counted are the matrix
products, two FLOPs for each multiply-add. Left out are norms, activations, softmax, rotary
positions, the embedding look-up and the optimiser (a few per cent together), and any recomputation:
that is what makes it model FLOPs. Documents packed into one row count as one sequence, although
attention stays inside each.
"""

from dlm_jax.models.config import TransformerConfig

_PEAK_BF16 = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    # 2307e12 for a chip, whose two cores are two JAX devices.
    "TPU7x": 1153.5e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA B200": 2250e12,
}
"""Dense bfloat16 FLOP/s of one JAX device by ``device_kind``, from the vendors' data sheets (NVIDIA
prints twice as much, for sparse matrices)."""


def forward_flops_per_token(
    config: TransformerConfig, length: int, *, head_share: float = 1.0
) -> float:
    """FLOPs of one forward pass for each token of a sequence.

    Per layer: 2 D N (2 H + 2 G) for the projections, 4 T N H for scores and mixing (half of that
    for causal attention, the part that a kernel need compute), and 2 D F times 2 (3 with a gate)
    for the feed-forward. Then 2 D V for the output at a share of the positions. Once for each
    sequence, so divided by T: 2 E D + 2 D^2 to embed the time (E features), and 12 D^2 a layer for
    the modulation of ``adaln``.

    Args:
      config: the network.
      length: T, tokens of a sequence.
      head_share: share of the positions whose logits are computed, in [0, 1]. A masked objective
        has no loss at visible tokens: with times spread over [0, 1] and a linear schedule, 0.5.

    Returns:
      FLOPs per token.

    Raises:
      ValueError: for a length below 1 or a share outside [0, 1].
    """
    if length < 1:
        raise ValueError(f"length={length} must be at least 1 token")
    if not 0 <= head_share <= 1:
        raise ValueError(f"head_share={head_share} must lie in [0, 1]")
    D, H, G, N = config.width, config.heads, config.groups, config.n_head_width
    projections = 2 * D * N * (2 * H + 2 * G)
    attention = 4 * length * N * H * (0.5 if config.attention == "causal" else 1.0)
    feed_forward = 2 * D * config.n_mlp_width * (3 if config.activation == "swiglu" else 2)
    output = 2 * D * config.vocab_size * head_share
    time = 0
    if config.time_conditioning != "none":
        time += 2 * config.time_features * D + 2 * D * D
    if config.time_conditioning == "adaln":
        time += config.layers * 12 * D * D
    return config.layers * (projections + attention + feed_forward) + output + time / length


def training_flops_per_token(
    config: TransformerConfig, length: int, *, head_share: float = 1.0
) -> float:
    """FLOPs of forward and backward: three times the forward pass; arguments as there.

    Each product of the forward pass has two of its size in the backward pass, one for the gradient
    of either factor.
    """
    return 3 * forward_flops_per_token(config, length, head_share=head_share)


def peak_flops(device_kind: str) -> float | None:
    """Peak bfloat16 FLOP/s of a device kind as JAX names it; None if it is not in the table.

    Only whole names match: a slice of a GPU, or another board with the same chip, has another peak.
    """
    return _PEAK_BF16.get(device_kind)


def mfu(
    tokens_per_second: float, flops_per_token: float, device_kind: str, devices: int
) -> float | None:
    """Model FLOPs utilisation, as a share of the bfloat16 peak whatever the compute dtype.

    Args:
      tokens_per_second: of all devices together.
      flops_per_token: from :func:`training_flops_per_token`.
      device_kind: as JAX names it.
      devices: number of devices, as JAX counts them.

    Returns:
      counted FLOP/s over the devices' peak; None without a known peak.
    """
    peak = peak_flops(device_kind)
    return None if peak is None else tokens_per_second * flops_per_token / (peak * devices)
