"""The demo's main job on the CPU: the shipped kernels, unmodified, on NumPy arrays."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import emulate, ops
from tmaasync.emulate.toolchain import compiler_facts
from tmaasync.errors import BackendError
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.tile import create_tma_tile

__all__ = ["JOBS", "PIPELINED", "EmulatedCase", "Job", "OnGPU", "run", "why_not"]

_Array = np.ndarray[Any, Any]

OnGPU = Callable[[Callable[..., Any], tuple[_Array, ...]], _Array]
"""Runs a job on copies of the arrays on the GPU, and brings its result back."""

_ROUNDING = 4e-3  # of bfloat16, relative to the Frobenius norm, with room


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedCase:
    """One job on the emulator: seconds with the build, without it and with races; the errors.

    ``gpu_difference`` is between the results of the emulator and of the GPU, if there is one.
    """

    name: str
    size: str
    first_seconds: float
    seconds: float
    races_seconds: float
    error: float
    gpu_difference: float | None
    tolerance: float

    @property
    def passed(self) -> bool:
        """True if the result agrees with the reference, and with the GPU's."""
        return max(self.error, self.gpu_difference or 0.0) <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A kernel to run on arrays of any device, and its result."""

    name: str
    size: str
    inputs: Callable[[], tuple[_Array, ...]]
    run: Callable[..., Any]
    wanted: Callable[..., _Array]
    tolerance: float = 0.0

    def difference(self, got: _Array, wanted: _Array) -> float:
        """The share of elements that differ; where results are rounded, of the Frobenius norm."""
        if self.tolerance == 0:
            return float(np.mean(got != wanted))
        apart = got.astype(np.float64) - wanted.astype(np.float64)
        return float(np.linalg.norm(apart) / np.linalg.norm(wanted.astype(np.float64)))


def why_not() -> str | None:
    """Return why nothing can be emulated here; None if it can."""
    try:
        compiler_facts()
    except BackendError as error:
        return str(error).partition(", and ")[0]
    return None


def run(jobs: Iterable[Job], on_gpu: OnGPU | None = None) -> Iterator[EmulatedCase]:
    """Run the jobs one after the other, on the GPU too if there is one.

    Raises:
        BackendError: There is no C++ compiler.
        EmulatedRace: A kernel has a race.
    """
    return (_case(job, on_gpu) for job in jobs)


def _case(job: Job, on_gpu: OnGPU | None) -> EmulatedCase:
    def timed() -> tuple[float, _Array]:
        inputs = job.inputs()
        began = time.perf_counter()
        result = job.run(*inputs)
        return time.perf_counter() - began, result

    wanted = job.wanted(*job.inputs())
    first_seconds, _ = timed()
    seconds, result = timed()
    with emulate.scheduled(races=True):
        races_seconds, checked = timed()
    theirs = None if on_gpu is None else on_gpu(job.run, job.inputs())
    return EmulatedCase(
        name=job.name,
        size=job.size,
        first_seconds=first_seconds,
        seconds=seconds,
        races_seconds=races_seconds,
        error=max(job.difference(got, wanted) for got in (result, checked)),
        gpu_difference=None if theirs is None else job.difference(result, theirs),
        tolerance=job.tolerance,
    )


# --- copies -----------------------------------------------------------------------------------


def _random(*shape: int, seed: int = 0) -> _Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _same(source: _Array, *_: _Array) -> _Array:
    return source


def _swizzled_job(shape: tuple[int, ...], tile: tuple[int, ...]) -> Job:
    def copy(source: Any, target: Any) -> Any:
        read, write = (create_tma_tile(x, tile, swizzle=Swizzle.B128) for x in (source, target))
        kernel = Kernel("copy.cu", types={"Tile": read}, constants={"STAGES": 3, "LOADS_AHEAD": 2})
        sides = (*reversed(read.tiles_per_side), 1, 1, 1, 1)[:5]
        blocks = -(-math.prod(read.tiles_per_side) // 2)
        kernel(blocks, 32, (read, write, np.array(sides, np.int32).tobytes()))
        return target

    return Job(
        name="copy swizzled",
        size=f"{'x'.join(map(str, shape))} clipped",
        inputs=lambda: (_random(*shape), np.full(shape, np.nan, np.float32)),
        run=copy,
        wanted=_same,
    )


# --- products ---------------------------------------------------------------------------------

_TILE_CONFIG = TileConfig(consumers=2, block_n=256)


def _operands(m: int, n: int, k: int) -> tuple[_Array, _Array]:
    a, b = _random(m, k), _random(n, k, seed=1)
    return a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16)


def _product(a: _Array, b: _Array, *_: _Array) -> _Array:
    return a.astype(np.float64) @ b.astype(np.float64).T


def _pipelined(a: Any, b: Any, c: Any) -> Any:
    """One block computes the tiles of C in turn, through a ring of four stages."""
    (m, k), n = a.shape, len(b)
    tiles = [
        create_tma_tile(a, (_TILE_CONFIG.block_m, 64), swizzle=Swizzle.B128),
        create_tma_tile(b, (_TILE_CONFIG.block_n, 64), swizzle=Swizzle.B128),
        create_tma_tile(c, (64, 64), swizzle=Swizzle.B128),
    ]
    kernel = gemm_kernel([tile.cuda_type for tile in tiles], False, True, _TILE_CONFIG)
    kernel(1, 128 * (1 + _TILE_CONFIG.consumers), (*tiles, m, n, k, 1))
    return c


PIPELINED = Job(
    name=f"matmul {_TILE_CONFIG.stages} stages",
    size="256x256x256 bf16",
    inputs=lambda: (
        *_operands(256, 256, 256),
        np.full((256, 256), np.nan).astype(ml_dtypes.bfloat16),
    ),
    run=_pipelined,
    wanted=_product,
    tolerance=_ROUNDING,
)
"""The job whose timeline is drawn."""

JOBS: tuple[Job, ...] = (
    Job(
        name="copy",
        size="1 MiB",
        inputs=lambda: (_random(1 << 18),),
        run=ops.copy,
        wanted=_same,
    ),
    Job(
        name="copy window",
        size="7x33x5x64 fp32",
        inputs=lambda: (_random(7, 33, 5, 96),),
        run=lambda source: ops.copy(source[..., :64]),
        wanted=lambda source: source[..., :64],
    ),
    _swizzled_job((100, 200), (64, 64)),
    _swizzled_job((5, 50, 72), (2, 16, 32)),
    PIPELINED,
    Job(
        name="matmul",
        size="200x136x328 bf16",
        inputs=lambda: _operands(200, 136, 328),
        run=lambda a, b: ops.matmul(a, b.T),
        wanted=_product,
        tolerance=_ROUNDING,
    ),
)
