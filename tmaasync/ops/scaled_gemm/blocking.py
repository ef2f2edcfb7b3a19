"""Which blocking a product with block scales gets."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync.ops._blocking import Blocking
from tmaasync.tensormap import MAX_SHARED_BYTES

__all__ = ["RATE", "SCALES_PER_LOAD", "SCALE_BLOCK", "ScaledBlocking", "choose_scaled_blocking"]

SCALE_BLOCK = 128
"""How many elements of K, and columns of B, a scale serves."""

SCALES_PER_LOAD = 4
"""16 bytes, the least that TMA loads."""

_SCALE_BYTES = 4
_ALIGNMENT = 128
_BARRIERS_BYTES = 16  # of a stage: two
_ROUNDS_TO_SHARE = 2


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
    def stages(self) -> int:
        """As many as shared memory holds, which has no byte to spare."""
        room = MAX_SHARED_BYTES - _ALIGNMENT - self.epilogue_bytes
        return min(self.most_stages, room // self.stage_bytes)


RATE = {
    (2, 256): 1.0,
    (3, 128): 0.93,
    (2, 128): 0.9,
    (2, 64): 0.7,
    (1, 128): 0.65,
    (1, 64): 0.5,
    (1, 32): 0.3,
}
"""Share of the widest block's rate that a shape of block, (consumers, columns), reaches when K is
long: an estimate from the bytes that each loads for its work."""


def choose_scaled_blocking(
    m: int, n: int, multiprocessors: int, *, column_scales: bool
) -> ScaledBlocking:
    """The blocking of least time: rounds of blocks, times the work of a block over its rate.

    From a few rounds on, pairs of blocks share the loads of B.

    Args:
        m: Rows of the output.
        n: Columns of the output.
        multiprocessors: How many blocks run at once.
        column_scales: Whether every column of B has scales, not every 128 columns.
    """

    def blocking(shape: tuple[int, int], cluster: int = 1) -> ScaledBlocking:
        return ScaledBlocking(*shape, cluster, column_scales=column_scales)

    def cost(shape: tuple[int, int]) -> float:
        one = blocking(shape)
        rounds = -(-one.clusters(m, n) // multiprocessors)
        return rounds * one.block_m * one.block_n / RATE[shape]

    best = min(RATE, key=cost)
    shares = blocking(best).clusters(m, n) > _ROUNDS_TO_SHARE * multiprocessors
    return blocking(best, cluster=2 if shares else 1)
