"""The description of an architecture: limits of its SMs and of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tmaasync._driver import DeviceLimits

__all__ = ["Chip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An architecture as the emulator has it.

    Attributes:
        arch: Its name for compilers, such as ``sm_90a``.
        device: Limits of the device on a launch.
        sm_blocks: Resident thread blocks of an SM, at most.
        sm_warps: Resident warps of an SM, at most.
        sm_shared_bytes: Shared memory of an SM.
        sm_registers: 32-bit registers of an SM.
        system_shared_bytes: Shared memory that each thread block takes in addition to its own.
        static_shared_bytes: ``__shared__`` variables of a kernel, at most, but for ``extern`` ones.
        active_clusters: Max active clusters of the device by size, where it is not SMs / size.
    """

    arch: str
    device: DeviceLimits
    sm_blocks: int
    sm_warps: int
    sm_shared_bytes: int
    sm_registers: int
    system_shared_bytes: int
    static_shared_bytes: int
    active_clusters: Mapping[int, int]

    def max_active_clusters(self, size: int) -> int:
        """Return the max active clusters of the device, one block per SM."""
        return self.active_clusters.get(size, self.device.sms // size)
