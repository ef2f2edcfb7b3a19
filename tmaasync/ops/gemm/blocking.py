"""Which blocking a product gets: a model of its time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

from tmaasync.ops._blocking import ROUNDS_TO_SHARE, Blocking

__all__ = [
    "FEW_COLUMNS",
    "FEW_ROWS",
    "FORMS",
    "LINE_COLUMNS",
    "SPLITS",
    "Fits",
    "any_block",
    "choose_blocking",
    "choose_few_columns",
    "is_whole",
    "legal_widths",
    "may_share",
    "ranked",
    "split_blocks",
]

FORMS = ((2, 64, 256), (1, 64, 256), (3, 64, 192), (2, 128, 192))
"""Blocks that the kernel has: consumers, rows of each, and the most columns whose sums fit into
their registers. The first of equals is taken."""

SPLITS = (2, 4, 8)
"""Into how many parts K may be cut, for as many thread blocks."""

LINE_COLUMNS = 64
"""Columns of B that a line holds where N is contiguous."""

_WIDTH_STEP = 16  # columns that one store writes at least: 32 bytes of 16-bit elements
_BLOCKS_TO_SHARE = 4  # of each of many products: the second of the last pair may have no rows

# What follows was measured on an H200.
_LARGE_BLOCK = 1 / 128 + 1 / 256  # elements loaded for a multiply-add
_LOADS_TO_TIME = (11.0, 250.0)
_EXPOSED_DEPTH = 256
_STORE_DEPTH = {128: 0, 64: 25, 32: 120}  # by the width of a store in bytes
_OTHER_FORMS = 0.98
_MEETING = 6e6  # multiply-adds in the time in which thread blocks of a cluster meet twice
_RECEIVING = 650  # and in that in which a sum comes from another one
_LEAST_PART = 256  # elements of K
_TALL_FROM = 128
_USUAL_ROWS = 64


Fits = Callable[[Blocking], bool]
"""Whether a kernel is to have such blocks."""


def is_whole(blocking: Blocking) -> bool:
    """Blocks whose K is not split fit."""
    return blocking.split == 1


def any_block(_: Blocking) -> bool:
    """All blocks fit."""
    return True


def legal_widths(widest: int, *, b_is_k_major: bool) -> range:
    """Columns that a block can have; where N is contiguous in B, whole lines of 64."""
    step = _WIDTH_STEP if b_is_k_major else LINE_COLUMNS
    return range(step, widest + 1, step)


def may_share(block_n: int, *, b_is_k_major: bool) -> bool:
    """Whether two blocks can each load half of their columns: whole boxes of B for each."""
    return block_n % (_WIDTH_STEP if b_is_k_major else 2 * LINE_COLUMNS) == 0


def choose_blocking(  # noqa: PLR0913 - what a model takes
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    *,
    on_lines: bool = True,
    b_is_k_major: bool = True,
    count: int = 1,
    fits: Fits = any_block,
) -> Blocking:
    """The blocking of least time, by a model that measures nothing: the first that `ranked` gives.

    From a few rounds on, pairs of blocks share the loads of B; before, they would only wait for
    each other. Where rows are not ``on_lines``, pairs always do.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        k: Depth of the product.
        multiprocessors: How many blocks run at once.
        on_lines: Whether the operands' rows start on 128-byte lines of L2. Where they do not, every
            row of a box takes two requests.
        b_is_k_major: Whether K is contiguous in B.
        count: How many such products there are.
        fits: Of which blocks it is the best.
    """
    blocks = ranked(
        m, n, k, multiprocessors, on_lines=on_lines, b_is_k_major=b_is_k_major, count=count
    )
    best = next(filter(fits, blocks))
    if best.cluster_size > 1 or (count > 1 and -(-m // best.block_m) < _BLOCKS_TO_SHARE):
        return best
    is_long = count * best.clusters(m, n) > ROUNDS_TO_SHARE * multiprocessors
    shares = is_long and may_share(best.block_n, b_is_k_major=b_is_k_major)
    return replace(best, cluster=2) if shares else best


def ranked(
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    *,
    on_lines: bool = True,
    b_is_k_major: bool = True,
    count: int = 1,
) -> list[Blocking]:
    """All blocks by the model's time, the shortest first; in pairs where not ``on_lines``.

    The time is that of the busiest multiprocessor: ``rounds`` of blocks, each ``block_m x block_n x
    k`` multiply-adds at the rate that its loads allow, and what nothing hides: the first loads and
    the last block's way to memory, together as long as `_EXPOSED_DEPTH` elements of K. Blocks whose
    columns are stored in narrow pieces take longer to store, `_STORE_DEPTH`. K is split where all
    parts run at once; adding them up takes what `_adding` says.

    Takes what `choose_blocking` does.
    """

    def time(blocking: Blocking) -> float:
        rounds = -(-count * blocking.clusters(m, n) // blocking.clusters_at_once(multiprocessors))
        area = blocking.block_m * blocking.block_n
        part = -(-k // blocking.split)
        depth = rounds * (part + _STORE_DEPTH[blocking.chunk_bytes]) + _EXPOSED_DEPTH
        return depth * area / _rate(blocking, on_lines=on_lines) + _adding(blocking)

    forms = FORMS if m > _TALL_FROM else sorted(FORMS)
    blocks = list(_blocks(forms, b_is_k_major=b_is_k_major))
    whole: Iterable[Blocking] = blocks
    if not on_lines and count == 1:
        pairs = (b for b in blocks if may_share(b.block_n, b_is_k_major=b_is_k_major))
        whole = (replace(pair, cluster=2) for pair in pairs)
    return sorted([*whole, *split_blocks(blocks, m, n, k, multiprocessors, count)], key=time)


def split_blocks(
    blocks: Iterable[Blocking], m: int, n: int, k: int, multiprocessors: int, count: int = 1
) -> Iterator[Blocking]:
    """The blocks, K cut into parts that all run at once, and of which none is too short to pay."""
    for block, split in product(blocks, SPLITS):
        blocking = replace(block, split=split)
        at_once = blocking.clusters_at_once(multiprocessors)
        is_one_round = count * blocking.clusters(m, n) <= at_once
        if is_one_round and k >= _LEAST_PART * split and blocking.holds_partials:
            yield blocking


def _adding(blocking: Blocking) -> float:
    """Time in which the thread blocks of a cluster meet and add up their sums."""
    if blocking.split == 1:
        return 0.0
    received = (blocking.split - 1) * blocking.block_m * blocking.stored_columns
    return _MEETING + _RECEIVING * received


def _blocks(forms: Iterable[tuple[int, int, int]], *, b_is_k_major: bool) -> Iterator[Blocking]:
    for consumers, rows, widest in forms:
        for width in legal_widths(widest, b_is_k_major=b_is_k_major):
            yield Blocking(consumers, width, rows=rows)


def _rate(blocking: Blocking, *, on_lines: bool) -> float:
    """Share of the tensor cores' rate that a block reaches: small blocks load more for their work.

    (consumers, columns) of 64 rows: (2, 256) 1.0, (2, 128) 0.96, (1, 256) 0.91, (1, 128) 0.85, (1,
    64) 0.7.
    """
    if on_lines:
        loads = 1 / blocking.block_m + 1 / blocking.block_n
    else:
        loads = 2 * (1 / (blocking.block_m * blocking.cluster) + 1 / blocking.block_n)
    more = max(0.0, loads - _LARGE_BLOCK)
    linear, square = _LOADS_TO_TIME
    rate = max(0.05, 1 - linear * more - square * more * more)
    is_usual = blocking.consumers <= 2 and blocking.rows == _USUAL_ROWS
    return rate if is_usual else _OTHER_FORMS * rate


FEW_ROWS = 64
"""Up to so many rows of output, the product of the transposes is taken: wgmma's 64 rows are then
all in use, and blocks are no wider than there is something to multiply."""

FEW_COLUMNS = (8, 16, 32, 64)
"""How wide the blocks of such a product may be."""


def choose_few_columns(
    m: int,
    n: int,
    multiprocessors: int,
    *,
    b_is_k_major: bool,
    count: int = 1,
    k: int = 0,
    fits: Fits = any_block,
) -> Blocking:
    """The blocking of a product that is no wider than `FEW_ROWS`, which memory bounds.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        b_is_k_major: Whether K is contiguous in B; where N is, it takes a whole line of 64.
        count: How many such products there are.
        k: Depth of the product; if it is not given, it is not split.
        fits: Of which blocks it is the best.
    """
    widths = FEW_COLUMNS if b_is_k_major else (LINE_COLUMNS,)
    block_n = next(width for width in widths if width >= n)

    def time(blocking: Blocking) -> float:
        """Of what the busiest multiprocessor loads, in rows."""
        rounds = -(-count * blocking.clusters(m, n) // blocking.clusters_at_once(multiprocessors))
        return rounds * blocking.block_m / blocking.split

    # Of two that load as much, the larger blocks load B less often.
    whole = [Blocking(consumers, block_n, by_columns=True) for consumers in (2, 1)]
    parts = split_blocks(whole, m, n, k, multiprocessors, count)
    return min(filter(fits, (*whole, *parts)), key=time)
