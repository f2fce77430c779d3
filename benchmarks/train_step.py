"""One train step of masked diffusion, against ``BertForMaskedLM`` with the same loss in torch.

Run: python benchmarks/train_step.py [--rounds 9] [--compile]   (needs the bench extra)

float32, width 256, 6 layers, 8 heads, vocabulary 8192, batch 16 x 256, no dropout, AdamW, gradient
clipping at 1. Both sides draw the noise, time their own optimiser and return the loss. The peer is
written as one would write it in torch (``torch``); ``torch_rows`` also spares the head at visible
positions, as this library does, and ``torch_compiled`` is ``torch.compile`` of the first.
"""

import argparse
import functools
import statistics

import interleave

interleave.pin_threads()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from dlm_jax import models  # noqa: E402
from dlm_jax import processes  # noqa: E402
from dlm_jax import training  # noqa: E402

VOCABULARY, WIDTH, LAYERS, HEADS, BATCH, LENGTH = 8192, 256, 6, 8, 16, 256
MASK = VOCABULARY - 1
RATE = 1e-4
MATMUL = 2048
BERT = {
    "norm": "layernorm",
    "norm_placement": "post",
    "position_encoding": "learned",
    "activation": "gelu",
    "bias": True,
}
LLAMA = {"norm": "rmsnorm", "norm_placement": "pre", "position_encoding": "rope"}


def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, MASK, (BATCH, LENGTH)).astype(np.int32)


def ours(documents: int, **switches):
    """One step of this library; each row packs this many documents."""
    model = models.Transformer(
        models.TransformerConfig(
            vocab_size=VOCABULARY,
            width=WIDTH,
            layers=LAYERS,
            heads=HEADS,
            max_length=LENGTH,
            **switches,
        )
    )
    objective = training.MaskedObjective(
        model=model, process=processes.MaskedProcess(vocab_size=VOCABULARY, mask_id=MASK)
    )
    spec = training.OptimizerSpec(
        learning_rate=RATE, total_steps=10_000, warmup_steps=0, decay="constant"
    )
    optimizer = training.make_optimizer(spec)
    part = np.arange(LENGTH) * documents // LENGTH
    position = np.arange(LENGTH) - np.searchsorted(part, part)
    batch = {
        "tokens": tokens(),
        "segments": np.tile(part + 1, (BATCH, 1)).astype(np.int32),
        "positions": np.tile(position, (BATCH, 1)).astype(np.int32),
        "weights": np.ones((BATCH, LENGTH), np.float32),
        "index": np.arange(BATCH),
    }
    batch = {name: jnp.asarray(value) for name, value in batch.items() if name != "index"}
    params = jax.jit(model.init)(jax.random.key(0), batch["tokens"])
    state = training.init_state(params, optimizer, ema=False)
    step = training.make_train_step(objective, optimizer)
    key = jax.random.key(1)

    def run() -> float:
        nonlocal state
        state, metrics = step(state, batch, key)
        return float(metrics["loss"])

    return run


def peer(*, rows_only: bool = False, compiled: bool = False, fused: bool = True):
    """One step of ``BertForMaskedLM`` in torch."""
    torch.set_num_threads(interleave.THREADS)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = transformers.BertForMaskedLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.98), fused=fused)
    x_0 = torch.from_numpy(tokens()).long()
    cross_entropy = functools.partial(torch.nn.functional.cross_entropy, reduction="none")

    def loss_of(x_t, masked, weight):
        if rows_only:
            logits = model.cls(model.bert(input_ids=x_t).last_hidden_state[masked])
        else:
            logits = model(input_ids=x_t).logits[masked]
        return (cross_entropy(logits, x_0[masked]) * weight[masked]).sum() / x_0.numel()

    def loss_of_all(x_t, masked, weight):
        # Of static shape, which the compiler wants.
        logits = model(input_ids=x_t).logits.view(-1, VOCABULARY)
        nats = cross_entropy(logits, x_0.view(-1)).view(x_0.shape)
        return (nats * weight * masked).sum() / x_0.numel()

    loss_function = torch.compile(loss_of_all) if compiled else loss_of

    def run() -> float:
        time = ((torch.rand(()) + torch.arange(BATCH)) / BATCH) % 1 + 1e-6
        masked = torch.rand(x_0.shape) < time[:, None]
        x_t = torch.where(masked, MASK, x_0)
        loss = loss_function(x_t, masked, (1 / time)[:, None].expand(x_0.shape))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def peak():
    """A large matrix product."""
    matrix = jnp.asarray(np.random.default_rng(0).standard_normal((MATMUL, MATMUL)), jnp.float32)
    product = jax.jit(jnp.matmul)
    return lambda: product(matrix, matrix).block_until_ready()


def step_flops() -> float:
    """Products of one step: forward and twice as much backward, the head at masked rows."""
    matrices = 2 * 12 * WIDTH**2 * LAYERS
    attention = 4 * LENGTH * WIDTH * LAYERS
    head = 2 * WIDTH * VOCABULARY / 2
    return 3.0 * BATCH * LENGTH * (matrices + attention + head)


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--compile", action="store_true", help="also race torch.compile")
    parser.add_argument("--llama", action="store_true", help="also time a Llama-like model")
    parser.add_argument("--documents", type=int, default=1, help="documents packed in a row")
    arguments = parser.parse_args()
    contestants = {"dlm_jax": ours(arguments.documents, **BERT), "torch": peer()}
    contestants["torch_rows"] = peer(rows_only=True)
    if arguments.compile:
        contestants["torch_compiled"] = peer(compiled=True)
    if arguments.llama:
        contestants["dlm_jax_llama"] = ours(arguments.documents, **LLAMA)
    contestants["matmul"] = peak()
    with interleave.OtherLoad() as load:
        seconds = interleave.interleave(contestants, arguments.rounds)
    matmul = [2 * MATMUL**3 / x for x in seconds["matmul"]]
    for name in contestants:
        if name == "matmul":
            continue
        median = statistics.median(seconds[name])
        shares = [step_flops() / s / p for s, p in zip(seconds[name], matmul, strict=True)]
        versus = interleave.ratio(seconds, name, "torch")
        interleave.report(
            benchmark="train_step",
            contestant=name,
            documents=arguments.documents,
            milliseconds=1e3 * median,
            tokens_per_second=BATCH * LENGTH / median,
            share_of_matmul_peak=statistics.median(shares),
            gflops_matmul=statistics.median(matmul) / 1e9,
            **{f"ratio_to_torch_{k}": v for k, v in versus.items()},
            rounds=arguments.rounds,
            other_cpu_share=load.share,
        )


if __name__ == "__main__":
    main()
