"""How fast the emulator starts, launches and runs kernels. Writes results/cpu/emulate.jsonl.

Builds are timed apart: the first run of a configuration compiles, later ones come from the cache.
The first row is a process with an empty cache, which builds the runtime too. Each row has the
machine's load average. Peak memory is of the whole process up to then.
"""

from __future__ import annotations

import datetime
import functools
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from result_files import RESULTS, Section, write_section

from tmaasync import Kernel, emulate, ops, trace

PATH = RESULTS / "cpu" / "emulate.jsonl"


def matmul(side: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((side, side)).astype(ml_dtypes.bfloat16) for _ in range(2))
    return lambda: ops.matmul(a, b.T)


def copy(size_bytes: int) -> Callable[[], Any]:
    source = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    return lambda: ops.copy(source)


# Kernels that make every access themselves, and one that makes none.
THREADS = """
extern "C" __global__ void nothing(float* x) {}

extern "C" __global__ void copy(const float* x, float* y, int n) {
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) y[i] = x[i];
}

extern "C" __global__ void multiply(const float* a, const float* b, float* c, int n) {
    __shared__ float left[16][16], right[16][16];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        left[y][x] = a[row * n + k + x];
        right[y][x] = b[(k + y) * n + column];
        __syncthreads();
        for (int i = 0; i < 16; ++i) sum += left[y][i] * right[i][x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""


def attention() -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 512, 4, 128)).astype(ml_dtypes.bfloat16) for _ in range(3))
    return lambda: ops.attention(q, k, v)


def of_threads(name: str, grid: Any, block: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    kernel = Kernel(THREADS, name)
    return lambda: kernel(grid, block, arguments)


def square(side: int) -> Any:
    return np.ones((side, side), np.float32)


def of_prepared(name: str, block: int, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    @functools.cache
    def prepared() -> Callable[[], Any]:
        return Kernel(THREADS, name).prepare(1, block, arguments)

    return lambda: prepared()()


# A process that compiles its first kernel.
FIRST = """
import numpy as np
from tmaasync import Kernel
Kernel('extern "C" __global__ void f(float* x) {}' + chr(10), "f")(1, 1, (np.ones(1, np.float32),))
"""
PROCESSES = 6  # that start together in one empty cache

CASES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("matmul bfloat16 256 cubed", matmul(256)),
    ("matmul bfloat16 512 cubed", matmul(512)),
    ("matmul bfloat16 1024 cubed", matmul(1024)),
    ("attention 4 heads of 512 x 128", attention()),
    ("copy 16 MiB", copy(16 << 20)),
    ("empty kernel of 1 thread", of_threads("nothing", 1, 1, (square(1),))),
    ("empty kernel of 1 thread, prepared", of_prepared("nothing", 1, (square(1),))),
    ("empty kernel of 64 threads", of_threads("nothing", 1, 64, (square(1),))),
    ("empty kernel of 64 threads, prepared", of_prepared("nothing", 64, (square(1),))),
    ("empty kernel of 1024 blocks of 64", of_threads("nothing", 1024, 64, (square(1),))),
    ("threads copy 16 MiB", of_threads("copy", 256, 256, (square(2048), square(2048), 1 << 22))),
    (
        "threads multiply 256 cubed",
        of_threads("multiply", (16, 16), (16, 16), (square(256), square(256), square(256), 256)),
    ),
)


def first_launch(processes: int) -> dict[str, Any]:
    """Time processes that start together with an empty cache, to the end of the last one."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TMAASYNC_CACHE_DIR": folder}
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [sys.executable, "-c", FIRST]
        running = [subprocess.Popen(command, env=environment) for _ in range(processes)]
        for one in running:
            if one.wait() != 0:
                raise RuntimeError(f"a first launch ended with {one.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "case": f"first launch of {processes} processes, empty cache",
        "first_seconds": round(time.perf_counter() - began, 3),
        "cpu_seconds": round(after.ru_utime - before.ru_utime, 3),
        "load_average": os.getloadavg()[0],
    }


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


def least_cpu_seconds(run: Callable[[], Any]) -> float:
    """Return what one run takes of all cores, which other work on the machine hardly changes."""
    times = []
    for _ in range(9):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times)


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
    rows = [first_launch(1), first_launch(PROCESSES)]
    print(*rows, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMAASYNC_CACHE_DIR"] = folder
        for name, run in CASES:
            row: dict[str, Any] = {"case": name, "first_seconds": round(seconds(run), 3)}
            row |= {
                policy: measure(run, policy, races=False) for policy in ("round_robin", "random")
            }
            row["cpu_seconds"] = least_cpu_seconds(run)
            row |= {"peak_memory_mib": peak_mib()} | measure_checked(run)
            row["peak_memory_with_races_mib"] = peak_mib()
            row["load_average"] = os.getloadavg()[0]
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
