"""Kernels in the style of the CUDA Programming Guide and of public GEMMs and scans.

None includes one of our headers.

They are correct; `tests/emulate/guide_defects.py` plants what goes wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import Kernel, create_tma_tile

FOLDER = Path(__file__).parent / "guide"


@dataclass
class Launch:
    """What a sample is launched with, and what an array must hold afterwards, bit by bit."""

    grid: Any
    block: Any
    arguments: Sequence[Any]
    result: Any
    expected: Any
    options: dict[str, Any] = field(default_factory=dict)


def bulk_copy(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(2048 + 3 * 512)
    data = array(host)
    expected = host.copy()
    expected[1024 : 1024 + 3 * 512] += 1
    return Launch(3, 128, (data, 1024), data, expected)


def tensor_copy(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(40, 72)
    data = array(host)
    expected = host.copy()
    expected[30:46, 40:72] += 1
    return Launch(1, 96, (create_tma_tile(data, (16, 32)), 40, 30), data, expected)


def stages(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(5, 3 * 64)
    out = array(np.full_like(host, -1))
    options = {"shared_mem": 2 * 64 * 4}
    return Launch(3, 64, (array(host), out, 5), out, host**2, options)


def histogram(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(1000)
    bins = array(np.zeros(70, np.int32))
    expected = np.bincount(np.clip(host, 0, 69), minlength=70)
    arguments = (bins, 70, 18, array(host), 1000)
    return Launch(8, 64, arguments, bins, expected, {"cluster": 4, "shared_mem": 18 * 4})


def reduction(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(1003)
    sums = array(np.full(4, -1, np.int32))
    padded = np.zeros((-(-1003 // 288), 3, 96), np.int32)
    padded.reshape(-1)[:1003] = host
    expected = np.array([host.sum() + 2, *padded.sum((0, 2))])
    return Launch(3, 96, (array(host), sums, 1003, 3), sums, expected, {"cooperative": True})


def ring(array: Callable[[Any], Any]) -> Launch:
    host = _drawn(5 * 8, 32)
    out = array(np.full_like(host, -1))
    tile = create_tma_tile(array(host), (8, 32))
    return Launch(1, 64, (tile, out, 5), out, 2 * host)


def scan(array: Callable[[Any], Any]) -> Launch:
    host = np.abs(_drawn(5003)).astype(np.uint32)
    tiles = -(-5003 // (4 * 128))
    out = array(np.full(5003, 7, np.uint32))
    arguments = (
        array(host), out, array(np.zeros(tiles, np.uint64)), array(np.zeros(1, np.uint32)), 5003
    )  # fmt: skip
    return Launch(tiles, 128, arguments, out, np.cumsum(host) - host)


def cluster_gemm(array: Callable[[Any], Any]) -> Launch:
    m, n, k = 250, 62, 328
    a, b = _small(m, k), _small(n, k)
    out = array(np.full((m, n), np.nan, np.float32))
    tiles = (
        create_tma_tile(array(x.astype(np.float16)), (rows, 64), swizzle="128B")
        for x, rows in ((a, 128), (b, 32))
    )
    options = {"shared_mem": 4 * (128 + 64) * 128, "cluster": 2}
    return Launch((2, 1), 384, (*tiles, out, m, n, k), out, a @ b.T, options)


SAMPLES: dict[str, Callable[[Callable[[Any], Any]], Launch]] = {
    sample.__name__: sample
    for sample in (
        bulk_copy,
        tensor_copy,
        stages,
        histogram,
        reduction,
        ring,
        scan,
        cluster_gemm,
    )
}


def _drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-9, 99, shape, np.int32)


def _small(*shape: int) -> Any:
    """Whole numbers: a GEMM of them is exact in every order of additions."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float64)


# The instance of each template.
INSTANCES = {"scan": "scan<4>"}


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel(FOLDER / f"{name}.cu", INSTANCES.get(name, name))
