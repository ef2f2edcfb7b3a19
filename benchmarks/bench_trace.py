"""What a trace costs: matmuls and copies with and without. Writes section "trace".

A traced launch is timed from its first note to its last, by its own clock; the others by events, a
few calls in a row, interleaved with it. Cases are long enough that the host keeps ahead.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import cupy
import ml_dtypes
import numpy as np
from race import record

from tmaasync import ops, trace
from tmaasync._timing import device_microseconds

_CALLS = 10


def matmul(side: int, notes: int) -> tuple[str, Callable[[], Any], int]:
    rng = cupy.random.default_rng(0)
    a, b = (
        rng.standard_normal((side, side), dtype=cupy.float32).astype(np.dtype(ml_dtypes.bfloat16))
        for _ in range(2)
    )
    out = cupy.empty_like(a)
    return f"matmul {side} cubed bf16", lambda: ops.matmul(a, b.T, out=out), notes


def copy(mebibytes: int, notes: int) -> tuple[str, Callable[[], Any], int]:
    rng, rows = cupy.random.default_rng(0), mebibytes << 8
    source = rng.standard_normal((rows, 2048), dtype=cupy.float32)[:, :1024]
    target = cupy.full(source.shape, cupy.nan, cupy.float32)
    return f"copy {mebibytes} MiB of columns", lambda: ops.copy(source, target), notes


def traced(run: Callable[[], Any], notes: int) -> tuple[trace.Trace, float]:
    """Return the trace of one launch, and the seconds of the host until it was ready."""
    began = time.perf_counter()
    with trace.record(notes_per_warp=notes) as kept:
        run()
    (launch,) = kept.launches
    return launch, time.perf_counter() - began


def measure(label: str, run: Callable[[], Any], notes: int, rounds: int) -> dict[str, Any]:
    device_microseconds(run, _CALLS)
    traced(run, 1)  # builds; what has no room takes no time of the host
    plain, noted, ratios, seconds = [], [], [], []
    for _ in range(rounds):
        plain.append(device_microseconds(run, _CALLS))
        launch, took = traced(run, notes)
        noted.append(launch.end / 1000)
        ratios.append(noted[-1] / plain[-1])
        seconds.append(took)
    return {
        "case": label,
        "untraced_us": round(statistics.median(plain), 3),
        "traced_us": round(statistics.median(noted), 3),
        "time_over_untraced": {
            "median": round(statistics.median(ratios), 3),
            "min": round(min(ratios), 3),
            "max": round(max(ratios), 3),
        },
        "host_seconds": round(statistics.median(seconds), 3),
        "events": len(launch),
        "dropped": launch.dropped,
        "blocks_left_out": launch.blocks_left_out,
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rows = []
    for label, run, notes in (
        matmul(2048, 1024),
        matmul(4096, 2048),
        copy(64, 256),
        copy(256, 256),
    ):
        rows.append(measure(label, run, notes, rounds))
        ratio = rows[-1]["time_over_untraced"]
        print(
            f"{label:26s} {rows[-1]['untraced_us']:8.1f} us, traced "
            f"{rows[-1]['traced_us']:8.1f} us: {ratio['median']:.2f} times "
            f"({ratio['min']:.2f} to {ratio['max']:.2f}); {rows[-1]['events']} events, "
            f"{rows[-1]['dropped']} dropped",
            flush=True,
        )
    print(record("trace", rows))


if __name__ == "__main__":
    main()
