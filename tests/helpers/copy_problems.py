"""Random copies between an array and shared memory, and what the hardware allows of each.

The judgement here is by brute force: every address that a mechanism would form is written down and
looked at. It shares nothing with `plan_copy` but `TensorMapSpec.violations`, whose verdicts
agree with the driver on the H200 (tests/tensormap/test_spec.py), and `tile_offset`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from arrays_in_memory import aligned

from tmaasync import CopyPlan, Swizzle, TensorMapSpec, plan_copy
from tmaasync._elements import element
from tmaasync.swizzle import tile_offset

DTYPES: tuple[Any, ...] = (
    np.uint8, np.bool_, ml_dtypes.float8_e4m3fn, np.int16, np.float16, ml_dtypes.bfloat16,
    np.int32, np.float32, np.int64, np.float64,
)  # fmt: skip
_MOST_ELEMENTS = 4000
_SLACK = 256

Starts = tuple[range, ...]


@dataclass(frozen=True)
class Problem:
    """An array somewhere in a buffer whose start is a multiple of 256, and the tiles of it."""

    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    buffer_bytes: int
    tile: tuple[int, ...]
    swizzle: Swizzle
    starts: Starts
    is_store: bool

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.dtype).itemsize)

    def array(self, buffer: Any) -> Any:
        """The array in a buffer of bytes."""
        return np.ndarray(self.shape, self.dtype, buffer, self.offset, self.strides)

    def plan(self, array: Any, **options: Any) -> CopyPlan:
        ends: Any = ("shared", array) if self.is_store else (array, "shared")
        plan: CopyPlan = plan_copy(
            *ends, tile_shape=self.tile, swizzle=self.swizzle, starts=self.starts, **options
        )
        return plan


def buffer_of(size: int) -> np.ndarray[Any, Any]:
    """Bytes that start at a multiple of 256."""
    found: np.ndarray[Any, Any] = aligned(size, np.uint8, alignment=_SLACK)
    return found


# --- drawing ----------------------------------------------------------------------------------


def problem(number: int) -> Problem:
    """The problem of this number."""
    rng = random.Random(number)
    while True:
        found = _draw(rng)
        copies = math.prod(map(len, found.starts))
        is_small = copies * math.prod(found.tile) <= _MOST_ELEMENTS
        if is_small and _fits_shared_memory(found) and _reaches_the_array(found):
            return found


def _reaches_the_array(problem: Problem) -> bool:
    trios = zip(problem.starts, problem.tile, problem.shape, strict=True)
    return all(any(-side < at < extent for at in places) for places, side, extent in trios)


def _fits_shared_memory(problem: Problem) -> bool:
    """Swizzled boxes each start at a multiple of 128 bytes."""
    box = box_of(problem)
    is_one = all(side <= part for side, part in zip(problem.tile, box, strict=True))
    return is_one or math.prod(box) * problem.itemsize % 128 == 0


def _draw(rng: random.Random) -> Problem:
    dtype = rng.choice(DTYPES)
    rank = rng.choice((1, 1, 2, 2, 2, 2, 3, 3, 4, 5))
    swizzle = rng.choice((Swizzle.NONE,) * 5 + (Swizzle.B32, Swizzle.B64, Swizzle.B128))
    tile = _tile(rng, rank, int(np.dtype(dtype).itemsize), swizzle)
    return drawn(rng, dtype, tile, swizzle, is_store=rng.random() < 0.4)


def drawn(
    rng: random.Random, dtype: Any, tile: tuple[int, ...], swizzle: Swizzle, *, is_store: bool
) -> Problem:
    """A problem for a given tile."""
    itemsize = int(np.dtype(dtype).itemsize)
    granule = max(1, 16 // itemsize)
    shape = [rng.choice((side, 2 * side, rng.randint(1, 2 * side + 1))) for side in tile]
    if rng.random() < 0.6:
        shape[-1] = -(-shape[-1] // granule) * granule
    strides, size = _strides(rng, shape, itemsize, is_store)
    low = -sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if stride < 0)
    offset = rng.choice((0, 0, 0, 16, 64, 8, 4, itemsize, rng.randrange(32)))
    return Problem(
        dtype, tuple(shape), strides, low + offset, size + offset + 32, tile, swizzle,
        _starts(rng, tile, shape, granule), is_store,
    )  # fmt: skip


def _tile(rng: random.Random, rank: int, itemsize: int, swizzle: Swizzle) -> tuple[int, ...]:
    granule = max(1, 16 // itemsize)
    if swizzle is not Swizzle.NONE:
        last = swizzle.span_bytes // itemsize * rng.choice((1, 1, 2))
    elif rng.random() < 0.7:
        last = granule * rng.randint(1, 6)
    else:
        last = rng.choice((rng.randint(1, 40), 300, 512))
    return (*(rng.choice((1, 1, 2, 3, 4, 8)) for _ in range(rank - 1)), last)


def _strides(
    rng: random.Random, shape: list[int], itemsize: int, is_store: bool
) -> tuple[tuple[int, ...], int]:
    """Strides in bytes and what they span: dense, padded, transposed, reversed, stepped, zero."""
    dims = list(range(len(shape)))
    if rng.random() < 0.12:
        rng.shuffle(dims)
    padding = rng.choice(("none", "none", "sector", "sector", "element", "byte"))
    strides = [0] * len(shape)
    step = itemsize * rng.choice((1, 1, 1, 1, 1, 1, 1, 2))
    for dim in reversed(dims):
        strides[dim] = step
        step *= shape[dim]
        if padding == "sector":
            step = -(-step // 16) * 16 + 16 * rng.randint(0, 2)
        elif padding == "element":
            step += itemsize * rng.randint(0, 3)
        elif padding == "byte":
            step += rng.randint(0, 3)
    signs = (1,) * 93 + (-1,) * 4 + ((1,) if is_store else (0,)) * 3
    strides = [stride * rng.choice(signs) for stride in strides]
    size = itemsize + sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True))
    return tuple(strides), size


def _starts(rng: random.Random, tile: tuple[int, ...], shape: list[int], granule: int) -> Starts:
    if rng.random() < 0.5:
        return tuple(range(0, n, side) for n, side in zip(shape, tile, strict=True))
    return tuple(
        _places(rng, side, extent, granule if dim == len(tile) - 1 else 1)
        for dim, (side, extent) in enumerate(zip(tile, shape, strict=True))
    )


def _places(rng: random.Random, side: int, extent: int, granule: int) -> range:
    """One start, or several; inside, across either edge, or wholly outside."""
    unit = rng.choice((granule, granule, granule, 1))
    low = rng.choice((0, 0, 0, unit, 2 * unit, -unit, -side, rng.randint(-side - 1, extent)))
    if rng.random() < 0.4:
        return range(low, low + 1)
    step = rng.choice((side, side, unit, 2 * unit, rng.randint(1, side + 2)))
    return range(low, max(low + 1, rng.choice((extent, extent - side + 1, extent + side))), step)


# --- judging ----------------------------------------------------------------------------------


def judged(problem: Problem, address: int) -> dict[str, Any]:
    """Which mechanisms are legal at an address, and the widest access of each that has widths."""
    return {
        "bulk": _bulk_is_legal(problem, address),
        "tensor": _tensor_is_legal(problem, address),
        "cp_async": 0 if problem.is_store else _widest(problem, address, (16, 8, 4)),
        "loop": _widest(problem, address, (16, 8, 4, 2, 1)),
    }


def _copies(problem: Problem) -> Iterator[tuple[int, ...]]:
    return itertools.product(*problem.starts)


def _offsets(problem: Problem) -> np.ndarray[Any, Any]:
    """Where each element of a tile lies in shared memory."""
    cut = box_of(problem)
    index = np.indices(problem.tile)
    return np.asarray(
        tile_offset(tuple(index), problem.tile, cut, problem.itemsize, problem.swizzle)
    )


def box_of(problem: Problem) -> tuple[int, ...]:
    """The box that docs/planned_copies.md promises: TMA's where there can be one, else the tile."""
    last = problem.tile[-1]
    if problem.swizzle is not Swizzle.NONE:
        last = min(last, problem.swizzle.span_bytes // problem.itemsize)
    box = tuple(
        max(part for part in range(1, min(side, 256) + 1) if side % part == 0)
        for side in (*problem.tile[:-1], last)
    )
    box_bytes = math.prod(box) * problem.itemsize
    is_whole = box == problem.tile
    is_boxed = box[-1] * problem.itemsize % 16 == 0 and (is_whole or box_bytes % 128 == 0)
    return box if is_boxed or problem.swizzle is not Swizzle.NONE else problem.tile


def _elements(
    problem: Problem, start: tuple[int, ...]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Byte offset of every element of a tile from the array's first, and which are inside."""
    index = np.indices(problem.tile) + np.reshape(start, (-1, *(1,) * len(problem.tile)))
    extents = np.reshape(problem.shape, (-1, *(1,) * len(problem.tile)))
    inside = ((index >= 0) & (index < extents)).all(0)
    return np.tensordot(problem.strides, index, 1), inside


def _bulk_is_legal(problem: Problem, address: int) -> bool:
    """Row-major in shared memory; in the array inside, one after the other, and on 16 bytes."""
    row_major = np.arange(math.prod(problem.tile)) * problem.itemsize
    if row_major.size * problem.itemsize % 16:
        return False
    if not np.array_equal(_offsets(problem).ravel(), row_major):
        return False
    for start in _copies(problem):
        offsets, inside = _elements(problem, start)
        flat = offsets.ravel()
        if not inside.all() or (address + flat[0]) % 16:
            return False
        if not np.array_equal(flat - flat[0], row_major):
            return False
    return True


def _tensor_is_legal(problem: Problem, address: int) -> bool:
    itemsize, rank = problem.itemsize, len(problem.shape)
    box = box_of(problem)
    if problem.strides[-1] != itemsize and problem.shape[-1] > 1:
        return False
    strides = tuple(
        0 if n == 1 else stride for n, stride in zip(problem.shape, problem.strides, strict=True)
    )
    data_type = element(np.dtype(problem.dtype)).data_type
    spec = TensorMapSpec(
        address, data_type, problem.shape, strides[: rank - 1], box, swizzle=problem.swizzle
    )
    places_of_boxes = -(-np.array(problem.tile) // box)
    if spec.violations() or (places_of_boxes.prod() > 1 and math.prod(box) * itemsize % 128):
        return False
    if problem.swizzle is not Swizzle.NONE and box[-1] * itemsize < problem.swizzle.span_bytes:
        return False  # rows would lie a span apart
    if any(start * itemsize % 16 for start in problem.starts[-1]):
        return False
    return not problem.is_store or _tensor_store_is_legal(problem, box)


def _tensor_store_is_legal(problem: Problem, box: tuple[int, ...]) -> bool:
    """No negative start, whole boxes, and no 16 bytes of which the row has only some."""
    if any(places[0] < 0 for places in problem.starts) or np.any(np.array(problem.tile) % box):
        return False
    row_bytes = problem.shape[-1] * problem.itemsize
    for start in problem.starts[-1]:
        end = min(start + problem.tile[-1], problem.shape[-1]) * problem.itemsize
        if start * problem.itemsize < end and -(-end // 16) * 16 > row_bytes:
            return False
    return True


def _widest(problem: Problem, address: int, widths: tuple[int, ...]) -> int:
    return next((width for width in widths if _width_is_legal(problem, address, width)), 0)


def _width_is_legal(problem: Problem, address: int, width: int) -> bool:
    """Units of `width` bytes: together on both sides, and on a multiple of the width."""
    count = max(width // problem.itemsize, 1)
    if problem.tile[-1] % count:
        return False
    shared = _offsets(problem).reshape(-1, count)
    steps = np.arange(count) * problem.itemsize
    if np.any(shared[:, 0] % min(width, problem.itemsize * count)):
        return False
    if np.any(shared - shared[:, :1] != steps):
        return False
    for start in _copies(problem):
        offsets, inside = (part.reshape(-1, count) for part in _elements(problem, start))
        used = inside.any(1)
        offsets, inside = offsets[used], inside[used]
        if not inside[:, 0].all() or np.any((address + offsets[:, 0]) % width):
            return False
        if np.any(offsets - offsets[:, :1] != steps) and problem.shape[-1] > 1:
            return False
    return True
