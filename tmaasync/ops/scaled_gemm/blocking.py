"""Which blocking a product with block scales gets."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync.ops._blocking import Blocking, of_least_time

__all__ = [
    "FEW_ROWS",
    "RATE",
    "SCALES_PER_LOAD",
    "SCALE_BLOCK",
    "ScaledBlocking",
    "choose_scaled_blocking",
]

SCALE_BLOCK = 128
"""How many elements of K, and columns of B, a scale serves."""

SCALES_PER_LOAD = 4
"""16 bytes, the least that TMA loads."""

_SCALE_BYTES = 4
_ALIGNMENT = 128
_BARRIERS_BYTES = 16  # of a stage: two


@dataclass(frozen=True)
class ScaledBlocking(Blocking):
    """A `Blocking` whose stages hold scales too; rows of a consumer are 64.

    ``column_scales``: every column of B has scales, not every 128 columns.
    """

    column_scales: bool = False

    @property
    def b_scales(self) -> int:
        """How many scales of B a stage takes, at most."""
        slices = max(1, self.block_n // SCALE_BLOCK)
        return self.block_n if self.column_scales else slices * SCALES_PER_LOAD

    @property
    def stage_bytes(self) -> int:
        """What a stage takes: operands, scales and barriers."""
        operands = (self.block_m + self.block_n) * SCALE_BLOCK
        scales = sum(
            -(-count * _SCALE_BYTES // _ALIGNMENT) * _ALIGNMENT
            for count in (self.block_m, self.b_scales)
        )
        return operands + scales + _BARRIERS_BYTES

    @property
    def barriers_bytes(self) -> int:
        """Those of a stage count as its own: shared memory has no byte to spare."""
        return _ALIGNMENT


RATE = {
    (2, 256): 1.0,
    (3, 128): 0.93,
    (2, 128): 0.9,
    (2, 64): 0.7,
    (1, 128): 0.65,
    (1, 64): 0.5,
}
"""Share of the widest block's rate that a shape of block, (consumers, columns), reaches when K is
long: an estimate from the bytes that each loads for its work."""


FEW_ROWS = 128
"""Up to so many rows, the weights decide: every block reads some of them once."""

# Microseconds in which a shape, (consumers, columns), takes 128 of K: measured on an H200, cold.
_FEW_ROWS_TIME = {
    (1, 32): 0.26,
    (1, 64): 0.22,
    (1, 128): 0.29,
    (1, 256): 0.62,
    (2, 32): 0.25,
    (2, 64): 0.33,
    (2, 128): 0.38,
    (2, 256): 0.68,
}


def choose_scaled_blocking(
    m: int, n: int, multiprocessors: int, *, column_scales: bool
) -> ScaledBlocking:
    """The blocking of least time.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        column_scales: Whether every column of B has scales, not every 128 columns.
    """
    if m <= FEW_ROWS:
        return _choose_for_few_rows(m, n, multiprocessors, column_scales=column_scales)
    rates = {
        ScaledBlocking(*shape, column_scales=column_scales): rate for shape, rate in RATE.items()
    }
    return of_least_time(rates, m, n, multiprocessors)


def _choose_for_few_rows(
    m: int, n: int, multiprocessors: int, *, column_scales: bool
) -> ScaledBlocking:
    """Rounds of blocks, times the time of one; neighbours that share loads wait for each other."""

    def time(shape: tuple[int, int]) -> float:
        blocks = ScaledBlocking(*shape).clusters(m, n)
        return -(-blocks // multiprocessors) * _FEW_ROWS_TIME[shape]

    return ScaledBlocking(*min(_FEW_ROWS_TIME, key=time), column_scales=column_scales)
