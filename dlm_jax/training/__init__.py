"""Training: objectives, optimiser, state, the train step and the loop around it."""

from dlm_jax.training.loop import NonFiniteError
from dlm_jax.training.loop import Outcome
from dlm_jax.training.loop import train
from dlm_jax.training.objectives import LossSums
from dlm_jax.training.objectives import MaskedObjective
from dlm_jax.training.objectives import Objective
from dlm_jax.training.objectives import make_batch
from dlm_jax.training.optimizer import OptimizerSpec
from dlm_jax.training.optimizer import learning_rate_schedule
from dlm_jax.training.optimizer import make_optimizer
from dlm_jax.training.spec import EvaluationSpec
from dlm_jax.training.spec import SamplingSpec
from dlm_jax.training.spec import TrainingSpec
from dlm_jax.training.state import TrainState
from dlm_jax.training.state import init_state
from dlm_jax.training.step import make_train_step

__all__ = [
    "EvaluationSpec",
    "LossSums",
    "MaskedObjective",
    "NonFiniteError",
    "Objective",
    "OptimizerSpec",
    "Outcome",
    "SamplingSpec",
    "TrainState",
    "TrainingSpec",
    "init_state",
    "learning_rate_schedule",
    "make_batch",
    "make_optimizer",
    "make_train_step",
    "train",
]
