"""Emulated devices with peer access, whose races are searched, and arrays on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tmaasync import emulate, enable_peer_access
from tmaasync.emulate.launch.world import World
from tmaasync.ops._ranks import Workspace


@contextmanager
def world_of(ranks: int, seed: int = 0) -> Iterator[World]:
    with emulate.scheduled("random", seed=seed, races=True), emulate.devices(ranks) as world:
        enable_peer_access(range(ranks))
        yield world


def arrays_on(world: World, arrays: list[Any]) -> list[Any]:
    return [device.array(one) for device, one in zip(world, arrays, strict=True)]


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
