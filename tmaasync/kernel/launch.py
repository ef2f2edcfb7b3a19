"""Grid, block, cluster and shared memory of a launch, and a loaded function."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from tmaasync import _driver
from tmaasync._compile import Entry
from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync._hardware import PORTABLE_CLUSTER_BLOCKS, REGISTER_GRANULE, WARP_THREADS
from tmaasync._kinds import is_integer, shown
from tmaasync.errors import LaunchError
from tmaasync.kernel.arguments import Placed
from tmaasync.kernel.modules import Module
from tmaasync.kernel.watch import HangWatch
from tmaasync.tile import KernelArgument

__all__ = [
    "Extents",
    "Loaded",
    "check_extents",
    "check_launch_bounds",
    "check_resident",
    "check_static_shared",
    "cluster_of",
    "extents",
    "shared_bytes",
    "wait_for_producers",
]

_STATIC_SHARED_BYTES = 48 * 1024

Extents = int | Sequence[int]


class Loaded:
    """A function on one device, and the launch configurations that were checked."""

    __slots__ = ("_checked", "entry", "function", "module", "watch")

    def __init__(
        self, entry: Entry, function: int, module: Module, watch: HangWatch | None
    ) -> None:
        self.entry = entry
        self.watch = watch
        self.function = _driver.function_handle(function)
        self.module = module
        self._checked: set[LaunchConfig] = set()

    def global_address(self, name: str) -> int:
        """Return the address of a variable of the package's headers.

        Raises:
            LaunchError: The source includes none of the headers that have it.
        """
        address = self.module.global_address(name)
        if address is None:
            raise LaunchError(
                f"{self.entry.name} cannot be traced: its source includes no header of tmaasync, "
                "whose functions write the trace. Include <tmaasync/tmaasync.cuh>, or pass "
                "trace=False to Kernel."
            )
        return address

    def allow(self, config: LaunchConfig, limits: DeviceLimits) -> None:
        """Check the extents, and opt in to large shared memory and large clusters, once each."""
        if config in self._checked:
            return
        check_extents(config, limits)
        _check_registers(self.entry, config, limits)
        if config.shared_bytes > _STATIC_SHARED_BYTES:
            _driver.allow_shared_bytes(self.function, config.shared_bytes)
        if config.cluster is not None and math.prod(config.cluster) > PORTABLE_CLUSTER_BLOCKS:
            _driver.allow_large_clusters(self.function)
        if config.cooperative:
            resident = _driver.max_resident_blocks(self.function, config, limits.sms)
            check_resident(self.entry.name, config, resident, limits)
        self._checked.add(config)


def wait_for_producers(placed: Iterable[Placed], stream: int, device: int | None) -> None:
    """Make a stream wait for the producers of arrays whose framework does not name its stream.

    By the stream protocols of DLPack and of ``__cuda_array_interface__`` (version 3). Arrays of
    other devices are ordered by signals.
    """
    for view in placed:
        if view.framework == "other" and device is not None and view.device == device:
            owner: Any = view.array if isinstance(view, KernelArgument) else view.owner
            if hasattr(owner, "__dlpack__"):
                owner.__dlpack__(stream=stream or _LEGACY_DEFAULT_STREAM)
            elif (theirs := owner.__cuda_array_interface__.get("stream")) is not None:
                _driver.wait_for(stream, theirs)


# DLPack's number for the default stream, whose handle is 0.
_LEGACY_DEFAULT_STREAM = 1


# --- grid, shared memory ----------------------------------------------------------------------


def extents(argument: str, value: Extents) -> tuple[int, int, int]:
    """Return the extents along x, y and z.

    Raises:
        LaunchError: The value is not one to three positive ints.
    """
    if type(value) is int and value > 0:
        return value, 1, 1
    given = tuple(value) if isinstance(value, Sequence) else (value,)
    are_integers = all(map(is_integer, given))
    if not are_integers or not 1 <= len(given) <= 3 or min(given) < 1:
        is_empty = argument == "grid" and are_integers and 0 in given
        remedy = "An empty array has no tiles: skip the launch" if is_empty else "Pass 1 or more"
        raise LaunchError(
            f"{argument} is {shown(value)}; it must be one to three positive ints (x, y, z). "
            f"{remedy}."
        )
    given = tuple(map(operator.index, given))
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def check_extents(config: LaunchConfig, limits: DeviceLimits) -> None:
    """Compare block, cluster and grid with the limits of the device.

    Raises:
        LaunchError: The block, the grid or the cluster is too large, or the grid no multiple of it.
    """
    threads = math.prod(config.block)
    if threads > limits.threads_per_block:
        raise LaunchError(
            f"block is {config.block}, {threads} threads; a thread block on {limits} has at most "
            f"{limits.threads_per_block}. Use a smaller block."
        )
    if config.block[2] > _MAX_BLOCK_Z:
        raise LaunchError(
            f"block is {config.block}, {config.block[2]} threads along z; CUDA allows "
            f"{_MAX_BLOCK_Z}. Count the most threads along x."
        )
    _check_grid(config.grid)
    if config.cluster is None:
        return
    blocks = math.prod(config.cluster)
    if blocks > limits.cluster_blocks:
        raise LaunchError(
            f"cluster is {config.cluster}, {blocks} blocks; a cluster on {limits} has at most "
            f"{limits.cluster_blocks}. Use a smaller cluster; up to {PORTABLE_CLUSTER_BLOCKS} "
            "blocks run everywhere."
        )
    if any(whole % part for whole, part in zip(config.grid, config.cluster, strict=True)):
        rounded = tuple(
            -(-whole // part) * part
            for whole, part in zip(config.grid, config.cluster, strict=True)
        )
        raise LaunchError(
            f"grid is {config.grid}; it counts blocks and must be a multiple of cluster "
            f"{config.cluster}. Use {rounded}."
        )


def check_resident(name: str, config: LaunchConfig, resident: int, limits: DeviceLimits) -> None:
    """Compare the grid of a cooperative launch with the blocks that the device holds at once.

    Raises:
        LaunchError: Blocks of the grid would wait for others that cannot start.
    """
    blocks = math.prod(config.grid)
    if blocks > resident:
        raise LaunchError(
            f"grid is {config.grid}, {blocks} blocks; with cooperative=True all of them are "
            f"resident at once, and {limits} holds {resident} of {name} with "
            f"{math.prod(config.block)} threads and {config.shared_bytes} bytes of shared memory. "
            f"Launch at most {resident} blocks that do several tiles each (a persistent kernel)."
        )


def check_static_shared(
    name: str, config: LaunchConfig, static_bytes: int, limits: DeviceLimits
) -> None:
    """Compare static and dynamic shared memory together with what a block has.

    Raises:
        LaunchError: They do not fit, and a device would refuse the launch.
    """
    whole = config.shared_bytes + static_bytes
    if whole > limits.shared_bytes:
        raise LaunchError(
            f"shared_mem is {config.shared_bytes} bytes, and {name} has {static_bytes} bytes of "
            f"static shared memory; a block on {limits} has {limits.shared_bytes} bytes in all. "
            f"Ask for at most {max(0, limits.shared_bytes - static_bytes)}."
        )


# Technical specifications per compute capability (CUDA programming guide): the same on all chips.
_MAX_BLOCK_Z = 64
_GRID_LIMITS = {"x": 2**31 - 1, "y": 65535, "z": 65535}


def _check_grid(grid: tuple[int, int, int]) -> None:
    for (side, limit), blocks in zip(_GRID_LIMITS.items(), grid, strict=True):
        if blocks > limit:
            remedy = (
                "Let a block do several tiles (a persistent kernel)"
                if side == "x"
                else "Count the most blocks along x"
            )
            raise LaunchError(
                f"grid is {grid}, {blocks} blocks along {side}; CUDA allows {limit}. {remedy}."
            )


def check_launch_bounds(name: str, max_threads: int | None, config: LaunchConfig) -> None:
    """Compare a block with the kernel's ``__launch_bounds__``, as the driver does on a GPU.

    Raises:
        LaunchError: The block has more threads.
    """
    threads = math.prod(config.block)
    if max_threads is not None and threads > max_threads:
        raise LaunchError(
            f"block is {config.block}, {threads} threads; {name} is declared with "
            f"__launch_bounds__({max_threads}). Use a smaller block, or declare {threads}."
        )


def cluster_of(
    name: str, asked: Extents | None, declared: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    """Return the cluster of a launch: as asked for, else by ``__cluster_dims__``.

    Raises:
        LaunchError: They differ; the driver refuses this on a GPU.
    """
    cluster = None if asked is None else extents("cluster", asked)
    if cluster is not None and declared is not None and cluster != declared:
        raise LaunchError(
            f"cluster is {cluster}; {name} is declared with __cluster_dims__{declared}. Leave out "
            "cluster, or declare this one."
        )
    return cluster or declared


def _check_registers(entry: Entry, config: LaunchConfig, limits: DeviceLimits) -> None:
    """Refuse a block whose threads need more registers than a block has."""
    threads = math.prod(config.block)
    warps = -(-threads // WARP_THREADS)
    registers = -(-entry.registers // REGISTER_GRANULE) * REGISTER_GRANULE
    needed = warps * WARP_THREADS * registers
    if needed > limits.registers_per_block:
        raise LaunchError(
            f"block is {config.block}, {threads} threads; {entry.name} takes {registers} registers "
            f"a thread, so the block needs {needed}, and a thread block on {limits} has "
            f"{limits.registers_per_block}. Use a smaller block, or declare the kernel with "
            f"__launch_bounds__({threads})."
        )


def shared_bytes(needed: int | None, asked: int | None, limits: DeviceLimits) -> int:
    """Return the dynamic shared memory of a launch: as asked for, else as the source declares.

    Raises:
        LaunchError: A thread block has less.
    """
    shared = asked if asked is not None else needed or 0
    if not is_integer(shared):
        raise LaunchError(f"shared_mem is {shown(shared)}; it counts bytes. Pass an int, or None.")
    if not 0 <= shared <= limits.shared_bytes:
        raise LaunchError(
            f"shared_mem is {shared} bytes; a thread block on {limits} has at most "
            f"{limits.shared_bytes}. Use fewer stages or smaller tiles."
        )
    return shared
