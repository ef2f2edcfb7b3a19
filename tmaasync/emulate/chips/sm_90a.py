"""Hopper: an H200."""

from __future__ import annotations

from tmaasync._hardware import HOPPER
from tmaasync.emulate.chips.description import Chip, device_of

SM_90A = Chip(
    arch="sm_90a",
    gpu="H200",
    device=device_of(HOPPER, sms=132),
    # CUDA Programming Guide, "Compute Capabilities", 9.0.
    sm_blocks=32,
    sm_warps=64,
    sm_shared_bytes=228 * 1024,
    tensor_cores="wgmma",
    # cuOccupancyMaxActiveClusters of an H200 (benchmarks/bench_split.py prints it).
    active_clusters={3: 39, 4: 30, 5: 20, 6: 16, 7: 14, 8: 14},
)
