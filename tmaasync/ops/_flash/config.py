"""Compile-time parameters of attention.cu: a variant (mask, softcap, outputs) and a tile config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from tmaasync._hardware import MAX_SHARED_BYTES, WARPGROUP_THREADS
from tmaasync.errors import BackendError
from tmaasync.modes import Swizzle
from tmaasync.ops._flash.abi import PROBLEM, partial_output, record
from tmaasync.ops._flash.operands import Scores

GROUP_ROWS = 64
"""Rows of queries of a consumer warpgroup: M of one wgmma."""

MAX_CONSUMERS = 3
"""Consumer warpgroups of a CTA."""

_BARRIER_BYTES = 3 * 1024  # for queries, keys and values: 1 KiB each, to align the next tiles
_OUTPUT_BYTES = 2
_FEW_ROWS = 8  # a thread has one of the first 8 of a warp's 16 rows of a wgmma
_MIN_STAGES, _MAX_STAGES = 2, 4
_FLOAT8_PANEL = 64  # keys of a block of V transposed, at least
_SMALL_TILES = ((2, 64), (1, 64), (2, 32), (1, 32))  # consumers, keys of a block


class Sizes(NamedTuple):
    """The sizes that determine the tile config and the schedule."""

    queries: int
    keys: int
    heads: int
    heads_per_kv_head: int
    batch: int
    head_dim: int
    element_bytes: int = 2


class Batch(NamedTuple):
    """The number of packed sequences, and their maximum lengths.

    ``is_invariant``: whether the bits of a sequence stay the same whatever the others are.
    """

    size: int
    max_queries: int
    max_keys: int
    is_invariant: bool = False


@dataclass(frozen=True, slots=True)
class Variant:
    """The mask, softcap and outputs that the kernel is compiled for.

    ``page_size`` is the rows per page of the KV cache; 0 if it is not paged.
    """

    is_packed: bool = False
    has_left: bool = False
    has_right: bool = False
    has_softcap: bool = False
    has_lse: bool = False
    page_size: int = 0

    @classmethod
    def of(
        cls, scores: Scores, *, has_lse: bool, is_packed: bool = False, page_size: int = 0
    ) -> Variant:
        return cls(
            is_packed=is_packed,
            has_left=scores.left is not None,
            has_right=scores.right is not None,
            has_softcap=scores.softcap is not None,
            has_lse=has_lse,
            page_size=page_size,
        )

    @property
    def skips_blocks(self) -> bool:
        """Whether the mask lets a tile skip blocks of keys."""
        return self.has_left or self.has_right

    @property
    def constants(self) -> dict[str, bool | int]:
        return {
            "IS_PACKED": self.is_packed,
            "PAGE_SIZE": self.page_size,
            "HAS_LEFT": self.has_left,
            "HAS_RIGHT": self.has_right,
            "HAS_SOFTCAP": self.has_softcap,
            "HAS_LSE": self.has_lse,
        }


@dataclass(frozen=True, slots=True)
class TileConfig:
    """CTA tiles of ``64 * consumers`` rows of queries, and blocks of ``block_n`` keys.

    Attributes:
        head_dim: Columns of the tiles: a multiple of 64 bytes of the operands.
        consumers: Consumer warpgroups, 64 rows each; one producer warp(group) loads for them.
        block_n: Keys per block.
        heads_per_tile: Query heads of one KV head whose queries share a tile (GQA packing).
        cluster: CTAs that share loads of keys and values by multicast, one tile each: 1 or 2. The
            adjacent tiles of a cluster form a span.
        stream_k: Padded arrays: whether all clusters share the keys of the last wave's spans
            (stream-K), and a combine kernel adds up the partial outputs.
        kv_splits: Packed arrays: the number of splits of each tile's keys (flash-decoding); 1 if
            one CTA works on all keys.
        one_tile_each: Packed arrays: whether each sequence has one tile per tile of heads, as in
            decode, so that no work list is needed.
        element_bytes: Element size of the operands.
        transposes_v: FP8: whether warps of attention.cu transpose V block by block in shared
            memory; else attention_values.cu transposes V before the launch.
        has_few_rows: FP8: whether no tile has more than 8 rows of queries, as in decode, so that
            the softmax skips the second row of each thread.
        shared_bytes: The shared memory of a CTA, at most.
    """

    source: ClassVar[str] = "attention.cu"
    query_rows: ClassVar[int] = GROUP_ROWS  # of a tile of queries, loaded at once

    head_dim: int
    consumers: int
    block_n: int
    heads_per_tile: int = 1
    cluster: int = 1
    stream_k: bool = False
    kv_splits: int = 1
    one_tile_each: bool = False
    element_bytes: int = 2
    transposes_v: bool = False
    has_few_rows: bool = False
    shared_bytes: int = MAX_SHARED_BYTES

    def within(self, shared_bytes: int) -> TileConfig:
        """Return the config for a chip with less shared memory than Hopper; none was measured.

        CTAs are alone, and the tile is the first that leaves two stages in each pipeline.

        Raises:
            BackendError: FP8, and no tile does.
        """
        if shared_bytes >= self.shared_bytes:
            return self
        least = _FLOAT8_PANEL if self.element_bytes == 1 else 1
        small = replace(self, shared_bytes=shared_bytes, cluster=1)
        for consumers, block_n in _SMALL_TILES:
            tile = replace(small, consumers=consumers, block_n=block_n)
            if block_n >= least and tile.stages >= _MIN_STAGES:
                return tile
        raise BackendError(
            f"attention in FP8 with heads of {self.head_dim} columns needs more than the "
            f"{shared_bytes} bytes of shared memory that a thread block has on this device. "
            "Convert q, k and v to bfloat16 or float16, or run it on an H100, H200, B200 or B300."
        )

    def for_queries(self, longest: int) -> TileConfig:
        """Return the tile config for sequences of at most ``longest`` queries."""
        few = self.element_bytes == 1 and self.consumers == 1
        return replace(self, has_few_rows=few and longest * self.heads_per_tile <= _FEW_ROWS)

    @property
    def splits_keys(self) -> bool:
        """Whether several CTAs may work on the keys of one tile."""
        return self.stream_k or self.kv_splits > 1

    @property
    def combined(self) -> TileConfig:
        """The config of the combine kernel, which stores the rows of one consumer at a time."""
        return self

    @property
    def rows(self) -> int:
        """Rows of queries in a tile, over all its heads."""
        return GROUP_ROWS * self.consumers

    @property
    def positions(self) -> int:
        return self.rows // self.heads_per_tile

    @property
    def span_positions(self) -> int:
        """Positions of a span: the adjacent tiles of a cluster."""
        return self.cluster * self.positions

    def spans(self, sizes: Sizes) -> int:
        """Return the number of spans that cover the queries; without clusters, of tiles."""
        heads = sizes.batch * sizes.heads // self.heads_per_tile
        return heads * -(-sizes.queries // self.span_positions)

    def waves(self, sizes: Sizes, sms: int) -> int:
        """Return the waves: the spans of the busiest cluster, if all spans take equally long."""
        return -(-self.spans(sizes) // (sms // self.cluster))

    @property
    def threads(self) -> int:
        return WARPGROUP_THREADS * (1 + self.consumers)

    @property
    def partial_bytes(self) -> int:
        """Bytes of a tile's partial output and statistics for one split of its keys."""
        return self.consumers * partial_output(self.head_dim).itemsize

    @property
    def stages(self) -> int:
        """Stages of each of the two pipelines, of keys and of values."""
        used = self.query_buffers * self._tile_bytes
        used += 0 if self.output_is_over_queries else self._output_bytes
        room = self.shared_bytes - self._fixed_bytes - used
        return min(_MAX_STAGES, room // self._block_bytes)

    @property
    def query_buffers(self) -> int:
        """Two, so that tiles overlap, if that leaves two stages in each pipeline; else one."""
        used = 2 * self._tile_bytes + self._output_bytes + 2 * self._block_bytes
        return 2 if used + self._fixed_bytes <= self.shared_bytes else 1

    @property
    def output_is_over_queries(self) -> bool:
        """Whether the output reuses the query buffer, as its own would leave under two stages."""
        used = self._tile_bytes + self._output_bytes + 2 * self._block_bytes
        return self.element_bytes == _OUTPUT_BYTES and used + self._fixed_bytes > self.shared_bytes

    @property
    def _fixed_bytes(self) -> int:
        """Bytes of the barriers, and of the two blocks of V transposed in shared memory."""
        return _BARRIER_BYTES + (1024 + self._block_bytes if self.transposes_v else 0)

    @property
    def _block_bytes(self) -> int:
        return 2 * self.block_n * self.head_dim * self.element_bytes

    @property
    def _tile_bytes(self) -> int:
        return self.rows * self.head_dim * self.element_bytes

    @property
    def _output_bytes(self) -> int:
        return self.rows * self.head_dim * _OUTPUT_BYTES

    @property
    def swizzle(self) -> Swizzle:
        """The swizzle of queries and keys."""
        return widest(self.head_dim * self.element_bytes)

    @property
    def output_swizzle(self) -> Swizzle:
        return widest(self.head_dim * _OUTPUT_BYTES)

    @property
    def constants(self) -> dict[str, bool | int]:
        return {
            "CONSUMERS": self.consumers,
            "BLOCK_N": self.block_n,
            "HEAD_DIM": self.head_dim,
            "STAGES": self.stages,
            "QUERY_BUFFERS": self.query_buffers,
            "HEADS_PER_TILE": self.heads_per_tile,
            "CLUSTER": self.cluster,
            "SPLITS_KEYS": self.splits_keys,
            "ONE_TILE_EACH": self.one_tile_each,
            "O_OVER_Q": self.output_is_over_queries,
            "TRANSPOSES_V": self.transposes_v,
            "HAS_FEW_ROWS": self.has_few_rows,
        }


def problem(sizes: Sizes, scores: Scores, page_step: int = 0, pages: int = 0) -> bytes:
    """Return the kernels' ``Problem``; ``page_step`` is the rows between starts of key pages."""
    scale, scale_log2 = scores.factors
    return record(
        PROBLEM,
        **shared_fields(sizes, scores),
        scale=scale,
        scale_log2=scale_log2,
        page_step=page_step,
        pages=pages,
    )


def shared_fields(sizes: Sizes, scores: Scores) -> dict[str, int]:
    """Return the size and mask fields that forward and backward kernels share.

    A side of the window is no longer than what it can reach: of the keys on the left and of the
    queries on the right if the last ones are aligned, else the other way round.
    """
    left_reach, right_reach = sizes.keys, sizes.queries
    if scores.is_top_left:
        left_reach, right_reach = right_reach, left_reach
    return {
        "batch": sizes.batch,
        "heads": sizes.heads,
        "heads_per_kv_head": sizes.heads_per_kv_head,
        "queries": sizes.queries,
        "keys": sizes.keys,
        "left": min(scores.left or 0, left_reach),
        "right": min(scores.right or 0, right_reach),
        "is_bottom_right": not scores.is_top_left,
    }


def packed_heads(sizes: Sizes) -> int:
    """Return the heads of a tile with GQA packing (FlashAttention's pack_gqa).

    The largest power of two that divides the group.
    """
    heads = sizes.heads_per_kv_head
    return min(heads & -heads, GROUP_ROWS)


def widest(row_bytes: int) -> Swizzle:
    """Return the widest swizzle for rows of this length: 128 or 64 bytes."""
    return Swizzle.B128 if row_bytes % Swizzle.B128.span_bytes == 0 else Swizzle.B64


def padded_dim(head_dim: int, element_bytes: int = 2) -> int:
    """Return the columns of the tiles: multiples of 64 bytes, which TMA fills up with zeros.

    >>> [padded_dim(dim) for dim in (8, 64, 72, 96, 128, 200, 256)]
    [32, 64, 96, 96, 128, 224, 256]
    >>> [padded_dim(dim, 1) for dim in (16, 64, 80, 128, 208)]
    [64, 64, 128, 128, 256]
    """
    line = Swizzle.B64.span_bytes // element_bytes
    return -(-head_dim // line) * line
