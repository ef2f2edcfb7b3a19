"""Occupancy of the emulated device: the SMs of an H200, with their limits."""

from __future__ import annotations

import math

from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync._hardware import MAX_BLOCK_THREADS, MAX_SHARED_BYTES, WARP_THREADS

__all__ = [
    "LIMITS",
    "MAX_STATIC_SHARED_BYTES",
    "max_active_clusters",
    "max_resident_clusters",
    "residency",
]

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
    """Return the max active clusters of the emulated device, one block per SM.

    The values are an H200's ``cuOccupancyMaxActiveClusters`` (benchmarks/bench_split.py prints
    them).
    """
    return _ACTIVE_CLUSTERS.get(size, LIMITS.sms // size)


# Limits of an SM of compute capability 9.0: CUDA Programming Guide, "Compute Capabilities".
_SM_BLOCKS = 32
_SM_WARPS = 64
_SM_SHARED_BYTES = 228 * 1024
_SYSTEM_SHARED_BYTES = 1024  # per block
_SM_REGISTERS = 64 * 1024

MAX_STATIC_SHARED_BYTES = 48 * 1024
"""Of one kernel's ``__shared__`` variables, but for ``extern`` ones: as in ptxas."""


def max_resident_clusters(config: LaunchConfig, registers: int, static_bytes: int = 0) -> int:
    """Return the number of clusters of this launch that the emulated device holds at once.

    Args:
        config: The launch.
        registers: Registers per thread; 0 if only the compiler knows, which sets no limit.
        static_bytes: Static shared memory, in addition to the launch's dynamic shared memory.
    """
    blocks, _ = _blocks_of_sm(config, registers, static_bytes)
    return blocks * max_active_clusters(math.prod(config.cluster or (1,)))


def residency(config: LaunchConfig, registers: int, static_bytes: int = 0) -> str:
    """Return text with the resident blocks of this launch on the emulated device, and the limit.

    >>> residency(LaunchConfig((999, 1, 1), (1024, 1, 1), None, 0, False, 0), registers=0)
    '132 SMs hold 264 blocks: 2 an SM by threads (1024 of 2048)'
    """
    blocks, why = _blocks_of_sm(config, registers, static_bytes)
    size = math.prod(config.cluster or (1,))
    clusters = f" in clusters of {size}" if size > 1 else ""
    whole = max_resident_clusters(config, registers, static_bytes) * size
    return f"{LIMITS.sms} SMs hold {whole} blocks{clusters}: {blocks} an SM by {why}"


def _blocks_of_sm(config: LaunchConfig, registers: int, static_bytes: int) -> tuple[int, str]:
    """Return the number of blocks per SM, and the limit that determines it."""
    threads = math.prod(config.block)
    warps = -(-threads // WARP_THREADS)
    shared_bytes = config.shared_bytes + static_bytes + _SYSTEM_SHARED_BYTES
    fits = [
        (_SM_WARPS // warps, f"threads ({threads} of {_SM_WARPS * WARP_THREADS})"),
        (_SM_BLOCKS, "the number of blocks"),
        (
            _SM_SHARED_BYTES // shared_bytes,
            f"shared memory ({shared_bytes} of {_SM_SHARED_BYTES} bytes)",
        ),
    ]
    if registers:
        taken = registers * warps * WARP_THREADS
        fits.append((_SM_REGISTERS // taken, f"registers ({taken} of {_SM_REGISTERS})"))
    blocks, why = min(fits, key=lambda fit: fit[0])
    return max(1, blocks), why
