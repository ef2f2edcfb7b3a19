"""Small sound kernels, in which `defects` plants what goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import Kernel, Swizzle, create_tma_tile

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

    def run(self, build: Build) -> None:
        """Build the kernel and launch it once."""
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


def handoff() -> Job:
    values, out = drawn(6, 64, dtype=np.int32), np.full((6, 64), -999, np.int32)
    return Job("handoff", {}, 1, 128, [values, out, 6], [(out, values[:, ::-1])])


KERNELS: dict[str, Callable[[], Job]] = {
    made.__name__: made
    for made in (
        pipe, steal, multicast, dsmem, wsgemm, ragged, ring, stencil, scan, handoff,
    )
}  # fmt: skip
