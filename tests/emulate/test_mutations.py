"""Defects planted in the shipped kernels are reported; without them the emulator says nothing."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest
from emulate.mutations import FILES, MUTATIONS
from emulate.shipped import whole_text
from planted import RACE, Defect
from planted_choices import Choices, choices

from tmaasync import EmulatedDeadlock, EmulatedFault, EmulatedRace, Kernel, _arrays, create_tma_tile
from tmaasync.emulate import EmulatedLaunch, scheduled
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_constants, gemm_tiles, grouped_tiles
from tmaasync.tile import BulkTile

POLICIES: tuple[Policy, ...] = get_args(Policy)
ORDERS: tuple[tuple[Policy, int], ...] = (
    *((policy, 0) for policy in POLICIES),
    ("random", 1),
    ("adversarial", 1),
)
RACE_ORDERS = (*((policy, 0) for policy in POLICIES), ("random", 1))
STAGES, LOADS_AHEAD = 3, 2
BARRIER_BYTES = 8

# --- the main jobs, small -----------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A kernel ready to run, what it writes, what that must be, and its barriers by offset."""

    kernel: Kernel
    grid: int
    block: int
    arguments: tuple[Any, ...]
    cluster: int | None
    output: Any
    wanted: Any
    barriers: dict[int, str] = field(default_factory=dict)

    def build(self) -> EmulatedLaunch:
        """The launch, compiled so that races can be found."""
        with scheduled(races=True):
            launch = self.kernel.prepare(
                self.grid, self.block, self.arguments, cluster=self.cluster
            )
        assert isinstance(launch, EmulatedLaunch)
        return launch

    def has_result(self) -> bool:
        return np.array_equal(self.output, self.wanted)


def named(start: int, *names: str) -> dict[int, str]:
    """Where the stages' barriers lie, arrays of them one after the other."""
    places = itertools.product(names, range(STAGES))
    return {
        start + number * BARRIER_BYTES: f"{name}[{stage}]"
        for number, (name, stage) in enumerate(places)
    }


def split(text: str) -> Prepared:
    """One tile of four CTAs, of which each stores a share; five blocks of K."""
    tile_config = TileConfig(1, 64, split_k=4)
    drawn = np.random.default_rng(5)
    m, n, k = 60, 50, 264
    a, b = (drawn.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    c = np.full((m, 52), np.nan, np.float32)[:, :n]
    views = [_arrays.view(array) for array in (a, b, c)]
    tiles = gemm_tiles(views[0], views[1], views[2], tile_config, False, True)
    kernel = Kernel(
        text,
        "gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={**gemm_constants(False, True, tile_config), "STAGES": STAGES},
    )
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    operands = STAGES * (tile_config.block_m + tile_config.block_n) * 64 * 2
    return Prepared(
        kernel,
        tile_config.cluster_size,
        tile_config.threads,
        (*tiles, m, n, k, 1),
        tile_config.cluster_size,
        c,
        wanted,
        named(operands, "ring.full", "ring.empty"),
    )


def one_gemm(text: str, cluster: int = 1, layout: str = "nt", ping_pong: bool = False) -> Prepared:
    """Two clusters, two tiles of the output each, four blocks of K for three stages."""
    width = 64 if layout[1] == "t" else 64 * cluster
    tile_config = TileConfig(2, width, cluster, rows=128 if ping_pong else 64, ping_pong=ping_pong)
    m, n, k = 2 * cluster * tile_config.block_m - 56, 2 * tile_config.block_n - 24, 200
    drawn = np.random.default_rng(1)
    # All accumulators are exact in fp32, whatever the order.
    a, b = (
        drawn.integers(-4, 5, shape).astype(ml_dtypes.bfloat16)[..., :used]
        for shape, used in (((m, k), k), ((k, n), n))
    )
    transposed = (layout[0] == "t", layout[1] == "t")
    stored = [
        np.ascontiguousarray(matrix.T if is_transposed else matrix)
        for matrix, is_transposed in zip((a, b), transposed, strict=True)
    ]
    c = np.full((m, n), np.nan, np.float32)
    views = [_arrays.view(array) for array in (*stored, c)]
    tiles = gemm_tiles(views[0], views[1], views[2], tile_config, *transposed)
    kernel = Kernel(
        text,
        "gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={**gemm_constants(*transposed, tile_config), "STAGES": STAGES},
    )
    operands = STAGES * (tile_config.block_m + tile_config.block_n) * 64 * 2
    return Prepared(
        kernel,
        2 * cluster,
        128 * (1 + tile_config.consumers),
        (*tiles, m, n, k, 1),
        cluster if cluster > 1 else None,
        c,
        a.astype(np.float32) @ b.astype(np.float32),
        named(operands, "ring.full", "ring.empty"),
    )


def grouped(text: str) -> Prepared:
    """Four groups for two clusters: one ends before it starts, the last one after the arrays."""
    tile_config = TileConfig(1, 64, 2)
    rows, n, k = 160, 2 * tile_config.block_n - 24, 136
    drawn = np.random.default_rng(4)
    a, b = (
        drawn.integers(-4, 5, shape).astype(ml_dtypes.bfloat16) for shape in ((rows, k), (4, n, k))
    )
    c = np.full((rows, n), np.nan, np.float32)
    views = [_arrays.view(array) for array in (a, b, c)]
    tiles = grouped_tiles(views[0], views[1], views[2], tile_config, b_transposed=True)
    kernel = Kernel(
        text,
        "grouped_gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={**gemm_constants(False, True, tile_config), "STAGES": STAGES},
    )
    operands = STAGES * (tile_config.block_m + tile_config.block_n) * 64 * 2
    parts = [
        part.astype(np.float32) @ matrix.astype(np.float32).T
        for part, matrix in zip(np.split(a, [70, 70, 150]), b, strict=True)
    ]
    return Prepared(
        kernel,
        4,
        tile_config.threads,
        (*tiles, np.array([70, 60, 150, 999], np.int32), 4, rows, n, k, np.zeros(1, np.int32)),
        2,
        c,
        np.concatenate(parts),
        named(operands, "ring.full", "ring.empty"),
    )


def copy(text: str, source: Any, target: Any, tiles: tuple[int, ...], grid: int) -> Prepared:
    """A copy of as many tiles a side, innermost first."""
    arguments = (source, target, np.array((*tiles, 1, 1, 1, 1)[:5], np.int32).tobytes())
    return Prepared(
        Kernel(
            text,
            "copy",
            types={"Tile": source},
            constants={"STAGES": STAGES, "LOADS_AHEAD": LOADS_AHEAD},
        ),
        grid,
        32,
        arguments,
        None,
        target.array,
        source.array,
    )


def bulk(text: str) -> Prepared:
    """Eleven tiles for two blocks, the last one short."""
    source = np.random.default_rng(2).integers(0, 256, 10 * 1024 + 48, np.uint8)
    target = np.zeros_like(source)
    tiles = (BulkTile(source, 1024), BulkTile(target, 1024))
    prepared = copy(text, *tiles, (11,), 2)
    prepared.barriers.update(named(STAGES * 1024, "ring.full"))
    return prepared


def tiled(text: str) -> Prepared:
    """Fifteen tiles for two blocks, some beyond the edges."""
    source = np.random.default_rng(3).standard_normal((24, 72)).astype(np.float32)
    target = np.zeros_like(source)
    tiles = (create_tma_tile(source, (5, 32)), create_tma_tile(target, (5, 32)))
    prepared = copy(text, *tiles, (3, 5), 2)
    prepared.barriers.update(named(STAGES * 5 * 32 * 4, "ring.full"))
    return prepared


JOBS: dict[str, Any] = {
    "gemm": one_gemm,
    "pair": functools.partial(one_gemm, cluster=2),
    "ping_pong": functools.partial(one_gemm, ping_pong=True),
    "split": split,
    "grouped": grouped,
    "bulk": bulk,
    "tiled": tiled,
}

# --- defects ------------------------------------------------------------------------------------


def outcome(
    launch: EmulatedLaunch, policy: Policy, seed: int, *, races: bool = False
) -> Exception | None:
    try:
        with scheduled(policy, seed=seed, workers=1, races=races):
            launch()
    except (EmulatedDeadlock, EmulatedFault, EmulatedRace) as error:
        return error
    return None


@functools.cache
def choices_of(kernel: str) -> Choices:
    defects = tuple(mutation for mutation in MUTATIONS if mutation.kernel == kernel)
    return choices(whole_text(FILES[kernel]), defects)


@functools.cache
def built(kernel: str, text: str) -> tuple[Kernel, EmulatedLaunch]:
    prepared: Prepared = JOBS[kernel](text)
    return prepared.kernel, prepared.build()


def launch_with(mutation: Defect) -> EmulatedLaunch:
    found = choices_of(mutation.kernel)
    kernel, launch = built(mutation.kernel, found.text_with(mutation))
    found.choose(kernel, mutation)
    return launch


REPORTED = [mutation for mutation in MUTATIONS if mutation.reported != RACE]
RACES = [mutation for mutation in MUTATIONS if mutation.reported == RACE]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mutation", REPORTED, ids=lambda mutation: mutation.key)
def test_a_defect_is_reported_with_its_class_and_its_barrier(
    mutation: Defect,
) -> None:
    launch = launch_with(mutation)

    found = [outcome(launch, *order) for order in ORDERS]

    watched = [outcome(launch, *order, races=True) for order in RACE_ORDERS]
    assert any(watched) if mutation.some_orders else all(watched)
    reported = [error for error in found if error is not None]
    assert reported if mutation.some_orders else len(reported) == len(found)
    for error in reported:
        assert isinstance(error, mutation.reported), error
        assert re.search(mutation.says, str(error)), error


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mutation", RACES, ids=lambda mutation: mutation.key)
def test_a_race_is_found_whatever_the_order(
    mutation: Defect,
) -> None:
    launch = launch_with(mutation)

    found = [outcome(launch, *order, races=True) for order in RACE_ORDERS]

    assert mutation.some_orders or None not in found
    races = [str(error) for error in found if isinstance(error, EmulatedRace)]
    assert any(re.search(mutation.says, race) for race in races), found


def test_the_table_is_large_and_names_each_defect_once() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 40
    assert len(REPORTED) >= 25


# --- no defect ----------------------------------------------------------------------------------

SHIPPED: dict[str, tuple[str, Any]] = {
    **{
        f"gemm {layout} of {cluster}": (
            "gemm.cu",
            functools.partial(one_gemm, cluster=cluster, layout=layout),
        )
        for cluster, layout in ((1, "nt"), (1, "tn"), (2, "nt"), (2, "nn"))
    },
    "split": ("gemm.cu", split),
    "grouped": ("grouped_gemm.cu", grouped),
    "bulk": ("copy.cu", bulk),
    "tiled": ("copy.cu", tiled),
}


SEEDED: tuple[Policy, ...] = ("random", "adversarial")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("job", SHIPPED)
def test_shipped_kernels_are_silent_under_every_policy(job: str) -> None:
    file, prepare = SHIPPED[job]
    prepared: Prepared = prepare(whole_text(file))
    launch = prepared.build()
    fresh = prepared.output.copy()

    for policy, seed in [("round_robin", 0), *itertools.product(SEEDED, range(8))]:
        prepared.output[...] = fresh
        with scheduled(policy, seed=seed):
            launch()
        assert prepared.has_result(), (policy, seed)
