"""Estimate the size of a launch on the CPU before it runs."""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tmaasync._driver import LaunchConfig
from tmaasync.emulate.chips import Chip
from tmaasync.emulate.chips.occupancy import max_resident_clusters
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.errors import Violation

_WORKING_BYTES = 2 << 30
"""Clusters run side by side while they fit in here; one runs if it fits the machine."""
_MOST_STACKS = 24_000
"""Every stack is two of the 65,530 mappings that Linux allows a process."""
_RESIDENT_BYTES_PER_THREAD = 16 << 10
"""What a thread that waits takes of its stack and in the scheduler, measured: 12 KiB and less."""
_SECONDS_PER_THREAD = 4e-7
"""To set one up and end it, on a fast core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEstimate:
    """The size of one launch; ``memory_bytes`` counts every stack at its full depth.

    Clusters that wait for each other are resident together, up to ``resident`` at once.
    """

    blocks: int
    threads_per_block: int
    workers: int
    resident: int
    memory_bytes: int
    machine_bytes: int

    @property
    def threads(self) -> int:
        """The number of threads of the grid."""
        return self.blocks * self.threads_per_block

    @property
    def least_seconds(self) -> float:
        """The time for threads that do nothing, in seconds."""
        return self.threads * _SECONDS_PER_THREAD / self.workers

    def __str__(self) -> str:
        return (
            f"{self.blocks:,} blocks of {self.threads_per_block:,} threads take at least "
            f"{_duration(self.least_seconds)} and up to {self.memory_bytes / 2**20:,.0f} MiB, "
            f"{self.workers} clusters at once"
        )

    def violations(self, max_threads: int) -> tuple[Violation, ...]:
        """Return the limits that the launch exceeds."""
        return tuple(self._violations(max_threads))

    def _violations(self, max_threads: int) -> Iterator[Violation]:
        if self.threads > max_threads:
            yield Violation(
                "grid",
                f"{self.threads:,} threads ({self})",
                f"the emulator runs up to {max_threads:,} in one launch",
                "Try a smaller array or a persistent grid, or allow it with "
                f"emulate.scheduled(max_threads={self.threads})",
            )
        if self.memory_bytes > self.machine_bytes:
            yield Violation(
                "block",
                f"{self.threads_per_block:,} threads ({self})",
                f"one cluster must fit the {self.machine_bytes / 2**20:,.0f} MiB of this machine",
                "Launch smaller blocks or clusters",
            )


def estimate(program: EmulatedProgram, config: LaunchConfig, workers: int) -> LaunchEstimate:
    """Estimate a launch on ``workers`` cores; its memory may leave some of them idle."""
    resources = (program.chip, program.registers, program.static_bytes)
    return _estimate(program.runtime, config, resources, workers)


_Resources = tuple[Chip, int, int]  # chip, registers per thread, bytes of static shared memory


@functools.lru_cache(maxsize=256)
def _estimate(
    runtime: Any, config: LaunchConfig, resources: _Resources, workers: int
) -> LaunchEstimate:
    ctas = math.prod(config.cluster or (1,))
    blocks, threads = math.prod(config.grid), math.prod(config.block)
    measure = runtime.tmaasync_emulate_cluster_bytes
    measure.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    measure.restype = ctypes.c_uint64
    has_tensor_memory = resources[0].tensor_memory is not None
    cluster_bytes = measure(ctas, threads, has_tensor_memory)
    fitting = min(
        workers,
        -(-blocks // ctas),
        _WORKING_BYTES // cluster_bytes,
        _MOST_STACKS // (ctas * threads),
    )
    return LaunchEstimate(
        blocks=blocks,
        threads_per_block=threads,
        workers=max(1, fitting),
        resident=_resident(config, resources, measure(ctas, 0, has_tensor_memory)),
        memory_bytes=max(1, fitting) * cluster_bytes,
        machine_bytes=_machine_bytes(),
    )


def _resident(config: LaunchConfig, resources: _Resources, cluster_bytes: int) -> int:
    """Return the clusters that are resident at once: as on the chip, if half of memory holds them.

    ``cluster_bytes`` is the memory of a cluster without its threads.
    """
    threads = math.prod(config.cluster or (1,)) * math.prod(config.block)
    fitting = _machine_bytes() // 2 // (cluster_bytes + threads * _RESIDENT_BYTES_PER_THREAD)
    chip, registers, static_bytes = resources
    resident = max_resident_clusters(chip, config, registers, static_bytes)
    return max(1, min(resident, fitting))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _duration(seconds: float) -> str:
    return f"{seconds / 60:,.0f} minutes" if seconds >= 90 else f"{seconds:.2g} seconds"
