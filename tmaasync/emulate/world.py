"""Several emulated devices: their memory, their queues of launches, and their access to peers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync._kinds import is_integer, shown
from tmaasync.emulate.run import WORLD, QueuedLaunch, run_together
from tmaasync.errors import ArgumentError

__all__ = ["EmulatedDevice", "World", "current_world", "devices"]

_MAX_DEVICES = 16
_ALIGNMENT = 256  # as cudaMalloc's


class EmulatedDevice:
    """A device of a `World`; its arrays are NumPy arrays that the world knows by their address."""

    def __init__(self, ordinal: int) -> None:
        """Have no memory yet."""
        self.ordinal = ordinal
        self._arrays: list[npt.NDArray[Any]] = []

    def __repr__(self) -> str:
        return f"<EmulatedDevice {self.ordinal}>"

    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """Return a copy of the values in memory of this device: a NumPy array.

        Its views belong to the device too. It lives as long as the world.
        """
        source = np.asarray(values, dtype)
        memory = np.empty(source.nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        target = memory[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        target[...] = source
        self._arrays.append(target)
        return target

    def holds(self, address: int) -> bool:
        """Whether an address lies in an array of the device."""
        return any(
            array.ctypes.data <= address < array.ctypes.data + max(1, array.nbytes)
            for array in self._arrays
        )


class World:
    """Several emulated devices, made by `devices`.

    Launches go into a queue of their device. `synchronize`, or the end of the ``with``, runs them.
    The launches of one device run one after the other; with ``stream=`` they run one after the
    other on each stream, which any value names. All devices and streams run together: the
    schedule's seed interleaves their blocks.
    """

    def __init__(self, count: int) -> None:
        """Make the devices, without access to each other."""
        self._devices = tuple(map(EmulatedDevice, range(count)))
        self._queue: list[QueuedLaunch] = []
        self._pairs: set[tuple[int, int]] = set()
        self._traced_to = 0  # where the clocks of the next traces begin

    def __repr__(self) -> str:
        return f"<World of {len(self)} devices>"

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, ordinal: int) -> EmulatedDevice:
        """Return a device."""
        return self._devices[ordinal]

    def __iter__(self) -> Iterator[EmulatedDevice]:
        """Yield the devices."""
        return iter(self._devices)

    def device_of(self, address: int) -> int | None:
        """Return the ordinal of the device whose memory has an address; None for other memory."""
        for device in self._devices:
            if device.holds(address):
                return device.ordinal
        return None

    def enable_peer_access(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let the first device of each pair reach the memory of the second."""
        self._pairs.update(pairs)

    def has_peer_access(self, device: int, peer: int) -> bool:
        """Whether a device may reach the memory of another one."""
        return (device, peer) in self._pairs

    def add(self, launch: QueuedLaunch) -> None:
        """Append a launch to the queue of its device."""
        self._queue.append(launch)

    def synchronize(self) -> None:
        """Run the launches in the queues, all devices together.

        Raises:
            EmulatedDeadlock: Every thread of every device waits.
            EmulatedRace: Two accesses, of one device or of two, are in no order.
            EmulatedFault: A thread did what ends a kernel on the chip, or what no kernel may do.
            EmulatedTimeout: The schedule's budget was spent, and nothing came of it.
        """
        launches, self._queue = self._queue, []
        if launches:
            self._traced_to = run_together(launches, self._traced_to)


@contextlib.contextmanager
def devices(count: int) -> Iterator[World]:
    """Emulate several devices inside the ``with``: launches on their arrays run together.

    Args:
        count: How many devices, 1 to 16.

    Raises:
        ArgumentError: The count is none of these, or another world is open.

    >>> with devices(2) as world:
    ...     pads = [device.array(np.zeros(8, np.uint32)) for device in world]
    >>> world.device_of(pads[1].ctypes.data)
    1
    """
    if not is_integer(count) or not 1 <= count <= _MAX_DEVICES:
        raise ArgumentError(
            f"count is {shown(count)}; a world has 1 to {_MAX_DEVICES} devices. Pass an int."
        )
    if WORLD.get() is not None:
        raise ArgumentError(
            "another world of emulated devices is open, and launches belong to one. End its with "
            "first."
        )
    world = World(count)
    token = WORLD.set(world)
    try:
        yield world
        world.synchronize()
    finally:
        WORLD.reset(token)


def current_world() -> World | None:
    """Return the world of launches here and now; None outside of `devices`."""
    world = WORLD.get()
    return world if isinstance(world, World) else None
