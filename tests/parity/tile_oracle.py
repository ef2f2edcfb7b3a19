"""What a tile looks like in shared memory, and what storing one does, in plain NumPy.

Everything runs outermost dimension first, coordinates included.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_UNIT = 16


def box_places(
    at: Sequence[int], tile: Sequence[int], box: Sequence[int], strides: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Where the boxes of a tile start, in the order of shared memory: the last side slowest."""
    counts = [-(-side // part) for side, part in zip(tile, box, strict=True)]
    for last in range(counts[-1]):
        for rest in itertools.product(*map(range, counts[:-1])):
            grid = (*rest, last)
            yield tuple(
                start + index * part * stride
                for start, index, part, stride in zip(at, grid, box, strides, strict=True)
            )


def box_indices(
    shape: Sequence[int], start: Sequence[int], box: Sequence[int], strides: Sequence[int]
) -> tuple[list[Array], Array]:
    """The array's indices for every element of a box, clipped, and which are inside."""
    axes = [
        first + stride * np.arange(side)
        for first, side, stride in zip(start, box, strides, strict=True)
    ]
    grids = np.meshgrid(*axes, indexing="ij")
    inside = np.ones(tuple(box), bool)
    for grid, extent in zip(grids, shape, strict=True):
        inside &= (grid >= 0) & (grid < extent)
    return [np.clip(grid, 0, extent - 1) for grid, extent in zip(grids, shape, strict=True)], inside


def swizzled(image: Array, span_bits: int) -> Array:
    """Units of 16 bytes of an aligned image, each at the place where its address is swizzled to."""
    addresses = np.arange(0, image.size, _UNIT)
    mask = (1 << span_bits) - 1
    targets = addresses ^ ((addresses >> 7 & mask) << 4)
    out = np.empty_like(image)
    out.reshape(-1, _UNIT)[targets // _UNIT] = image.reshape(-1, _UNIT)
    return out


def loaded(
    array: Array,
    at: Sequence[int],
    tile: Sequence[int],
    box: Sequence[int],
    *,
    span_bits: int = 0,
    strides: Sequence[int] | None = None,
    fill: int = 0,
) -> Array:
    """The bytes of shared memory after a load; ``fill`` is repeated as 16 bits where none lie."""
    strides = strides or [1] * array.ndim
    parts = []
    for start in box_places(at, tile, box, strides):
        indices, inside = box_indices(array.shape, start, box, strides)
        filler = np.frombuffer(np.full(4, fill, np.uint16).tobytes()[: array.itemsize], np.uint8)
        values = array[tuple(indices)].reshape(-1, 1).view(np.uint8)
        parts.append(np.where(inside.reshape(-1, 1), values, filler).reshape(-1))
    return swizzled(np.concatenate(parts), span_bits)


def stored(
    array: Array,
    image: Array,
    at: Sequence[int],
    tile: Sequence[int],
    box: Sequence[int],
    combine: Any,
    *,
    span_bits: int = 0,
) -> None:
    """Write or combine a tile's image into the array, in place: ``combine(old, given)``."""
    flat = swizzled(image, span_bits).view(array.dtype)  # its own inverse
    strides = [1] * array.ndim
    size = int(np.prod(box))
    for number, start in enumerate(box_places(at, tile, box, strides)):
        indices, inside = box_indices(array.shape, start, box, strides)
        given = flat[number * size : (number + 1) * size].reshape(tuple(box))
        places = tuple(index[inside] for index in indices)
        array[places] = combine(array[places], given[inside])
