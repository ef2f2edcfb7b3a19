"""Whole tiles: every rank, width and swizzle, first and last, shapes that do not divide."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.tile_oracle import loaded, stored

from tmaasync import (
    CachePolicy,
    Kernel,
    L2Promotion,
    OOBFill,
    ReduceOp,
    Swizzle,
    TMATensorTile,
    create_tma_tile,
)
from tmaasync._elements import element

SOURCE = Path(__file__).with_name("tiles.cu")
LOAD, LOAD_ELECT, LOAD_PREFETCHED, STORE, STORE_ELECT, REDUCE = range(6)
POISON = 0xA5
NAN_FILL = 0x7FF7  # per 16 bits, whatever the type (measured on an H200)


@dataclass(frozen=True)
class Case:
    """A tile of an array; ``pitch`` is the innermost extent of the memory after it."""

    dtype: str
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    pitch: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        sides = "x".join(map(str, self.tile))
        return f"{self.dtype}-{len(self.shape)}d-{sides}-{self.swizzle.name}"

    @property
    def stored_as(self) -> np.dtype[Any]:
        return np.dtype(f"u{element(self.dtype).itemsize}")

    def memory(self) -> np.ndarray[Any, Any]:
        """The bits of the whole memory: random, or small numbers that TF32 holds exactly."""
        shape = (*self.shape[:-1], self.pitch or self.shape[-1])
        rng = np.random.default_rng(len(self.dtype) + sum(shape))
        if self.dtype.startswith("tfloat32"):
            drawn = rng.integers(-512, 512, shape).astype(np.float32)
            return drawn.view(np.uint32)
        return rng.integers(
            0, 256, (*shape[:-1], shape[-1] * self.stored_as.itemsize), np.uint8
        ).view(self.stored_as)

    def window(self, memory: Any) -> Any:
        return memory[..., : self.shape[-1]]

    def make_tile(self, array: Any) -> TMATensorTile:
        return create_tma_tile(
            array, self.tile, swizzle=self.swizzle, dtype=self.dtype, **self.options
        )


CASES = [
    # Every rank, with sides that divide and sides that do not.
    Case("uint8", (1000,), (256,), pitch=1008),
    Case("float32", (96, 64), (32, 32)),
    Case("int16", (70, 100), (32, 64), pitch=104),
    Case("float64", (5, 11, 18), (2, 4, 16)),
    Case("uint16", (3, 4, 5, 40), (2, 2, 4, 32)),
    Case("int32", (2, 3, 4, 5, 12), (1, 2, 2, 4, 8)),
    # Every swizzle at every element width, in one chunk and in several.
    Case("int8", (40, 200), (16, 64), Swizzle.B32, pitch=208),
    Case("float8_e4m3fn", (40, 200), (16, 128), Swizzle.B64, pitch=208),
    Case("float8_e5m2", (40, 400), (16, 256), Swizzle.B128),
    Case("bfloat16", (33, 72), (16, 32), Swizzle.B32),
    Case("float16", (33, 72), (16, 64), Swizzle.B64),
    Case("float16", (100, 200), (64, 128), Swizzle.B128),
    Case("uint32", (33, 36), (16, 16), Swizzle.B32),
    Case("float32", (33, 52), (16, 32), Swizzle.B64),
    Case("tfloat32", (33, 68), (16, 64), Swizzle.B128),
    Case("uint64", (21, 22), (16, 8), Swizzle.B32),
    Case("int64", (21, 22), (16, 16), Swizzle.B64),
    Case("float64", (21, 50), (8, 32), Swizzle.B128),
    # Swizzle at higher ranks: the pattern follows the address, not the dimension.
    Case("bfloat16", (3, 5, 7, 80), (2, 2, 4, 64), Swizzle.B128),
    Case("float32", (2, 3, 3, 5, 20), (1, 2, 2, 4, 16), Swizzle.B64),
    # Boxes that do not divide the tile, promotion, NaN fill, element strides.
    Case("float32", (50, 64), (20, 48), options={"box_shape": (8, 32)}),
    Case(
        "float32",
        (30, 44),
        (16, 32),
        Swizzle.B128,
        options={"l2_promotion": L2Promotion.B64, "oob_fill": OOBFill.NAN},
    ),
    Case("float16", (9, 30, 32), (2, 8, 32), options={"element_strides": (2, 3, 1)}),
]


@functools.cache
def kernel_for(cuda_type: str, stores: bool = True, reduces: bool = False) -> Kernel:
    constants = {"STORES": stores, "REDUCES": reduces}
    return Kernel(SOURCE, types={"Tile": cuda_type}, constants=constants)


def places_of(case: Case, tile: TMATensorTile, *, outside: bool) -> list[tuple[int, ...]]:
    """Where tiles start, outermost first: all that cover the array, and some across its borders."""
    strides = case.options.get("element_strides", (1,) * len(case.shape))
    # Whole boxes are stored: where they overhang the tile, neighbours would write the same place.
    sides = case.tile if outside else whole_boxes(tile)
    steps = [side * stride for side, stride in zip(sides, strides, strict=True)]
    covering = [
        tuple(index * step for index, step in zip(grid, steps, strict=True))
        for grid in itertools.product(*map(range, tile.tiles_per_side))
    ]
    if not outside:
        return covering
    granule = max(1, 16 // case.stored_as.itemsize)
    before = (*(-1 for _ in case.shape[:-1]), -granule)
    beyond = (*case.shape[:-1], -(-case.shape[-1] // granule) * granule)
    return [*covering, before, beyond, (*before[:-1], granule)]


def is_whole(tile: TMATensorTile) -> bool:
    """Whether its boxes divide the tile. No other tile may be stored."""
    return list(tile.tile_shape) == whole_boxes(tile)


def whole_boxes(tile: TMATensorTile) -> list[int]:
    """The tile's sides, rounded up to boxes."""
    pairs = zip(tile.tile_shape, tile.box_shape, strict=True)
    return [-(-side // part) * part for side, part in pairs]


def launch(
    backend: Any,
    tile: TMATensorTile,
    places: Sequence[tuple[int, ...]],
    images: Any,
    operation: int,
    op: ReduceOp = ReduceOp.ADD,
    policy: CachePolicy = CachePolicy.EVICT_NORMAL,
) -> None:
    innermost_first = np.array([place[::-1] for place in places], np.int32)
    arguments = (
        tile,
        backend.array(innermost_first),
        images,
        operation,
        int(op),
        np.uint64(policy.value),
    )
    kernel = kernel_for(tile.cuda_type, is_whole(tile), operation == REDUCE)
    kernel(len(places), 32, arguments)


def load(
    backend: Any, case: Case, operation: int = LOAD, policy: CachePolicy = CachePolicy.EVICT_NORMAL
) -> Any:
    """What lay in shared memory after each place's load."""
    tile = case.make_tile(case.window(backend.array(case.memory())))
    places = places_of(case, tile, outside=True)
    images = backend.array(np.full((len(places), tile.tile_bytes), 0xCC, np.uint8))
    launch(backend, tile, places, images, operation, policy=policy)
    return backend.host(images)


@pytest.mark.sampled(3)
@pytest.mark.on_the_cpu(5, 8, 21)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_loads(backend: Any, case: Case) -> None:
    memory = case.memory()
    tile = case.make_tile(case.window(memory))
    places = places_of(case, tile, outside=True)
    wanted = [
        loaded(
            case.window(memory),
            place,
            case.tile,
            tile.box_shape,
            span_bits=int(case.swizzle),
            strides=case.options.get("element_strides"),
            fill=NAN_FILL if case.options.get("oob_fill") is OOBFill.NAN else 0,
        )
        for place in places
    ]

    for operation, policy in (
        (LOAD, CachePolicy.EVICT_NORMAL),
        (LOAD_ELECT, CachePolicy.EVICT_FIRST),
        (LOAD_PREFETCHED, CachePolicy.EVICT_LAST),
    ):
        got = load(backend, case, operation, policy)

        assert [place for place, *pair in zip(places, got, wanted, strict=True)
                if not np.array_equal(*pair)] == []  # fmt: skip


# The effect of element strides on stores was not measured.
STORED = [case for case in CASES if not case.options.keys() & {"element_strides", "box_shape"}]


def store(
    backend: Any, case: Case, operation: int = STORE, policy: CachePolicy = CachePolicy.EVICT_NORMAL
) -> Any:
    """The memory after tiles of random bits were stored all over it."""
    memory = backend.array(np.full_like(case.memory(), POISON))
    tile = case.make_tile(case.window(memory))
    places = places_of(case, tile, outside=False)
    images = backend.array(_images(len(places), tile.tile_bytes))
    launch(backend, tile, places, images, operation, policy=policy)
    return backend.host(memory)


@pytest.mark.sampled(3)
@pytest.mark.on_the_cpu(3, 8, 18)
@pytest.mark.parametrize("case", STORED, ids=str)
def test_stores(backend: Any, case: Case) -> None:
    wanted = np.full_like(case.memory(), POISON)
    tile = case.make_tile(case.window(wanted))
    places = places_of(case, tile, outside=False)
    for place, image in zip(places, _images(len(places), tile.tile_bytes), strict=True):
        _store(case, wanted, image, place, tile, lambda old, given: given)

    for operation, policy in (
        (STORE, CachePolicy.EVICT_LAST),
        (STORE_ELECT, CachePolicy.EVICT_FIRST),
    ):
        _assert_stored(case, store(backend, case, operation, policy), wanted)


def _images(count: int, size: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(size).integers(0, 256, (count, size), np.uint8)


def _store(
    case: Case, memory: Any, image: Any, place: tuple[int, ...], tile: TMATensorTile, combine: Any
) -> None:
    view = case.window(memory)
    stored(view, image, place, case.tile, tile.box_shape, combine, span_bits=int(case.swizzle))


def _assert_stored(case: Case, got: Any, wanted: Any) -> None:
    """Equal, except after a row: the rest of its last 16 bytes may be written (measured)."""
    granule = max(1, 16 // case.stored_as.itemsize)
    touched = -(-case.shape[-1] // granule) * granule
    assert np.array_equal(case.window(got), case.window(wanted))
    assert np.array_equal(got[..., touched:], wanted[..., touched:])


# Whole numbers small enough that every sum is exact in the type.
COMBINE: dict[ReduceOp, Any] = {
    ReduceOp.ADD: lambda old, given: old + given,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.INC: lambda old, given: np.where(old >= given, 0, old + 1),
    ReduceOp.DEC: lambda old, given: np.where((old == 0) | (old > given), given, old - 1),
    ReduceOp.AND: np.bitwise_and,
    ReduceOp.OR: np.bitwise_or,
    ReduceOp.XOR: np.bitwise_xor,
}
INTEGER_OPS = (ReduceOp.ADD, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR)
REDUCED = [
    (Case("uint32", (1000,), (128,)), tuple(ReduceOp)),
    (Case("int32", (40, 60), (16, 32)), INTEGER_OPS),
    (Case("uint64", (21, 22), (16, 16), Swizzle.B64), INTEGER_OPS),
    (Case("int64", (4, 5, 18), (2, 4, 8)), (ReduceOp.MIN, ReduceOp.MAX)),
    (Case("float16", (3, 5, 7, 80), (2, 2, 4, 64), Swizzle.B128), INTEGER_OPS[:3]),
    (Case("bfloat16", (33, 136), (16, 128), Swizzle.B128), INTEGER_OPS[:3]),
    (Case("float32", (2, 3, 4, 5, 12), (1, 2, 2, 4, 8)), (ReduceOp.ADD,)),
    (Case("float64", (21, 50), (8, 32), Swizzle.B128), (ReduceOp.ADD,)),
]


def reduce(backend: Any, case: Case, op: ReduceOp) -> tuple[Any, Any]:
    """The memory after small numbers were combined with others all over it, and as it must be."""
    kind = np.dtype(getattr(ml_dtypes, case.dtype, case.dtype))
    rng = np.random.default_rng(5 + op)
    wanted = rng.integers(0, 64, case.shape).astype(kind)
    memory = backend.array(wanted.view(case.stored_as))
    tile = case.make_tile(memory)
    places = places_of(case, tile, outside=False)
    numbers = rng.integers(0, 64, (len(places), tile.tile_bytes // kind.itemsize)).astype(kind)
    images = numbers.view(np.uint8)

    launch(backend, tile, places, backend.array(images), REDUCE, op)

    for place, image in zip(places, images, strict=True):
        _store(case, wanted, image, place, tile, COMBINE[op])
    return backend.host(memory).view(kind), wanted


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 5)
@pytest.mark.parametrize(("case", "ops"), REDUCED, ids=lambda value: str(value)[:40])
def test_reductions(backend: Any, case: Case, ops: tuple[ReduceOp, ...]) -> None:
    for op in ops:
        got, wanted = reduce(backend, case, op)

        assert np.array_equal(got.astype(np.float64), wanted.astype(np.float64)), op
