"""Hopper: an H200."""

from __future__ import annotations

from tmaasync._driver import DeviceLimits
from tmaasync._hardware import HOPPER, MAX_BLOCK_THREADS, MAX_SHARED_BYTES, chip_limits
from tmaasync.emulate.chips.description import Chip

__all__ = ["SM_90A"]

SM_90A = Chip(
    arch="sm_90a",
    device=DeviceLimits(
        name="the emulator",
        compute_capability=HOPPER,
        sms=132,
        shared_bytes=MAX_SHARED_BYTES,
        threads_per_block=MAX_BLOCK_THREADS,
    ),
    # CUDA Programming Guide, "Compute Capabilities", 9.0.
    sm_blocks=32,
    sm_warps=64,
    sm_shared_bytes=228 * 1024,
    sm_registers=chip_limits(HOPPER).registers,
    system_shared_bytes=1024,
    static_shared_bytes=48 * 1024,  # as in ptxas
    # cuOccupancyMaxActiveClusters of an H200 (benchmarks/bench_split.py prints it).
    active_clusters={3: 39, 4: 30, 5: 20, 6: 16, 7: 14, 8: 14},
)
