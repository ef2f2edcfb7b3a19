"""Emulated devices with peer access, whose races are searched, and arrays on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import emulate, enable_peer_access
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._ranks import Workspace

BF16 = ml_dtypes.bfloat16


@contextmanager
def world_of(ranks: int, seed: int = 0, policy: Policy = "random") -> Iterator[World]:
    with emulate.scheduled(policy, seed=seed, races=True), peers(ranks) as world:
        yield world


@contextmanager
def peers(ranks: int) -> Iterator[World]:
    with emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        yield world


_CONFIGS: list[dict[str, Any]] = [
    {"consumers": 2, "cluster": 2},
    {"consumers": 2, "cluster": 2, "side_by_side": True},
    {"consumers": 2, "rows": 128},
    {"consumers": 2, "rows": 128, "ping_pong": True},
    {"consumers": 3},
    {"consumers": 1, "group_m": 1},
    {"consumers": 1, "cluster": 4},
]


FEW_SEEDS = {"all-gather": range(7, 11), "reduce-scatter": range(10, 14)}
"""Seeds of `random_world`: together each tile config, each policy, and each number of ranks."""


@contextmanager
def random_world(seed: int) -> Iterator[tuple[World, np.random.Generator]]:
    """Return a world of 2 to 5 ranks, with one of the tile configs and one of the policies."""
    rng = np.random.default_rng(seed)
    ranks, config = int(rng.choice([2, 3, 4, 5])), _CONFIGS[seed % len(_CONFIGS)]
    policies: tuple[Policy, ...] = ("random", "adversarial", "round_robin")
    with (
        world_of(ranks, seed, policies[seed % 3]) as world,
        tile_configs(lambda chosen: type(chosen)(**{"block_n": 64, **config})),
    ):
        yield world, rng


def arrays_on(world: World, arrays: list[Any]) -> list[Any]:
    return [device.array(one) for device, one in zip(world, arrays, strict=True)]


def k_major_on(world: World, b: list[Any]) -> list[Any]:
    """Return matrices [K, N] on their devices, with K contiguous."""
    return [one.T for one in arrays_on(world, [one.T for one in b])]


def poisoned(world: World, shapes: Sequence[tuple[int, ...]], dtype: Any) -> list[Any]:
    return arrays_on(world, [np.full(shape, np.nan, dtype) for shape in shapes])


def poison_buffers(world: World) -> None:
    """Fill what earlier calls have gathered with NaN."""
    world.synchronize()
    spaces = [one for one in world[0].kept.values() if isinstance(one, Workspace)]
    assert spaces
    for halves in (both for one in spaces for both in one.halves):
        memory: Any = halves[0].owner
        memory[...] = 0xFF


def drawn(rng: np.random.Generator, rows: int, columns: int, dtype: Any = BF16) -> Any:
    return rng.standard_normal((rows, columns)).astype(dtype)


def is_sum_of_matmuls(found: Any, a: list[Any], b: list[Any]) -> bool:
    """Compare the sum over all ranks with float64. Every rank may round what it sends."""
    terms = [x.astype(np.float64) @ y.astype(np.float64) for x, y in zip(a, b, strict=True)]
    wanted, scale = sum(terms), sum(map(abs, terms))
    depth = sum(one.shape[1] for one in a)
    error = abs(np.asarray(found, np.float64) - wanted)
    bound = 2.0**-7 * scale + 2.0**-7 * np.sqrt(depth)
    return found.shape == wanted.shape and bool((error <= bound).all())
