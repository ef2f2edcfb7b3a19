"""The part of the demo without a launch: an illegal tile, and kernels compiled for the GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tmaasync.errors import BackendError, TensorMapError
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.tile import BulkTile, create_tma_tile

__all__ = ["Compiled", "HostReport", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled kernel: the registers and the memory that it takes."""

    kernel: str
    configuration: str
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """An illegal tile with its error, and the compiled kernels or the reason why there are none."""

    illegal: str
    error: str
    kernels: tuple[Compiled, ...]
    no_nvrtc: str | None


def run() -> HostReport:
    """Make the report."""
    try:
        kernels, no_nvrtc = tuple(_compiled(*case) for case in _kernels()), None
    except BackendError as error:
        kernels, no_nvrtc = (), str(error).partition(" (")[0]
    return HostReport(
        illegal="create_tma_tile(np.zeros((1000, 511), np.float16), (64, 60))",
        error=_error(),
        kernels=kernels,
        no_nvrtc=no_nvrtc,
    )


def _error() -> str:
    """Return what `create_tma_tile` answers where rows have 511 elements, and tiles 60."""
    try:
        create_tma_tile(np.zeros((1000, 511), np.float16), (64, 60))
    except TensorMapError as error:
        return str(error)
    return ""


def _kernels() -> tuple[tuple[str, Kernel], ...]:
    array = np.zeros((1000, 512), np.float16)
    bulk = BulkTile(array, 32768)
    tiled = create_tma_tile(array, (32, 256))
    pipeline = {"STAGES": 4, "LOADS_AHEAD": 2}
    return (
        ("1-D bulk, 4 x 32 KiB", Kernel("copy.cu", types={"Tile": bulk}, constants=pipeline)),
        ("tiled, 4 x 16 KiB", Kernel("copy.cu", types={"Tile": tiled}, constants=pipeline)),
        ("bf16 128x256x64, 4 stages", _gemm(array)),
    )


def _gemm(array: np.ndarray) -> Kernel:
    matrix = array.view(ml_dtypes.bfloat16)
    a = create_tma_tile(matrix, (128, 64), swizzle=Swizzle.B128)
    # Two boxes: each CTA of a pair loads one and multicasts it to both.
    b = create_tma_tile(matrix, (256, 64), swizzle=Swizzle.B128, box_shape=(128, 64))
    c = create_tma_tile(matrix, (64, 64), swizzle=Swizzle.B128)
    types = [tile.cuda_type for tile in (a, b, c)]
    return gemm_kernel(types, False, True, TileConfig(2, 256, cluster=2))


def _compiled(configuration: str, kernel: Kernel) -> Compiled:
    begin = time.perf_counter()
    program = kernel.compile()
    seconds = time.perf_counter() - begin
    entry = program.entries[kernel.name]
    return Compiled(
        kernel=kernel.name,
        configuration=configuration,
        arch=program.arch,
        registers=entry.registers,
        spill_bytes=entry.spill_bytes,
        shared_bytes=entry.shared_bytes or 0,
        seconds=seconds,
    )
