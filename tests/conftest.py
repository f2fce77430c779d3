"""Tests run on CPU, with every annotated shape and dtype of the library checked at run time.

``DLM_JAX_TYPECHECK=0`` switches the checks off.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook  # noqa: E402

import tests.typecheck  # noqa: E402, F401

# The core; modules of the edge use ``typing.Self``, which the checker takes only on classes.
CHECKED = [
    "dlm_jax.schedules",
    "dlm_jax.processes",
    "dlm_jax.models",
    "dlm_jax.sampling",
    "dlm_jax.evaluation",
    "dlm_jax.training.objectives",
    "dlm_jax.training.state",
    "dlm_jax.training.step",
]

if os.environ.get("DLM_JAX_TYPECHECK", "1") == "1":
    install_import_hook(CHECKED, "tests.typecheck.typecheck")
