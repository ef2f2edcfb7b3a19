"""How kernels that multiply tiles out of a ring cut their output: gemm.cu and conv2d.cu."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync._arrays import ArrayView
from tmaasync.modes import Swizzle
from tmaasync.tensormap import MAX_SHARED_BYTES
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["BLOCK_K", "Blocking", "output_tile"]

BLOCK_K = 64
"""Elements of K that a stage holds: 128 bytes of 16 bits each."""

_CHUNK_ROWS = 64  # what one instruction multiplies, and one store writes
_MAX_STAGES = 8
_BARRIER_BYTES = 1024
_EPILOGUE_BUFFERS = 2


@dataclass(frozen=True, slots=True)
class Blocking:
    """How the output is cut: blocks of ``rows * consumers`` rows by ``block_n`` columns.

    ``cluster`` blocks along M share the columns of B they load; ``group_m`` clusters along M are
    walked before the next column of blocks.
    """

    consumers: int
    block_n: int
    cluster: int = 1
    group_m: int = 8
    rows: int = _CHUNK_ROWS

    @property
    def block_m(self) -> int:
        """Rows of a block."""
        return self.rows * self.consumers

    @property
    def threads(self) -> int:
        """Of a block: a warpgroup for every consumer, and one that loads."""
        return 128 * (1 + self.consumers)

    @property
    def chunk_bytes(self) -> int:
        """Width of what one store writes: whole chunks make up a block."""
        return 128 if self.block_n % 64 == 0 else 64

    @property
    def stages(self) -> int:
        """The most operand buffers that shared memory holds."""
        stage_bytes = (self.block_m + self.block_n) * BLOCK_K * 2
        epilogue_bytes = self.consumers * _EPILOGUE_BUFFERS * _CHUNK_ROWS * self.chunk_bytes
        room = MAX_SHARED_BYTES - _BARRIER_BYTES - epilogue_bytes
        return min(_MAX_STAGES, room // stage_bytes)

    @property
    def constants(self) -> dict[str, int]:
        """What the kernels are compiled with."""
        return {
            "CONSUMERS": self.consumers,
            "ROWS": self.rows,
            "BLOCK_N": self.block_n,
            "STAGES": self.stages,
            "CLUSTER": self.cluster,
            "GROUP_M": self.group_m,
        }

    def clusters(self, m: int, n: int) -> int:
        """How many clusters cover the output."""
        return -(-m // (self.block_m * self.cluster)) * -(-n // self.block_n)


def output_tile(out: ArrayView, blocking: Blocking) -> TMATensorTile:
    """The tile that the kernels store, of a matrix whose rows TMA can write."""
    columns = blocking.chunk_bytes // out.element.itemsize
    swizzle = Swizzle.B128 if blocking.chunk_bytes == 128 else Swizzle.B64
    return create_tma_tile(out, (_CHUNK_ROWS, columns), swizzle=swizzle)
