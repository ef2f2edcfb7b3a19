"""Static schedules: the longest tiles first (LPT), in sections whose keys stay in L2."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from tmaasync.ops._flash.config import Sizes, TileConfig
from tmaasync.ops._flash.cost_model import coefficients
from tmaasync.ops._flash.scores import Scores

__all__ = ["lpt_schedule", "section"]


def lpt_schedule(
    sizes: Sizes, scores: Scores, config: TileConfig, clusters: int
) -> npt.NDArray[np.int32]:
    """Return the spans of every cluster: [waves, clusters], and -1 where a cluster has no more.

    A longest-processing-time-first (LPT) schedule: the spans that see the most keys come first, and
    each goes to the cluster that has the least to do. That is what a dynamic tile scheduler with an
    atomic counter would do, but the same in every run, and with no memory that two launches could
    share. Heads come in sections whose keys stay in L2 (L2 swizzle).

    A span's number is its tile of heads, times the spans of a head, plus its place in the head.
    Where nothing is shared a cluster is a CTA, and a span its tile.
    """
    costs = _blocks_seen(sizes, scores, config) + coefficients().tile_blocks
    longest_first = np.argsort(-costs, kind="stable")
    heads = sizes.batch * sizes.heads // config.heads_per_tile
    free = [(0, cluster) for cluster in range(clusters)]
    spans: list[list[int]] = [[] for _ in range(clusters)]
    section = _heads_per_section(sizes, config)
    for first in range(0, heads, section):
        for position in longest_first.tolist():
            cost = int(costs[position])
            for head in range(first, min(first + section, heads)):
                busy, cluster = free[0]
                heapq.heapreplace(free, (busy + cost, cluster))
                spans[cluster].append(head * len(costs) + position)
    order = np.full((max(map(len, spans)), clusters), -1, np.int32)
    for cluster, own in enumerate(spans):
        order[: len(own), cluster] = own
    return order


def section(longest: Sizes, config: TileConfig) -> tuple[int, int]:
    """Return the sections of packed arrays: about how many keys, and how many tiles of heads.

    Args:
        longest: Sizes, with the queries and keys of the longest sequence.
        config: How queries are cut.
    """
    heads = longest.heads // config.heads_per_tile
    at_once = min(heads, _heads_per_section(longest, config))
    while heads % at_once:
        at_once -= 1
    tiles_per_kv_head = longest.heads_per_kv_head // config.heads_per_tile
    key_bytes = 2 * longest.head_dim * longest.element_bytes * -(-at_once // tiles_per_kv_head)
    return max(longest.keys, coefficients().section_bytes // key_bytes), at_once


def _heads_per_section(sizes: Sizes, config: TileConfig) -> int:
    head_bytes = 2 * max(1, sizes.keys) * sizes.head_dim * sizes.element_bytes
    key_heads = max(1, coefficients().section_bytes // head_bytes)
    return key_heads * (sizes.heads_per_kv_head // config.heads_per_tile)


def _blocks_seen(sizes: Sizes, scores: Scores, config: TileConfig) -> npt.NDArray[np.int64]:
    """Return how many blocks of keys each span of a head sees."""
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
