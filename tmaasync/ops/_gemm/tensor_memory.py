"""Tile configs, tiles and builds of gemm_tensor_memory.cu, the GEMM of Blackwell's chips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync.kernel import Backend, Kernel, Launch
from tmaasync.modes import Swizzle
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import BLOCK_K_BYTES, Occupancy
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tiles import GemmArguments, GemmMatrices, operand_tile
from tmaasync.ops._operation import overridden, shipped_kernel
from tmaasync.tile import TMATensorTile, create_tma_tile

_NOT_PLAIN = "ops.matmul with an epilogue, or of types other than bfloat16 and float16,"
_CAPABILITIES = ((10, 0), (10, 3))
_TYPES = ("bfloat16", "float16")
_ROWS = 128  # of a CTA tile: the lanes of tensor memory
_THREADS = 256
_BARRIERS_BYTES = 1024
_STAGING_BYTES = 2 * _ROWS * 128
_MOST_STAGES = 8
_TILE_OVERHEAD = 32
"""Columns of a tile whose multiplication takes as long as its start and end: predicted."""


class TensorMemoryConfig(NamedTuple):
    """The CTA tiles of 128 rows by ``block_n`` columns.

    Attributes:
        block_n: Columns of a CTA tile: 64, 128 or 256.
        ctas: CTAs that multiply together: 1, or the 2 of a pair, with adjacent tiles along M.
        group_m: Clusters along M before the next column of tiles: the L2 swizzle.
    """

    block_n: int
    ctas: int
    group_m: int = 8

    @property
    def stages(self) -> int:
        stage_bytes = (_ROWS + self.block_n // self.ctas) * BLOCK_K_BYTES
        room = MAX_SHARED_BYTES - _STAGING_BYTES - _BARRIERS_BYTES
        return min(_MOST_STAGES, room // stage_bytes)

    def clusters(self, problem: Problem) -> int:
        rows = -(-problem.m // (_ROWS * self.ctas))
        return rows * -(-problem.n // self.block_n) * problem.batches


def runs_on_tensor_memory(backend: Backend, operands: str, is_plain: bool) -> bool:
    """Return whether a device multiplies operands of this type here, or else with wgmma.

    Raises:
        BackendError: It does neither.
    """
    has_tensor_memory = backend.limits.compute_capability in _CAPABILITIES
    if has_tensor_memory and is_plain and operands in _TYPES:
        return True
    backend.require_wgmma(_NOT_PLAIN if has_tensor_memory else "ops.matmul")
    return False


def tensor_memory_config(problem: Problem, occupancy: Occupancy) -> TensorMemoryConfig:
    """Return the config with the least predicted time; none was measured."""

    def time(config: TensorMemoryConfig) -> int:
        active = occupancy.max_active_clusters(config.ctas)
        waves = -(-config.clusters(problem) // active)
        return waves * (config.block_n + _TILE_OVERHEAD)

    return overridden(min(_candidates(problem), key=time))


def _candidates(problem: Problem) -> Iterator[TensorMemoryConfig]:
    for block_n in (256, 128, 64):
        for ctas in (2, 1) if problem.m > _ROWS else (1,):
            # N-major tiles of B have whole boxes of 64 columns in each CTA.
            if problem.b_is_k_major or block_n // ctas >= 64:
                yield TensorMemoryConfig(block_n, ctas)


def prepared_on_tensor_memory(
    matrices: GemmMatrices[ArrayView], problem: Problem, occupancy: Occupancy
) -> Launch:
    """Return the launch for matrices whose rows TMA can move."""
    config = tensor_memory_config(problem, occupancy)
    tiles = GemmMatrices(
        operand_tile(matrices.a, _ROWS, k_major=problem.a_is_k_major, parts=1),
        operand_tile(
            matrices.b, config.block_n // config.ctas, k_major=problem.b_is_k_major, parts=1
        ),
        _output_tile(matrices.c, config),
    )
    clusters = config.clusters(problem)
    check_extents(tiles=clusters * config.ctas)
    resident = min(clusters, occupancy.max_active_clusters(config.ctas))
    launch = _kernel(tiles, problem, config).prepare(
        resident * config.ctas,
        _THREADS,
        GemmArguments(*tiles, m=problem.m, n=problem.n, k=problem.k, batches=problem.batches),
        cluster=config.ctas if config.ctas > 1 else None,
    )
    launch.release()
    return launch


def _output_tile(out: ArrayView, config: TensorMemoryConfig) -> TMATensorTile:
    columns = min(128 // out.element.itemsize, config.block_n)
    shape = (*(1,) * (out.ndim - 2), _ROWS, columns)
    return create_tma_tile(out, shape, swizzle=Swizzle.B128)


def _kernel(
    tiles: GemmMatrices[TMATensorTile], problem: Problem, config: TensorMemoryConfig
) -> Kernel:
    names = zip(("ATile", "BTile", "CTile"), tiles, strict=True)
    constants = {
        "STAGES": config.stages,
        "CTAS": config.ctas,
        "GROUP_M": config.group_m,
        "A_IS_K_MAJOR": problem.a_is_k_major,
        "B_IS_K_MAJOR": problem.b_is_k_major,
    }
    types = {name: tile.cuda_type for name, tile in names}
    return shipped_kernel("gemm_tensor_memory.cu", types, constants)
