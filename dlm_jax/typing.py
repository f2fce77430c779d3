"""Array types named once, by the dimension letters that the whole library uses.

B batch, T position, K block, D model, H heads, G key-value heads, N head width, F feed-forward,
V vocabulary, L layers, S denoising steps.
"""

import jax
import numpy as np
from jaxtyping import Bool
from jaxtyping import Float
from jaxtyping import Int
from jaxtyping import Key

Array = jax.Array | np.ndarray
"""What public functions take: arrays of either library."""

Tokens = Int[Array, "B T"]
"""Token ids."""
Segments = Int[Array, "B T"]
"""Document number inside a packed row, from 1; 0 marks padding."""
Positions = Int[Array, "B T"]
"""Position of a token inside its document, from 0."""
TokenMask = Bool[Array, "B T"]
"""One flag for each token."""
Weights = Float[Array, "B T"]
"""One weight for each token."""
Nats = Float[Array, "B T"]
"""Nats for each token."""
Time = Float[Array, " B"]
"""Diffusion time of each row, 0 clean and 1 noise."""
Logits = Float[Array, "B T V"]
"""Unnormalised log-probabilities over the vocabulary."""
PRNGKey = Key[jax.Array, ""]
"""One typed key, as made by ``jax.random.key``."""
