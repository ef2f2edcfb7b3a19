"""ops.matmul where the output has few blocks and K is long, against cuBLAS (torch.matmul).

Writes section "split_k" of the results. With ``--sweep`` nothing is written: tile configs are
raced, each interleaved with torch, and printed with their times, best first.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from bench_matmul import CACHE_BYTES, LAUNCHES, Case, Operands, check, mean, measure
from race import captured, race, record, speed_text

from tmaasync import _arrays, _driver
from tmaasync._driver.launches import _native
from tmaasync.errors import TMAError
from tmaasync.ops._blocking import Blocking
from tmaasync.ops.gemm import gemm_kernel, gemm_tiles, operation, plan
from tmaasync.ops.gemm.blocking import FEW_COLUMNS, FEW_ROWS
from tmaasync.ops.gemm.choice import default_blocking

SHAPES = (
    (512, 512, 16384),
    (256, 256, 65536),
    (128, 1024, 7168),
    (256, 512, 8192),
    (1024, 1024, 8192),
    (1024, 1024, 2048),
    (512, 512, 4096),
    (512, 2048, 4096),
    (768, 768, 16384),
    (128, 4096, 7168),
    (384, 1536, 8192),
    (128, 512, 2048),
    (64, 1024, 16384),
    (64, 2048, 7168),
    (64, 4096, 4096),
    (16, 1024, 8192),
    (16, 2048, 7168),
    (16, 4096, 14336),
    (1, 4096, 4096),
    (32, 7168, 2048),
)
FORMS = ((2, 64, 256), (2, 64, 128), (1, 64, 256), (1, 64, 128), (1, 64, 64), (2, 128, 128))
# CTAs of a cluster: how many share loads, and over how many K is split.
CLUSTERS = (*((1, split) for split in range(1, 9)), (2, 1), (2, 2), (2, 3), (2, 4))
# How many CTAs a grid must have to be worth a race.
LEAST_BLOCKS, MOST_BLOCKS = 48, 136


def candidates(case: Case) -> Iterator[Blocking]:
    """Yield the tile configs that may be the fastest."""
    m, n = max(case.m, case.n), min(case.m, case.n)
    if n <= FEW_ROWS:
        width = next(width for width in FEW_COLUMNS if width >= n)
        blocks = [Blocking(consumers, width, by_columns=True) for consumers in (2, 1)]
    else:
        m, n = case.m, case.n
        blocks = [Blocking(consumers, width, rows=rows) for consumers, rows, width in FORMS]
    for block, (cluster, split) in itertools.product(blocks, CLUSTERS):
        blocking = replace(block, cluster=cluster, split=split)
        is_legal = cluster == 1 or (n > FEW_ROWS and m > block.block_m)
        thread_blocks = blocking.clusters(m, n) * blocking.cluster_size
        if is_legal and blocking.holds_partials and LEAST_BLOCKS <= thread_blocks <= MOST_BLOCKS:
            yield blocking


def compile_for(blocking: Blocking) -> None:
    """Put the kernel of this tile config into the cache of compiled kernels."""
    operand, out = (np.zeros((64, side), ml_dtypes.bfloat16) for side in (64, 64))
    views = [_arrays.view(array) for array in (operand, operand, out)]
    tiles = gemm_tiles(views[0], views[1], views[2], blocking, False, True)
    gemm_kernel(*(tile.cuda_type for tile in tiles), False, True, blocking).compile()


def choose(blocking: Blocking | None) -> None:
    """Have ops.matmul take this tile config, or the cost model's again; plans are made anew."""
    plan.default_blocking = default_blocking if blocking is None else lambda *_, **__: blocking
    plan.plan_for.cache_clear()
    operation._LAUNCHES.__init__()


def sweep(cases: list[Case], rounds: int) -> None:
    found = {case: list(candidates(case)) for case in cases}
    # Before there is a context, which a process cannot inherit.
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_for, set(itertools.chain(*found.values()))))
    torch.zeros(1, device="cuda")
    print(f"clusters at once: {clusters_that_run()}", flush=True)
    for case, blockings in found.items():
        copies = math.ceil(CACHE_BYTES / case.traffic_bytes)
        sets = [Operands.random(case) for _ in range(copies)]
        order = [sets[index % copies] for index in range(max(LAUNCHES, copies))]
        theirs = captured([one.multiply_by_torch for one in order])
        results = []
        for blocking in (None, *blockings):
            choose(blocking)
            try:
                results.append((*timed(order, theirs, rounds), name_of(blocking)))
            except TMAError as error:
                print(f"  {name_of(blocking)}: {error}")
        choose(None)
        torch_us = statistics.median(us for _, _, us, _ in results)
        print(f"{case.label}: torch {torch_us:.2f} us", flush=True)
        for ratio, ours, _, name in sorted(results, reverse=True):
            print(f"  {ratio:.3f} x torch, {ours:7.2f} us  {name}", flush=True)


def timed(order: list[Operands], theirs: Any, rounds: int) -> tuple[float, float, float]:
    """Return the speed over torch, and the microseconds of a matmul: ours, torch's."""
    order[0].ours.fill_(math.nan)
    order[0].multiply()
    check(order[0])
    raced = race(
        {"tmaasync": captured([one.multiply for one in order]), "torch": theirs},
        rounds=rounds,
        reference="torch",
        seconds_per_slice=0.02,
        works_per_call=len(order),
    )
    ratio = raced["speed_over_torch"]["tmaasync"]["median"]
    return ratio, raced["us"]["tmaasync"], raced["us"]["torch"]


def name_of(blocking: Blocking | None) -> str:
    if blocking is None:
        return "the cost model's"
    form = f"{blocking.consumers} x {blocking.rows} rows, {blocking.block_n} columns"
    return f"{form}, pairs {blocking.cluster}, split {blocking.split}"


def clusters_that_run() -> dict[int, int]:
    """Return the max active clusters of CTAs that fill an SM, by cluster size."""
    from cuda.bindings import driver  # noqa: PLC0415

    counts = {}
    for size in (2, 4, 8):
        blocking = Blocking(2, 128, split=size)
        operand = np.zeros((64, 64), ml_dtypes.bfloat16)
        tiles = gemm_tiles(*[_arrays.view(operand)] * 3, blocking, False, True)
        kernel = gemm_kernel(*(tile.cuda_type for tile in tiles), False, True, blocking)
        loaded = kernel._load(0, (9, 0))
        config = _driver.LaunchConfig(
            grid=(60 * size, 1, 1), block=(blocking.threads, 1, 1), cluster=(size, 1, 1),
            shared_bytes=loaded.entry.shared_bytes, pdl=False, stream=0,
        )  # fmt: skip
        loaded.allow(config, 1024)
        _, count = driver.cuOccupancyMaxActiveClusters(loaded.function, _native(config))
        counts[size] = int(count)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sweep", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = [Case(*shape) for shape in SHAPES]
    if options.sweep:
        sweep(cases, options.rounds)
        return
    rows = []
    for case in cases:
        rows.append(measure(case, options.rounds))
        us = rows[-1]["us"]
        print(
            f"{case.label:34s} {us['tmaasync']:7.2f} us, torch {us['torch']:7.2f} us: "
            f"{speed_text(rows[-1], 'torch')}",
            flush=True,
        )
    print(f"geometric mean: {mean(rows)}")
    print(record("split_k", rows))


if __name__ == "__main__":
    main()
