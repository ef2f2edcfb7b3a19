"""Several emulated devices: memory, launch queues and peer access."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._kinds import is_integer, shown
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.launch.queued import WORLD, QueuedLaunch, run_together
from tmaasync.emulate.launch.recording import NOT_TRACED
from tmaasync.errors import ArgumentError

_MAX_DEVICES = 16
_ALIGNMENT = 256  # like cudaMalloc


class EmulatedDevice:
    """A device of a `World`; the world identifies its NumPy arrays by address."""

    def __init__(self, ordinal: int) -> None:
        """Make a device without memory."""
        self.ordinal = ordinal
        self.kept: dict[Hashable, Any] = {}
        self.identity = object()
        self._arrays: list[npt.NDArray[Any]] = []

    def __repr__(self) -> str:
        return f"<EmulatedDevice {self.ordinal}>"

    @property
    def location(self) -> str:
        """The location of its arrays in a message."""
        return f"emulated device {self.ordinal}"

    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """Return a copy of the values in this device's memory, as a NumPy array.

        Views of the array belong to the device too. The array lives as long as the world.
        """
        source = _arrays.numpy_array(values, "values", dtype)
        memory = np.empty(source.nbytes + _ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % _ALIGNMENT
        target = memory[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
        target[...] = source
        self._arrays.append(target)
        return target

    def extents(self) -> dict[str, Extent]:
        """Return the extents of the device's arrays, each with a name for reports."""
        return {
            f"(array {number} of device {self.ordinal})": Extent(
                array.ctypes.data,
                0,
                array.nbytes,
                array.shape,
                array.strides,
                array.itemsize,
                may_hold_pointers=array.dtype.kind in "iuV" and array.itemsize in (1, 8),
            )
            for number, array in enumerate(self._arrays)
        }

    def holds(self, address: int) -> bool:
        """Return whether an address lies in an array of the device."""
        return any(
            array.ctypes.data <= address < array.ctypes.data + max(1, array.nbytes)
            for array in self._arrays
        )


class World:
    """Several emulated devices, made by `devices`.

    Launches go into their device's queue; `synchronize`, or the end of the ``with``, runs them.
    Launches of one device run in order. With ``stream=``, which may be any value with a hash, they
    run in order per stream; 0 is the default. All devices and streams run concurrently: the
    schedule's seed interleaves their blocks.
    """

    def __init__(self, count: int) -> None:
        """Make the devices, without access to each other."""
        self._devices = tuple(map(EmulatedDevice, range(count)))
        self._queue: list[QueuedLaunch] = []
        self._pairs: set[tuple[int, int]] = set()
        self._traced_to = NOT_TRACED

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
        """Return the ordinal of the device that owns an address; None for other memory."""
        for device in self._devices:
            if device.holds(address):
                return device.ordinal
        return None

    def enable_peer_access(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Let the first device of each pair access the memory of the second."""
        self._pairs.update(pairs)

    def has_peer_access(self, device: int, peer: int) -> bool:
        """Return whether a device may access the memory of a peer."""
        return (device, peer) in self._pairs

    def memory_of(self, device: int) -> tuple[dict[str, Extent], dict[str, Extent]]:
        """Return the arrays that a device may access, and others, each with a name for reports."""
        within: dict[str, Extent] = {}
        beyond: dict[str, Extent] = {}
        for peer in self._devices:
            can_access = peer.ordinal == device or self.has_peer_access(device, peer.ordinal)
            (within if can_access else beyond).update(peer.extents())
        return within, beyond

    def add(self, launch: QueuedLaunch) -> None:
        """Append a launch to the queue of its device."""
        self._queue.append(launch)

    def synchronize(self) -> None:
        """Run the queued launches of all devices together.

        Raises:
            EmulatedDeadlock: Every thread of every device waits.
            EmulatedRace: Two accesses, of one or two devices, are unordered.
            EmulatedFault: A thread did something that ends a kernel on the chip, or is illegal.
            EmulatedTimeout: The schedule's budget was spent without progress.
        """
        launches, self._queue = self._queue, []
        if launches:
            self._traced_to = run_together(launches, self._traced_to)


_OPEN: list[World] = []  # of all threads of Python


@contextlib.contextmanager
def devices(count: int) -> Iterator[World]:
    """Emulate several devices inside the ``with``: launches on their arrays run together.

    It applies to the thread of Python that enters it: another thread needs a copy of its context
    (``contextvars.copy_context().run``), and without one its launches on these arrays are refused.

    Args:
        count: The number of devices, 1 to 16.

    Raises:
        ArgumentError: The count is out of range, or another world is open.

    >>> with devices(2) as world:
    ...     pads = [device.array(np.zeros(8, np.uint32)) for device in world]
    >>> world.device_of(pads[1].ctypes.data)
    1
    """
    if not is_integer(count) or not 1 <= count <= _MAX_DEVICES:
        raise ArgumentError.broken(
            "count", shown(count), f"a world has 1 to {_MAX_DEVICES} devices", "Pass an int"
        )
    if WORLD.get() is not None:
        raise ArgumentError(
            "another world of emulated devices is open, and launches belong to one. End its with "
            "first."
        )
    world = World(count)
    token = WORLD.set(world)
    _OPEN.append(world)
    try:
        yield world
        world.synchronize()
    finally:
        _OPEN.remove(world)
        WORLD.reset(token)


def current_world() -> World | None:
    """Return the current world; None outside of `devices`."""
    world = WORLD.get()
    return world if isinstance(world, World) else None


def other_world_of(address: int) -> World | None:
    """Return an open world of another thread or context that owns an address."""
    mine = current_world()
    return next(
        (one for one in _OPEN if one is not mine and one.device_of(address) is not None), None
    )
