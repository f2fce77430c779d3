"""Timing of contestants side by side: warm, alternating, the same number of threads for each.

Absolute seconds on a shared machine move by a factor of three; the ratio of two contestants that
take turns moves far less. Every measurement is one line of JSON.
"""

import json
import os
import statistics
import time
from collections.abc import Callable

THREADS = 2


def pin_threads() -> None:
    """Give JAX and torch the same number of threads; call before either is imported."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(THREADS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])


def interleave(contestants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; they take turns, after one untimed call each."""
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], ours: str, peer: str) -> dict[str, float]:
    """How many times faster ours is than the peer, round by round: median, lowest, highest."""
    ratios = [b / a for a, b in zip(seconds[ours], seconds[peer], strict=True)]
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


class OtherLoad:
    """Share of the processors' time that went to other processes while this block ran."""

    def __enter__(self) -> "OtherLoad":
        self._before = _busy_seconds(), _own_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        busy, own, now = _busy_seconds(), _own_seconds(), time.perf_counter()
        others = (busy - self._before[0]) - (own - self._before[1])
        self.share = max(0.0, others / ((now - self._before[2]) * (os.cpu_count() or 1)))


def _busy_seconds() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(x) for x in file.readline().split()[1:9]]
    user, nice, system, _, _, irq, soft, steal = fields
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


def report(**line: object) -> None:
    """One measurement as one line of JSON."""
    print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in line.items()}))
