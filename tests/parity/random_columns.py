"""Random single im2col loads: what they are, how they run, and a digest of what they did.

A case follows from its number alone, as in random_copies.py, whose kernel runs them too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from parity import random_copies as copies

from tmaasync import Im2colSpec, OOBFill, Swizzle

IM2COL_LOAD = 3


@dataclass(frozen=True, slots=True)
class Column:
    """One instruction on random images; coordinates and offsets innermost first."""

    number: int
    spec: Im2colSpec  # at address 0
    at: tuple[int, ...]
    offsets: tuple[int, ...]
    array_bytes: int

    @property
    def shared_bytes(self) -> int:
        """What the column spans in shared memory: swizzled rows lie a whole span apart."""
        spec = self.spec
        pitch = spec.channels_per_pixel * spec.dtype.itemsize
        if spec.swizzle is not Swizzle.NONE:
            pitch = spec.swizzle.span_bytes
        return spec.pixels_per_column * pitch


def case(number: int) -> Column:
    """The case of this number."""
    rng = random.Random(number)
    while True:
        spec = _spec(rng)
        size = copies.array_bytes(spec.shape, spec.strides_bytes, spec.dtype.itemsize)
        if spec.violations() or size > copies.MAX_ARRAY_BYTES:
            continue
        found = Column(number, spec, _coordinates(rng, spec), _offsets(rng, spec), size)
        if found.shared_bytes <= copies.IMAGE_BYTES:
            return found


def _spec(rng: random.Random) -> Im2colSpec:
    dtype = rng.choice(copies.TYPES)
    spatial = rng.randint(1, 3)
    swizzle = Swizzle(rng.randrange(4))
    granule = max(1, 16 // dtype.itemsize)
    span = 128 if swizzle is Swizzle.NONE else swizzle.span_bytes
    channels = granule * rng.randint(1, max(1, span // dtype.itemsize // granule))
    shape = [rng.randint(1, 4), *(rng.randint(1, 9) for _ in range(spatial))]
    shape.append(rng.randint(1, 2 * channels))
    return Im2colSpec(
        0,
        dtype,
        tuple(shape),
        copies.padded_strides_bytes(rng, shape, dtype.itemsize),
        tuple(rng.randint(-3, 2) for _ in range(spatial)),
        tuple(rng.randint(-3, 2) for _ in range(spatial)),
        channels,
        rng.randint(1, 80),
        element_strides=(1, *(rng.choice((1, 1, 2, 3)) for _ in range(spatial)), 1),
        swizzle=swizzle,
        oob_fill=OOBFill(rng.randrange(2)) if dtype.is_float else OOBFill.ZERO,
    )


def _coordinates(rng: random.Random, spec: Im2colSpec) -> tuple[int, ...]:
    """Return coordinates that a step over the bounding box reaches, or an image beyond the last."""
    granule = max(1, 16 // spec.dtype.itemsize)
    channel = rng.randrange(spec.shape[-1] + granule) // granule * granule
    pixel = [
        rng.randrange(low, max(low + 1, extent + up), stride)
        for extent, low, up, stride in zip(
            spec.shape[1:-1],
            spec.lower_corner,
            spec.upper_corner,
            spec.element_strides[1:-1],
            strict=True,
        )
    ]
    return channel, *reversed(pixel), rng.randint(0, spec.shape[0])


def _offsets(rng: random.Random, spec: Im2colSpec) -> tuple[int, ...]:
    return tuple(rng.randint(0, 5) for _ in range(spec.rank - 2))


def run(one: Column, arrays: Any, encode: Any) -> str:
    """Run a case on the back end of an array module (NumPy or CuPy); returns the digest."""
    target = copies.random_bytes(one.number, one.array_bytes, one.spec.dtype)
    memory = copies.placed(arrays, target)
    image = arrays.asarray(np.full(copies.IMAGE_BYTES, copies.POISON, np.uint8))
    completed = arrays.zeros(1, np.uint32)
    place = np.zeros((), copies.PLACE)
    place["at"][: len(one.at)] = one.at
    place["offsets"][: len(one.offsets)] = one.offsets
    copies.kernel(one.spec.rank, IM2COL_LOAD, 0)(
        1,
        64,
        (
            encode(replace(one.spec, address=copies.address(memory))),
            place,
            image,
            memory,
            np.uint32(one.spec.box_bytes),
            np.uint32(0),
            completed,
        ),
    )
    host = copies.host
    return copies.digest(host(image), host(memory), int(host(completed)[0]))
