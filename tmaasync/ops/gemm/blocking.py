"""Which blocking a product gets: a model of its time."""

from __future__ import annotations

from tmaasync.ops._blocking import Blocking

__all__ = [
    "FEW_COLUMNS",
    "FEW_ROWS",
    "LINE_COLUMNS",
    "RATE",
    "SHARED_COLUMNS",
    "choose_blocking",
    "choose_few_columns",
]

SHARED_COLUMNS = 128
"""Columns of B that a pair loads together: a box of 64 for each, however B lies."""

_ROUNDS_TO_SHARE = 2

LINE_COLUMNS = 64
"""Columns of B that a line holds where N is contiguous."""

_WIDEST = (2, 256)

RATE = {
    (2, 256): 1.0,
    (2, 224): 0.985,
    (2, 192): 0.97,
    (2, 160): 0.967,
    (2, 128): 0.965,
    (1, 256): 0.91,
    (1, 224): 0.905,
    (1, 192): 0.9,
    (1, 160): 0.88,
    (1, 128): 0.85,
    (2, 64): 0.83,
    (1, 64): 0.7,
}
"""Share of the tensor cores' rate that a shape of block, (consumers, columns), reaches when K is
long (measured on an H200)."""


def choose_blocking(
    m: int, n: int, multiprocessors: int, *, on_lines: bool = True, b_is_k_major: bool = True
) -> Blocking:
    """The blocking of least time: rounds of blocks, times the work of a block over its rate.

    From a few rounds on, pairs of blocks share the loads of B; before, they would only wait for
    each other.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        on_lines: Whether the operands' rows start on 128-byte lines of L2. Where they do not, every
            row of a box takes two requests, and the widest blocks, sharing loads, win.
        b_is_k_major: Whether K is contiguous in B; where N is, it is loaded by whole lines of 64.
    """

    def cost(shape: tuple[int, int]) -> float:
        blocking = Blocking(*shape)
        rounds = -(-blocking.clusters(m, n) // multiprocessors)
        return rounds * blocking.block_m * blocking.block_n / RATE[shape]

    shapes = [shape for shape in RATE if b_is_k_major or shape[1] % LINE_COLUMNS == 0]
    consumers, block_n = min(shapes, key=cost)
    if not on_lines and Blocking(*_WIDEST).clusters(m, n) > multiprocessors:
        consumers, block_n = _WIDEST
    rounds = Blocking(consumers, block_n).clusters(m, n) / multiprocessors
    shares = block_n % SHARED_COLUMNS == 0 and rounds > (_ROUNDS_TO_SHARE if on_lines else 1)
    return Blocking(consumers, block_n, cluster=2 if shares else 1)


FEW_ROWS = 64
"""Up to so many rows of output, the product of the transposes is taken: wgmma's 64 rows are then
all in use, and blocks are no wider than there is something to multiply."""

FEW_COLUMNS = (8, 16, 32, 64)
"""How wide the blocks of such a product may be."""


def choose_few_columns(m: int, n: int, multiprocessors: int, *, b_is_k_major: bool) -> Blocking:
    """The blocking of a product that is no wider than `FEW_ROWS`, which memory bounds.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        b_is_k_major: Whether K is contiguous in B; where N is, it takes a whole line of 64.
    """
    widths = FEW_COLUMNS if b_is_k_major else (LINE_COLUMNS,)
    block_n = next(width for width in widths if width >= n)

    def rows(consumers: int) -> int:
        """That the busiest multiprocessor loads."""
        blocking = Blocking(consumers, block_n, by_columns=True)
        return -(-blocking.clusters(m, n) // multiprocessors) * blocking.block_m

    # Of two that load as much, the larger blocks load B less often.
    consumers = min((2, 1), key=rows)
    return Blocking(consumers, block_n, by_columns=True)
