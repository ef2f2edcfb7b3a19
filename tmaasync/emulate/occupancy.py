"""What the emulated device holds at once: an H200's SMs, with their limits."""

from __future__ import annotations

import math

from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync._hardware import MAX_BLOCK_THREADS, MAX_SHARED_BYTES, WARP_THREADS

__all__ = ["LIMITS", "max_active_clusters", "max_resident_clusters"]

LIMITS = DeviceLimits(
    name="the emulator",
    compute_capability=(9, 0),
    sms=132,
    shared_bytes=MAX_SHARED_BYTES,
    threads_per_block=MAX_BLOCK_THREADS,
)
"""What the emulated device allows: what an H200 does."""

_ACTIVE_CLUSTERS = {3: 39, 4: 30, 5: 20, 6: 16, 7: 14, 8: 14}


def max_active_clusters(size: int) -> int:
    """Return the number of clusters that the emulated device runs at once, one block per SM.

    An H200's answers to ``cuOccupancyMaxActiveClusters`` (benchmarks/bench_split.py prints them).
    """
    return _ACTIVE_CLUSTERS.get(size, LIMITS.sms // size)


# Of one SM of compute capability 9.0: CUDA Programming Guide, "Compute Capabilities".
_SM_BLOCKS = 32
_SM_WARPS = 64
_SM_SHARED_BYTES = 228 * 1024
_SYSTEM_SHARED_BYTES = 1024  # of each block
_SM_REGISTERS = 64 * 1024


def max_resident_clusters(config: LaunchConfig, registers: int) -> int:
    """Return the number of clusters of this launch that the emulated device holds at once.

    ``registers`` counts the registers of a thread; 0 where only the compiler knows, and then they
    set no limit.
    """
    warps = -(-math.prod(config.block) // WARP_THREADS)
    blocks = min(
        _SM_BLOCKS,
        _SM_WARPS // warps,
        _SM_SHARED_BYTES // (config.shared_bytes + _SYSTEM_SHARED_BYTES),
    )
    if registers:
        blocks = min(blocks, _SM_REGISTERS // (registers * warps * WARP_THREADS))
    return max(1, blocks) * max_active_clusters(math.prod(config.cluster or (1,)))
