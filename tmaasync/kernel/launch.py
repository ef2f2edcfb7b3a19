"""Grid, block, cluster and shared memory of a launch, and a loaded function."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from tmaasync import _arrays, _driver
from tmaasync._driver import DeviceLimits, LaunchConfig
from tmaasync._hardware import PORTABLE_CLUSTER_BLOCKS, REGISTER_GRANULE, WARP_THREADS
from tmaasync._kinds import is_integer, shown
from tmaasync._source.compile import Entry
from tmaasync._tile.argument import KernelArgument
from tmaasync.errors import LaunchError
from tmaasync.kernel.arguments import Placed
from tmaasync.kernel.modules import Module
from tmaasync.kernel.watch import HangWatch

_STATIC_SHARED_BYTES = 48 * 1024

Extents = int | Sequence[int]


class Loaded:
    """A loaded function on one device, and its checked launch configurations."""

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
        """Return the address of a variable that the package's headers define.

        Raises:
            LaunchError: The source includes no header that defines it.
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
        """Check the extents once, and opt in to large shared memory and large clusters."""
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


def wait_for_producers(placed: Iterable[Placed], stream: int, device: int) -> None:
    """Make a stream wait for the producers of arrays whose framework reports no current stream.

    It uses the stream protocols of DLPack and ``__cuda_array_interface__`` (version 3). Arrays on
    other devices are ordered by signals.
    """
    for view in placed:
        if view.framework == "other" and view.device == device:
            owner: Any = view.array if isinstance(view, KernelArgument) else view.owner
            if hasattr(owner, "__dlpack__"):
                _arrays.have_stream_wait(owner, stream or _LEGACY_DEFAULT_STREAM)
            elif (theirs := _arrays.read_interface(owner).stream) is not None:
                _driver.wait_for(stream, theirs)


# DLPack's number for the legacy default stream, whose handle is 0.
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
        raise LaunchError.broken(
            argument,
            shown(value),
            "it must be one to three positive ints (x, y, z)",
            f"{_remedy_of_extents(argument, value, given)}",
        )
    given = tuple(map(operator.index, given))
    x, y, z = (*given, 1, 1)[:3]
    return x, y, z


def _remedy_of_extents(argument: str, value: object, given: tuple[object, ...]) -> str:
    if not isinstance(value, int | Sequence):
        return "Pass an int or a tuple of ints"
    for size in given:
        if not is_integer(size):
            return f"{shown(size)} is a {type(size).__name__}: pass an int"
    if not 1 <= len(given) <= 3:
        return f"It has {len(given)} items: pass one to three"
    is_empty = argument == "grid" and 0 in given
    return "An empty array has no tiles: skip the launch" if is_empty else "Pass 1 or more"


def check_extents(config: LaunchConfig, limits: DeviceLimits) -> None:
    """Check block, cluster and grid against the limits of the device.

    Raises:
        LaunchError: The block, grid or cluster is too large, or does not divide the grid.
    """
    threads = math.prod(config.block)
    if threads > limits.threads_per_block:
        raise LaunchError.broken(
            "block",
            f"{config.block}, {threads} threads",
            f"a thread block on {limits} has at most {limits.threads_per_block}",
            "Use a smaller block",
        )
    if config.block[2] > _MAX_BLOCK_Z:
        raise LaunchError.broken(
            "block",
            f"{config.block}, {config.block[2]} threads along z",
            f"CUDA allows {_MAX_BLOCK_Z}",
            "Count the most threads along x",
        )
    _check_grid(config.grid)
    if config.cluster is None:
        return
    blocks = math.prod(config.cluster)
    if blocks > limits.cluster_blocks:
        raise LaunchError.broken(
            "cluster",
            f"{config.cluster}, {blocks} blocks",
            f"a cluster on {limits} has at most {limits.cluster_blocks}",
            f"Use a smaller cluster; up to {PORTABLE_CLUSTER_BLOCKS} blocks run everywhere",
        )
    if any(whole % part for whole, part in zip(config.grid, config.cluster, strict=True)):
        rounded = tuple(
            -(-whole // part) * part
            for whole, part in zip(config.grid, config.cluster, strict=True)
        )
        raise LaunchError.broken(
            "grid",
            config.grid,
            f"it counts blocks and must be a multiple of cluster {config.cluster}",
            f"Use {rounded}",
        )


def check_resident(name: str, config: LaunchConfig, resident: int, limits: DeviceLimits) -> None:
    """Check that all blocks of a cooperative launch can be resident at once.

    Raises:
        LaunchError: Resident blocks would wait for blocks that cannot start.
    """
    blocks = math.prod(config.grid)
    if blocks > resident:
        raise LaunchError.broken(
            "grid",
            f"{config.grid}, {blocks} blocks",
            f"with cooperative=True all of them are resident at once, and {limits} "
            f"holds {resident} of {name} with {math.prod(config.block)} threads and "
            f"{config.shared_bytes} bytes of shared memory",
            (f"Launch at most {resident} blocks that do several tiles each (a persistent kernel)"),
        )


def check_static_shared(
    name: str, config: LaunchConfig, static_bytes: int, limits: DeviceLimits
) -> None:
    """Check static plus dynamic shared memory against the limit of a block.

    Raises:
        LaunchError: They do not fit; a device would reject the launch.
    """
    whole = config.shared_bytes + static_bytes
    if whole > limits.shared_bytes:
        raise LaunchError.broken(
            "shared_mem",
            f"{config.shared_bytes} bytes, and {name} has {static_bytes} bytes of "
            "static shared memory",
            f"a block on {limits} has {limits.shared_bytes} bytes in all",
            f"Ask for at most {max(0, limits.shared_bytes - static_bytes)}",
        )


# CUDA programming guide, technical specifications per compute capability: equal on all chips.
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
            raise LaunchError.broken(
                "grid", f"{grid}, {blocks} blocks along {side}", f"CUDA allows {limit}", remedy
            )


def check_launch_bounds(name: str, max_threads: int | None, config: LaunchConfig) -> None:
    """Check a block against the kernel's ``__launch_bounds__``, as the driver does on a GPU.

    Raises:
        LaunchError: The block has more threads.
    """
    threads = math.prod(config.block)
    if max_threads is not None and threads > max_threads:
        raise LaunchError.broken(
            "block",
            f"{config.block}, {threads} threads",
            f"{name} is declared with __launch_bounds__({max_threads})",
            f"Use a smaller block, or declare {threads}",
        )


def cluster_of(
    name: str, asked: Extents | None, declared: tuple[int, int, int] | None
) -> tuple[int, int, int] | None:
    """Return the cluster of a launch: the caller's, else the one of ``__cluster_dims__``.

    Raises:
        LaunchError: The two differ; on a GPU the driver rejects this.
    """
    cluster = None if asked is None else extents("cluster", asked)
    if cluster is not None and declared is not None and cluster != declared:
        raise LaunchError.broken(
            "cluster",
            cluster,
            f"{name} is declared with __cluster_dims__{declared}",
            "Leave out cluster, or declare this one",
        )
    return cluster or declared


def _check_registers(entry: Entry, config: LaunchConfig, limits: DeviceLimits) -> None:
    """Reject a block whose threads need more registers than an SM provides to a block."""
    threads = math.prod(config.block)
    warps = -(-threads // WARP_THREADS)
    registers = -(-entry.registers // REGISTER_GRANULE) * REGISTER_GRANULE
    needed = warps * WARP_THREADS * registers
    if needed > limits.registers_per_block:
        raise LaunchError.broken(
            "block",
            f"{config.block}, {threads} threads",
            f"{entry.name} takes {registers} registers a thread, so the block needs "
            f"{needed}, and a thread block on {limits} has {limits.registers_per_block}",
            f"Use a smaller block, or declare the kernel with __launch_bounds__({threads})",
        )


def shared_bytes(needed: int | None, asked: int | None, limits: DeviceLimits) -> int:
    """Return the dynamic shared memory of a launch: the caller's, else the source's.

    Raises:
        LaunchError: It exceeds the limit of a thread block.
    """
    shared = asked if asked is not None else needed or 0
    if not is_integer(shared):
        raise LaunchError.broken(
            "shared_mem", shown(shared), "it counts bytes", "Pass an int, or None"
        )
    if not 0 <= shared <= limits.shared_bytes:
        raise LaunchError.broken(
            "shared_mem",
            f"{shared} bytes",
            f"a thread block on {limits} has at most {limits.shared_bytes}",
            "Use fewer stages or smaller tiles",
        )
    return shared
