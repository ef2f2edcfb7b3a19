"""The ready-made kernels of the demo on the CPU: unmodified, on NumPy arrays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import emulate, ops
from tmaasync.cli import _demo_references as references
from tmaasync.emulate.runtime_library import runtime_is_built
from tmaasync.errors import BackendError
from tmaasync.modes import Swizzle
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.tile import create_tma_tile

_Array = np.ndarray[Any, Any]

OnGPU = Callable[[Callable[..., Any], tuple[_Array, ...]], _Array]
"""Run a job on copies of the arrays on the GPU; return its result in host memory."""

_ROUNDING = 4e-3  # of bfloat16, relative to the Frobenius norm, with room


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedCase:
    """One job on the emulator: seconds with the build, without it and with races; the errors.

    ``gpu_difference`` is between the results of the emulator and of the GPU, if there is one.
    """

    name: str
    what: str
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
    """An operation to run on arrays of any device, and its result."""

    name: str
    what: str
    size: str
    inputs: Callable[[], tuple[_Array, ...]]
    run: Callable[..., Any]
    wanted: Callable[..., _Array]
    tolerance: float = 0.0

    def difference(self, got: _Array, wanted: _Array) -> float:
        """Return the fraction of elements that differ; or the relative error of rounded ones."""
        if self.tolerance == 0:
            return float(np.mean(got != wanted))
        apart = got.astype(np.float64) - wanted.astype(np.float64)
        return float(np.linalg.norm(apart) / np.linalg.norm(wanted.astype(np.float64)))


def why_not() -> str | None:
    """Return why nothing can be emulated here, and the remedy; None if it can."""
    try:
        runtime_is_built()
    except BackendError as error:
        return str(error)
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
        what=job.what,
        size=job.size,
        first_seconds=first_seconds,
        seconds=seconds,
        races_seconds=races_seconds,
        error=max(job.difference(got, wanted) for got in (result, checked)),
        gpu_difference=None if theirs is None else job.difference(result, theirs),
        tolerance=job.tolerance,
    )


# --- the jobs ---------------------------------------------------------------------------------


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> _Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def _bfloat16(*shape: int, seed: int = 0) -> _Array:
    return _random(*shape, seed=seed, dtype=ml_dtypes.bfloat16)


def _float8(*shape: int, seed: int = 0) -> _Array:
    """Bytes: CuPy has no arrays of float8."""
    return _random(*shape, seed=seed, dtype=ml_dtypes.float8_e4m3fn).view(np.uint8)


def _scaled_matmul(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    kind = "float8_e4m3fn"
    return ops.scaled_matmul(a, b.T, scale_a, scale_b, a_dtype=kind, b_dtype=kind, dtype="bfloat16")


def _scaled_reference(a: _Array, b: _Array, scale_a: _Array, scale_b: _Array) -> _Array:
    kind = ml_dtypes.float8_e4m3fn
    return references.scaled(a.view(kind), b.view(kind), scale_a, scale_b)


def _heads(*shape: int) -> tuple[_Array, _Array, _Array]:
    """Queries of four heads; keys and values of two, each shared by two of them."""
    q, k, v = (_random(*shape, n, 64, seed=i, dtype=np.float16) for i, n in enumerate((4, 2, 2)))
    return q, k, v


_TILE_CONFIG = TileConfig(consumers=2, block_n=256)
_GROUPS = (70, 70, 133, 200)  # where each expert's rows end; the second one has none
_CU_SEQLENS = (0, 37, 40, 150)
_LENGTHS = (37, 3, 50)


def _pipelined(a: Any, b: Any, c: Any) -> Any:
    """Compute all tiles of C with one CTA, through a pipeline of four stages."""
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
    name=f"matmul, {_TILE_CONFIG.stages} stages",
    what="GEMM",
    size="256x256x256 bf16",
    inputs=lambda: (
        _bfloat16(256, 256),
        _bfloat16(256, 256, seed=1),
        np.full((256, 256), np.nan).astype(ml_dtypes.bfloat16),
    ),
    run=_pipelined,
    wanted=lambda a, b, _: references.matmul(a, b),
    tolerance=_ROUNDING,
)
"""The job whose timeline is drawn."""

JOBS: tuple[Job, ...] = (
    Job(
        name="copy",
        what="strided copy",
        size="7x33x5x64 fp32",
        inputs=lambda: (_random(7, 33, 5, 96),),
        run=lambda source: ops.copy(source[..., :64]),
        wanted=lambda source: source[..., :64],
    ),
    Job(
        name="matmul",
        what="GEMM",
        size="200x136x328 bf16",
        inputs=lambda: (_bfloat16(200, 328), _bfloat16(136, 328, seed=1)),
        run=lambda a, b: ops.matmul(a, b.T),
        wanted=references.matmul,
        tolerance=_ROUNDING,
    ),
    Job(
        name="scaled_matmul",
        what="block-scaled FP8 GEMM",
        size="64x192x256 fp8",
        inputs=lambda: (
            _float8(64, 256),
            _float8(192, 256, seed=1),
            np.linspace(0.5, 2, 128, dtype=np.float32).reshape(64, 2),
            np.linspace(0.5, 2, 4, dtype=np.float32).reshape(2, 2),
        ),
        run=_scaled_matmul,
        wanted=_scaled_reference,
        tolerance=_ROUNDING,
    ),
    Job(
        name="grouped_matmul",
        what="grouped GEMM (MoE)",
        size="200x64x128 bf16",
        inputs=lambda: (_bfloat16(200, 128), _bfloat16(4, 64, 128, seed=1)),
        run=lambda a, b: ops.grouped_matmul(a, b.swapaxes(1, 2), np.array(_GROUPS, np.int32)),
        wanted=lambda a, b: references.grouped(a, b, _GROUPS),
        tolerance=_ROUNDING,
    ),
    Job(
        name="conv2d",
        what="implicit-GEMM conv",
        size="1x16x16x32 bf16",
        inputs=lambda: (_bfloat16(1, 16, 16, 32), _bfloat16(32, 3, 3, 32, seed=1)),
        run=lambda images, filters: ops.conv2d(images, filters, padding=1),
        wanted=references.conv2d,
        tolerance=_ROUNDING,
    ),
    Job(
        name="attention",
        what="causal GQA attention",
        size="1x100x4x64 fp16",
        inputs=lambda: _heads(1, 100),
        run=lambda q, k, v: ops.attention(q, k, v, causal=True),
        wanted=references.attention,
        tolerance=_ROUNDING,
    ),
    Job(
        name="varlen_attention",
        what="packed sequences",
        size="150x4x64 fp16",
        inputs=lambda: _heads(150),
        run=lambda q, k, v: ops.varlen_attention(q, k, v, list(_CU_SEQLENS), causal=True),
        wanted=lambda q, k, v: references.varlen_attention(q, k, v, _CU_SEQLENS),
        tolerance=_ROUNDING,
    ),
    Job(
        name="ragged_store",
        what="pack a padded batch",
        size="3x50x64 bf16",
        inputs=lambda: (_bfloat16(3, 50, 64),),
        run=lambda padded: ops.ragged_store(padded, list(_LENGTHS)),
        wanted=lambda padded: references.packed(padded, _LENGTHS),
    ),
)
"""One small run of every ready-made kernel family."""
