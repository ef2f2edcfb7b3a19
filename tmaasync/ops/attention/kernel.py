"""attention.cu on the host: how queries and keys are cut, the tiles, what it is compiled with."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.ops._blocking import ROUNDS_TO_SHARE
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map
from tmaasync.tensormap import MAX_SHARED_BYTES
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = [
    "MERGE_THREADS",
    "RATES",
    "RATES_OF_BYTES",
    "TRANSPOSED_KEYS",
    "TRANSPOSING_THREADS",
    "Blocking",
    "Sizes",
    "Variant",
    "attention_kernel",
    "attention_tiles",
    "choose_blocking",
    "merge_kernel",
    "packed_maps",
    "padded_dim",
    "rows_at_once",
    "shapes",
    "shares_keys",
    "transposing_kernel",
    "transposing_tiles",
    "work_kernel",
]

GROUP_ROWS = 64
"""Rows of queries of a consumer: those of one wgmma."""

MERGE_THREADS = 1024
"""Of a CTA of the merge kernel: a warp for every second row."""

TRANSPOSING_THREADS = 128
"""Of a CTA of the kernel that transposes values, which takes `TRANSPOSED_KEYS` keys."""

TRANSPOSED_KEYS = 128

_GROUP_THREADS = 128
_WARP_THREADS = 32

_BARRIER_BYTES = 1024
_OUTPUT_BYTES = 2
_SUM_BYTES = 4
_MOST_STAGES = 4
_MOST_CONSUMERS = 3


@dataclass(frozen=True, slots=True)
class Variant:
    """What scores go through, as far as the kernel is compiled for it."""

    is_packed: bool = False
    has_left: bool = False
    has_right: bool = False
    has_softcap: bool = False
    has_lse: bool = False
    page_size: int = 0
    """Rows of a page of keys and values; 0 where they do not lie in pages."""

    @property
    def cuts_blocks(self) -> bool:
        """Whether a mask, and not the keys' end, decides which blocks are seen."""
        return self.has_left or self.has_right

    @property
    def constants(self) -> dict[str, bool | int]:
        """What the kernel is compiled with."""
        return {
            "IS_PACKED": self.is_packed,
            "PAGE_SIZE": self.page_size,
            "HAS_LEFT": self.has_left,
            "HAS_RIGHT": self.has_right,
            "HAS_SOFTCAP": self.has_softcap,
            "HAS_LSE": self.has_lse,
        }


@dataclass(frozen=True, slots=True)
class Blocking:
    """Tiles of ``64 * consumers`` rows of queries, of ``heads_per_tile`` heads; blocks of keys."""

    head_dim: int
    """Columns of the tiles: a multiple of 64 bytes of the operands."""

    consumers: int
    block_n: int
    heads_per_tile: int = 1
    cluster: int = 1
    """Thread blocks, with a tile each, that share loads of keys and values: 1 or 2."""

    splits_keys: bool = False
    """Whether several clusters may work on parts of the keys of a span, in two launches."""

    element_bytes: int = 2
    """Of the operands; of one byte, values are transposed ahead."""

    @property
    def rows(self) -> int:
        """Rows of queries of a tile, its heads together."""
        return GROUP_ROWS * self.consumers

    @property
    def positions(self) -> int:
        """Positions of a tile."""
        return self.rows // self.heads_per_tile

    @property
    def span_positions(self) -> int:
        """Positions of a span: the neighbouring tiles of a cluster."""
        return self.cluster * self.positions

    def spans(self, sizes: Sizes) -> int:
        """How many spans cover the queries; where nothing is shared, how many tiles."""
        heads = sizes.batch * sizes.heads // self.heads_per_tile
        return heads * -(-sizes.queries // self.span_positions)

    def rounds(self, sizes: Sizes, multiprocessors: int) -> int:
        """How many spans the busiest cluster works on, if all take the same time."""
        return -(-self.spans(sizes) // (multiprocessors // self.cluster))

    @property
    def threads(self) -> int:
        """Of a CTA: a warpgroup for every consumer, and one that loads."""
        return _GROUP_THREADS * (1 + self.consumers)

    @property
    def part_bytes(self) -> int:
        """Of the sums of a tile over a part of its keys, and of what they are relative to."""
        return self.rows * (self.head_dim + 2) * _SUM_BYTES

    @property
    def stages(self) -> int:
        """Buffers in each ring of keys and values."""
        used = self.query_buffers * self._tile_bytes
        used += 0 if self.output_is_over_queries else self._output_bytes
        room = MAX_SHARED_BYTES - _BARRIER_BYTES - used
        return min(_MOST_STAGES, room // self._block_bytes)

    @property
    def query_buffers(self) -> int:
        """Two where that leaves two buffers in each ring, so that tiles overlap."""
        used = 2 * self._tile_bytes + self._output_bytes + 2 * self._block_bytes
        return 2 if used + _BARRIER_BYTES <= MAX_SHARED_BYTES else 1

    @property
    def output_is_over_queries(self) -> bool:
        """Whether an output of its own would leave no memory for two buffers."""
        used = self._tile_bytes + self._output_bytes + 2 * self._block_bytes
        return used + _BARRIER_BYTES > MAX_SHARED_BYTES

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
        """That of queries and keys: lines of 128 bytes, or of 64."""
        return _widest(self.head_dim * self.element_bytes)

    @property
    def output_swizzle(self) -> Swizzle:
        """That of the output."""
        return _widest(self.head_dim * _OUTPUT_BYTES)

    @property
    def constants(self) -> dict[str, int]:
        """What the kernel is compiled with."""
        return {
            "CONSUMERS": self.consumers,
            "BLOCK_N": self.block_n,
            "HEAD_DIM": self.head_dim,
            "STAGES": self.stages,
            "QUERY_BUFFERS": self.query_buffers,
            "HEADS_PER_TILE": self.heads_per_tile,
            "CLUSTER": self.cluster,
            "SPLITS_KEYS": self.splits_keys,
            "O_OVER_Q": self.output_is_over_queries,
        }


def _widest(row_bytes: int) -> Swizzle:
    return Swizzle.B128 if row_bytes % Swizzle.B128.span_bytes == 0 else Swizzle.B64


def padded_dim(head_dim: int, element_bytes: int = 2) -> int:
    """Columns of the tiles: whole lines of 64 bytes, and zeros where there are none.

    >>> [padded_dim(dim) for dim in (8, 64, 72, 96, 128, 200, 256)]
    [32, 64, 96, 96, 128, 224, 256]
    >>> [padded_dim(dim, 1) for dim in (16, 64, 80, 128, 208)]
    [64, 64, 128, 128, 256]
    """
    line = Swizzle.B64.span_bytes // element_bytes
    return -(-head_dim // line) * line


# Share of the fastest rate that a shape, (consumers, keys of a block), reaches on long sequences,
# by the head dimension up to which registers and shared memory hold it.
RATES: dict[int, dict[tuple[int, int], float]] = {
    64: {(3, 128): 1.0, (2, 192): 0.85, (2, 128): 0.86, (1, 128): 0.6},
    96: {(2, 160): 1.0, (2, 128): 0.98, (1, 128): 0.65},
    128: {(2, 128): 1.0, (2, 160): 0.98, (2, 176): 0.96, (1, 128): 0.65},
    192: {(2, 96): 1.0, (1, 96): 0.65},
    256: {(2, 80): 1.0, (2, 64): 0.95, (1, 80): 0.65},
}

# The same of operands of one byte (measured on an H200, of full attention over 4096 positions).
RATES_OF_BYTES: dict[int, dict[tuple[int, int], float]] = {
    64: {(3, 128): 1.0, (2, 128): 0.8, (1, 128): 0.55},
    128: {(3, 128): 1.0, (2, 192): 0.9, (2, 128): 0.87, (1, 128): 0.6},
    192: {(2, 192): 1.0, (2, 128): 0.97, (1, 128): 0.67},
    256: {(2, 128): 1.0, (2, 64): 0.87, (1, 128): 0.72},
}

# What beginning and ending a tile costs, in keys, by the buffers for queries: where there are two,
# tiles overlap (an estimate).
_TILE_KEYS = {1: 64, 2: 16}

TILES_TO_SHARE, CAUSAL_TILES_TO_SHARE = 4, 64
"""From how many tiles of a head on pairs share keys (measured on an H200). A causal pair takes the
time of its later tile: in a head of n tiles 1 / (n + 1) more than the two would alone."""

# Keys of a block under a mask, of which wider ones waste more on the diagonal; and with softcap,
# whose sums wider ones, or three consumers, leave no registers.
_FEW_KEYS = 128
_MOST_CAPPED = 192 * 96  # columns times keys


def shapes(head_dim: int, variant: Variant, element_bytes: int = 2) -> dict[tuple[int, int], float]:
    """The shapes that a variant may have, and their rates; with pages, those of fewest loads."""
    columns = padded_dim(head_dim, element_bytes)
    of_all = RATES if element_bytes == 2 else RATES_OF_BYTES
    rates = next(rates for most, rates in of_all.items() if columns <= most)
    if element_bytes == 1:  # none spills, and none is packed
        return rates
    takes_few_keys = variant.cuts_blocks or variant.has_softcap
    found = {
        (consumers, block_n): rate
        for (consumers, block_n), rate in rates.items()
        if not (takes_few_keys and block_n > _FEW_KEYS)
        and not (variant.has_softcap and consumers == _MOST_CONSUMERS)
        and not (variant.has_softcap and columns * block_n > _MOST_CAPPED)
    }
    most_rows = max(rows_at_once(variant.page_size, block_n) for _, block_n in found)
    return {
        (consumers, block_n): rate
        for (consumers, block_n), rate in found.items()
        if not variant.page_size or rows_at_once(variant.page_size, block_n) == most_rows
    }


def rows_at_once(page_size: int, block_n: int) -> int:
    """Rows of a block of keys that one load brings: of one page, if they lie in pages.

    >>> [rows_at_once(size, 128) for size in (0, 16, 64, 96, 128, 256)]
    [128, 16, 64, 32, 128, 128]
    """
    return math.gcd(page_size, block_n)


class Sizes(NamedTuple):
    """What decides how the work is cut."""

    queries: int
    keys: int
    heads: int
    heads_per_kv_head: int
    batch: int
    head_dim: int
    element_bytes: int = 2


def choose_blocking(sizes: Sizes, multiprocessors: int, variant: Variant) -> Blocking:
    """The blocking of least time: rounds of tiles, times the work of a tile over its rate.

    Args:
        sizes: Of the problem; of packed sequences, of a typical one.
        multiprocessors: How many tiles are worked on at once.
        variant: What the scores go through.
    """
    element_bytes = sizes.element_bytes
    rates = shapes(sizes.head_dim, variant, element_bytes)

    def cut(shape: tuple[int, int]) -> Blocking:
        columns = padded_dim(sizes.head_dim, element_bytes)
        alone = Blocking(columns, *shape, element_bytes=element_bytes)
        shares = variant.cuts_blocks or sizes.queries < alone.rows
        return replace(alone, heads_per_tile=_heads_per_tile(sizes) if shares else 1)

    def cost(shape: tuple[int, int]) -> float:
        blocking = cut(shape)
        overhead = _TILE_KEYS[blocking.query_buffers]
        if variant.cuts_blocks:
            # Tiles of all lengths fill the rounds; half of the keys are seen, and the diagonal.
            rounds: float = blocking.spans(sizes) / multiprocessors
            keys = (sizes.keys + blocking.positions + blocking.block_n) // 2
        else:
            rounds = blocking.rounds(sizes, multiprocessors)
            keys = -(-sizes.keys // blocking.block_n) * blocking.block_n
        return rounds * blocking.rows * (keys + overhead) / rates[shape]

    alone = cut(min(rates, key=cost))
    paired = replace(alone, cluster=2)
    return paired if shares_keys(sizes, alone, variant, multiprocessors) else alone


def shares_keys(sizes: Sizes, alone: Blocking, variant: Variant, multiprocessors: int) -> bool:
    """Whether pairs of thread blocks share the loads of keys and values.

    Each then asks L2 for half as much. But the two wait for each other, so it takes some rounds;
    and both walk what either of them sees, so a head must have many tiles, and an odd number of
    them may not cost a round.

    Args:
        sizes: Of the problem.
        alone: How it is cut if nothing is shared.
        variant: What the scores go through.
        multiprocessors: How many tiles are worked on at once.
    """
    if variant.is_packed or variant.has_left or alone.consumers == _MOST_CONSUMERS:
        # Three consumers load less for their work, and leave the loader few registers.
        return False
    if alone.element_bytes == 1:  # no faster at any length (measured on an H200)
        return False
    paired = replace(alone, cluster=2)
    rounds = alone.rounds(sizes, multiprocessors)
    tiles = -(-sizes.queries // alone.positions)
    return (
        tiles >= (CAUSAL_TILES_TO_SHARE if variant.has_right else TILES_TO_SHARE)
        and rounds > ROUNDS_TO_SHARE
        and paired.rounds(sizes, multiprocessors) <= rounds
    )


def _heads_per_tile(sizes: Sizes) -> int:
    """As many heads as share keys, in steps of two."""
    heads = sizes.heads_per_kv_head
    return min(heads & -heads, GROUP_ROWS)


def attention_tiles(
    q: ArrayView, k: ArrayView, v: ArrayView, o: ArrayView, blocking: Blocking
) -> tuple[TMATensorTile, ...]:
    """The tiles that the kernel takes, over arrays of [batch, positions, heads, head_dim].

    Values of one byte are given transposed, [batch, kv_heads, head_dim, positions].
    """
    rows, block = _sides(blocking)
    queries = create_tma_tile(q, (1, *rows), swizzle=blocking.swizzle)
    keys = _tile_of_keys(k, block, blocking)
    if blocking.element_bytes == 1:
        values = _tile_of_transposed(v, blocking)
    else:
        values = _tile_of_keys(v, block, blocking)
    return queries, keys, values, create_tma_tile(o, (1, *rows), swizzle=blocking.output_swizzle)


def _tile_of_keys(
    view: ArrayView, block: tuple[int, int, int], blocking: Blocking
) -> TMATensorTile:
    """In boxes of which each CTA of a cluster loads as many."""
    columns = blocking.swizzle.span_bytes // view.element.itemsize
    is_shared_in_columns = blocking.head_dim // columns % blocking.cluster == 0
    box = None if is_shared_in_columns else (1, block[0] // blocking.cluster, 1, columns)
    return create_tma_tile(view, (1, *block), swizzle=blocking.swizzle, box_shape=box)


def _tile_of_transposed(view: ArrayView, blocking: Blocking) -> TMATensorTile:
    """The same of values, whose rows are the columns of a head."""
    swizzle = _widest(blocking.block_n)
    columns, keys = blocking.head_dim, blocking.block_n
    box = (1, 1, columns // blocking.cluster, swizzle.span_bytes)
    return create_tma_tile(view, (1, 1, columns, keys), swizzle=swizzle, box_shape=box)


def transposing_tiles(
    v: ArrayView, transposed: ArrayView, blocking: Blocking
) -> tuple[TMATensorTile, TMATensorTile]:
    """What attention_values.cu takes, over values of one byte, and over memory for them."""
    keys, columns = TRANSPOSED_KEYS, blocking.head_dim
    return (
        create_tma_tile(v, (1, keys, 1, columns), swizzle=blocking.swizzle),
        create_tma_tile(transposed, (1, 1, columns, keys), swizzle=_widest(keys)),
    )


def packed_maps(
    q: ArrayView, k: ArrayView, v: ArrayView, o: ArrayView, blocking: Blocking, page_size: int = 0
) -> tuple[RaggedTensorMap, ...]:
    """The maps that the kernel takes, over packed arrays of [rows, heads, head_dim].

    With pages the rows of k and v are those of all pages, and a sequence of the map is a page.
    """
    rows, block = _sides(blocking)
    columns = blocking.swizzle.span_bytes // blocking.element_bytes
    box = (rows_at_once(page_size, blocking.block_n), 1, columns)

    def map_of(view: ArrayView, side: tuple[int, ...]) -> RaggedTensorMap:
        return create_ragged_tensor_map(view, side, swizzle=blocking.swizzle)

    def keys_of(view: ArrayView) -> RaggedTensorMap:
        return create_ragged_tensor_map(
            view, block, swizzle=blocking.swizzle, box_shape=box, max_length=page_size or None
        )

    return map_of(q, rows), keys_of(k), keys_of(v), map_of(o, rows)


def _sides(blocking: Blocking) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Of a group's queries, and of a block of keys."""
    heads = blocking.heads_per_tile
    rows = (GROUP_ROWS // heads, heads, blocking.head_dim)
    return rows, (blocking.block_n, 1, blocking.head_dim)


@functools.cache
def attention_kernel(tiles: tuple[str, ...], variant: Variant, blocking: Blocking) -> Kernel:
    """The kernel for four types of tile or map, a variant and a blocking."""
    return _kernel("attention.cu", tiles, variant, blocking)


@functools.cache
def merge_kernel(tiles: tuple[str, ...], variant: Variant, blocking: Blocking) -> Kernel:
    """The kernel that adds up what that one summed over parts of the keys."""
    warps = MERGE_THREADS // _WARP_THREADS
    return _kernel("attention_combine.cu", tiles, variant, blocking, WARPS=warps)


@functools.cache
def transposing_kernel(tiles: tuple[str, ...], blocking: Blocking) -> Kernel:
    """The kernel that transposes values of one byte, for two types of tile."""
    return Kernel(
        "attention_values.cu",
        types=dict(zip(("VTile", "TransposedTile"), tiles, strict=True)),
        constants={"HEAD_DIM": blocking.head_dim},
    )


def _kernel(
    source: str, tiles: tuple[str, ...], variant: Variant, blocking: Blocking, **more: int
) -> Kernel:
    return Kernel(
        source,
        types=dict(zip(("QTile", "KTile", "VTile", "OTile"), tiles, strict=True)),
        constants={**blocking.constants, **variant.constants, **more},
    )


_OF_THE_WALK = (
    "CONSUMERS",
    "BLOCK_N",
    "HEADS_PER_TILE",
    "CLUSTER",
    "SPLITS_KEYS",
    "HAS_LEFT",
    "HAS_RIGHT",
    "PAGE_SIZE",
)


@functools.cache
def work_kernel(variant: Variant, blocking: Blocking) -> Kernel:
    """The kernel that cuts packed sequences into tiles for the one of this variant."""
    constants = {**blocking.constants, **variant.constants}
    return Kernel("attention_work.cu", constants={name: constants[name] for name in _OF_THE_WALK})
