"""Tile configs of the GEMM kernels: CTA tile, stages, cluster shape, schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import ClassVar, NamedTuple, Self

from tmaasync._elements import Element
from tmaasync._hardware import MAX_SHARED_BYTES, WARPGROUP_THREADS
from tmaasync.kernel import Backend, backend_of
from tmaasync.modes import Swizzle
from tmaasync.ops._layouts import Layout

BLOCK_K_BYTES = 128
"""Bytes of K in a stage: 64 elements of 16 bits, 128 of 8, 32 of 32."""

LINE_BYTES = 128
"""A line of L2."""

SKINNY_LIMIT = 64
"""Rows of an output up to which operations swap AB: C^T = B^T A^T uses all 64 rows of wgmma, and
its tiles are as narrow as the output."""

MOST_SWAP_AB_ROWS = 200
"""Rows of an output up to which operations swap AB where that saves multiply-adds."""

SCALE_BLOCK = 128
"""How many elements of K, and columns of B, share a scale of a block-scaled GEMM."""

SCALES_PER_LOAD = 4
"""16 bytes, the least that TMA loads."""

WIDE_SCALED = 256
"""Columns of the widest tile of a block-scaled GEMM, which stages its whole output at once."""

_WGMMA_ROWS = 64  # rows of one wgmma and of one store
_LOADS_TO_START_LATE = 0.015  # elements per multiply-add; 128 x 128 tiles load 0.0156
_CTA_LOADS_TO_START_LATE = 400_000  # elements per CTA; fewer were not measured
_BARRIER_BYTES = 1024
_LARGEST_OUTPUT_BYTES = 4
_ACCUMULATOR_BYTES = 4
_MIN_SHARE_COLUMNS = 8  # columns that a CTA of split-K stores if M is contiguous
_MIN_SWAP_AB_COLUMNS = 4096  # for over 64 rows; with fewer columns swap AB gains nothing
_FEW_SWAP_AB_ROWS = 96  # up to this many rows swap AB is faster for every K
_ONE_TILE_ROWS = 128
_LONG_SWAP_AB_WEIGHTS = 48 << 20  # elements of B: over 128 rows, GEMMs run at the power limit
_MIN_SAVING = 1.2  # ratio of multiply-adds: rows rounded up to 64, over swap AB
_WIDE_CHUNK_COLUMNS = 32  # columns per store if M is contiguous and a tile has more than 64
_MIN_STORE_BYTES = 32
_SMALL_COLUMNS = 128  # of a tile in less shared memory than Hopper's
_SWIZZLES = {128: Swizzle.B128, 64: Swizzle.B64, 32: Swizzle.B32}  # by store width in bytes
_SCALE_BYTES = 4
_SCALED_ALIGNMENT = 128
_SCALED_BARRIER_BYTES = 16  # two barriers per stage


@dataclass(frozen=True, slots=True)
class Occupancy:
    """SMs and max active clusters of a device, one CTA per SM.

    Attributes:
        sms: The number of SMs.
        clusters_of: Returns the max active clusters for a cluster size of two or more.
    """

    sms: int
    clusters_of: Callable[[int], int]

    @classmethod
    def of(cls, backend: Backend) -> Occupancy:
        return cls(backend.limits.sms, backend.max_active_clusters)

    @classmethod
    def estimated(cls, sms: int) -> Occupancy:
        """Return an estimate for an absent device, with the GPCs of an H200."""
        h200 = backend_of(None)

        def max_active_clusters(size: int) -> int:
            full = h200.limits.sms // size
            return sms // size * h200.max_active_clusters(size) // full

        return cls(sms, max_active_clusters)

    def max_active_clusters(self, size: int) -> int:
        return self.sms if size == 1 else self.clusters_of(size)


class Orientation(NamedTuple):
    """Whether a kernel computes C or its transpose, and the layout of the result in memory.

    Attributes:
        swap_ab: Whether the kernel computes C^T = B^T A^T instead of C = A B (swap AB; CUTLASS,
            TensorRT-LLM).
        m_major: Whether M is the contiguous side of the computed matrix, not N.
    """

    swap_ab: bool
    m_major: bool

    @classmethod
    def of(
        cls, a: Layout, b: Layout, out: Layout, *, is_plain: bool, stores_rows: bool = False
    ) -> Orientation:
        """Return the orientation in which TMA can store C, and few rows do not waste tiles.

        Args:
            a: A, as [M, K].
            b: B, as [K, N].
            out: C, as [M, N].
            is_plain: Whether there is no epilogue.
            stores_rows: Whether the kernel computes no matrix whose contiguous side is M.
        """
        is_column_major = (
            out.in_stored_rows() is None and out.transposed.in_stored_rows() is not None
        )
        rows = out.transposed if is_column_major else out
        few = b.transposed if is_column_major else a
        m_major = rows.shape[-2] <= SKINNY_LIMIT or (is_plain and cls.gains_by_swap_ab(few, rows))
        m_major = m_major and not stores_rows
        return cls(is_column_major != m_major, m_major)

    @staticmethod
    def gains_by_swap_ab(few: Layout, out: Layout) -> bool:
        """Return whether swap AB is faster with over `SKINNY_LIMIT` rows; False if not measured.

        Tiles of C have 64 rows; tiles of its transpose are only as narrow as the output. That saves
        multiply-adds, which matter at the power limit. Up to 128 rows, long GEMMs are bound by
        memory, short ones by the bytes that all CTAs load. Over 20 GEMMs this rule is 1.042 times
        as fast as always using swap AB, and 1.038 times as fast as never
        (``sweep_tile_configs.py --ragged-rows``, H200, 2026-11-23).
        """
        rows, columns = out.shape[-2:]
        was_raced = len(out.shape) == 2 and few.element.itemsize == 2 and few.in_rows() is not None
        if not was_raced or columns < _MIN_SWAP_AB_COLUMNS or rows > MOST_SWAP_AB_ROWS:
            return False
        multiplied = -(-rows // _WGMMA_ROWS) * _WGMMA_ROWS
        is_long = columns * few.shape[-1] >= _LONG_SWAP_AB_WEIGHTS
        saves = multiplied >= _MIN_SAVING * rows
        return rows <= _FEW_SWAP_AB_ROWS or (rows > _ONE_TILE_ROWS and is_long and saves)

    @property
    def is_column_major(self) -> bool:
        """Whether C is M-major in memory: M is its contiguous side."""
        return self.swap_ab != self.m_major


class PersistentWork(NamedTuple):
    """The work of a persistent kernel: rows of the output, depth, and clusters that cover it."""

    m: int
    k: int
    clusters: int


@dataclass(frozen=True, slots=True)
class TileConfig:
    """CTA tiles of ``rows * consumers`` rows by ``block_n`` columns, their cluster and schedule.

    Attributes:
        consumers: Consumer warpgroups.
        block_n: Columns of a CTA tile.
        cluster: CTA tiles along M that multicast the columns of B they share.
        group_m: Clusters along M before the next column of tiles: the L2 swizzle of CUTLASS's
            rasterisation order and of Triton's grouped ordering.
        rows: Rows per consumer.
        m_major: Whether M is the contiguous side of the output, not N.
        max_stages: Upper bound on the stages of the pipeline.
        split_k: CTAs that each multiply one part of K of the same tile, and reduce through
            distributed shared memory; a cluster has ``cluster`` tiles.
        over_grid: Whether split-K uses CTAs of the whole grid instead of a cluster; a combine
            kernel then adds up the partial outputs in a workspace.
        ping_pong: Whether each of two consumers has its own tiles of ``rows`` rows, and multiplies
            while the other stores (CUTLASS's KernelTmaWarpSpecializedPingpong); else they are
            cooperative.
        side_by_side: Whether the tiles of a cluster lie along N and multicast the rows of A.
    """

    consumers: int
    block_n: int
    cluster: int = 1
    group_m: int = 8
    rows: int = _WGMMA_ROWS
    m_major: bool = False
    max_stages: int = 16
    split_k: int = 1
    ping_pong: bool = False
    side_by_side: bool = False
    over_grid: bool = False

    sources: ClassVar[tuple[str, str]] = ("gemm.cu", "gemm_epilogue.cu")
    """The kernels of the plain GEMM, and of the one with an epilogue."""
    shifts_rows: ClassVar[bool] = True
    """Whether the kernels may load A 64 rows at a time."""

    @classmethod
    def of(cls, config: TileConfig) -> Self:
        """Return the config for a kernel of this kind, from the config of a kernel it extends."""
        return cls(**{field.name: getattr(config, field.name) for field in fields(config)})

    @property
    def b_tile(self) -> tuple[int, int]:
        """Columns of a tile of B, and the CTAs that each load a part of it."""
        return self.block_n, self.b_multicast

    @property
    def block_m(self) -> int:
        return self.rows if self.ping_pong else self.rows * self.consumers

    @property
    def cluster_rows(self) -> int:
        return self.block_m * self.b_multicast

    @property
    def a_multicast(self) -> int:
        """CTAs that share the load of A by multicast; 1 without multicast."""
        return self.cluster if self.side_by_side else 1

    @property
    def b_multicast(self) -> int:
        """CTAs that share the load of B by multicast; 1 without multicast."""
        return 1 if self.side_by_side else self.cluster

    @property
    def cluster_size(self) -> int:
        return self.cluster * self.cluster_splits

    @property
    def cluster_splits(self) -> int:
        """CTAs of a cluster that each multiply one part of K."""
        return 1 if self.over_grid else self.split_k

    @property
    def stored_columns(self) -> int:
        """Columns that one CTA stores: with split-K a share, if it is wide enough.

        The kernel's ``count_output_slices`` has the same rule.
        """
        least = _MIN_SHARE_COLUMNS if self.m_major else _MIN_STORE_BYTES // 2
        shares = self.cluster_splits
        while self.block_n % (shares * least) != 0:
            shares -= 1
        return self.block_n // shares

    @property
    def chunk_columns(self) -> int:
        """Columns per store if M is contiguous: narrow stores leave memory for more stages."""
        stored = self.stored_columns
        if stored <= SKINNY_LIMIT:
            return stored
        chunks = range(_MIN_SHARE_COLUMNS, _WIDE_CHUNK_COLUMNS + 1, _MIN_SHARE_COLUMNS)
        return max(columns for columns in chunks if stored % columns == 0)

    @property
    def threads(self) -> int:
        """Threads of a CTA: the consumer warpgroups and the producer warpgroup."""
        return WARPGROUP_THREADS * (1 + self.consumers)

    @property
    def store_bytes(self) -> int:
        """Width of one store: the widest that leaves memory for `min_stages`, else the widest.

        If M is contiguous, whole lines.
        """
        if self.m_major:
            return max(_SWIZZLES)
        widths = [width for width in _SWIZZLES if self.stored_columns % (width // 2) == 0]
        keeps_stages = (width for width in widths if self._stages(width) >= self.min_stages)
        return next(keeps_stages, widths[0])

    @property
    def stage_bytes(self) -> int:
        return (self.block_m + self.block_n) * BLOCK_K_BYTES

    @property
    def partials_bytes(self) -> int:
        """Bytes of accumulators that a CTA of split-K receives from the other CTAs."""
        peers = self.cluster_splits - 1
        return peers * self.block_m * self.stored_columns * _ACCUMULATOR_BYTES

    @property
    def holds_partials(self) -> bool:
        return self.partials_bytes <= self.stages * self.stage_bytes

    def holds_addend(self, itemsize: int) -> bool:
        """Return whether a stage holds the addend chunks that all consumers store at once."""
        row_bytes = self.block_n * itemsize if self.m_major else self.store_bytes
        return self.consumers * _WGMMA_ROWS * row_bytes <= self.stage_bytes

    def _epilogue_bytes(self, itemsize: int, store_bytes: int) -> int:
        """Return the bytes of the epilogue's staging buffers."""
        row_bytes = self.chunk_columns * itemsize if self.m_major else store_bytes
        return self.consumers * self.epilogue_buffers * _WGMMA_ROWS * row_bytes

    @property
    def epilogue_buffers(self) -> int:
        """Staging buffers of a consumer for chunks of its output."""
        return 2

    @property
    def min_stages(self) -> int:
        """Minimum number of stages, for which `store_bytes` is reduced."""
        return 4

    @property
    def barriers_bytes(self) -> int:
        """Bytes of the barriers outside the stages, including alignment."""
        return _BARRIER_BYTES

    def shared_bytes(self, itemsize: int) -> int:
        """Return the shared memory of a CTA: operands, output of this element size, barriers."""
        operands = self.stages * self.stage_bytes
        return operands + self._epilogue_bytes(itemsize, self.store_bytes) + self.barriers_bytes

    @property
    def stages(self) -> int:
        """The number of stages that fit in shared memory for every output type."""
        return self._stages(self.store_bytes)

    def _stages(self, store_bytes: int) -> int:
        stores = self._epilogue_bytes(_LARGEST_OUTPUT_BYTES, store_bytes)
        room = MAX_SHARED_BYTES - self.barriers_bytes - stores
        return min(self.max_stages, room // self.stage_bytes)

    def within(self, shared_bytes: int) -> Self:
        """Return the config for a chip with less shared memory than Hopper, which it may fill.

        Tiles have at most 128 rows and columns, CTAs are alone, and there are at least two stages.
        No chip was measured.
        """
        if shared_bytes >= MAX_SHARED_BYTES:
            return self
        small = self._small(min(self.consumers, 2))
        if small.shared_bytes(_LARGEST_OUTPUT_BYTES) > shared_bytes:
            small = self._small(1)
        room = shared_bytes - small.shared_bytes(_LARGEST_OUTPUT_BYTES)
        return replace(small, max_stages=small.max_stages + room // small.stage_bytes)

    def _small(self, consumers: int) -> Self:
        return replace(
            self,
            consumers=consumers,
            rows=_WGMMA_ROWS,
            block_n=self.block_n if self.m_major else min(self.block_n, _SMALL_COLUMNS),
            cluster=1,
            side_by_side=False,
            ping_pong=False,
            split_k=self.split_k if self.over_grid else 1,
            max_stages=2,
        )

    @property
    def constants(self) -> dict[str, int]:
        return {
            "CONSUMERS": self.consumers,
            "ROWS": self.rows,
            "BLOCK_N": self.block_n,
            "STAGES": self.stages,
            "CLUSTER": self.cluster,
            "GROUP_M": self.group_m,
            "SPLIT_K": self.cluster_splits,
            "STORES_PARTIALS": self.over_grid,
            "PING_PONG": self.ping_pong,
            "SIDE_BY_SIDE": self.side_by_side,
            "C_IS_N_MAJOR": not self.m_major,
        }

    def starts_early(self, work: PersistentWork, active_clusters: int) -> bool:
        """Return whether CTAs start before the previous launch has ended (PDL).

        PDL gains 2 to 15 %, except for a single wave that nearly fills the chip. Its CTAs then
        start where others end, not next to CTAs with the same loads: small tiles in several rows of
        tiles with a long K lose 3 to 30 %. So do GEMMs bound by memory, and CTAs next to a combine
        kernel's. With this rule measured launches take 1.008 times the time of the better start on
        an H100, 1.010 on an H200 (sweep_tile_configs.py --few-tiles, 2026-11-24 and 2026-11-23).
        """
        if not active_clusters // 2 < work.clusters <= active_clusters:
            return True
        loads_much = (
            self.split_k == 1
            and work.m > self.block_m
            and self.loads_per_multiply_add >= _LOADS_TO_START_LATE
            and work.k * (self.block_m + self.block_n) >= _CTA_LOADS_TO_START_LATE
        )
        is_small = self.m_major or self.block_m == _WGMMA_ROWS
        return not (is_small or self.over_grid or loads_much)

    @property
    def loads_per_multiply_add(self) -> float:
        """Elements loaded per multiply-add of a tile."""
        return 1 / self.block_m + 1 / self.block_n

    def output_box(self, element: Element) -> tuple[tuple[int, int], Swizzle]:
        """Return the box of one store, and its swizzle in shared memory."""
        if self.m_major:
            return (self.chunk_columns, _WGMMA_ROWS), Swizzle.B128
        columns = self.store_bytes // element.itemsize
        return (_WGMMA_ROWS, columns), _SWIZZLES[self.store_bytes]

    def clusters(self, m: int, n: int) -> int:
        return -(-m // self.cluster_rows) * -(-n // (self.block_n * self.a_multicast))


@dataclass(frozen=True)
class ScaledTileConfig(TileConfig):
    """A tile config of scaled_gemm.cu, whose stages also hold scales; a consumer has 64 rows.

    Attributes:
        column_scales: Whether B has one scale per column, not per 128 columns.
    """

    scaled_source: ClassVar = "scaled_gemm.cu"
    column_scales: bool = False

    @property
    def epilogue_buffers(self) -> int:
        """One buffer per chunk of 16-bit output; this leaves three stages, not four."""
        return 4 if self.block_n == WIDE_SCALED else 2

    @property
    def min_stages(self) -> int:
        return 3

    @property
    def constants(self) -> dict[str, int]:
        constants = super().constants
        return {**constants, "EPILOGUE_BUFFERS": self.epilogue_buffers}

    @property
    def a_scales(self) -> int:
        """Number of scales of A in a stage."""
        return self.block_m

    @property
    def b_scales(self) -> int:
        """Maximum number of scales of B in a stage."""
        slices = max(1, self.block_n // SCALE_BLOCK)
        return self.block_n if self.column_scales else slices * SCALES_PER_LOAD

    @property
    def stage_bytes(self) -> int:
        operands = (self.block_m + self.block_n) * SCALE_BLOCK
        scales = sum(
            -(-count * _SCALE_BYTES // _SCALED_ALIGNMENT) * _SCALED_ALIGNMENT
            for count in (self.a_scales, self.b_scales)
        )
        return operands + scales + _SCALED_BARRIER_BYTES

    @property
    def barriers_bytes(self) -> int:
        """Alignment only: memory is so tight that `stage_bytes` includes the barriers exactly."""
        return _SCALED_ALIGNMENT
