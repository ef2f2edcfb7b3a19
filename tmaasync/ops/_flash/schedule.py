"""Tile schedules of attention: LPT tile order in sections for L2, stream-K, and split-KV.

Padded arrays have static schedules: longest tiles first (LPT), in sections whose keys stay in L2.

If tiles alone do not fill the chip, the keys of a tile are split over CTAs, known as flash-decoding
(Dao et al. 2023). Padded arrays: full waves are data-parallel, and the last wave is stream-K (the
hybrid form of Osama et al. 2023): all clusters get equal shares of its tiles' blocks of keys.
Packed arrays: the keys of every tile are cut into the same number of splits. In both cases a
combine kernel adds up the partial outputs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync.ops._flash.abi import SCHEDULED_SPAN, SPLIT_SPAN
from tmaasync.ops._flash.config import Sizes, TileConfig
from tmaasync.ops._flash.cost_model import coefficients
from tmaasync.ops._flash.operands import Scores

_NONE = -1
_Work = tuple[int, tuple[int, int, int]]
"""A `SCHEDULED_SPAN`."""


class Schedule(NamedTuple):
    """The spans of every cluster, and the splits that the combine kernel adds up.

    Attributes:
        clusters: Number of clusters of the launch.
        table: Spans, [waves, clusters]; `_NONE` after a cluster's last span. With stream-K the
            elements are `SCHEDULED_SPAN`, whose slot is `_NONE` for a span that is not split. The
            table is empty if clusters take the spans in order.
        splits: `SPLIT_SPAN`, [split spans].
    """

    clusters: int
    table: npt.NDArray[Any] = np.zeros(0, np.int32)
    splits: npt.NDArray[np.void] = np.zeros(0, SPLIT_SPAN)

    @property
    def partials(self) -> int:
        """The total number of partial outputs."""
        return int(self.splits["splits"].sum())


def padded_schedule(sizes: Sizes, scores: Scores, config: TileConfig, clusters: int) -> Schedule:
    """Return the schedule for padded arrays on at most ``clusters`` clusters."""
    if config.stream_k:
        return stream_k_schedule(sizes, config, clusters)
    clusters = min(config.spans(sizes), clusters)
    if scores.left is None and scores.right is None:
        return Schedule(clusters)
    return Schedule(clusters, lpt_schedule(sizes, scores, config, clusters))


def _table(work: Sequence[Sequence[Any]], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the work as an array [waves, clusters], `_NONE` after a cluster's last item."""
    table = np.full((max(map(len, work)), len(work)), _NONE, dtype)
    for cluster, own in enumerate(work):
        table[: len(own), cluster] = np.array(own, dtype)
    return table


# --- LPT schedules ------------------------------------------------------------------------------


def lpt_schedule(
    sizes: Sizes, scores: Scores, config: TileConfig, clusters: int
) -> npt.NDArray[np.int32]:
    """Return the spans of every cluster: [waves, clusters], -1 after a cluster's last span.

    A longest-processing-time-first (LPT) schedule (Graham 1969): spans with the most keys come
    first, and each goes to the least loaded cluster. A dynamic persistent scheduler with an atomic
    tile counter would do the same; this schedule is deterministic, and needs no memory that two
    launches could share. Heads are grouped in sections whose keys stay in L2, as in
    FlashAttention-3's LPT scheduler.

    The number of a span is its tile of heads, times the spans per head, plus its index in the head.
    Without multicast a cluster is a CTA, and a span its tile.
    """
    costs = blocks_seen(sizes, scores, config)
    heads = sizes.batch * sizes.heads // config.heads_per_tile
    return longest_first(costs, heads, heads_per_section(sizes, config), clusters)


def longest_first(
    blocks: npt.NDArray[np.int64], heads: int, section: int, clusters: int
) -> npt.NDArray[np.int32]:
    """Return the LPT schedule of spans that visit these numbers of blocks, the same in each head.

    ``heads`` counts tiles of heads, ``section`` how many of them have keys that stay in L2.
    """
    costs = blocks + coefficients().tile_blocks
    order = np.argsort(-costs, kind="stable").tolist()
    free = [(0, cluster) for cluster in range(clusters)]
    spans: list[list[int]] = [[] for _ in range(clusters)]
    for first in range(0, heads, section):
        for position in order:
            cost = int(costs[position])
            for head in range(first, min(first + section, heads)):
                busy, cluster = free[0]
                heapq.heapreplace(free, (busy + cost, cluster))
                spans[cluster].append(head * len(costs) + position)
    return _table(spans, np.dtype(np.int32))


def section(longest: Sizes, config: TileConfig) -> tuple[int, int]:
    """Return the section size of packed arrays: approximate keys, and tiles of heads.

    ``longest`` has the queries and keys of the longest sequence.
    """
    heads = longest.heads // config.heads_per_tile
    at_once = min(heads, heads_per_section(longest, config))
    while heads % at_once:
        at_once -= 1
    tiles_per_kv_head = longest.heads_per_kv_head // config.heads_per_tile
    key_bytes = 2 * longest.head_dim * longest.element_bytes * -(-at_once // tiles_per_kv_head)
    return max(longest.keys, coefficients().section_bytes // key_bytes), at_once


def heads_per_section(sizes: Sizes, config: TileConfig) -> int:
    head_bytes = 2 * max(1, sizes.keys) * sizes.head_dim * sizes.element_bytes
    key_heads = max(1, coefficients().section_bytes // head_bytes)
    return key_heads * (sizes.heads_per_kv_head // config.heads_per_tile)


def blocks_seen(sizes: Sizes, scores: Scores, config: TileConfig) -> npt.NDArray[np.int64]:
    """Return the number of blocks of keys that each span of a head visits."""
    shift = 0 if scores.is_top_left else sizes.keys - sizes.queries
    first = np.arange(0, sizes.queries, config.span_positions) + shift
    last = first + config.span_positions - 1
    begin, end = np.zeros_like(first), np.full_like(first, sizes.keys)
    if scores.left is not None:
        begin = np.maximum(first - scores.left, 0)
    if scores.right is not None:
        end = np.minimum(end, np.maximum(last + scores.right + 1, 0))
    seen = -(-end // config.block_n) - begin // config.block_n
    return np.asarray(np.maximum(seen, 0))


# --- split keys ---------------------------------------------------------------------------------


def stream_k_pays(sizes: Sizes, config: TileConfig, scores: Scores, clusters: int) -> bool:
    """Return whether stream-K is faster: the last wave has few spans, and all visit equal keys.

    This is common if the last wave is also the first, and rare after several full waves.
    """
    sees_all = scores.right is None or (
        not scores.is_top_left and sizes.queries <= config.span_positions
    )
    waves, left = divmod(config.spans(sizes), clusters)
    if left == 0 or not sees_all or scores.left is not None:
        return False
    known, blocks = coefficients(), _blocks(sizes, config)
    whole = blocks + known.tile_blocks
    time = waves * whole + _least_time(left, blocks, clusters)[0]
    slower = known.slower_with_full_waves if waves else 1
    return slower * time < known.least_gain * (waves + 1) * whole


def packed_kv_splits(
    tiles: int, typical: Sizes, config: TileConfig, scores: Scores, ctas: int
) -> int:
    """Return the number of splits of each tile's keys for packed sequences; 1 means none.

    ``tiles`` includes heads; ``typical`` describes a sequence of mean length.
    """
    if tiles >= ctas or scores.left is not None:
        return 1
    known, blocks = coefficients(), _blocks(typical, config)
    time, used = _least_time(tiles, blocks, ctas)
    return used // tiles if time < known.least_gain * (blocks + known.tile_blocks) else 1


def stream_k_schedule(sizes: Sizes, config: TileConfig, clusters: int) -> Schedule:
    """Return a hybrid stream-K schedule (Osama et al. 2023); every span visits all keys.

    Full waves are data-parallel: one span per cluster, head by head. The remaining spans, fewer
    than clusters, are stream-K. More splits take longer to combine, so some clusters may get no
    share.
    """
    blocks = _blocks(sizes, config)
    waves, left = divmod(config.spans(sizes), clusters)
    used = _least_time(left, blocks, clusters)[1] if left else 0
    if waves == 0:
        clusters = used
    work: list[list[_Work]] = [[] for _ in range(clusters)]
    for span in range(waves * clusters):
        work[span % clusters].append((span, (0, blocks, _NONE)))
    splits, slot = [], 0
    for span, shares in enumerate(_shares(left, blocks, used), waves * clusters):
        is_whole = len(shares) == 1
        for index, (cluster, first, end) in enumerate(shares):
            work[cluster].append((span, (first, end, _NONE if is_whole else slot + index)))
        if not is_whole:
            splits.append((span, slot, len(shares), b""))
            slot += len(shares)
    return Schedule(clusters, _table(work, SCHEDULED_SPAN), np.array(splits, SPLIT_SPAN))


def _blocks(sizes: Sizes, config: TileConfig) -> int:
    return -(-sizes.keys // config.block_n)


def _least_time(spans: int, blocks: int, clusters: int) -> tuple[float, int]:
    """Return the minimum time, in blocks of keys, of shared spans, and the clusters to use.

    The time is the largest share plus the combine kernel.
    """
    known = coefficients()

    def time(used: int) -> tuple[float, int]:
        share = -(-spans * blocks // used) + 2 * known.tile_blocks
        return share + known.combine_blocks + known.split_blocks * used / spans, used

    return min(map(time, range(spans, clusters + 1)))


def _shares(spans: int, blocks: int, clusters: int) -> list[list[tuple[int, int, int]]]:
    """Return the splits of each span as (cluster, first block, end block)."""
    ends = [spans * blocks * (cluster + 1) // clusters for cluster in range(clusters)]
    found: list[list[tuple[int, int, int]]] = [[] for _ in range(spans)]
    first = 0
    for cluster, end in enumerate(ends):
        while first < end:
            span, block = divmod(first, blocks)
            upto = min(end, (span + 1) * blocks)
            found[span].append((cluster, block, upto - span * blocks))
            first = upto
    return found
