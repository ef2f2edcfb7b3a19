"""In which order tiles are worked off: in sections whose keys stay in L2."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from tmaasync.ops.attention.kernel import Blocking, Sizes
from tmaasync.ops.attention.scores import Scores

__all__ = ["section", "tile_order"]

# Keys and values of the heads that are walked together fill about half of L2.
_SECTION_BYTES = 32 << 20

# Beside its blocks, a tile costs about as much as a block.
_BLOCKS_OF_A_TILE = 1


def tile_order(
    sizes: Sizes, scores: Scores, blocking: Blocking, clusters: int
) -> npt.NDArray[np.int32]:
    """The spans of every cluster: [rounds, clusters], and -1 where a cluster has no more.

    A cluster is a CTA, and a span its tile, where nothing is shared. Heads are walked in sections
    whose keys stay in L2. In each, the spans that see the most keys come first, and each goes to
    the cluster that has the least to do: what an atomic counter would do, but the same in every
    run, and with no memory that two launches could share.

    A span's number is that of its heads, times the spans of a head, plus that of its positions.
    """
    costs = _blocks_seen(sizes, scores, blocking) + _BLOCKS_OF_A_TILE
    longest_first = np.argsort(-costs, kind="stable")
    heads = sizes.batch * sizes.heads // blocking.heads_per_tile
    free = [(0, cluster) for cluster in range(clusters)]
    spans: list[list[int]] = [[] for _ in range(clusters)]
    section = _heads_of_a_section(sizes, blocking)
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


def section(longest: Sizes, blocking: Blocking) -> tuple[int, int]:
    """The sections of packed arrays: about how many keys they have, and of how many tiles of heads.

    Args:
        longest: Sizes, keys and queries those of the longest sequence.
        blocking: How queries are cut.
    """
    heads = longest.heads // blocking.heads_per_tile
    at_once = min(heads, _heads_of_a_section(longest, blocking))
    while heads % at_once:
        at_once -= 1
    tiles_per_kv_head = longest.heads_per_kv_head // blocking.heads_per_tile
    key_bytes = 2 * longest.head_dim * longest.element_bytes * -(-at_once // tiles_per_kv_head)
    return max(longest.keys, _SECTION_BYTES // key_bytes), at_once


def _heads_of_a_section(sizes: Sizes, blocking: Blocking) -> int:
    head_bytes = 2 * max(1, sizes.keys) * sizes.head_dim * sizes.element_bytes
    key_heads = max(1, _SECTION_BYTES // head_bytes)
    return key_heads * (sizes.heads_per_kv_head // blocking.heads_per_tile)


def _blocks_seen(sizes: Sizes, scores: Scores, blocking: Blocking) -> npt.NDArray[np.int64]:
    """Blocks of keys that the spans of a head see, by position."""
    shift = 0 if scores.is_top_left else sizes.keys - sizes.queries
    first = np.arange(0, sizes.queries, blocking.span_positions) + shift
    last = first + blocking.span_positions - 1
    begin, end = np.zeros_like(first), np.full_like(first, sizes.keys)
    if scores.left is not None:
        begin = np.maximum(first - scores.left, 0)
    if scores.right is not None:
        end = np.minimum(end, np.maximum(last + scores.right + 1, 0))
    seen = -(-end // blocking.block_n) - begin // blocking.block_n
    return np.asarray(np.maximum(seen, 0))
