"""The description of an architecture: limits of its SMs and of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tmaasync._driver import DeviceLimits
from tmaasync._hardware import MAX_BLOCK_THREADS, WIDE_MAP_ARCHS, chip_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMemory:
    """Tensor memory of an SM: 32-bit words in lanes, which are its rows, and in columns."""

    lanes: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chip:
    """An architecture as the emulator has it; each is one object, so that launches hash it fast.

    Attributes:
        arch: Its name for compilers, such as ``sm_90a``.
        gpu: The GPU whose SMs and clusters the description has.
        device: Limits of the device on a launch.
        sm_blocks: Resident thread blocks of an SM, at most.
        sm_warps: Resident warps of an SM, at most.
        sm_shared_bytes: Shared memory of an SM.
        system_shared_bytes: Shared memory that each thread block takes in addition to its own.
        static_shared_bytes: ``__shared__`` variables of a kernel, at most, but for ``extern`` ones.
        tensor_cores: The instructions of its tensor cores, by the first word of their opcodes.
        tensor_memory: Its tensor memory, None without one.
        active_clusters: Max active clusters of the device by size, where it is not SMs / size.
    """

    arch: str
    gpu: str
    device: DeviceLimits
    sm_blocks: int
    sm_warps: int
    sm_shared_bytes: int
    system_shared_bytes: int = 1024
    static_shared_bytes: int = 48 * 1024  # as in ptxas
    tensor_cores: str
    tensor_memory: TensorMemory | None = None
    active_clusters: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_wide_maps(self) -> bool:
        """Whether tensor maps have packed types, swizzles of larger atoms and wide im2col."""
        return self.arch in WIDE_MAP_ARCHS

    @property
    def sm_registers(self) -> int:
        """32-bit registers of an SM: as many as a thread block may have."""
        return self.device.registers_per_block

    def max_active_clusters(self, size: int) -> int:
        """Return the max active clusters of the device, one block per SM."""
        return self.active_clusters.get(size, self.device.sms // size)


def device_of(capability: tuple[int, int], sms: int) -> DeviceLimits:
    """Return the limits of the emulated device of a compute capability."""
    return DeviceLimits(
        name="the emulator",
        compute_capability=capability,
        sms=sms,
        shared_bytes=chip_limits(capability).shared_bytes,
        threads_per_block=MAX_BLOCK_THREADS,
    )
