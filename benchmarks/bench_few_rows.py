"""Matmuls of several GPUs with few rows: two kernels in turn, over one that overlaps.

One process with two GPUs or more, bfloat16, as CUDA graphs; next to them NCCL and cuBLAS, and
cuBLAS alone. Every result is compared with a sum in float32. Results are recorded as ``few_rows``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from bench_peers import World
from bench_rank_matmuls import FLOP_PER_S, MAX_CALLS, PROBLEMS, SLICE_S, Problem, check
from race import record
from rank_race import Work, captured, interleaved, repeat

from tmaasync import enable_peer_access
from tmaasync.ops import _all_gather_matmul, _matmul_reduce
from tmaasync.ops._call_cache import forget

ROUNDS = 5
SHAPES = (  # M, N, K of the whole problem
    (128, 8192, 8192),
    (128, 8192, 28672),
    (128, 16384, 16384),
    (128, 16384, 53248),
    (192, 8192, 8192),
    (256, 8192, 8192),
    (256, 8192, 28672),
    (256, 16384, 53248),
    (512, 8192, 28672),
)


@contextmanager
def rows_in_turn(most: int) -> Iterator[None]:
    """Let problems with at most this number of rows per rank run in turn."""
    kinds = _matmul_reduce.MatmulReduceScatter, _matmul_reduce.MatmulAllReduce
    before = _all_gather_matmul._FEW_ROWS, [kind.few_rows for kind in kinds]

    def use(gathered: int, reduced: list[int]) -> None:
        _all_gather_matmul._FEW_ROWS = gathered
        for kind, few in zip(kinds, reduced, strict=True):
            kind.few_rows = few  # type: ignore[misc] # the operations read it once
        forget()

    use(most, [most] * len(kinds))
    try:
        yield
    finally:
        use(*before)


def candidates_of(world: World, problem: Problem, calls: int) -> dict[str, Work]:
    found = {}
    for name, most in (("overlapped", 0), ("tmaasync", 1 << 30)):
        with rows_in_turn(most):
            check(problem)
            found[name] = graph_of(world, problem.ours, calls)
    found["nccl_cublas"] = graph_of(world, problem.with_nccl, calls)
    found["cublas_alone"] = graph_of(world, problem.multiply, calls)
    return found


def graph_of(world: World, work: Work, calls: int) -> Work:
    repeated = functools.partial(repeat, work, calls)
    repeated()
    world.settle()
    return captured(world, repeated)


def rows(world: World) -> Iterator[dict[str, Any]]:
    for kind in PROBLEMS:
        for m, n, k in SHAPES:
            problem = kind(world, m, n, k)
            seconds = 2 * m * n * k / len(world) / FLOP_PER_S
            calls = max(1, min(MAX_CALLS, int(SLICE_S / seconds)))
            candidates = candidates_of(world, problem, calls)
            row = interleaved(world, candidates, calls, ROUNDS, "overlapped")
            yield {"case": f"{kind.section}, {len(world)} ranks, M={m} N={n} K={k}", **row}
            del problem, candidates
            torch.cuda.empty_cache()


def main() -> None:
    devices = range(min(torch.cuda.device_count(), 8))
    if len(devices) < 2:
        raise SystemExit("this needs two GPUs or more")
    enable_peer_access(devices)
    found = []
    for row in rows(World.of(devices)):
        found.append(row)
        print(row["case"], row["us"], flush=True)
        record("few_rows", found)


if __name__ == "__main__":
    main()
