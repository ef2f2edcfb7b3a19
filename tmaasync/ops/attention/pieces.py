"""How keys are split over thread blocks, where tiles alone do not fill the chip."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync.ops.attention.kernel import Blocking, Sizes
from tmaasync.ops.attention.scores import Scores

__all__ = ["Pieces", "parts_of_packed", "pieces_of", "splits_keys"]

# In blocks of keys, measured on an H200 with one query of 64 heads, 8 of keys, of 2048 to 131072
# positions: what a tile costs beside its blocks; what it costs to write the sums of parts and to
# launch the kernel that adds them up; and what each part costs it.
_BLOCKS_OF_A_TILE = 1
_BLOCKS_OF_A_MERGE = 1.7
_BLOCKS_OF_A_PART = 0.15

# How much longer, with a margin, it takes where there are full rounds before, of tiles that are not
# split but by the kernel that can: 2048 tiles of 2048 to 16384 keys took 1.03 to 1.09 times as long
# where the last of 16 rounds, which had 68, was split.
_SLOWER_IN_ROUNDS = 1.2

_LEAST_GAIN = 0.9


class Pieces(NamedTuple):
    """What every cluster works on, and what is to be added up."""

    table: npt.NDArray[np.int32]
    """[rounds, clusters, 4]: a span, negative where there is none; the first block of its keys, and
    the end of its blocks; the place of its sums, negative where the span is worked on in one piece.
    """

    splits: npt.NDArray[np.int32]
    """[split spans, 4]: the span, the place of the first of its parts, their number, and 0."""

    @property
    def places(self) -> int:
        """How many parts there are in all."""
        return int(self.splits[:, 2].sum())


def splits_keys(sizes: Sizes, blocking: Blocking, scores: Scores, clusters: int) -> bool:
    """Whether it pays to split keys: the last round has few spans, nearly all of which see many.

    That is so where it is the first, and seldom where there were several before.

    Args:
        sizes: Of the problem, of padded arrays.
        blocking: How it is cut; where nothing is shared, a span is a tile.
        scores: What they go through.
        clusters: That run at once.
    """
    sees_all = scores.right is None or (
        not scores.is_top_left and sizes.queries <= blocking.span_positions
    )
    rounds, left = divmod(blocking.spans(sizes), clusters)
    if left == 0 or not sees_all or scores.left is not None:
        return False
    blocks = _blocks(sizes, blocking)
    whole = blocks + _BLOCKS_OF_A_TILE
    time = rounds * whole + _least_time(left, blocks, clusters)[0]
    slower = _SLOWER_IN_ROUNDS if rounds else 1
    return slower * time < _LEAST_GAIN * (rounds + 1) * whole


def parts_of_packed(
    tiles: int, typical: Sizes, blocking: Blocking, scores: Scores, ctas: int
) -> int:
    """In how many parts the keys of each tile of packed sequences are worked on; 1: as a whole.

    Args:
        tiles: How many there are at most, their heads counted.
        typical: A sequence of the mean length.
        blocking: How it is cut.
        scores: What they go through.
        ctas: That run at once.
    """
    if tiles >= ctas or scores.left is not None:
        return 1
    blocks = _blocks(typical, blocking)
    time, used = _least_time(tiles, blocks, ctas)
    return used // tiles if time < _LEAST_GAIN * (blocks + _BLOCKS_OF_A_TILE) else 1


def pieces_of(sizes: Sizes, blocking: Blocking, clusters: int) -> Pieces:
    """The pieces where every span sees all keys.

    Spans are worked on head by head, each cluster one in a round. Those left for the last round,
    fewer than clusters, are cut: the blocks of their keys, one span after the other, go to as many
    clusters as pay, in equal shares. The more parts, the longer it takes to add them up.

    Args:
        sizes: Of the problem.
        blocking: How it is cut.
        clusters: That run at once.
    """
    blocks = _blocks(sizes, blocking)
    rounds, left = divmod(blocking.spans(sizes), clusters)
    used = _least_time(left, blocks, clusters)[1] if left else 0
    if rounds == 0:
        clusters = used
    work: list[list[tuple[int, int, int, int]]] = [[] for _ in range(clusters)]
    for span in range(rounds * clusters):
        work[span % clusters].append((span, 0, blocks, -1))
    splits, place = [], 0
    for span, cuts in enumerate(_cuts(left, blocks, used), rounds * clusters):
        is_whole = len(cuts) == 1
        for part, (cluster, first, end) in enumerate(cuts):
            work[cluster].append((span, first, end, -1 if is_whole else place + part))
        if not is_whole:
            splits.append((span, place, len(cuts), 0))
            place += len(cuts)
    table = np.full((max(map(len, work)), clusters, 4), -1, np.int32)
    for cluster, own in enumerate(work):
        for turn, piece in enumerate(own):
            table[turn, cluster] = piece
    return Pieces(table, np.array(splits, np.int32).reshape(-1, 4))


def _blocks(sizes: Sizes, blocking: Blocking) -> int:
    return -(-sizes.keys // blocking.block_n)


def _least_time(spans: int, blocks: int, clusters: int) -> tuple[float, int]:
    """That of spans cut for so many clusters or fewer, in blocks, and for how many."""

    def time(used: int) -> tuple[float, int]:
        share = -(-spans * blocks // used) + 2 * _BLOCKS_OF_A_TILE
        return share + _BLOCKS_OF_A_MERGE + _BLOCKS_OF_A_PART * used / spans, used

    return min(map(time, range(spans, clusters + 1)))


def _cuts(spans: int, blocks: int, clusters: int) -> list[list[tuple[int, int, int]]]:
    """Of each span its parts: who works on them, the first block and the end of the blocks."""
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
