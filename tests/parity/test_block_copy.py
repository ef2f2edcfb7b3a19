"""Blocks copy tiles by whatever plan_copy chose: byte for byte, and touch nothing else."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from copy_problems import Problem, buffer_of, drawn
from parity.backends import Backend

from tmaasync import ArgumentError, CachePolicy, CopyPlan, Kernel, Swizzle

SOURCE = Path(__file__).with_name("block_copy.cu")
POISON = 0xA5
PLACES = np.dtype([("first", "<i4", 5), ("step", "<i4", 5), ("count", "<i4", 5)])
BLOCKS = (32, 64, (8, 4, 2), 96, (32, 3), 128)
MOST_BLOCKS = 12
_MOST_TRIES = 1_000_000
COUNTS = {"Emulate": 40, "Cuda": 600}


@dataclass(frozen=True)
class Way:
    """How one leg is to be done, and the options that bring a plan to it."""

    mechanism: str
    access_bytes: int = 0
    dtype: Any = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A build: a tile, what it holds, and a way in and out."""

    dtype: Any
    tile: tuple[int, ...]
    load: Way
    store: Way
    swizzle: Swizzle = Swizzle.NONE
    cluster: int = 1

    def __str__(self) -> str:
        ways = (f"{way.mechanism}{way.access_bytes or ''}" for way in (self.load, self.store))
        return "-".join((*ways, f"{len(self.tile)}d", np.dtype(self.dtype).name))


SYNC = {"prefer": "sync"}
FIRST, LAST = ({"eviction_policy": p} for p in (CachePolicy.EVICT_FIRST, CachePolicy.EVICT_LAST))
CASES = [
    Case(np.float32, (4, 32), Way("bulk", options=FIRST), Way("bulk")),
    Case(np.float16, (2, 4, 128), Way("tensor"), Way("tensor", options=LAST), Swizzle.B128),
    Case(np.float32, (3, 20), Way("loop", 16, options=SYNC), Way("bulk", options=LAST)),
    Case(
        np.float32,
        (8, 16),
        Way("multicast", options={"cluster_mask": 0b1010}),
        Way("loop", 16, options=SYNC),
        Swizzle.B64,
        cluster=4,
    ),
    Case(
        np.float16,
        (8, 32),
        Way("cp_async", 16, options={"disable_tma": True}),
        Way("loop", 8),
        Swizzle.B32,
    ),
    Case(np.int64, (48,), Way("cp_async", 4), Way("loop", 4)),
    Case(
        np.int16,
        (2, 3, 2, 10),
        Way("cp_async", 4, options={"coalesced_width": 2, "prefer": "cp_async"}),
        Way("loop", 2),
    ),
    Case(np.int32, (1, 2, 2, 3, 7), Way("loop", 1), Way("loop", 2)),
    Case(
        ml_dtypes.bfloat16,
        (5, 16),
        Way("loop", 8, np.float16, {"coalesced_width": 4}),
        Way("loop", 16, np.float32),
    ),
]


@functools.cache
def kernel_for(source: str, target: str, cluster: int) -> Kernel:
    return Kernel(
        SOURCE, types={"Source": source, "Target": target}, constants={"CLUSTER": cluster}
    )


# --- problems ---------------------------------------------------------------------------------


class Leg:
    """An array on a back end, with its memory, and the plan for it."""

    def __init__(self, backend: Backend, case: Case, way: Way, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.host = buffer_of(problem.buffer_bytes)
        self.host[:] = POISON if problem.is_store else _random_bytes(problem, seed)
        self.memory, self.array = _placed(backend, self.host, problem)
        self.plan: CopyPlan = problem.plan(self.array, **_options(case, way))

    @property
    def view(self) -> Any:
        return self.problem.array(self.host)

    @property
    def places(self) -> list[tuple[int, ...]]:
        """Where tiles start, in the order in which the kernel counts them."""
        return list(itertools.product(*self.problem.starts))

    @property
    def argument(self) -> Any:
        found = np.zeros((), PLACES)
        for dim, places in enumerate(reversed(self.problem.starts)):
            for name, value in zip(
                PLACES.names or (), (places[0], places.step, len(places)), strict=True
            ):
                found[name][dim] = value
        return found


def kernel_of(backend: Backend, case: Case) -> Kernel:
    """The kernel that a case is for."""
    load = next(_legs(backend, case, case.load, is_store=False, seed=1))
    target = next(_legs(backend, case, case.store, is_store=True, seed=2))
    return kernel_for(load.plan.cuda_type, target.plan.cuda_type, case.cluster)


def _options(case: Case, way: Way) -> dict[str, Any]:
    converted = {} if way.dtype is None else {"shared_dtype": case.dtype}
    return {**way.options, **converted}


def _random_bytes(problem: Problem, seed: int) -> Any:
    """Any bytes; finite numbers where they will be converted."""
    rng = np.random.default_rng(seed)
    if np.dtype(problem.dtype).kind != "f":
        return rng.integers(0, 256, problem.buffer_bytes, np.uint8)
    host = np.zeros(problem.buffer_bytes, np.uint8)
    view = problem.array(host)
    view[...] = rng.standard_normal(problem.shape).astype(problem.dtype)
    return host


def _placed(backend: Backend, host: Any, problem: Problem) -> tuple[Any, Any]:
    """The bytes at a multiple of 256 in the back end's memory, and the array in them."""
    if backend.module is np:
        memory = buffer_of(host.size)
        memory[:] = host
        return memory, problem.array(memory)
    memory = backend.array(host)
    pointer = memory.data + problem.offset
    array = backend.module.ndarray(problem.shape, problem.dtype, pointer, problem.strides)
    return memory, array


def _legs(backend: Backend, case: Case, way: Way, *, is_store: bool, seed: int) -> Iterator[Leg]:
    """Random arrays for which the plan is the one that the case needs."""
    rng = random.Random(seed)
    dtype = case.dtype if way.dtype is None else way.dtype
    for number in range(_MOST_TRIES):
        problem = drawn(rng, dtype, case.tile, case.swizzle, is_store=is_store)
        if not _is_wanted(problem, way, case):
            continue
        yield Leg(backend, case, way, problem, number)


def _is_wanted(problem: Problem, way: Way, case: Case) -> bool:
    """Small, within reach, no two tiles stored to one place, and planned in the wanted way."""
    trios = list(zip(problem.starts, problem.tile, problem.shape, strict=True))
    if math.prod(len(places) for places, _, _ in trios) > MOST_BLOCKS:
        return False
    if not all(any(-side < at < extent for at in places) for places, side, extent in trios):
        return False
    if problem.is_store and any(len(at) > 1 and at.step < side for at, side, _ in trios):
        return False
    try:
        plan = problem.plan(problem.array(buffer_of(problem.buffer_bytes)), **_options(case, way))
    except ArgumentError:  # a multicast that cannot be
        return False
    return (plan.mechanism, plan.access_bytes) == (way.mechanism, way.access_bytes)


# --- what must come of it ---------------------------------------------------------------------


def loaded(view: Any, at: tuple[int, ...], case: Case) -> Any:
    """The tile that starts there, zeros where the array has no element."""
    tile = np.zeros(case.tile, view.dtype)
    within, inside = _inside(view.shape, at, case.tile)
    tile[within] = view[inside]
    return tile.astype(case.dtype)


def store(view: Any, at: tuple[int, ...], tile: Any) -> None:
    within, inside = _inside(view.shape, at, tile.shape)
    view[inside] = tile[within].astype(view.dtype)


def _inside(
    shape: tuple[int, ...], at: tuple[int, ...], sides: tuple[int, ...]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a tile that the array has: in the tile, and in the array."""
    trios = zip(shape, at, sides, strict=True)
    bounds = [(max(start, 0), max(min(start + side, n), 0), start) for n, start, side in trios]
    within = tuple(slice(max(low - start, 0), max(high - start, 0)) for low, high, start in bounds)
    return within, tuple(slice(low, max(high, low)) for low, high, _ in bounds)


def run(backend: Backend, case: Case, load: Leg, target: Leg, number: int) -> list[str]:
    """One launch; returns what is wrong."""
    loads, stores = load.places, target.places
    tiles, in_steps = max(len(loads), len(stores)), number % 2
    itemsize = np.dtype(case.dtype).itemsize
    images = backend.array(np.full((tiles * case.cluster, math.prod(case.tile) * itemsize), POISON,
                                   np.uint8))  # fmt: skip
    kernel_for(load.plan.cuda_type, target.plan.cuda_type, case.cluster)(
        max(1, tiles // (1 + number % 3)) * case.cluster,
        BLOCKS[number % len(BLOCKS)],
        (
            load.plan, target.plan, load.argument, target.argument, len(loads), len(stores),
            tiles, in_steps, images,
        ),
        cluster=None if case.cluster == 1 else case.cluster,
    )  # fmt: skip
    wanted = [loaded(load.view, loads[tile % len(loads)], case) for tile in range(tiles)]
    for at, tile in zip(stores, wanted, strict=False):
        # In one call the kernel turns tiles around before it stores them.
        store(target.view, at, tile if in_steps else tile.ravel()[::-1].reshape(case.tile))
    rows = [tile.reshape(-1).view(np.uint8) for tile in wanted for _ in range(case.cluster)]
    wrong = []
    if not np.array_equal(backend.host(images), np.stack(rows)):
        wrong.append(f"{load.plan}: {load.problem}")
    if not np.array_equal(backend.host(target.memory), target.host):
        wrong.append(f"{target.plan}: {target.problem}")
    if not np.array_equal(backend.host(load.memory), load.host):
        wrong.append(f"the source of {load.problem}")
    return wrong


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 2, 3, 6, 8)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_random_tiles_get_in_and_out(backend: Backend, case: Case) -> None:
    count = COUNTS[type(backend).__name__]
    pairs = zip(
        _legs(backend, case, case.load, is_store=False, seed=1),
        _legs(backend, case, case.store, is_store=True, seed=2),
        strict=True,
    )

    wrong = [
        problem
        for number, (load, target) in enumerate(itertools.islice(pairs, count))
        for problem in run(backend, case, load, target, number)
    ]

    assert wrong == []
