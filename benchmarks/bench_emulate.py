"""How fast the emulator starts, launches and runs kernels. Writes results/cpu/emulate.jsonl.

    python benchmarks/bench_emulate.py

The first rows are processes with an empty cache, which build the runtime too. Of each case there
are the first run, which compiles, and then the median seconds of a run and its least seconds of a
core, for each way to search for races. Seconds of a core hardly change with what else the machine
does; each row has its load average. At the end come the rows of docs/emulator.md, "What it costs",
and of docs/install.md. Peak memory is of the whole process up to then.
"""

from __future__ import annotations

import functools
import os
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
from result_files import RESULTS, Section, circumstances_on_cpu, peak_mib, write_section

from tmaasync import Kernel, emulate, ops, trace

PATH = RESULTS / "cpu" / "emulate.jsonl"


def matmul(side: int, arch: str = "sm_90a") -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((side, side)).astype(ml_dtypes.bfloat16) for _ in range(2))

    def run() -> Any:
        with emulate.chip(arch):
            return ops.matmul(a, b.T)

    return run


def copy(size_bytes: int) -> Callable[[], Any]:
    source = np.random.default_rng(0).integers(0, 256, size_bytes, np.uint8)
    return lambda: ops.copy(source)


# Kernels that make every access themselves, and one that makes none.
THREADS = """
extern "C" __global__ void nothing(float* x) {}

extern "C" __global__ void add(float* x) { x[threadIdx.x] += 1; }

extern "C" __global__ void add_often(float* x, int times) {
    for (int i = 0; i < times; ++i) x[threadIdx.x] += 1;
}

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
    ("tcgen05 matmul bfloat16 512 cubed", matmul(512, "sm_100a")),
    ("attention 4 heads of 512 x 128", attention()),
    ("copy 16 MiB", copy(16 << 20)),
    ("an addition by 64 threads", of_threads("add", 1, 64, (square(8),))),
    (
        "4 million additions by 128 threads",
        of_threads("add_often", 1, 128, (square(16), (1 << 22) // 128)),
    ),
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
        taken = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    of_a_core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "case": f"first launch, empty cache, {processes} at once",
        "processes": processes,
        "first_seconds": round(taken, 3),
        "core_seconds": round(of_a_core, 3),
        "load_average": os.getloadavg()[0],
    }


SEARCHES = {"races=False": {"races": False}, "no option": {}, "races=True": {"races": True}}
MOST_RUNS, MOST_SECONDS = 9, 5.0


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(run: Callable[[], Any], policy: Any, **options: Any) -> dict[str, float]:
    wall: list[float] = []
    of_a_core: list[float] = []
    for seed in range(MOST_RUNS):
        if sum(wall) > MOST_SECONDS:
            break
        with emulate.scheduled(policy, seed=seed, **options):
            began = time.process_time()
            wall.append(seconds(run))
            of_a_core.append(time.process_time() - began)
    return {"median_seconds": statistics.median(wall), "least_core_seconds": min(of_a_core)}


def measure_case(name: str, run: Callable[[], Any]) -> dict[str, Any]:
    row: dict[str, Any] = {"case": name, "first_seconds": round(seconds(run), 3)}
    for search, options in SEARCHES.items():
        row[search] = measure(run, "round_robin", **options)
        row[f"peak_memory_mib, {search}"] = peak_mib()
    row["random"] = measure(run, "random", races=False)
    with trace.record() as kept:
        row["trace"] = measure(run, "round_robin", races=False)
    return {**row, "events": len(kept.launches[0]), "load_average": os.getloadavg()[0]}


def in_words(rows: list[dict[str, Any]]) -> str:
    """Return the lines of the guides, as Markdown."""
    table = [
        f"| case, seconds of a core | {' | '.join(f'`{s}`' for s in SEARCHES)} |",
        "|---|---:|---:|---:|",
    ]
    firsts = [""]
    for row in rows:
        if "processes" in row:
            first = f"{row['first_seconds']:.1f} s, {row['core_seconds']:.1f} s of a core"
            firsts.append(f"{row['case']}: {first}")
        else:
            cells = (f"{row[search]['least_core_seconds']:.2g}" for search in SEARCHES)
            table.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(table + firsts)


def main() -> None:
    rows: list[dict[str, Any]] = []
    for processes in (1, PROCESSES):
        rows.append(first_launch(processes))
        print(rows[-1], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMAASYNC_CACHE_DIR"] = folder
        for name, run in CASES:
            rows.append(measure_case(name, run))
            print(rows[-1], flush=True)
    measured = circumstances_on_cpu()
    print(write_section(PATH, Section(measured, rows)), in_words(rows), sep="\n\n")


if __name__ == "__main__":
    main()
