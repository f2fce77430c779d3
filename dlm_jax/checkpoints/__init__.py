"""Checkpoints: saving and restoring training state, and parameters by themselves."""

from dlm_jax.checkpoints.errors import CheckpointError
from dlm_jax.checkpoints.folder import complete_steps
from dlm_jax.checkpoints.parameters import export_params
from dlm_jax.checkpoints.parameters import load_params
from dlm_jax.checkpoints.parameters import restore_params
from dlm_jax.checkpoints.store import CheckpointStore
from dlm_jax.checkpoints.store import Restored

__all__ = [
    "CheckpointError",
    "CheckpointStore",
    "Restored",
    "complete_steps",
    "export_params",
    "load_params",
    "restore_params",
]
