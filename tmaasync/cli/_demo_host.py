"""The part of the demo without a GPU: everything up to the launch."""

from __future__ import annotations

import time
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tmaasync import swizzle
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel
from tmaasync.modes import DataType, Swizzle
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel
from tmaasync.tensormap import TensorMapSpec
from tmaasync.tile import BulkTile, TMATensorTile, create_tma_tile

__all__ = ["Compiled", "HostReport", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A kernel as the compiler left it."""

    kernel: str
    configuration: str
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Texts to print, and the compiled kernels."""

    tile: str
    decoded: str
    illegal: str
    swizzle: str
    kernels: tuple[Compiled, ...]


def run() -> HostReport:
    """Make the report.

    Raises:
        BackendError: There is no NVRTC.
    """
    array = np.random.default_rng(0).standard_normal((1000, 512), np.float32).astype(np.float16)
    tile = create_tma_tile(array, (128, 128), swizzle=Swizzle.B128)
    small = create_tma_tile(array, (8, 64), swizzle=Swizzle.B128)
    return HostReport(
        tile=_described(tile),
        decoded=_decoded(tile),
        illegal=str(_illegal(array).explain()),
        swizzle=swizzle.render(small.tile_shape, small.box_shape, 2, Swizzle.B128),
        kernels=tuple(_compiled(*case) for case in _kernels(array)),
    )


def _described(tile: TMATensorTile) -> str:
    return "\n".join(
        (
            repr(tile),
            f"box_shape  {tile.box_shape}, {tile.boxes_per_tile} boxes",
            f"tile_bytes {tile.tile_bytes}, aligned to {tile.smem_alignment}",
            f"cuda_type  {tile.cuda_type}",
        )
    )


def _decoded(tile: TMATensorTile) -> str:
    spec = TensorMapSpec.decode(tile.descriptor)
    if spec != tile.spec:
        raise ArgumentError(f"the 128 bytes decode to {spec}; the tile's spec is {tile.spec}.")
    return repr(spec)


def _illegal(array: np.ndarray) -> TensorMapSpec:
    """Rows of 511 elements, a box wider than the swizzle, and an address one element too far."""
    return TensorMapSpec(
        array.ctypes.data + array.itemsize,
        DataType.FLOAT16,
        (1000, 511),
        (1022,),
        (64, 80),
        swizzle=Swizzle.B128,
    )


def _kernels(array: np.ndarray) -> tuple[tuple[str, Kernel], ...]:
    bulk = BulkTile(array, 32768)
    tiled = create_tma_tile(array, (32, 256))
    ring = {"STAGES": 4, "LOADS_AHEAD": 2}
    return (
        ("1-D bulk, 4 x 32 KiB", Kernel("copy.cu", types={"Tile": bulk}, constants=ring)),
        ("tiled, 4 x 16 KiB", Kernel("copy.cu", types={"Tile": tiled}, constants=ring)),
        ("bf16 128x256x64, 4 stages", _gemm(array)),
    )


def _gemm(array: np.ndarray) -> Kernel:
    matrix = array.view(ml_dtypes.bfloat16)
    a = create_tma_tile(matrix, (128, 64), swizzle=Swizzle.B128)
    # Two boxes: each CTA of a pair loads one and sends it to both.
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
