"""Tile configs of ops.matmul timed side by side: what tools/fit_cost_model.py fits the model to.

Writes section "tile_configs" of the results, anew after every matmul. Slices are sustained, in an
order drawn anew for every round: what runs after something lighter or heavier does so by chance.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from bench_matmul import CACHE_BYTES, LAUNCHES, Case, Operands, check
from bench_split import chosen, compile_for
from race import captured, record

from tmaasync._timing import calls_per_slice, device_microseconds
from tmaasync.ops._gemm.config import Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import ranked_configs
from tmaasync.ops._gemm.legal_tiles import Problem, paired_along_m, paired_along_n

CUBES = (2048, 2304, 3072, 4096, 5120, 6144, 8192, 12288, 3000, 5000, 7000)
OTHERS = (
    (512, 4096, 4096),
    (512, 24576, 1536),
    (1024, 14336, 4096),
    (2048, 4096, 4096),
    (2048, 7168, 2048),
    (2048, 7168, 16384),
    (4096, 14336, 4096),
    (8192, 4096, 4096),
    (8192, 14336, 4096),
    (8192, 24576, 1536),
)
LARGE = (
    TileConfig(2, 256, 1, 16),
    TileConfig(2, 192, 1, 16, 128),
    TileConfig(2, 192, 1, 16, 128, ping_pong=True),
)
H200 = Occupancy.estimated(132)
BEST = 3
SECONDS_PER_SLICE = 0.15
NAMED = ("consumers", "rows", "block_n", "cluster", "group_m", "ping_pong", "side_by_side")


def candidates(case: Case) -> list[TileConfig]:
    """Return the cost model's best and the large ones, alone and, unless ping-pong, in pairs."""
    types = (case.type_name, case.type_name, "nt")
    problem = Problem(case.m, case.n, case.k, 1, *types, False, case.k % 64 == 0)
    best = ranked_configs(problem, H200)[:BEST]
    alone = [replace(one, cluster=1, group_m=16, side_by_side=False) for one in best]
    forms = itertools.chain.from_iterable(map(_forms, (*alone, *LARGE)))
    return list(dict.fromkeys((*best, *forms)))


def _forms(alone: TileConfig) -> Iterator[TileConfig]:
    yield alone
    if not alone.ping_pong:
        yield paired_along_n(alone) if alone.block_m > alone.block_n else paired_along_m(alone)


def measure(case: Case, configs: list[TileConfig], rounds: int) -> dict[str, Any]:
    copies = math.ceil(CACHE_BYTES / case.traffic_bytes) if case.is_short else 1
    sets = [Operands.random(case) for _ in range(copies)]
    order = [sets[index % copies] for index in range(max(LAUNCHES, copies))]
    runs: dict[TileConfig | None, Callable[[], Any]] = {
        None: captured([one.multiply_by_torch for one in order])
    }
    for config in configs:
        with chosen(config):
            sets[0].ours.fill_(math.nan)
            sets[0].multiply()
            check(sets[0])
            runs[config] = captured([one.multiply for one in order])
    times = in_random_order(runs, rounds)
    us = {name: round(statistics.median(each) / len(order), 3) for name, each in times.items()}
    row = {
        "case": f"{case.label}, {len(configs)} tile configs",
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "dtype": case.type_name,
    }
    found = [{**_named(one), "us": us[one]} for one in configs]
    return {**row, "rounds": rounds, "torch_us": us[None], "tile_configs": found}


def _named(config: TileConfig) -> dict[str, Any]:
    whole = dataclasses.asdict(config)
    return {name: whole[name] for name in NAMED}


def in_random_order(
    runs: dict[TileConfig | None, Callable[[], Any]], rounds: int
) -> dict[TileConfig | None, list[float]]:
    calls = calls_per_slice(runs, SECONDS_PER_SLICE)
    times: dict[TileConfig | None, list[float]] = {name: [] for name in runs}
    drawn = random.Random(0)
    for _ in range(rounds):
        for name in drawn.sample(list(runs), len(runs)):
            times[name].append(device_microseconds(runs[name], calls[name]))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    cases = [Case(side, side, side) for side in CUBES] + [Case(*sides) for sides in OTHERS]
    found = {case: candidates(case) for case in cases}
    # Before there is a context, which a process cannot inherit.
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_for, set(itertools.chain(*found.values()))))
    torch.manual_seed(0)
    rows = []
    for case, configs in found.items():
        rows.append(measure(case, configs, options.rounds))
        path = record("tile_configs", rows)
        best = min(rows[-1]["tile_configs"], key=lambda one: one["us"])
        print(
            f"{case.label:32s} {rows[-1]['torch_us'] / best['us']:.3f} x torch by {best}",
            flush=True,
        )
    print(path)


if __name__ == "__main__":
    main()
