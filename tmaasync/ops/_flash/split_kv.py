"""Split-KV: the keys of a tile split over CTAs, where tiles alone do not fill the chip.

Known as flash-decoding (Dao et al. 2023). Padded arrays: full waves are data-parallel, and the last
wave is stream-K (Osama et al. 2023, the hybrid form): its tiles' blocks of keys, one tile after the
other, go to all clusters in equal shares. Packed arrays: every tile's keys are cut into the same
number of splits. Either way a combine kernel adds up the partial outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync.kernel import Launch
from tmaasync.ops._flash.abi import SCHEDULED_SPAN, SPLIT_SPAN, CombineArguments
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant
from tmaasync.ops._flash.cost_model import coefficients
from tmaasync.ops._flash.scores import Scores
from tmaasync.ops._flash.tiles import COMBINE_THREADS, combine_kernel

__all__ = [
    "StreamK",
    "packed_kv_splits",
    "prepared_combine",
    "stream_k_pays",
    "stream_k_schedule",
]

_NONE = -1
_Work = tuple[int, tuple[int, int, int]]
"""A `SCHEDULED_SPAN`."""


class StreamK(NamedTuple):
    """What every cluster works on, and what the combine kernel adds up.

    Attributes:
        table: `SCHEDULED_SPAN` [waves, clusters]. A span is `_NONE` where the cluster has no more;
            a slot is `_NONE` where the span is worked on as a whole.
        splits: `SPLIT_SPAN` [split spans].
    """

    table: npt.NDArray[np.void]
    splits: npt.NDArray[np.void]

    @property
    def partials(self) -> int:
        """Partial outputs in all."""
        return int(self.splits["splits"].sum())


def stream_k_pays(sizes: Sizes, config: TileConfig, scores: Scores, clusters: int) -> bool:
    """Whether to split: the last wave has few spans, nearly all of which see as many keys.

    That is so where it is the first wave, and seldom where there are several before it.

    Args:
        sizes: Of the problem, of padded arrays.
        config: How it is cut; where nothing is shared, a span is a tile.
        scores: What they go through.
        clusters: That run at once.
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
    """Return into how many splits the keys of each tile of packed sequences are cut; 1: none.

    Args:
        tiles: How many there are at most, their heads counted.
        typical: A sequence of the mean length.
        config: How it is cut.
        scores: What they go through.
        ctas: That run at once.
    """
    if tiles >= ctas or scores.left is not None:
        return 1
    known, blocks = coefficients(), _blocks(typical, config)
    time, used = _least_time(tiles, blocks, ctas)
    return used // tiles if time < known.least_gain * (blocks + known.tile_blocks) else 1


def stream_k_schedule(sizes: Sizes, config: TileConfig, clusters: int) -> StreamK:
    """Return the schedule where every span sees all keys.

    Spans are worked on head by head, each cluster one in a wave. The spans left for the last wave,
    fewer than clusters, are stream-K. The more splits, the longer it takes to combine them, so not
    all clusters may get a share.

    Args:
        sizes: Of the problem.
        config: How it is cut.
        clusters: That run at once.
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
    return StreamK(_table(work), np.array(splits, SPLIT_SPAN))


def _table(work: Sequence[Sequence[_Work]]) -> npt.NDArray[np.void]:
    table = np.full((max(map(len, work)), len(work)), _NONE, SCHEDULED_SPAN)
    for cluster, own in enumerate(work):
        for wave, piece in enumerate(own):
            table[wave, cluster] = piece
    return table


def _blocks(sizes: Sizes, config: TileConfig) -> int:
    return -(-sizes.keys // config.block_n)


def _least_time(spans: int, blocks: int, clusters: int) -> tuple[float, int]:
    """Return the least time, in blocks of keys, of spans that clusters share; and how many do.

    The time is that of the largest share, then that of the combine kernel.
    """
    known = coefficients()

    def time(used: int) -> tuple[float, int]:
        share = -(-spans * blocks // used) + 2 * known.tile_blocks
        return share + known.combine_blocks + known.split_blocks * used / spans, used

    return min(map(time, range(spans, clusters + 1)))


def _shares(spans: int, blocks: int, clusters: int) -> list[list[tuple[int, int, int]]]:
    """Return the splits of each span: which cluster works on it, its first block, and its end."""
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


def prepared_combine(
    types: tuple[str, ...],
    variant: Variant,
    config: TileConfig,
    tiles: int,
    arguments: CombineArguments,
) -> Launch:
    """Return a launch of the combine kernel; types, variant and config are attention.cu's."""
    kernel = combine_kernel(types, variant, config)
    launch = kernel.prepare(tiles * config.consumers, COMBINE_THREADS, arguments, pdl=True)
    launch.release()
    return launch
