"""The one backbone: a transformer that serves every objective.

Models are stateless: ``model.init`` gives a plain nested dict of parameters and ``model.apply`` is
the only way to run one.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int

from dlm_jax.models.attention import allowed_pairs
from dlm_jax.models.conditioning import Modulation
from dlm_jax.models.conditioning import TimeEmbedding
from dlm_jax.models.config import TransformerConfig
from dlm_jax.models.layers import FeedForward
from dlm_jax.models.layers import Norm
from dlm_jax.models.layers import SelfAttention
from dlm_jax.typing import Array
from dlm_jax.typing import Positions
from dlm_jax.typing import Segments
from dlm_jax.typing import Time
from dlm_jax.typing import Tokens


class Block(nn.Module):
    """Self-attention and feed-forward, each a residual branch with its norm and modulation."""

    config: TransformerConfig

    @nn.compact
    def __call__(
        self,
        x_BTD: Float[Array, "B T D"],
        positions: Int[Array, "#B T"],
        allowed: Bool[Array, "#B T T"] | None,
        condition: Float[Array, "B D"] | None,
        *,
        train: bool,
    ) -> Float[Array, "B T D"]:
        """Run one block."""
        config = self.config
        attend = SelfAttention(config, name="attention")
        branches = (
            ("attention", lambda x: attend(x, positions, allowed, train=train)),
            ("mlp", FeedForward(config, name="mlp")),
        )
        for name, branch in branches:
            norm = Norm(config, name=f"{name}_norm")
            shift, scale, gate = Modulation(config, name=f"{name}_modulation")(condition)
            drop = nn.Dropout(config.dropout, deterministic=not train)
            if config.norm_placement == "pre":
                x_BTD = x_BTD + drop(
                    (gate * branch(norm(x_BTD) * scale + shift)).astype(x_BTD.dtype)
                )
            else:
                summed = norm(x_BTD + drop(gate * branch(x_BTD)))
                x_BTD = (summed * scale + shift).astype(x_BTD.dtype)
        return x_BTD


class Transformer(nn.Module):
    """Tokens and time in, logits out.

    The residual stream is float32 whatever the compute dtype, so that depth does not eat digits.
    """

    config: TransformerConfig

    def setup(self) -> None:
        """Declare the parts."""
        config = self.config
        # Half of D^-1/2: tied logits start with variance 1/4 and the first loss lies 1/8 nat above
        # ln V, not 1/2.
        deviation = 0.5 * config.width**-0.5 if config.scale_embeddings else 0.02
        start = nn.initializers.normal(deviation)
        self.embedding = self.param("embedding", start, (config.vocab_size, config.width))
        if config.position_encoding == "learned":
            shape = (config.max_length, config.width)
            self.position_embedding = self.param("position_embedding", start, shape)
        if config.mask_embedding:
            self.mask_vector = self.param("mask_embedding", start, (config.width,))
        if config.time_conditioning != "none":
            self.time_embedding = TimeEmbedding(config)
        self.input_dropout = nn.Dropout(config.dropout)
        self.layers = [Block(config) for _ in range(config.layers)]
        # Before the first block (post-norm) or after the last one (pre-norm).
        self.outer_norm = Norm(config)
        if not config.tied_embeddings:
            shape = (config.width, config.vocab_size)
            small = nn.initializers.variance_scaling(0.1, "fan_in", "truncated_normal")
            self.output_kernel = self.param("output", small, shape)

    def __call__(
        self,
        tokens: Tokens,
        time: Time | None = None,
        *,
        segments: Segments | None = None,
        positions: Positions | None = None,
        train: bool = False,
    ) -> Float[Array, "B T V"]:
        """Logits for every position.

        Args:
          tokens: ids [B, T].
          time: diffusion time of each row; needed if the config conditions on time, else unused.
          segments: document numbers from 1, 0 for padding; None for one document a row.
          positions: position of each token in its document; None for 0 .. T-1.
          train: apply dropout, with ``rngs={"dropout": key}``.

        Returns:
          float32 logits [B, T, V].

        Raises:
          ValueError: for a sequence longer than ``max_length``, or no time where it is needed.
        """
        hidden = self.encode(tokens, time, segments=segments, positions=positions, train=train)
        return self.head(hidden)

    def encode(
        self,
        tokens: Tokens,
        time: Time | None = None,
        *,
        segments: Segments | None = None,
        positions: Positions | None = None,
        train: bool = False,
    ) -> Float[Array, "B T D"]:
        """Hidden states before the output projection; arguments as in ``__call__``."""
        config = self.config
        _, T = tokens.shape
        if T > config.max_length:
            raise ValueError(
                f"sequence of {T} tokens is longer than max_length={config.max_length}; "
                "shorten it or build the model with a larger max_length"
            )
        if positions is None:
            positions = jnp.arange(T, dtype=jnp.int32)[None]
        x_BTD = self.embedding[tokens]
        if config.scale_embeddings:
            x_BTD = x_BTD * config.width**0.5
        is_mask = tokens == (-1 if config.mask_id is None else config.mask_id)
        if config.mask_embedding:
            x_BTD = jnp.where(is_mask[..., None], x_BTD + self.mask_vector, x_BTD)
        if config.position_encoding == "learned":
            x_BTD = x_BTD + self.position_embedding[positions]
        condition = self._condition(time)
        if config.time_conditioning == "add" and condition is not None:
            x_BTD, condition = x_BTD + condition[:, None, :], None
        if config.norm_placement == "post":
            x_BTD = self.outer_norm(x_BTD)
        x_BTD = self.input_dropout(x_BTD, deterministic=not train)
        allowed = allowed_pairs(
            T,
            causal=config.attention == "causal",
            segments=segments,
            hidden_keys=is_mask if config.hide_mask else None,
        )
        for layer in self.layers:
            x_BTD = layer(x_BTD, positions, allowed, condition, train=train)
        return self.outer_norm(x_BTD) if config.norm_placement == "pre" else x_BTD

    def head(self, hidden: Float[Array, "*N D"]) -> Float[Array, "*N V"]:
        """Logits, float32, for hidden states at any chosen positions."""
        dtype = jnp.dtype(self.config.dtype)
        return jnp.matmul(
            hidden.astype(dtype),
            self.output_projection().astype(dtype),
            preferred_element_type=jnp.float32,
        )

    def output_projection(self) -> Float[Array, "D V"]:
        """Kernel of the output projection: the transposed embedding where they are tied."""
        return self.embedding.T if self.config.tied_embeddings else self.output_kernel

    def _condition(self, time: Time | None) -> Array | None:
        if self.config.time_conditioning == "none":
            return None
        if time is None:
            raise ValueError(
                f"time_conditioning={self.config.time_conditioning!r} needs a time for each row; "
                "pass time [B]"
            )
        return self.time_embedding(time)
