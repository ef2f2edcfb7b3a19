"""Small sound kernels, in which `defects` plants what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import Kernel, Swizzle, TMATensorTileArray, create_tma_tile

HERE = Path(__file__).parent
Build = Callable[[str, dict[str, Any]], Kernel]
"""Builds the entry of this name for these types."""


@dataclass
class Job:
    """What a kernel is launched with, and the arrays that must hold something afterwards.

    A defect of the host changes ``options`` before the launch.
    """

    name: str
    types: dict[str, Any]
    grid: Any
    block: Any
    arguments: Sequence[Any]
    results: Sequence[tuple[Any, Any]]
    options: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Build], None] = lambda build: None

    def run(self, build: Build) -> None:
        """Build the kernel and launch it once."""
        self.before(build)
        build(self.name, self.types)(self.grid, self.block, self.arguments, **self.options)

    def is_right(self) -> bool:
        """Whether the results are what they must be."""
        return all(
            np.allclose(found, expected, rtol=1e-3, atol=1e-3) for found, expected in self.results
        )


def text_of(kernel: str) -> str:
    return (HERE / f"{kernel}.cu").read_text()


def builder_of(kernel: str) -> Build:
    """Return what builds a kernel without a defect."""
    return lambda name, types: Kernel(text_of(kernel), name, types=types)


def drawn(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(7).integers(-8, 9, shape).astype(dtype)


def pipe() -> Job:
    source = drawn(7 * 16, 32)
    target = np.full_like(source, np.nan)
    tiles = [create_tma_tile(array, (16, 32)) for array in (source, target)]
    return Job("pipe", {"Tile": tiles[0]}, 1, 160, [*tiles, 7], [(target, 2 * source)])


def steal() -> Job:
    values, sums = drawn(9, 64), np.full(9, np.nan, np.float32)
    counter = np.zeros(1, np.int32)
    return Job("steal", {}, 2, 64, [values, sums, counter, 9], [(sums, values.sum(1))])


def multicast() -> Job:
    source, sums = drawn(5 * 16, 32), np.zeros(2, np.float32)
    half = create_tma_tile(source, (8, 32))
    return Job(
        "share", {"Half": half}, 2, 64, [half, sums, 5],
        [(sums, np.full(2, source.sum()))], {"cluster": 2},
    )  # fmt: skip


def dsmem() -> Job:
    values, totals = drawn(10, 64), np.full(64, np.nan, np.float32)
    return Job(
        "combine", {}, 4, 64, [values, totals, 10], [(totals, values.sum(0))], {"cluster": 4}
    )


def transpose() -> Job:
    source = drawn(64, 96)
    target = np.full((96, 64), np.nan, np.float32)
    tiles = [create_tma_tile(array, (32, 32)) for array in (source, target)]
    return Job("transpose", {"Tile": tiles[0]}, (3, 2), 128, tiles, [(target, source.T)])


def wsgemm() -> Job:
    a, b = (drawn(rows, 256, dtype=ml_dtypes.bfloat16) for rows in (128, 64))
    c = np.full((128, 64), np.nan, np.float16)
    tiles = [
        create_tma_tile(array, (rows, 64), swizzle=Swizzle.B128)
        for array, rows in ((a, 128), (b, 64), (c, 64))
    ]
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    types = dict(zip(("ATile", "BTile", "CTile"), tiles, strict=True))
    return Job("wsgemm", types, 1, 384, [*tiles, 4], [(c, expected)])


def reduce() -> Job:
    values = drawn(1000)
    partial, result = (np.full(size, np.nan, np.float32) for size in (4, 1))
    done = np.zeros(1, np.uint32)
    return Job(
        "reduce", {}, 4, 128, [values, 1000, partial, done, result], [(result, values.sum())]
    )


def chain() -> Job:
    values, sums = drawn(5, 64), np.full((5, 64), np.nan, np.float32)
    flags = np.zeros(5, np.int32)
    return Job("chain", {}, 5, 64, [values, sums, flags], [(sums, values.cumsum(0))])


def pdl() -> Job:
    values, bias = drawn(256), drawn(256)
    scaled, out = (np.full(256, np.nan, np.float32) for _ in range(2))

    def before(build: Build) -> None:
        build("scale", {})(4, 64, (values, scaled))

    return Job(
        "shift", {}, 4, 64, [scaled, bias, out], [(out, 4 * values + bias)], {"pdl": True}, before
    )


def ragged() -> Job:
    starts = np.array([0, 100, 100, 132, 300], np.int32)
    packed, halved = drawn(300), np.full(300, np.nan, np.float32)
    return Job("halve", {}, 4, 64, [packed, halved, starts], [(halved, packed / 2)])


def ring() -> Job:
    values, gathered = drawn(4, 64), np.full((4, 4, 64), np.nan, np.float32)
    expected = np.broadcast_to(values, (4, 4, 64))
    return Job("gather", {}, 4, 64, [values, gathered], [(gathered, expected)], {"cluster": 4})


def stencil() -> Job:
    values, averaged = drawn(5, 256), np.full((5, 256), np.nan, np.float32)
    padded = np.pad(values, ((0, 0), (1, 1)), mode="edge")
    expected = (padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]) / 3
    return Job("stencil", {}, 1, 64, [values, averaged, 5], [(averaged, expected)])


def scan() -> Job:
    values, sums = drawn(2, 128, dtype=np.int32), np.full((2, 128), -999, np.int32)
    return Job("scan", {}, 2, 128, [values, sums], [(sums, values.cumsum(1))])


def histogram() -> Job:
    data = np.random.default_rng(7).integers(0, 256, 2000).astype(np.uint8)
    bins = np.zeros(256, np.uint32)
    return Job(
        "histogram", {}, 3, 128, [data, 2000, bins], [(bins, np.bincount(data, minlength=256))]
    )


def edit() -> Job:
    # After the values no other argument follows, which a group beyond them would reach by chance.
    values, firsts = drawn(64, 32)[:40], np.full((3, 8, 32), np.nan, np.float32)
    starts = np.array([0, 11, 25], np.int32)
    tiles = TMATensorTileArray([create_tma_tile(values, (8, 32))] * 3)
    expected = np.stack([values[start : start + 8] for start in starts])
    return Job(
        "groups", {"Tile": tiles[0]}, 3, 64, [tiles, values, starts, firsts], [(firsts, expected)]
    )


def handoff() -> Job:
    values, out = drawn(6, 64, dtype=np.int32), np.full((6, 64), -999, np.int32)
    return Job("handoff", {}, 1, 128, [values, out, 6], [(out, values[:, ::-1])])


def strided() -> Job:
    values, rotated = drawn(16, 40), np.full((16, 32), np.nan, np.float32)
    largest = np.full((2, 32), np.nan, np.float32)
    expected = np.roll(values[:, :32], -1, 1)
    most = expected.reshape(2, 8, 32).max(1)
    return Job(
        "rotate", {}, 2, (32, 8), [values, rotated, largest, 40],
        [(rotated, expected), (largest, most)],
    )  # fmt: skip


KERNELS: dict[str, Callable[[], Job]] = {
    made.__name__: made
    for made in (
        pipe, steal, multicast, dsmem, transpose, wsgemm, reduce, chain, pdl, ragged, ring, stencil,
        scan, histogram, edit, handoff, strided,
    )
}  # fmt: skip
