"""The records that warps of the chip write to device memory.

``kernels/include/tmaasync/instrument/trace_records.cuh`` has the same structs.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from tmaasync._hardware import WARP_THREADS

RECORD_DTYPE = np.dtype([(name, "<u4") for name in ("time", "what", "where", "more")])
"""``struct TraceRecord``: 16 bytes."""

CLOCKS_DTYPE = np.dtype([("global_ns", "<u8"), ("cycles", "<u8")])
"""``struct TraceClocks``: both clocks, one read right after the other."""

WARP_DTYPE = np.dtype(
    [
        ("clocks", CLOCKS_DTYPE, (16,)),
        ("processor", "<u4"),
        ("dynamic_shared", "<u4"),
        ("unused", "<u8"),
        ("role", "S28"),
        ("role_number", "<u4"),
    ]
)
"""``struct TraceWarp``: 304 bytes. The first pair of clocks is read when the block begins; a pair
that was never read is 0."""

BUFFER_DTYPE = np.dtype(
    [
        ("warps", "<u8"),
        ("records", "<u8"),
        ("records_per_warp", "<u4"),
        ("blocks", "<u4"),
        ("launch", "<u4"),
        ("unused", "<u4"),
    ]
)
"""``struct TraceBuffer``: 32 bytes."""

_MAX_BYTES = 1 << 28  # 256 MiB
_SLOT_BYTES = 16


class RecordKind(enum.IntEnum):
    """``enum class TraceKind``. A zero is a record that was never written."""

    (
        INIT, EXPECT, ARRIVE, WAIT, LOAD, STORE, STORE_COMMIT, STORE_WAIT_READ, STORE_WAIT,
        MMA_COMMIT, MMA_WAIT, NAMED_ARRIVE, NAMED_WAIT, CLUSTER_ARRIVE, CLUSTER_WAIT,
        SIGNAL_WAIT_BEGIN, SIGNAL_WAIT, SIGNAL_GIVEN_UP, SIGNAL_POST, SIGNAL_ADD,
    ) = range(1, 21)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Size of the record of a launch: ``records`` of each warp of the first blocks."""

    blocks: int
    warps_per_block: int
    records_per_warp: int

    @classmethod
    def of(
        cls,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        records_per_warp: int,
        max_bytes: int = _MAX_BYTES,
    ) -> Layout:
        """Return all blocks of a grid, or as many as ``max_bytes`` hold, and at least one."""
        warps = -(-math.prod(block) // WARP_THREADS)
        block_bytes = warps * (WARP_DTYPE.itemsize + (records_per_warp + 1) * RECORD_DTYPE.itemsize)
        blocks = min(math.prod(grid), max(max_bytes // block_bytes, 1))
        return cls(blocks=blocks, warps_per_block=warps, records_per_warp=records_per_warp)

    @property
    def warps(self) -> int:
        """Warps of all blocks that are kept."""
        return self.blocks * self.warps_per_block

    @property
    def records_offset(self) -> int:
        """Offset of the first record, after the headers of the warps."""
        return self.warps * WARP_DTYPE.itemsize

    @property
    def records_shape(self) -> tuple[int, int]:
        """A row per warp, whose last element takes the records without room."""
        return self.warps, self.records_per_warp + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of device memory."""
        return self.records_offset + math.prod(self.records_shape) * RECORD_DTYPE.itemsize

    def shared_bytes(self, asked: int) -> int:
        """Dynamic shared memory with a ``TraceSlot`` per warp at its end."""
        return -(-asked // _SLOT_BYTES) * _SLOT_BYTES + self.warps_per_block * _SLOT_BYTES

    def buffer(self, address: int, launch: int) -> bytes:
        """Return the kernel's description of its memory; ``launch`` numbers launches."""
        return np.array(
            (
                address,
                address + self.records_offset,
                self.records_per_warp,
                self.blocks,
                launch % 2**32,
                0,
            ),
            BUFFER_DTYPE,
        ).tobytes()
