"""The order of batches is a pure function of seed and position, for any number of processes."""

import numpy as np
import pytest

from dlm_jax.data import Batches
from dlm_jax.data import Records


@pytest.fixture(scope="module")
def records():
    return Records(
        np.arange(23 * 4, dtype=np.uint16), None, [[(4 * i, 4)] for i in range(23)],
        length=4, pad_id=0,
    )  # fmt: skip


def take(batches, count):
    with batches:
        return [next(batches)["index"].tolist() for _ in range(count)]


def test_every_record_comes_once_in_each_epoch_in_a_new_order(records):
    """Kills a shuffle that is the same in every epoch and batches that drop the rest."""
    flat = sum(take(Batches(records, batch_size=4, seed=0), 23), [])
    epochs = [flat[i * 23 : (i + 1) * 23] for i in range(4)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_seed_decides_the_order(records):
    first, again = (take(Batches(records, batch_size=4, seed=1), 5) for _ in range(2))
    assert first == again != take(Batches(records, batch_size=4, seed=2), 5)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_share_the_global_batch_also_after_a_resume(records, count):
    """Kills local shuffles and per-process positions: 3 batches on one, the rest on ``count``."""
    expected = take(Batches(records, batch_size=4, seed=0), 9)
    with Batches(records, batch_size=4, seed=0) as first:
        for _ in range(3):
            next(first)
        state = first.state()
    parts = []
    for index in range(count):
        part = Batches(records, batch_size=4, seed=0, process_index=index, process_count=count)
        part.restore(state)
        parts.append(take(part, 6))
    joined = [sum((part[i] for part in parts), []) for i in range(6)]
    assert joined == expected[3:]


def test_position_counts_what_was_taken_and_not_what_was_read_ahead(records):
    with Batches(records, batch_size=4, seed=0) as batches:
        next(batches)
        assert batches.state()["next_record"] == 4


def test_another_batch_size_goes_on_at_the_exact_record(records):
    flat = sum(take(Batches(records, batch_size=4, seed=0), 10), [])
    with Batches(records, batch_size=4, seed=0) as first:
        next(first)
        state = first.state()
    larger = Batches(records, batch_size=6, seed=0)
    larger.restore(state)
    assert sum(take(larger, 6), []) == flat[4:40]


def test_state_of_other_data_or_seed_is_refused(records):
    other = Records(records.tokens[::-1].copy(), None, [[(4 * i, 4)] for i in range(23)], length=4, pad_id=0)  # fmt: skip  # noqa: E501
    state = Batches(records, batch_size=4, seed=0).state()
    with pytest.raises(ValueError, match="belongs to another training data"):
        Batches(other, batch_size=4, seed=0).restore(state)
    with pytest.raises(ValueError, match="belongs to another seed"):
        Batches(records, batch_size=4, seed=1).restore(state)


def test_saved_records_are_mapped_and_equal(records, tmp_path):
    records.save(tmp_path)
    loaded = Records.load(tmp_path)
    assert loaded.fingerprint == records.fingerprint and len(loaded) == 23
    for name, value in records[7].items():
        np.testing.assert_array_equal(loaded[7][name], value)
    assert isinstance(loaded.tokens, np.memmap)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 24}, "gives 23 rows of 4 tokens, fewer than batch_size=24"),
        ({"batch_size": 4, "process_count": 3}, "does not divide by 3 processes"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
    ],
)
def test_mistakes_are_named(records, arguments, message):
    with pytest.raises(ValueError, match=message):
        Batches(records, seed=0, **arguments)
