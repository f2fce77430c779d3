"""``python -m dlm_jax`` is ``dlm``."""

import sys

from dlm_jax.cli import main

sys.exit(main())
