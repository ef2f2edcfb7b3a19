"""Occupancy of an emulated device, by the description of its chip."""

from __future__ import annotations

import math

from tmaasync._driver import LaunchConfig
from tmaasync._hardware import WARP_THREADS
from tmaasync.emulate.chips import Chip


def max_resident_clusters(
    chip: Chip, config: LaunchConfig, registers: int, static_bytes: int = 0
) -> int:
    """Return the number of clusters of this launch that the emulated device holds at once.

    Args:
        chip: The device's chip.
        config: The launch.
        registers: Registers per thread; 0 if only the compiler knows, which sets no limit.
        static_bytes: Static shared memory, in addition to the launch's dynamic shared memory.
    """
    blocks, _ = _blocks_of_sm(chip, config, registers, static_bytes)
    return blocks * chip.max_active_clusters(math.prod(config.cluster or (1,)))


def residency(chip: Chip, config: LaunchConfig, registers: int, static_bytes: int = 0) -> str:
    """Return text with the resident blocks of this launch on the emulated device, and the limit.

    >>> from tmaasync.emulate.chips import SM_90A
    >>> residency(SM_90A, LaunchConfig((999, 1, 1), (1024, 1, 1), None, 0, False, 0), registers=0)
    '132 SMs hold 264 blocks: 2 an SM by threads (1024 of 2048)'
    """
    blocks, why = _blocks_of_sm(chip, config, registers, static_bytes)
    size = math.prod(config.cluster or (1,))
    clusters = f" in clusters of {size}" if size > 1 else ""
    whole = max_resident_clusters(chip, config, registers, static_bytes) * size
    return f"{chip.device.sms} SMs hold {whole} blocks{clusters}: {blocks} an SM by {why}"


def _blocks_of_sm(
    chip: Chip, config: LaunchConfig, registers: int, static_bytes: int
) -> tuple[int, str]:
    """Return the number of blocks per SM, and the limit that determines it."""
    threads = math.prod(config.block)
    warps = -(-threads // WARP_THREADS)
    shared_bytes = config.shared_bytes + static_bytes + chip.system_shared_bytes
    fits = [
        (chip.sm_warps // warps, f"threads ({threads} of {chip.sm_warps * WARP_THREADS})"),
        (chip.sm_blocks, "the number of blocks"),
        (
            chip.sm_shared_bytes // shared_bytes,
            f"shared memory ({shared_bytes} of {chip.sm_shared_bytes} bytes)",
        ),
    ]
    if registers:
        taken = registers * warps * WARP_THREADS
        fits.append((chip.sm_registers // taken, f"registers ({taken} of {chip.sm_registers})"))
    blocks, why = min(fits, key=lambda fit: fit[0])
    return max(1, blocks), why
