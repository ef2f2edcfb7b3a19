"""Tile configs of ops.matmul timed side by side: what tools/fit_cost_model.py fits the model to.

Writes section "tile_configs" of this GPU's results; about five minutes. Slices are sustained, in an
order drawn anew for every round: what runs after something lighter or heavier does so by chance. In
slices of 0.03 s the power limit counts less: small tiles and ping-pong look 2 to 4 % better.
Measure, fit the numbers, and show how the model then chooses:

    python benchmarks/sweep_tile_configs.py && python tools/fit_cost_model.py --write

With ``--few-tiles`` it times GEMMs of one to three waves, and writes section "few_tiles": there
tile configs also start early (PDL) or not, against the rule of `TileConfig.starts_early`. With
``--ragged-rows`` it times GEMMs whose rows fill no tile, with and without swap AB, and writes
section "ragged_rows".
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
import torch
from bench_matmul import LAUNCHES, TOLERANCE, WEIGHTS, operand_sets
from bench_split import chosen, compile_for
from race import captured, clocks_recorded, recorded, relative_error

from tmaasync import _arrays, ops
from tmaasync._timing import calls_per_slice, device_microseconds
from tmaasync.errors import TMAError
from tmaasync.ops._gemm.config import Occupancy, Orientation, PersistentWork, TileConfig
from tmaasync.ops._gemm.cost_model import (
    default_config,
    ranked_configs,
    ranked_over_grid,
    ranked_split_k,
)
from tmaasync.ops._gemm.legal_tiles import (
    Problem,
    can_multicast_b,
    gains_side_by_side,
    paired_along_m,
    paired_along_n,
    skinny_tiles,
)
from tmaasync.ops._layouts import Layout
from tmaasync.ops._matmul import Matmul

CUBES = (1536, 2048, 3072, 4096, 5120, 6144, 8192, 12288, 3000, 5000, 7000)
ROWS = (128, 512, 2048, 8192)
BATCHED = ((1024, 1024, 1024, 16), (512, 512, 1024, 32), (2048, 2048, 2048, 8))
FEW_TILES = (
    (96, 3072, 8192),
    (128, 7168, 2048),
    (128, 4096, 4096),
    (128, 4096, 14336),
    (128, 14336, 4096),
    (128, 9216, 3072),
    (128, 2560, 9728),
    (192, 4096, 4096),
    (192, 6144, 4096),
    (256, 4096, 4096),
    (256, 6144, 4096),
    (256, 7168, 2048),
    (256, 7168, 16384),
    (256, 24576, 1536),
    (320, 3072, 3072),
    (320, 1536, 7168),
    (384, 4096, 4096),
    (384, 14336, 4096),
    (512, 4096, 4096),
    (512, 4096, 14336),
    (512, 6144, 4096),
    (512, 7168, 2048),
    (512, 2048, 8192),
    (640, 5120, 5120),
    (768, 768, 16384),
    (768, 4096, 4096),
    (1024, 4096, 4096),
    (1024, 7168, 2048),
    (1024, 2112, 7168),
    (2048, 7168, 2048),
)
RAGGED_ROWS = (
    (66, 4096, 4096),
    (72, 4096, 14336),
    (72, 14336, 4096),
    (90, 24576, 1536),
    (100, 7168, 2048),
    (100, 4096, 14336),
    (100, 7168, 16384),
    (112, 8192, 8192),
    (120, 2112, 7168),
    (120, 2560, 9728),
    (136, 4096, 4096),
    (136, 8192, 8192),
    (136, 14336, 4096),
    (136, 2048, 8192),
    (150, 28672, 4096),
    (160, 3072, 8192),
    (160, 6144, 4096),
    (160, 8192, 8192),
    (184, 5120, 5120),
    (200, 4096, 4096),
    (200, 4096, 14336),
    (200, 7168, 2048),
    (200, 7168, 16384),
    (200, 8192, 8192),
    (224, 4096, 4096),
    (250, 8192, 8192),
    (260, 2048, 8192),
    (260, 28672, 4096),
    (300, 9216, 3072),
    (400, 4096, 14336),
    (500, 6144, 4096),
    (1000, 4096, 4096),
)
LARGE = (
    TileConfig(2, 256, 1, 16),
    TileConfig(2, 192, 1, 16, 128),
    TileConfig(2, 192, 1, 16, 128, ping_pong=True),
)
MOST_RACED_SWAP_AB = 256  # rows up to which swap AB is raced
SMS = 132  # of an H100 and of an H200
BEST = 5
IN_PAIRS = 2  # of the best
MOST_UNEVEN = 1.45  # work of the busiest SM over its even share
WHOLE_STORE = 64  # columns that are stored in boxes of 128 bytes
NAMED = (
    *("consumers", "rows", "block_n", "cluster", "group_m"),
    *("ping_pong", "side_by_side", "split_k", "over_grid", "m_major"),
)


class Variant(NamedTuple):
    """A tile config, and whether its launch starts early; None for the rule of `TileConfig`."""

    config: TileConfig
    starts_early: bool | None = None


class Case(NamedTuple):
    """``batches`` times A[M, K] times the transpose of B[N, K]."""

    m: int
    n: int
    k: int
    batches: int = 1

    @property
    def label(self) -> str:
        batch = f"{self.batches} x " if self.batches > 1 else ""
        return f"bfloat16 {batch}{self.m} x {self.n} x {self.k}"

    @property
    def problem(self) -> Problem:
        sides = (self.m, self.n, self.k, self.batches)
        return Problem(*sides, "bfloat16", "bfloat16", "nt", False, self.k % 64 == 0)

    @property
    def after_swap_ab(self) -> Problem:
        """The transpose of the output, computed in its place."""
        return self.problem._replace(m=self.n, n=self.m, m_major=True)

    @property
    def traffic_bytes(self) -> int:
        m, n, k, batches = self
        return 2 * batches * (m * k + n * k + m * n)

    @property
    def copies(self) -> int:
        """Operand sets that together do not fit into L2, of a matmul that is short."""
        return operand_sets(2 * math.prod(self), self.traffic_bytes)


class Operands(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor

    @classmethod
    def random(cls, case: Case) -> Operands:
        m, n, k, batches = case
        batch = (batches,) if batches > 1 else ()
        a, b = (torch.randn(*batch, side, k, device="cuda").bfloat16() for side in (m, n))
        out = torch.empty(*batch, m, n, dtype=torch.bfloat16, device="cuda")
        return cls(a, b.mT, out)

    def multiply(self) -> None:
        ops.matmul(self.a, self.b, out=self.out)

    def multiply_by_torch(self) -> None:
        torch.matmul(self.a, self.b, out=self.out)

    def check(self) -> None:
        """Compare random rows of the last matrix, and its last rows, with float64."""
        a, b, got = (one if one.dim() == 2 else one[-1] for one in self)
        last = torch.arange(max(a.shape[0] - 64, 0), a.shape[0], device="cuda")
        rows = torch.cat((torch.randint(a.shape[0], (16,), device="cuda"), last))
        error = relative_error(got[rows], a[rows].double() @ b.double())
        if not error < TOLERANCE[got.dtype]:
            raise SystemExit(f"{tuple(a.shape)} @ {tuple(b.shape)}: relative error {error:.2e}")


def variants_of_all(case: Case, occupancy: Occupancy) -> list[Variant]:
    """Return the cost model's best tiles and the large ones; the best ones in pairs, too."""
    ranked = ranked_configs(case.problem, occupancy)

    def fits(one: TileConfig) -> bool:
        return _unevenness(one, case, occupancy) <= MOST_UNEVEN

    tiles = (alone(one) for one in (*ranked, *LARGE) if fits(one))
    best = list(dict.fromkeys(tiles))[:BEST]
    large = list(filter(fits, LARGE))
    pairs = itertools.chain.from_iterable(_pairs(one, case.problem) for one in best[:IN_PAIRS])
    return list(map(Variant, dict.fromkeys((ranked[0], *best, *large, *pairs))))


def few_tiles_variants(case: Case, occupancy: Occupancy) -> list[Variant]:
    """Return the choice, the best tiles of every kind, the best ones in pairs and with split-K.

    The choice, and the best kind with other rows, also start early against the rule or do not.
    """
    choice = default_config(case.problem, occupancy)
    found = _few_tiles_configs(case, occupancy, MOST_UNEVEN)
    others = [one for one in found if one.block_m != choice.block_m and one.cluster_size == 1]
    return [
        *map(Variant, dict.fromkeys((choice, *found))),
        *(Variant(one, not _starts_early(one, case, occupancy)) for one in (choice, *others[:1])),
    ]


def _few_tiles_configs(case: Case, occupancy: Occupancy, most_uneven: float) -> list[TileConfig]:
    problem = case.problem
    kinds: dict[tuple[int, int, bool], list[TileConfig]] = {}
    for one in ranked_configs(problem, occupancy):
        if _unevenness(one, case, occupancy) <= most_uneven:
            kinds.setdefault((one.consumers, one.rows, one.ping_pong), []).append(one)
    best = [found[0] for found in kinds.values()]
    stored_whole = [
        one
        for found in kinds.values()
        for one in [one for one in found if one.block_n % WHOLE_STORE == 0][:1]
    ]
    pairs = itertools.chain.from_iterable(_pairs(one, problem) for one in best[:2])
    split = (ranked(problem, occupancy)[:2] for ranked in (ranked_split_k, ranked_over_grid))
    return [*best, *stored_whole, *pairs, *itertools.chain.from_iterable(split)]


def ragged_rows_variants(case: Case, occupancy: Occupancy) -> list[Variant]:
    """Return the choice, the best tiles of every kind, and, of few rows, with swap AB."""
    found = [choice_of_matmul(case, occupancy), *_few_tiles_configs(case, occupancy, math.inf)]
    if case.m <= MOST_RACED_SWAP_AB:
        whole = skinny_tiles(case.after_swap_ab)
        found += [default_config(case.after_swap_ab, occupancy), *whole]
        found += ranked_split_k(case.after_swap_ab, occupancy)[:2]
    return list(map(Variant, dict.fromkeys(found)))


def choice_of_matmul(case: Case, occupancy: Occupancy) -> TileConfig:
    """Return the tile config that ops.matmul takes, with or without swap AB."""
    m, n, k, _ = case
    shapes = ((m, k), (n, k), (m, n))
    a, b, out = (Layout.of(_arrays.view(np.empty(one, ml_dtypes.bfloat16))) for one in shapes)
    return Matmul(a, b.transposed, out).config_on(None, occupancy)


def _starts_early(config: TileConfig, case: Case, occupancy: Occupancy) -> bool:
    clusters = config.clusters(case.m, case.n) * (config.split_k if config.over_grid else 1)
    work = PersistentWork(case.m, case.k, clusters)
    return config.starts_early(work, occupancy.max_active_clusters(config.cluster_size))


def starting(early: bool | None) -> AbstractContextManager[object]:
    """Have launches start early or not inside a ``with``; None for the rule."""
    if early is None:
        return nullcontext()
    return mock.patch.object(TileConfig, "starts_early", return_value=early)


def orientated(config: TileConfig) -> AbstractContextManager[object]:
    """Have matmuls swap AB or not inside a ``with``, as the tile config needs."""
    return mock.patch.object(Orientation, "gains_by_swap_ab", return_value=config.m_major)


def alone(config: TileConfig) -> TileConfig:
    return replace(config, cluster=1, group_m=16, side_by_side=False)


def _pairs(tile: TileConfig, problem: Problem) -> Iterator[TileConfig]:
    if can_multicast_b(tile, problem):
        yield paired_along_m(tile)
    if gains_side_by_side(tile, problem):
        yield paired_along_n(tile)


def _unevenness(config: TileConfig, case: Case, occupancy: Occupancy) -> float:
    """Return the work of the busiest SM over its even share; tiles reach beyond the output."""
    clusters = case.batches * config.clusters(case.m, case.n)
    waves = -(-clusters // occupancy.max_active_clusters(config.cluster_size))
    even = math.prod(case[:2]) * case.batches / occupancy.sms
    return waves * config.block_m * config.block_n / even


def measure(
    case: Case, variants: list[Variant], rounds: int, seconds_per_slice: float
) -> dict[str, Any]:
    sets = [Operands.random(case) for _ in range(case.copies)]
    order = [sets[index % len(sets)] for index in range(max(LAUNCHES, len(sets)))]
    if case.copies == 1:
        order = sets
    runs: dict[Variant | None, Callable[[], Any]] = {
        None: captured([one.multiply_by_torch for one in order])
    }
    for variant in variants:
        config, early = variant
        with orientated(config), chosen(config), starting(early):
            sets[0].out.fill_(math.nan)
            try:
                sets[0].multiply()
            except TMAError as error:
                print(f"  {variant}: {error}", flush=True)
                continue
            sets[0].check()
            runs[variant] = captured([one.multiply for one in order])
    with clocks_recorded() as clocks:
        times = in_random_order(runs, rounds, seconds_per_slice)
    us = {name: round(statistics.median(each) / len(order), 3) for name, each in times.items()}
    row = {
        "case": case.label,
        "m": case.m,
        "n": case.n,
        "k": case.k,
        "batches": case.batches,
        "dtype": "bfloat16",
    }
    found = [{**_named(one), "us": us[one]} for one in runs if one is not None]
    return {
        **row,
        "rounds": rounds,
        "torch_us": us[None],
        "clocks": clocks.summary(),
        "tile_configs": found,
    }


def _named(variant: Variant) -> dict[str, Any]:
    whole = dataclasses.asdict(variant.config)
    named = {name: whole[name] for name in NAMED}
    early = variant.starts_early
    return named if early is None else {**named, "starts_early": early}


def in_random_order(
    runs: dict[Variant | None, Callable[[], Any]], rounds: int, seconds_per_slice: float
) -> dict[Variant | None, list[float]]:
    calls = calls_per_slice(runs, seconds_per_slice)
    times: dict[Variant | None, list[float]] = {name: [] for name in runs}
    drawn = random.Random(0)
    for _ in range(rounds):
        for name in drawn.sample(list(runs), len(runs)):
            times[name].append(device_microseconds(runs[name], calls[name]))
    return times


def show(row: dict[str, Any]) -> None:
    """Print the choice of the cost model, and the three fastest, over torch's time."""
    found, torch_us = row["tile_configs"], row["torch_us"]
    print(f"{row['case']:48s} torch {torch_us:9.2f} us {row['clocks']}")
    for one in (found[0], *sorted(found, key=lambda one: one["us"])[:3]):
        kind = " ping-pong" if one["ping_pong"] else ""
        kind += " swap AB" if one["m_major"] else ""
        if one["split_k"] > 1:
            kind += f" split-K {one['split_k']}{' over the grid' if one['over_grid'] else ''}"
        if "starts_early" in one:
            kind += " early" if one["starts_early"] else " late"
        side = "along N" if one["side_by_side"] else "along M"
        form = f"{one['consumers']} x {one['rows']} rows, {one['block_n']} columns"
        print(
            f"  {torch_us / one['us']:.3f} x torch: {form}, {one['cluster']} {side}, "
            f"groups of {one['group_m']}{kind}",
            flush=True,
        )


def usual_cases() -> list[Case]:
    cases = [Case(side, side, side) for side in CUBES]
    cases += [Case(m, n, k) for n, k in WEIGHTS for m in ROWS]
    return cases + [Case(*sides) for sides in BATCHED]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a slice")
    parser.add_argument("--few-tiles", action="store_true", help="GEMMs of one to three waves")
    parser.add_argument("--ragged-rows", action="store_true", help="GEMMs whose rows fill no tile")
    parser.add_argument("--cases", nargs="*", help="MxNxK or MxNxKxBATCHES; by default all")
    options = parser.parse_args()
    start = time.monotonic()
    cases = usual_cases()
    section, variants_of = "tile_configs", variants_of_all
    if options.few_tiles:
        section, variants_of = "few_tiles", few_tiles_variants
        cases = [Case(*sides) for sides in FEW_TILES]
    if options.ragged_rows:
        section, variants_of = "ragged_rows", ragged_rows_variants
        cases = [Case(*sides) for sides in RAGGED_ROWS]
    if options.cases:
        cases = [Case(*map(int, one.split("x"))) for one in options.cases]
    # This process has no context before it has all its workers: they could not inherit it.
    with ProcessPoolExecutor() as pool:
        occupancy = Occupancy.estimated(SMS)
        found = {case: variants_of(case, occupancy) for case in cases}
        builds = {
            (one.config, case.batches > 1, case.m % one.config.cluster_rows != 0)
            for case in cases
            for one in found[case]
        }
        list(pool.map(compile_for, *zip(*builds, strict=True)))
    print(f"compiled in {time.monotonic() - start:.1f} s", flush=True)
    torch.manual_seed(0)
    with recorded(section, is_part=bool(options.cases)) as rows:
        for case, variants in found.items():
            rows.append(measure(case, variants, options.rounds, options.seconds))
            show(rows[-1])


if __name__ == "__main__":
    main()
