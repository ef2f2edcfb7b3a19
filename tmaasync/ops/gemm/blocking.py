"""Which blocking a product gets: a model of its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from tmaasync.ops._blocking import Blocking

__all__ = [
    "FEW_COLUMNS",
    "FEW_ROWS",
    "FORMS",
    "LINE_COLUMNS",
    "Fits",
    "Form",
    "any_block",
    "below",
    "beside",
    "blocks",
    "busiest_work",
    "choose_blocking",
    "choose_few_columns",
    "few_columns",
    "legal_widths",
    "loads",
    "may_share",
    "may_share_rows",
    "of_other_form",
    "ranked",
    "time_alone",
]


class Form(NamedTuple):
    """A kind of block that the kernel has."""

    consumers: int
    rows: int
    """Of each consumer."""
    widest: int
    """The most columns whose sums fit into their registers."""
    ping_pong: bool = False


FORMS = (
    Form(2, 64, 256),
    Form(1, 64, 256),
    Form(3, 64, 192),
    Form(2, 128, 192),
    Form(2, 128, 192, ping_pong=True),
)
"""All kinds; the first of equals is taken."""

LINE_COLUMNS = 64
"""Columns of B that a line holds where N is contiguous."""

_WIDTH_STEP = 16  # columns that one store writes at least: 32 bytes of 16-bit elements
_BLOCKS_TO_SHARE = 4  # of each of many products: the second of the last pair may have no rows
_GROUP_BLOCKS = 16  # that are walked before the next column of blocks

# What follows was measured on an H200.
_ROUNDS_TO_SHARE = 5
_ROUNDS_TO_SHARE_ROWS = 4
_LARGE_BLOCK = 1 / 128 + 1 / 256  # elements loaded for a multiply-add
_LOADS_TO_TIME = (11.0, 250.0)
_EXPOSED_DEPTH = 256
_STORE_DEPTH = {128: 0, 64: 25, 32: 120}  # by the width of a store in bytes
_OTHER_FORMS = 0.985
_TALL_FROM = 128
_USUAL_ROWS = 64

# Under the power limit. By what share of a product's time its busiest multiprocessor's counts: the
# clock rises where others idle. What a multiply-add costs, in time at the full clock, and more for
# what its block loads. As how much of K the stores of a block count that nothing overlaps.
_BUSIEST = 0.52
_MULTIPLY_ADD = 1.5
_LOADS_TO_ENERGY = 14.0
_STORES_ALONE = 150


Fits = Callable[[Blocking], bool]
"""Whether a kernel is to have such blocks."""


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


def may_share_rows(block_m: int, *, a_is_k_major: bool) -> bool:
    """The same of their rows, and boxes of A."""
    return a_is_k_major or block_m % (2 * LINE_COLUMNS) == 0


def choose_blocking(  # noqa: PLR0913 - what a model takes
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    *,
    on_lines: bool = True,
    a_is_k_major: bool = True,
    b_is_k_major: bool = True,
    count: int = 1,
    is_uneven: bool = False,
    finish_depth: int = 0,
    fits: Fits = any_block,
) -> Blocking:
    """The blocking of least time, by a model that measures nothing: the first that `ranked` gives.

    Of many rounds of blocks pairs share loads, unless their groups take turns; of few, they would
    only wait for each other. Where rows are not ``on_lines``, pairs always do.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        k: Depth of the product.
        multiprocessors: How many blocks run at once.
        on_lines: Whether the operands' rows start on 128-byte lines of L2. Where they do not, every
            row of a box takes two requests.
        a_is_k_major: Whether K is contiguous in A.
        b_is_k_major: Whether it is in B.
        count: How many such products there are.
        is_uneven: Whether ``m`` is but their mean: the last row of blocks of each is then half
            empty.
        finish_depth: As how much of K the work on a block's sums counts, before they are stored.
        fits: Of which blocks it is the best.
    """
    found = ranked(
        *(m, n, k, multiprocessors),
        on_lines=on_lines,
        a_is_k_major=a_is_k_major,
        b_is_k_major=b_is_k_major,
        count=count,
        is_uneven=is_uneven,
        finish_depth=finish_depth,
    )
    best = next(filter(fits, found))
    is_alone = best.ping_pong or (count > 1 and -(-m // best.block_m) < _BLOCKS_TO_SHARE)
    if best.cluster > 1 or is_alone:
        return best
    rounds = count * best.clusters(m, n) / multiprocessors
    if rounds > _ROUNDS_TO_SHARE_ROWS and _may_lie_beside(best, a_is_k_major=a_is_k_major):
        pair = beside(best)
        at_once = pair.clusters_at_once(multiprocessors)
        if fits(pair) and count * pair.clusters(m, n) <= math.ceil(rounds) * at_once:
            return pair
    shares = rounds > _ROUNDS_TO_SHARE and may_share(best.block_n, b_is_k_major=b_is_k_major)
    pair = below(best)
    return pair if shares and fits(pair) else best


def ranked(  # noqa: PLR0913 - what a model takes
    m: int,
    n: int,
    k: int,
    multiprocessors: int,
    *,
    on_lines: bool = True,
    a_is_k_major: bool = True,
    b_is_k_major: bool = True,
    count: int = 1,
    is_uneven: bool = False,
    finish_depth: int = 0,
) -> list[Blocking]:
    """All blocks by the model's time, the shortest first; in pairs where not ``on_lines``.

    The time is the longer of two. At the full clock it is that of the busiest multiprocessor,
    `time_alone`. Under the power limit it is the energy of all multiply-adds that counts most, and
    the busiest multiprocessor less: `_time_by_power`.

    Takes what `choose_blocking` does.
    """

    def time(blocking: Blocking) -> float:
        rows = m + blocking.block_m // 2 if is_uneven else m
        clusters = count * blocking.clusters(rows, n)
        rounds = -(-clusters // blocking.clusters_at_once(multiprocessors))
        alone = time_alone(blocking, k, rounds, on_lines=on_lines, finish_depth=finish_depth)
        even = count * m * n * k / multiprocessors
        return max(alone, _time_by_power(blocking, k, rounds, even, finish_depth))

    found = blocks(m, b_is_k_major=b_is_k_major)
    if on_lines or count > 1:
        return sorted(found, key=time)
    alone = list(found)
    pairs_below = [below(b) for b in alone if may_share(b.block_n, b_is_k_major=b_is_k_major)]
    pairs_beside = [beside(b) for b in alone if _may_lie_beside(b, a_is_k_major=a_is_k_major)]
    return sorted(pairs_beside + pairs_below, key=time)


def below(blocking: Blocking) -> Blocking:
    """A pair of such blocks, one below the other."""
    return replace(blocking, cluster=2, group_m=_GROUP_BLOCKS // 2)


def beside(blocking: Blocking) -> Blocking:
    """A pair of such blocks, side by side."""
    return replace(blocking, cluster=2, side_by_side=True)


def _may_lie_beside(blocking: Blocking, *, a_is_k_major: bool) -> bool:
    """Whether that shares the longer side of the blocks, and can be done."""
    is_tall = blocking.block_m > blocking.block_n and not blocking.ping_pong
    return is_tall and may_share_rows(blocking.block_m, a_is_k_major=a_is_k_major)


def time_alone(
    blocking: Blocking, k: int, rounds: int, *, on_lines: bool, finish_depth: int = 0
) -> float:
    """That of so many blocks of depth ``k`` on one multiprocessor, in multiply-adds at its peak.

    ``rounds`` of blocks, each ``block_m x block_n x k`` at the rate that its loads allow, and what
    nothing hides: the first loads and the last block's way to memory, together as long as
    `_EXPOSED_DEPTH` elements of K. Blocks whose columns are stored in narrow pieces take longer to
    store, `_STORE_DEPTH`. Before that comes what `finish_depth` stands for.
    """
    area = blocking.block_m * blocking.block_n
    depth = rounds * (k + _STORE_DEPTH[blocking.chunk_bytes]) + _EXPOSED_DEPTH
    depth += _stores(blocking, rounds) * finish_depth
    return depth * area / _rate(blocking, on_lines=on_lines)


def _time_by_power(
    blocking: Blocking, k: int, rounds: int, even: float, finish_depth: int
) -> float:
    """The same where power is short; ``even`` are the multiply-adds of a multiprocessor on average.

    The clock that the power allows is the lower, the more multiprocessors work at a time.
    """
    busiest = busiest_work(blocking, k, rounds, _STORES_ALONE + finish_depth)
    energy = _MULTIPLY_ADD * (1 + _LOADS_TO_ENERGY * (loads(blocking) - _LARGE_BLOCK))
    if of_other_form(blocking):
        energy /= _OTHER_FORMS
    return energy * math.pow(busiest, _BUSIEST) * math.pow(even, 1 - _BUSIEST)


def busiest_work(blocking: Blocking, k: int, rounds: int, stores_alone: float) -> float:
    """Multiply-adds of the busiest multiprocessor, and of its stores that nothing overlaps."""
    stores = _stores(blocking, rounds)
    depth = rounds * k + stores * (stores_alone + _STORE_DEPTH[blocking.chunk_bytes])
    return depth * blocking.block_m * blocking.block_n


def _stores(blocking: Blocking, rounds: int) -> int:
    """How many of its blocks a multiprocessor stores while it multiplies nothing."""
    return 1 if blocking.ping_pong else rounds


def loads(blocking: Blocking) -> float:
    """Elements for a multiply-add."""
    return 1 / blocking.block_m + 1 / blocking.block_n


def of_other_form(blocking: Blocking) -> bool:
    """Whether its groups are three, or have 128 rows of a block that they share."""
    return not (_is_usual(blocking) or blocking.ping_pong)


def blocks(m: int, *, b_is_k_major: bool) -> Iterator[Blocking]:
    """Those that the kernel has for so many rows of output, the usual ones first."""
    for form in FORMS if m > _TALL_FROM else sorted(FORMS):
        for width in legal_widths(form.widest, b_is_k_major=b_is_k_major):
            yield Blocking(
                *(form.consumers, width, 1, _GROUP_BLOCKS, form.rows), ping_pong=form.ping_pong
            )


def _rate(blocking: Blocking, *, on_lines: bool) -> float:
    """Share of the tensor cores' rate that a block reaches: small blocks load more for their work.

    (consumers, columns) of 64 rows: (2, 256) 1.0, (2, 128) 0.96, (1, 256) 0.91, (1, 128) 0.85, (1,
    64) 0.7.
    """
    if on_lines:
        loaded = loads(blocking)
    else:
        rows, columns = blocking.block_m * blocking.b_parts, blocking.block_n * blocking.a_parts
        loaded = 2 * (1 / rows + 1 / columns)
    more = max(0.0, loaded - _LARGE_BLOCK)
    linear, square = _LOADS_TO_TIME
    rate = max(0.05, 1 - linear * more - square * more * more)
    return rate if _is_usual(blocking) else _OTHER_FORMS * rate


def _is_usual(blocking: Blocking) -> bool:
    return blocking.consumers <= 2 and blocking.rows == _USUAL_ROWS


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
    fits: Fits = any_block,
) -> Blocking:
    """The blocking of a product that is no wider than `FEW_ROWS`, which memory bounds.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        b_is_k_major: Whether K is contiguous in B; where N is, it takes a whole line of 64.
        count: How many such products there are.
        fits: Of which blocks it is the best.
    """

    def rows(blocking: Blocking) -> int:
        """That the busiest multiprocessor loads."""
        return -(-count * blocking.clusters(m, n) // multiprocessors) * blocking.block_m

    return min(filter(fits, few_columns(n, b_is_k_major=b_is_k_major)), key=rows)


def few_columns(n: int, *, b_is_k_major: bool) -> list[Blocking]:
    """The blocks for a product of so few columns."""
    widths = FEW_COLUMNS if b_is_k_major else (LINE_COLUMNS,)
    block_n = next(width for width in widths if width >= n)
    # Of two that load as much, the larger blocks load B less often.
    return [Blocking(consumers, block_n, by_columns=True) for consumers in (2, 1)]
