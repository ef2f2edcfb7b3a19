"""Defects planted in the shipped kernels are reported; without them the emulator says nothing."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, get_args

import ml_dtypes
import numpy as np
import pytest
from emulate.mutations import FILES, MUTATIONS
from emulate.shipped import whole_text
from planted import RACE, Defect
from planted_choices import choices

from tmaasync import (
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    Kernel,
    _arrays,
    create_tma_tile,
    emulate,
)
from tmaasync.emulate import EmulatedLaunch, scheduled
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_constants, gemm_tiles

ORDERS: tuple[tuple[Policy, int], ...] = tuple((policy, 0) for policy in get_args(Policy))
# All accesses are searched in these: a search takes longer than a launch.
RACE_ORDERS = ORDERS[:2]
STAGES, LOADS_AHEAD = 3, 2
# --- the main jobs, small -----------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """A kernel ready to run, what it writes, and what that must be."""

    kernel: Kernel
    grid: int
    block: int
    arguments: tuple[Any, ...]
    cluster: int | None
    output: Any
    wanted: Any

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


def one_gemm(text: str, cluster: int = 1, ping_pong: bool = False) -> Prepared:
    """Two clusters, two tiles of the output each, four blocks of K for three stages."""
    tile_config = TileConfig(2, 64, cluster, rows=128 if ping_pong else 64, ping_pong=ping_pong)
    m, n, k = 2 * cluster * tile_config.block_m - 56, 2 * tile_config.block_n - 24, 200
    drawn = np.random.default_rng(1)
    # All accumulators are exact in fp32, whatever the order.
    a, b = (drawn.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    views = [_arrays.view(array) for array in (a, b, c)]
    tiles = gemm_tiles(views[0], views[1], views[2], tile_config, False, True)
    kernel = Kernel(
        text,
        "gemm",
        types=dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True)),
        constants={**gemm_constants(False, True, tile_config), "STAGES": STAGES},
    )
    return Prepared(
        kernel,
        2 * cluster,
        128 * (1 + tile_config.consumers),
        (*tiles, m, n, k, 1),
        cluster if cluster > 1 else None,
        c,
        a.astype(np.float32) @ b.astype(np.float32).T,
    )


def tiled(text: str) -> Prepared:
    """Fifteen tiles for two blocks, some beyond the edges."""
    source = np.random.default_rng(3).standard_normal((24, 72)).astype(np.float32)
    target = np.zeros_like(source)
    tiles = (create_tma_tile(source, (5, 32)), create_tma_tile(target, (5, 32)))
    kernel = Kernel(
        text,
        "copy",
        types={"Tile": tiles[0]},
        constants={"STAGES": STAGES, "LOADS_AHEAD": LOADS_AHEAD},
    )
    sides = np.array((3, 5, 1, 1, 1), np.int32).tobytes()
    return Prepared(kernel, 2, 32, (*tiles, sides), None, target, source)


JOBS: dict[str, Any] = {
    "gemm": one_gemm,
    "pair": functools.partial(one_gemm, cluster=2),
    "ping_pong": functools.partial(one_gemm, ping_pong=True),
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
def built(job: str, text: str, arch: str) -> tuple[Kernel, Prepared, EmulatedLaunch]:
    del arch  # of the emulated chip
    prepared: Prepared = JOBS[job](text)
    return prepared.kernel, prepared, prepared.build()


def launch_with(
    mutation: Defect | None, job: str, arch: str = "sm_90a"
) -> tuple[Prepared, EmulatedLaunch]:
    found = choices(whole_text(FILES[job]), tuple(one for one in MUTATIONS if one.kernel == job))
    with emulate.chip(arch):
        kernel, prepared, launch = built(job, found.text_with(mutation), arch)
        found.choose(kernel, mutation)
    return prepared, launch


REPORTED = [mutation for mutation in MUTATIONS if mutation.reported != RACE]
RACES = [mutation for mutation in MUTATIONS if mutation.reported == RACE]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("mutation", REPORTED, ids=lambda mutation: mutation.key)
def test_a_defect_is_reported_with_its_class_and_its_barrier(mutation: Defect) -> None:
    _, launch = launch_with(mutation, mutation.kernel)

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
def test_a_race_is_found_whatever_the_order(mutation: Defect) -> None:
    _, launch = launch_with(mutation, mutation.kernel)

    found = [outcome(launch, *order, races=True) for order in RACE_ORDERS]

    assert mutation.some_orders or None not in found
    races = [str(error) for error in found if isinstance(error, EmulatedRace)]
    assert any(re.search(mutation.says, race) for race in races), found


# mma.sync is complete on return, and takes no descriptor.
OF_WGMMA = (
    "lanes give wgmma other rows",
    "a stage is released while wgmma reads it",
    "accumulators are read before wgmma is done",
)
OF_RINGS = [one for one in MUTATIONS if one.kernel != "tiled" and one.name not in OF_WGMMA]


@pytest.mark.slow
@pytest.mark.parametrize("mutation", OF_RINGS, ids=lambda mutation: mutation.key)
def test_a_defect_is_reported_where_warps_multiply(mutation: Defect) -> None:
    _, launch = launch_with(mutation, mutation.kernel, "sm_100a")

    found = [outcome(launch, *order, races=True) for order in RACE_ORDERS]

    assert any(found) if mutation.some_orders else all(found)


# --- no defect ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_shipped_kernels_are_silent_under_every_policy(arch: str, job: str) -> None:
    prepared, launch = launch_with(None, job, arch)
    fresh = prepared.output.copy()

    for policy, seed in (*ORDERS, ("random", 1)):
        prepared.output[...] = fresh
        with scheduled(policy, seed=seed):
            launch()
        assert prepared.has_result(), (policy, seed)
