"""The validation bound of a run, as the training loop and ``dlm eval`` compute it."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dlm_jax.data import Prepared
from dlm_jax.evaluation import Bound
from dlm_jax.evaluation import estimate_bound
from dlm_jax.evaluation import make_masked_row_nats
from dlm_jax.models import Transformer
from dlm_jax.processes import MaskedProcess
from dlm_jax.training import EvaluationSpec
from dlm_jax.training.preemption import StopRequest
from dlm_jax.typing import PRNGKey


class Validation:
    """Callable that bounds the negative log-likelihood of the validation split.

    The same rows are masked in the same places every time, so that two evaluations of a run differ
    by the parameters alone.
    """

    def __init__(
        self,
        model: Transformer,
        process: MaskedProcess,
        prepared: Prepared,
        spec: EvaluationSpec,
        key: PRNGKey,
        stop: StopRequest | None = None,
    ) -> None:
        self._records = prepared.validation
        self._spec = spec
        self._key = key
        self._stop = stop
        self._row_nats = make_masked_row_nats(model, process, spec.samples)

    def __call__(self, params: Any, whole: bool) -> Bound | None:
        """Bound on the whole split or on its first ``spec.rows`` rows; None if stopped."""
        return estimate_bound(
            self._row_nats,
            params,
            self._batches(whole),
            self._key,
            should_stop=lambda: self._stop is not None and self._stop.requested,
        )

    def _batches(self, whole: bool) -> Iterator[dict[str, np.ndarray]]:
        count = len(self._records)
        rows = count if whole else min(count, self._spec.rows)
        size = self._spec.batch_size
        for start in range(0, rows, size):
            chosen = [self._records[i] for i in range(start, min(start + size, rows))]
            batch = {name: np.stack([row[name] for row in chosen]) for name in chosen[0]}
            padding = size - len(chosen)
            yield {
                name: np.concatenate([value, np.zeros((padding, *value.shape[1:]), value.dtype)])
                for name, value in batch.items()
            }
