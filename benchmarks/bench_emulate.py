"""How fast the emulator runs the shipped kernels. Writes results/cpu/emulate.jsonl.

Builds are timed apart: the first run of a configuration compiles, later ones come from the cache.
Peak memory is of the whole process up to then.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from result_files import RESULTS, Section, write_section

from tmaasync import emulate, ops, trace

PATH = RESULTS / "cpu" / "emulate.jsonl"


def matmul(side: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((side, side)).astype(ml_dtypes.bfloat16) for _ in range(2))
    return lambda: ops.matmul(a, b.T)


def copy(size_bytes: int) -> Callable[[], Any]:
    source = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    return lambda: ops.copy(source)


CASES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("matmul bfloat16 256 cubed", matmul(256)),
    ("matmul bfloat16 512 cubed", matmul(512)),
    ("matmul bfloat16 1024 cubed", matmul(1024)),
    ("copy 16 MiB", copy(16 << 20)),
)


def measure(run: Callable[[], Any], policy: Any, **options: Any) -> float:
    times = []
    for seed in range(5):
        with emulate.scheduled(policy, seed=seed, **options):
            times.append(seconds(run))
    return statistics.median(times)


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure_checked(run: Callable[[], Any]) -> dict[str, float]:
    """Time runs whose first words are searched for races, or all of them, and one with a trace."""
    default = measure(run, "round_robin")
    races = measure(run, "round_robin", races=True)
    with trace.record() as kept:
        traced = measure(run, "round_robin", races=False)
    return {
        "default": default,
        "races": races,
        "trace": traced,
        "events": len(kept.launches[0]),
    }


def peak_mib() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMAASYNC_CACHE_DIR"] = folder
        for name, run in CASES:
            row: dict[str, Any] = {"case": name, "first_seconds": round(seconds(run), 3)}
            row |= {
                policy: measure(run, policy, races=False) for policy in ("round_robin", "random")
            }
            row |= {"peak_memory_mib": peak_mib()} | measure_checked(run)
            row["peak_memory_with_races_mib"] = peak_mib()
            rows.append(row)
            print(row, flush=True)
    measured = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "peak_memory_mib": peak_mib(),
    }
    print(write_section(PATH, Section(measured, rows)))


if __name__ == "__main__":
    main()
