"""The demo's main job on the CPU: the shipped kernels, unmodified, on NumPy arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import ops
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.tile import create_tma_tile

__all__ = ["CASES", "EmulatedCase", "run"]

_ROUNDING = 4e-3  # of bfloat16, relative to the Frobenius norm, with room


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedCase:
    """One kernel run on the emulator: seconds with and without the build, and the error."""

    name: str
    size: str
    first_seconds: float
    seconds: float
    error: float
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the result agrees with the reference."""
        return self.error <= self.tolerance


def run() -> Iterator[EmulatedCase]:
    """Run the cases one after the other.

    Raises:
        BackendError: There is no C++ compiler.
    """
    for name, size, tolerance, job in CASES:
        began = time.perf_counter()
        job()
        built = time.perf_counter()
        error = job()
        yield EmulatedCase(
            name=name,
            size=size,
            first_seconds=built - began,
            seconds=time.perf_counter() - built,
            error=error,
            tolerance=tolerance,
        )


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _differing(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> float:
    """The share of elements whose bits differ."""
    return float(np.mean(got.view(np.uint32) != wanted.view(np.uint32)))


def _contiguous() -> float:
    source = _random(1 << 18)
    return _differing(ops.copy(source), source)


def _window() -> float:
    source = _random(7, 33, 5, 96)[:, :, :, :64]
    return _differing(np.ascontiguousarray(ops.copy(source)), np.ascontiguousarray(source))


def _swizzled() -> float:
    """Tiles of 64 x 64 over 100 x 200: the last ones are clipped."""
    source, target = _random(100, 200), np.full((100, 200), np.nan, np.float32)
    read, write = (create_tma_tile(x, (64, 64), swizzle=Swizzle.B128) for x in (source, target))
    kernel = Kernel("copy.cu", types={"Tile": read}, constants={"STAGES": 3, "LOADS_AHEAD": 2})
    grid = np.array((*reversed(read.tiles_per_side), 1, 1, 1), np.int32).tobytes()
    kernel(math.prod(read.tiles_per_side) // 2, 32, (read, write, grid))
    return _differing(target, source)


def _product(m: int, n: int, k: int) -> float:
    a, b = (_random(*shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    got = ops.matmul(a, b.T).astype(np.float64)
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


CASES: tuple[tuple[str, str, float, Callable[[], float]], ...] = (
    ("copy", "1 MiB", 0.0, _contiguous),
    ("copy window", "7 x 33 x 5 x 64 fp32", 0.0, _window),
    ("copy swizzled", "100 x 200 fp32, clipped", 0.0, _swizzled),
    ("matmul bfloat16", "256 x 256 x 256", _ROUNDING, lambda: _product(256, 256, 256)),
    ("matmul bfloat16", "200 x 136 x 328", _ROUNDING, lambda: _product(200, 136, 328)),
)
