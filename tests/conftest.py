"""Tests run on CPU, with every annotated shape and dtype of the library checked at run time.

``DLM_JAX_TYPECHECK=0`` switches the checks off.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook  # noqa: E402

import tests.typecheck  # noqa: E402, F401

if os.environ.get("DLM_JAX_TYPECHECK", "1") == "1":
    install_import_hook("dlm_jax", "tests.typecheck.typecheck")
