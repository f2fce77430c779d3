"""Full-canvas denoising: a canvas of 256 tokens in 256, 64 and 16 steps, against torch.

Run: python benchmarks/denoise.py [--rounds 7] [--steps 64]   (needs the bench extra)

The peer is ``BertForMaskedLM`` of the same shape running the same loop, written as one would write
it in torch: all logits, softmax, the most confident positions, a multinomial draw.
"""

import argparse
import functools
import statistics
import time

import interleave

interleave.pin_threads()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from dlm_jax import models  # noqa: E402
from dlm_jax import processes  # noqa: E402
from dlm_jax import sampling  # noqa: E402

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 8192, 256, 6, 8, 256
MASK = VOCABULARY - 1


def ours(steps: int, order: str):
    """Compiled sampler of this library, and how long it took to compile."""
    model = models.Transformer(
        models.TransformerConfig(
            vocab_size=VOCABULARY,
            width=WIDTH,
            layers=LAYERS,
            heads=HEADS,
            max_length=LENGTH,
            norm="layernorm",
            norm_placement="post",
            position_encoding="learned",
            activation="gelu",
            bias=True,
        )
    )
    process = processes.MaskedProcess(vocab_size=VOCABULARY, mask_id=MASK)
    canvas = jnp.full((1, LENGTH), MASK, jnp.int32)
    params = jax.jit(model.init)(jax.random.key(0), canvas)

    @jax.jit
    def run(params, key, grid):
        encode = functools.partial(model.apply, params, method="encode")
        head = functools.partial(model.apply, params, method="head")
        return sampling.sample(key, encode, process, canvas, grid, head=head, order=order).tokens

    grid = jnp.asarray(sampling.time_grid(steps))
    start = time.perf_counter()
    compiled = run.lower(params, jax.random.key(0), grid).compile()
    return (
        lambda: compiled(params, jax.random.key(1), grid).block_until_ready(),
        time.perf_counter() - start,
    )


def peer(steps: int):
    """The same loop in torch."""
    torch.set_num_threads(interleave.THREADS)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
    )
    model = transformers.BertForMaskedLM(config).eval()

    @torch.inference_mode()
    def run():
        canvas = torch.full((1, LENGTH), MASK)
        for step in range(steps):
            masked = canvas == MASK
            logits = model(input_ids=canvas).logits
            logits[..., MASK] = -torch.inf
            probs = torch.softmax(logits, dim=-1)
            score = torch.where(masked, probs.amax(dim=-1), -1.0)
            left = LENGTH * (steps - step - 1) // steps
            chosen = score.topk(int(masked.sum()) - left, dim=-1).indices[0]
            canvas[0, chosen] = torch.multinomial(probs[0, chosen], 1)[:, 0]
        return canvas

    return run


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, nargs="*", default=[256, 64, 16])
    parser.add_argument("--orders", nargs="*", default=["confidence", "ancestral"])
    arguments = parser.parse_args()
    for order in arguments.orders:
        for steps in arguments.steps:
            run, compile_seconds = ours(steps, order)
            with interleave.OtherLoad() as load:
                seconds = interleave.interleave(
                    {"dlm_jax": run, "torch": peer(steps)}, arguments.rounds
                )
            median = {name: statistics.median(values) for name, values in seconds.items()}
            interleave.report(
                benchmark="denoise",
                order=order,
                canvas=LENGTH,
                steps=steps,
                seconds=median["dlm_jax"],
                torch_seconds=median["torch"],
                milliseconds_per_step=1e3 * median["dlm_jax"] / steps,
                torch_milliseconds_per_step=1e3 * median["torch"] / steps,
                compile_seconds=compile_seconds,
                **{
                    f"ratio_{k}": v
                    for k, v in interleave.ratio(seconds, "dlm_jax", "torch").items()
                },
                other_cpu_share=load.share,
            )


if __name__ == "__main__":
    main()
