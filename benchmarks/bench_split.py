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
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import torch
from bench_matmul import CACHE_BYTES, LAUNCHES, Case, Operands, check, mean, measure
from race import captured, race, recorded, speed_text

from tmaasync import _arrays
from tmaasync.errors import TMAError
from tmaasync.kernel import backend_of
from tmaasync.ops._gemm.config import SKINNY_LIMIT, TileConfig
from tmaasync.ops._gemm.legal_tiles import SKINNY_WIDTHS
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles
from tmaasync.ops._operation import tile_configs

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
FORMS = (
    (2, 64, 256),
    (2, 64, 192),
    (2, 64, 128),
    (1, 64, 256),
    (1, 64, 128),
    (1, 64, 64),
    (2, 128, 128),
)
# CTAs of a cluster: how many share loads, and over how many K is split.
CLUSTERS = (*((1, split) for split in range(1, 9)), (2, 1), (2, 2), (2, 3), (2, 4))
GROUPS = (2, 4, 16)  # rows of tiles before the next column, for tiles over the grid
# How many CTAs a grid must have to be worth a race.
MIN_CTAS, MAX_CTAS = 48, 136


def candidates(case: Case) -> Iterator[TileConfig]:
    """Yield the tile configs that may be the fastest."""
    m, n = max(case.m, case.n), min(case.m, case.n)
    if n <= SKINNY_LIMIT:
        width = next(width for width in SKINNY_WIDTHS if width >= n)
        tiles = [TileConfig(consumers, width, m_major=True) for consumers in (2, 1)]
    else:
        m, n = case.m, case.n
        tiles = [TileConfig(consumers, width, rows=rows) for consumers, rows, width in FORMS]
    for tile, (cluster, split_k) in itertools.product(tiles, CLUSTERS):
        config = replace(tile, cluster=cluster, split_k=split_k)
        is_legal = cluster == 1 or (n > SKINNY_LIMIT and m > tile.block_m)
        ctas = config.clusters(m, n) * config.cluster_size
        if is_legal and config.holds_partials and MIN_CTAS <= ctas <= MAX_CTAS:
            yield config

    if n <= SKINNY_LIMIT:
        return
    for tile, group_m in itertools.product(tiles, GROUPS):
        ctas = tile.clusters(m, n)
        most = MAX_CTAS // ctas
        for split_k in sorted({max(most - 1, 1), most} - {0}):
            if ctas * split_k >= MIN_CTAS:
                yield replace(tile, group_m=group_m, split_k=split_k, over_grid=split_k > 1)


def compile_for(config: TileConfig, is_batched: bool = False, is_ragged: bool = False) -> None:
    """Put the kernel of this tile config into the cache of compiled kernels.

    ``is_ragged`` is whether the rows fill no tile.
    """
    batch = (2,) if is_batched else ()
    rows, side = config.block_m + is_ragged, 64
    a, b = (np.zeros((*batch, one, side), ml_dtypes.bfloat16) for one in (rows, side))
    out = np.zeros((*batch, rows, side), ml_dtypes.bfloat16)
    if config.over_grid:
        out = np.zeros((2, rows, side), np.float32)
    views = [_arrays.view(array) for array in (a, b, out)]
    tiles = gemm_tiles(views[0], views[1], views[2], config, False, True)
    gemm_kernel([tile.cuda_type for tile in tiles], False, True, config).compile()


def chosen(config: TileConfig | None) -> AbstractContextManager[None]:
    """Have ops.matmul take this tile config inside a ``with``; None for the cost model's."""
    return tile_configs(lambda usual: usual if config is None else config)


def sweep(cases: list[Case], rounds: int) -> None:
    found = {case: list(candidates(case)) for case in cases}
    # Before there is a context, which a process cannot inherit.
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_for, set(itertools.chain(*found.values()))))
    torch.zeros(1, device="cuda")
    active = {size: backend_of(0).max_active_clusters(size) for size in range(2, 9)}
    print(f"max active clusters: {active}", flush=True)
    for case, configs in found.items():
        copies = math.ceil(CACHE_BYTES / case.traffic_bytes)
        sets = [Operands.random(case) for _ in range(copies)]
        order = [sets[index % copies] for index in range(max(LAUNCHES, copies))]
        theirs = captured([one.multiply_by_torch for one in order])
        results = []
        for config in (None, *configs):
            try:
                with chosen(config):
                    results.append((*timed(order, theirs, rounds), name_of(config)))
            except TMAError as error:
                print(f"  {name_of(config)}: {error}")
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


def name_of(config: TileConfig | None) -> str:
    if config is None:
        return "the cost model's"
    form = f"{config.consumers} x {config.rows} rows, {config.block_n} columns"
    split = f"split {config.split_k}{' over the grid' if config.over_grid else ''}"
    return f"{form}, pairs {config.cluster}, {split}, group {config.group_m}"


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
    with recorded("split_k") as rows:
        for case in cases:
            rows.append(measure(case, options.rounds))
            us = rows[-1]["us"]
            print(
                f"{case.label:34s} {us['tmaasync']:7.2f} us, torch {us['torch']:7.2f} us: "
                f"{speed_text(rows[-1], 'torch')}",
                flush=True,
            )
    print(f"geometric mean: {mean(rows)}")


if __name__ == "__main__":
    main()
