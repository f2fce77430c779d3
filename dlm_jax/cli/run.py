"""A trained run read back from its folder: tokenizer, model, process and parameters."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from dlm_jax.checkpoints import restore_params
from dlm_jax.cli.workdir import CHECKPOINTS
from dlm_jax.cli.workdir import read_config
from dlm_jax.config import Experiment
from dlm_jax.config import resolve
from dlm_jax.data import Tokenizer
from dlm_jax.data import load_tokenizer
from dlm_jax.models import Transformer
from dlm_jax.processes import MaskedProcess
from dlm_jax.typing import PRNGKey


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder opened for reading: all that sampling and scoring need but the parameters."""

    path: Path
    experiment: Experiment
    tokenizer: Tokenizer
    model: Transformer
    process: MaskedProcess

    def params(self, *, checkpoint: str = "latest", ema: bool = True) -> Any:
        """Restore parameters.

        Args:
          checkpoint: ``latest``, ``best`` or a step number.
          ema: take the averaged parameters if the run kept an average.

        Raises:
          ValueError: if there is no such checkpoint, or it does not fit the model.
        """
        number = re.fullmatch("[0-9]{1,18}", checkpoint)
        if checkpoint not in ("latest", "best") and not number:
            raise ValueError(f"--checkpoint={checkpoint} must be latest, best or a step number")
        return restore_params(
            self.path / CHECKPOINTS,
            jax.eval_shape(lambda: init_params(self.model, jax.random.key(0))),
            step=int(checkpoint) if number else checkpoint,
            ema=ema and self.experiment.training.ema_decay is not None,
        )


def open_run(workdir: str | Path) -> Run:
    """Read a run's config and tokenizer; fast, so that mistakes show before anything slow starts.

    Raises:
      ValueError: if the folder holds no run.
    """
    path = Path(workdir)
    experiment = resolve(read_config(path))
    tokenizer = load_tokenizer(path / "tokenizer")
    model, process = build(experiment, tokenizer)
    return Run(path=path, experiment=experiment, tokenizer=tokenizer, model=model, process=process)


def build(experiment: Experiment, tokenizer: Tokenizer) -> tuple[Transformer, MaskedProcess]:
    """The network and the process of an experiment over a tokenizer's vocabulary."""
    ids = {"vocab_size": tokenizer.vocab_size, "mask_id": tokenizer.mask_id}
    return Transformer(experiment.model.build(**ids)), experiment.masked_process(**ids)


def init_params(model: Transformer, key: PRNGKey) -> Any:
    """Fresh parameters, compiled as one program."""
    return jax.jit(model.init)(key, jnp.zeros((1, 8), jnp.int32), jnp.ones((1,)))
