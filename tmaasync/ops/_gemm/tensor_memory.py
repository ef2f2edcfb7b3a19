"""Tile configs of gemm_tensor_memory.cu, the GEMM of chips with tensor memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from tmaasync._elements import Element
from tmaasync._hardware import MAX_SHARED_BYTES, WARPGROUP_THREADS, WITH_TENSOR_MEMORY
from tmaasync.kernel import Backend
from tmaasync.modes import Swizzle
from tmaasync.ops._gemm.coefficients import coefficients
from tmaasync.ops._gemm.config import (
    BLOCK_K_BYTES,
    LINE_BYTES,
    Occupancy,
    PersistentWork,
    TileConfig,
)
from tmaasync.ops._gemm.legal_tiles import MAX_GROUP, RACED_GROUPS, RACED_SPLITS, Problem
from tmaasync.ops._operation import overridden

_INTEGERS = ("int8", "uint8")
_ROWS = 128  # of a CTA tile: the lanes of tensor memory
_BARRIERS_BYTES = 1024
_STAGING_BYTES = 2 * _ROWS * LINE_BYTES
_MOST_STAGES = 8
_STAGE_ALIGNMENT = 1024
_ENOUGH_STAGES = 4
_ATOM_ROWS = 128
_COLUMNS = 512  # of tensor memory
_TILE_OVERHEAD = 32
"""Columns of a tile whose multiplication takes as long as its start and end: predicted."""
_MIN_K_BLOCKS = 4  # per split
_PARTIAL_BYTES = 4  # per accumulator
_COLUMNS_PER_MICROSECOND = 925
"""Columns by a K block: 2 clocks each at a B200's 1.85 GHz, from its datasheet's peak."""
_MEMORY_BYTES = 8e6  # in a microsecond: the datasheet's


@dataclass(frozen=True)
class TensorMemoryConfig(TileConfig):
    """CTA tiles of 128 rows; the two CTAs of a cluster multiply as a pair."""

    sources: ClassVar = ("gemm_tensor_memory.cu", "gemm_tensor_memory_epilogue.cu")
    shifts_rows: ClassVar = False

    @property
    def b_tile(self) -> tuple[int, int]:
        return self.block_n // self.cluster, 1

    @property
    def stage_bytes(self) -> int:
        return (_ROWS + self.block_n // self.cluster) * BLOCK_K_BYTES

    @property
    def stages(self) -> int:
        room = MAX_SHARED_BYTES - _STAGING_BYTES - _BARRIERS_BYTES
        return min(_MOST_STAGES, room // self.stage_bytes)

    @property
    def constants(self) -> dict[str, int]:
        return {
            "STAGES": self.stages,
            "CTAS": self.cluster,
            "GROUP_M": self.group_m,
            "STORES_PARTIALS": self.over_grid,
        }

    def starts_early(self, work: PersistentWork, active_clusters: int) -> bool:
        del work, active_clusters
        return False

    def output_box(self, element: Element) -> tuple[tuple[int, int], Swizzle]:
        return (_ROWS, LINE_BYTES // element.itemsize), Swizzle.B128


def runs_on_tensor_memory(backend: Backend, operands: str) -> bool:
    """Return whether a device multiplies operands of this type in tensor memory."""
    capability = backend.limits.compute_capability
    return capability in WITH_TENSOR_MEMORY and (operands not in _INTEGERS or capability == (10, 0))


def tensor_memory_config(
    problem: Problem, occupancy: Occupancy, *, is_uneven: bool = False, may_split: bool = False
) -> TileConfig:
    """Return the config with the least predicted time; none was measured.

    Args:
        problem: The GEMM.
        occupancy: SMs and max active clusters of the device.
        is_uneven: Whether the batches are groups, which have m rows on average.
        may_split: Whether K may be split over the grid.
    """

    def time(config: TileConfig) -> int:
        active = occupancy.max_active_clusters(config.cluster)
        rows = problem.m + (config.cluster_rows // 2 if is_uneven else 0)
        clusters = config.clusters(rows, problem.n) * problem.batches
        return -(-clusters // active) * (_columns(config) + _TILE_OVERHEAD)

    config = min(_candidates(problem), key=time)
    if may_split:
        config = _faster_with_split_k(problem, occupancy, config)
    return overridden(config)


def _columns(config: TileConfig) -> int:
    """Return the columns whose multiplication takes as long as a tile's K block, or as its loads.

    In the cycles in which a CTA multiplies 64 bytes of K by one column, 64 bytes arrive from L2:
    an H200's L2 gives each SM 60 bytes in a clock (split_k.l2_bytes of h200.toml).
    """
    return max(config.block_n, _ROWS + config.block_n // config.cluster)


def _faster_with_split_k(
    problem: Problem, occupancy: Occupancy, whole: TensorMemoryConfig
) -> TensorMemoryConfig:
    """Return the config of one wave that splits K over the grid, if it gains, else ``whole``."""
    best = next(iter(_ranked_splits(problem, occupancy)), whole)
    gain = _microseconds(problem, occupancy, whole) / _microseconds(problem, occupancy, best)
    return best if gain > coefficients().grid.min_gain else whole


def _microseconds(problem: Problem, occupancy: Occupancy, config: TensorMemoryConfig) -> float:
    """Predict the time of a GEMM.

    The workspace and the combine kernel are predicted to take as long as on an H200.
    """
    read = (problem.m + problem.n) * problem.k_blocks * BLOCK_K_BYTES / _MEMORY_BYTES
    clusters = config.split_k * config.clusters(problem.m, problem.n)
    waves = -(-clusters // occupancy.max_active_clusters(config.cluster))
    blocks = -(-problem.k_blocks // config.split_k)
    time = max(waves * blocks * _columns(config) / _COLUMNS_PER_MICROSECOND, read)
    if not config.over_grid:
        return time
    numbers, partial_bytes = coefficients().grid, problem.m * problem.n * _PARTIAL_BYTES
    return time + numbers.combine + config.split_k * partial_bytes / numbers.combined_bytes


def _ranked_splits(problem: Problem, occupancy: Occupancy) -> list[TensorMemoryConfig]:
    """Return the configs of one wave that split K over the grid, the fastest first."""
    found = [
        replace(config, split_k=split_k, over_grid=True)
        for config in _candidates(problem)
        for split_k in range(2, _most_splits(problem) + 1)
        if split_k * config.clusters(problem.m, problem.n)
        <= occupancy.max_active_clusters(config.cluster)
    ]
    return sorted(found, key=partial(_microseconds, problem, occupancy))


def _most_splits(problem: Problem) -> int:
    return problem.k_blocks // _MIN_K_BLOCKS if problem.batches == 1 else 1


def candidates(problem: Problem, occupancy: Occupancy) -> list[TensorMemoryConfig]:
    """Return the tile configs that the tuner races, in groups of several sizes or with split-K."""
    whole = [
        replace(config, group_m=group_m)
        for config in _candidates(problem)
        for group_m in RACED_GROUPS
    ]
    return whole + _ranked_splits(problem, occupancy)[:RACED_SPLITS]


def is_legal(config: TensorMemoryConfig, problem: Problem) -> bool:
    """Return whether the kernel computes the GEMM with a tile config."""
    tile = replace(config, split_k=1, over_grid=False)
    tiles = [replace(one, group_m=config.group_m) for one in _candidates(problem)]
    splits = range(2, _most_splits(problem) + 1) if config.over_grid else (1,)
    return tile in tiles and config.split_k in splits and 1 <= config.group_m <= MAX_GROUP


def _candidates(problem: Problem) -> Iterator[TensorMemoryConfig]:
    for block_n in (256, 128, 64):
        for ctas in (2, 1) if problem.m > _ROWS else (1,):
            # N-major tiles of B have whole boxes of 64 columns in each CTA.
            if problem.b_is_k_major or block_n // ctas >= 64:
                yield TensorMemoryConfig(1, block_n, ctas, rows=_ROWS)


@dataclass(frozen=True)
class BlockScaledConfig(TensorMemoryConfig):
    """A config of scaled_gemm_tensor_memory.cu, whose stages also hold scale factors.

    Attributes:
        factors: Scale factors of a row in a stage.
    """

    scaled_source: ClassVar = "scaled_gemm_tensor_memory.cu"
    grouped_source: ClassVar = "scaled_grouped_gemm_tensor_memory.cu"
    factors: int = 0

    @property
    def stage_bytes(self) -> int:
        factor_bytes = self.factors * self._factor_rows
        return super().stage_bytes + -(-factor_bytes // _STAGE_ALIGNMENT) * _STAGE_ALIGNMENT

    @property
    def stages(self) -> int:
        return min(super().stages, self._stages_with(1 + self.has_two_sets))

    @property
    def constants(self) -> dict[str, int]:
        return {**super().constants, "A_IS_K_MAJOR": True, "B_IS_K_MAJOR": True}

    @property
    def has_two_sets(self) -> bool:
        """Whether tensor memory holds a second set of accumulators, and factors of enough stages.

        The kernel has the same rule, from the number of stages.
        """
        return self._stages_with(2) >= min(super().stages, _ENOUGH_STAGES)

    @property
    def _factor_rows(self) -> int:
        """Rows of A and columns of B in whole atoms of scale factors."""
        return _ROWS + -(-self.block_n // _ATOM_ROWS) * _ATOM_ROWS

    def _stages_with(self, sets: int) -> int:
        """Return the stages whose factors fit in tensor memory: a column for 32 rows by 4."""
        return (_COLUMNS - sets * self.block_n) // (self.factors * self._factor_rows // 128)


def block_scaled_config(
    m: int, n: int, factors: int, occupancy: Occupancy, groups: int = 0
) -> BlockScaledConfig:
    """Return the config with the least predicted time; none was measured.

    With one set of accumulators the next tile also waits until they are stored. ``groups`` have m
    rows on average.
    """

    def time(config: BlockScaledConfig) -> int:
        active = occupancy.max_active_clusters(config.cluster)
        overhead = _TILE_OVERHEAD * (1 if config.has_two_sets else 2)
        rows = m + (config.cluster_rows // 2 if groups else 0)
        clusters = config.clusters(rows, n) * max(groups, 1)
        return -(-clusters // active) * (_columns(config) + overhead)

    candidates = (
        BlockScaledConfig(1, block_n, ctas, rows=_ROWS, factors=factors)
        for block_n in (256, 192, 128, 64)
        for ctas in ((2, 1) if m > _ROWS else (1,))
    )
    return overridden(min(candidates, key=time))


@dataclass(frozen=True)
class PromotedConfig(TensorMemoryConfig):
    """A config of promoted_gemm_tensor_memory.cu, whose stages have float32 scales.

    Attributes:
        column_scales: Whether B has one scale per column, not per 128 columns.
    """

    scaled_source: ClassVar = "promoted_gemm_tensor_memory.cu"
    grouped_source: ClassVar = "promoted_grouped_gemm_tensor_memory.cu"
    column_scales: bool = False

    @property
    def a_scales(self) -> int:
        """Number of scales of A in a stage."""
        return self.block_m

    @property
    def stages(self) -> int:
        scale_bytes = 2 * _ROWS * 4 * (_COLUMNS // self.block_n)
        room = MAX_SHARED_BYTES - _STAGING_BYTES - _BARRIERS_BYTES - scale_bytes
        return min(_MOST_STAGES, room // self.stage_bytes)

    @property
    def threads(self) -> int:
        return super().threads + WARPGROUP_THREADS  # a second warpgroup promotes

    @property
    def constants(self) -> dict[str, int]:
        return {**super().constants, "A_IS_K_MAJOR": True, "B_IS_K_MAJOR": True}


def promoted_config(m: int, *, column_scales: bool) -> PromotedConfig:
    """Return the config: in tiles of 128 columns a thread has its row in registers."""
    ctas = 2 if m > _ROWS else 1
    return PromotedConfig(1, 128, ctas, rows=_ROWS, column_scales=column_scales)
