"""A run as a picture: loss over steps, and loss by diffusion time."""

from pathlib import Path
from typing import Any

import numpy as np

from dlm_jax.training.report import read_metrics


def plot_run(metrics: Path, picture: Path) -> None:
    """Draw ``metrics.jsonl`` as a PNG.

    Left: training loss, raw and smoothed, and the validation bound with its standard error. Right:
    mean training loss in ten bins of diffusion time, over the first and the last tenth of the run.

    Raises:
      ImportError: if matplotlib is missing.
      ValueError: if there is no training metric to draw.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plots need the package matplotlib; install it with pip install 'dlm_jax[plot]'"
        ) from error
    records = read_metrics(metrics)
    train = [r for r in records if r["kind"] == "train" and r.get("loss") is not None]
    evaluation = [r for r in records if r["kind"] == "evaluation"]
    if not train:
        raise ValueError(f"{metrics} holds no training metrics to draw")
    figure = Figure(figsize=(11, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _draw_loss(left, train, evaluation)
    _draw_by_time(right, train)
    figure.savefig(picture, dpi=120)


def _draw_loss(axes: Any, train: list[dict], evaluation: list[dict]) -> None:
    steps = np.array([record["step"] for record in train])
    loss = np.array([record["loss"] for record in train])
    axes.plot(steps, loss, color="tab:blue", alpha=0.25, linewidth=1, label="training")
    axes.plot(steps, _smooth(loss), color="tab:blue", label="training, smoothed")
    if evaluation:
        axes.errorbar(
            [record["step"] for record in evaluation],
            [record["nats_per_token"] for record in evaluation],
            yerr=[2 * (record["standard_error"] or 0.0) for record in evaluation],
            color="tab:orange",
            marker="o",
            markersize=4,
            capsize=3,
            label="validation bound (± 2 standard errors)",
        )
    axes.set(xlabel="step", ylabel="nats per token", title="loss")
    axes.set_ylim(top=float(np.quantile(loss, 0.98)) * 1.05)
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_by_time(axes: Any, train: list[dict]) -> None:
    share = max(1, len(train) // 10)
    bins = len(train[0]["nats_by_time"])
    centres = (np.arange(bins) + 0.5) / bins
    for records, words, colour in (
        (train[:share], "first tenth of the run", "tab:gray"),
        (train[-share:], "last tenth of the run", "tab:blue"),
    ):
        nats = np.sum([record["nats_by_time"] for record in records], axis=0)
        tokens = np.sum([record["tokens_by_time"] for record in records], axis=0)
        mean = np.divide(nats, tokens, out=np.full(bins, np.nan), where=tokens > 0)
        axes.plot(centres, mean, marker="o", markersize=4, color=colour, label=words)
    axes.set(
        xlabel="diffusion time t (0 clean, 1 noise)",
        ylabel="weighted nats per token",
        title="loss by diffusion time",
    )
    axes.grid(alpha=0.3)
    axes.legend()


def _smooth(values: np.ndarray, rate: float = 0.1) -> np.ndarray:
    """Exponential moving average, corrected for its start."""
    smoothed = np.empty_like(values, dtype=float)
    total, weight = 0.0, 0.0
    for index, value in enumerate(values):
        total = (1 - rate) * total + rate * value
        weight = (1 - rate) * weight + rate
        smoothed[index] = total / weight
    return smoothed
