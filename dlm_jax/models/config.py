"""The one description of a transformer, with all its checks."""

import dataclasses

CHOICES = {
    "attention": ("bidirectional", "causal"),
    "norm": ("layernorm", "rmsnorm"),
    "norm_placement": ("pre", "post"),
    "position_encoding": ("rope", "learned", "none"),
    "activation": ("gelu", "gelu_tanh", "swiglu"),
    "time_conditioning": ("none", "adaln", "add"),
    "dtype": ("float32", "bfloat16"),
}
"""Allowed values of the fields that choose between ways of doing something."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Shape and switches of the backbone; hashable, so it can be a static argument.

    Attributes:
      vocab_size: V, columns of the logits, special tokens and [MASK] included.
      width: D, width of the residual stream.
      layers: L, number of blocks.
      heads: H, attention heads.
      kv_heads: G, key-value heads of grouped-query attention; None for H. Must divide H.
      head_width: N, width of one head; None for D / H.
      mlp_width: F, hidden width of the feed-forward; None for 4 D (8/3 D rounded up to a multiple
        of 8 with ``swiglu``).
      max_length: longest sequence in tokens; rows of the learned position table.
      attention: ``bidirectional`` or ``causal``.
      norm: ``layernorm`` or ``rmsnorm``.
      norm_placement: ``pre`` (before each branch, and once at the end) or ``post`` (after each
        residual sum, and once after the embedding).
      norm_epsilon: added to the variance.
      position_encoding: ``rope``, ``learned`` (absolute) or ``none``.
      rope_theta: base of the rotary frequencies.
      activation: ``gelu`` (exact), ``gelu_tanh`` or ``swiglu``.
      bias: biases in the projections and in layer norms.
      tied_embeddings: the output projection is the transposed token embedding.
      qk_norm: root-mean-square norm of each query and key head.
      scale_embeddings: multiply token embeddings by sqrt(D) at the input, so that the residual
        stream starts with variance of order one (Vaswani et al. 2017, section 3.4). False for
        weights that were trained without it.
      dropout: probability of dropping an entry after attention, feed-forward and embedding.
      attention_dropout: probability of dropping an attention weight.
      time_conditioning: ``none``, ``adaln`` (shift, scale and gate in every block) or ``add``
        (added to the input).
      time_features: width of the sinusoidal features of time, even.
      mask_id: id of [MASK]; needed by the next two switches.
      mask_embedding: add a learned vector at [MASK] positions.
      hide_mask: no position attends to a [MASK] position except that position itself.
      dtype: dtype of the matrix products; parameters, norms, softmax and logits stay float32.

    Raises:
      ValueError: naming the field, its value and what is allowed.
    """

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    mlp_width: int | None = None
    max_length: int = 1024
    attention: str = "bidirectional"
    norm: str = "rmsnorm"
    norm_placement: str = "pre"
    norm_epsilon: float = 1e-6
    position_encoding: str = "rope"
    rope_theta: float = 10_000.0
    activation: str = "swiglu"
    bias: bool = False
    tied_embeddings: bool = True
    qk_norm: bool = False
    scale_embeddings: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    time_conditioning: str = "none"
    time_features: int = 256
    mask_id: int | None = None
    mask_embedding: bool = False
    hide_mask: bool = False
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for field, allowed in CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                raise ValueError(
                    f"{field}={value!r} is unknown; choose one of {', '.join(allowed)}"
                )
        for field in ("vocab_size", "width", "layers", "heads", "max_length", "time_features"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must be at least 1")
        for field in ("kv_heads", "head_width", "mlp_width"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"{field}={value} must be at least 1, or None for its default")
        for field in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field}={getattr(self, field)} must lie in [0, 1)")
        for field in ("norm_epsilon", "rope_theta"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field}={getattr(self, field)} must be greater than 0")
        self._check_heads()
        self._check_mask()

    def _check_heads(self) -> None:
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"width={self.width} does not divide by heads={self.heads}; "
                "use a multiple or set head_width"
            )
        if self.heads % self.groups:
            raise ValueError(
                f"heads={self.heads} does not divide by kv_heads={self.groups}; "
                "each key-value head serves the same number of heads"
            )
        if self.position_encoding == "rope" and self.n_head_width % 2:
            raise ValueError(
                f"head width {self.n_head_width} must be even for position_encoding='rope'"
            )
        if self.time_features % 2:
            raise ValueError(f"time_features={self.time_features} must be even (sine and cosine)")

    def _check_mask(self) -> None:
        if self.mask_id is not None and not 0 <= self.mask_id < self.vocab_size:
            raise ValueError(
                f"mask_id={self.mask_id} must lie in [0, vocab_size={self.vocab_size})"
            )
        for field in ("mask_embedding", "hide_mask"):
            if getattr(self, field) and self.mask_id is None:
                raise ValueError(f"{field}=True needs mask_id; set it to the tokenizer's mask_id")

    @property
    def groups(self) -> int:
        """G, the number of key-value heads."""
        return self.kv_heads or self.heads

    @property
    def n_head_width(self) -> int:
        """N, the width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def n_mlp_width(self) -> int:
        """F, the hidden width of the feed-forward."""
        if self.mlp_width:
            return self.mlp_width
        return -(-8 * self.width // 24) * 8 if self.activation == "swiglu" else 4 * self.width
