"""The device of a launch, and access checks for arrays on other devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tmaasync import _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._kinds import is_integer, shown
from tmaasync._tile.argument import KernelArgument
from tmaasync.emulate.run import is_scheduled
from tmaasync.errors import BackendError, LaunchError, Violation
from tmaasync.kernel.arguments import Placed, View

__all__ = ["Placement", "is_on_one_device", "placement_of"]

Where = Callable[[Placed], int | None]
"""Returns the device of an array."""


class Placement(NamedTuple):
    """The device of a launch: a CUDA device, or None and the device of an emulated world."""

    device: int | None
    emulated: int | None = None


def placement_of(seen: Sequence[View], asked: int | None) -> Placement:
    """Return the device of a launch; None for host memory, where the emulator runs the kernel.

    Args:
        seen: The result of `views` for the arguments.
        asked: The caller's ``device=``; by default the single device of the arrays, not counting
            arrays of tiles over several devices. A launch without arrays uses the current device.

    Raises:
        LaunchError: The arrays lie on no single device, or the device cannot access one of them.
    """
    members = _members(seen)
    world = emulate.current_world()
    LaunchError.raise_for(_of_other_worlds(members))
    if world is not None and all(member.device is None for _, member in members):
        return Placement(None, _emulated(world, seen, members, asked))
    devices = {member.device for _, member in members}
    if asked is None and len(devices) == 1:
        return Placement(next(iter(devices)))
    if asked is None and not devices:
        return Placement(_without_arrays())
    if asked is None:
        device = _home(seen, devices, lambda member: member.device)
    else:
        device = _checked(asked, devices)
    LaunchError.raise_for(_out_of_reach(members, device))
    return Placement(device)


def is_on_one_device(seen: Sequence[View], device: int | None) -> bool:
    """Return whether every array of a launch lies on ``device``."""
    return all(member.device == device for _, member in _members(seen))


def _members(seen: Sequence[View]) -> list[tuple[str, Placed]]:
    """Return the arrays and tiles, with their names for errors: ``args[1]``, ``args[1][2]``."""
    found: list[tuple[str, Placed]] = []
    for position, view in enumerate(seen):
        if view is None:
            continue
        name = f"args[{position}]"
        members = list(view.members()) if isinstance(view, KernelArgument) else [view]
        if len(members) == 1:
            found.append((name, members[0]))
        else:
            found += [(f"{name}[{i}]", one) for i, one in enumerate(members)]
    return found


def _without_arrays() -> int | None:
    """Return the current device; None inside `emulate.scheduled` or without a GPU."""
    if is_scheduled():
        return None
    try:
        current = _driver.current_device()
    except BackendError:
        return None
    return 0 if current is None else current


def _checked(asked: int, devices: set[int | None]) -> int:
    if devices == {None}:
        raise LaunchError(
            f"device is {asked}, and the arguments lie in host memory, where the emulator runs the "
            "kernel. Leave out device, or move the arrays to the device."
        )
    return _checked_ordinal(asked, _driver.device_count())


def _checked_ordinal(asked: int, count: int) -> int:
    if not is_integer(asked):
        raise LaunchError(f"device is {shown(asked)}; it is a device's ordinal. Pass an int.")
    if not 0 <= asked < count:
        raise LaunchError(
            f"device is {asked}; this process sees {count} devices. Pass 0 to {count - 1}."
        )
    return asked


def _home(seen: Sequence[View], devices: set[int | None], where: Where) -> int | None:
    """Return the common device of the arguments that lie on one device."""
    homes: set[int | None] = set()
    for view in seen:
        if view is None:
            continue
        members: Iterable[Placed] = view.home() if isinstance(view, KernelArgument) else (view,)
        own = {where(member) for member in members}
        homes |= own if len(own) == 1 else set()
    if len(homes) == 1:
        return next(iter(homes))
    names = ", ".join(_name(device) for device in sorted(homes or devices, key=str))
    if None in devices:
        raise LaunchError(
            f"args lie on {names}; one launch takes one device. Move them to one device."
        )
    ordinals = sorted(device for device in devices if device is not None)
    raise LaunchError(
        f"args lie on {names}; one launch runs on one device. Pass device=, after "
        f"tmaasync.enable_peer_access({ordinals}), or move them to one device."
    )


def _name(device: int | None) -> str:
    return "host memory" if device is None else f"device {device}"


# --- arrays of other devices ------------------------------------------------------------------

_REMEDIES = {
    "cupy": "Allocate from cupy.cuda.MemoryPool(), CuPy's default, and not from MemoryAsyncPool",
    "torch": "Start without expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF and without "
    "backend:cudaMallocAsync",
    "jax": "Start with XLA_PYTHON_CLIENT_ALLOCATOR=platform, or copy the array into one of CuPy's",
}
_OTHER_REMEDY = "Allocate it with cudaMalloc, or give the device access with cuMemSetAccess"


def _out_of_reach(members: Sequence[tuple[str, Placed]], device: int | None) -> Iterator[Violation]:
    """Yield the arrays that kernels of the device cannot access."""
    for name, member in members:
        if member.device == device:
            continue
        if device is None or member.device is None:
            yield Violation(
                name,
                f"in {_name(member.device)}",
                f"the launch runs on {_name(device)}",
                "Move all arrays to one kind of memory",
            )
        elif not _driver.has_peer_access(device, member.device):
            yield _no_access(name, device, member.device)
        elif not _driver.allows_access(device, _address(member)):
            yield Violation(
                name,
                f"on device {member.device}, in memory of a pool of {member.framework}'s",
                f"the pool gives device {device} no access, whatever enable_peer_access did",
                _REMEDIES.get(member.framework, _OTHER_REMEDY),
            )


def _no_access(name: str, device: int, peer: int) -> Violation:
    return Violation(
        name,
        f"on device {peer}",
        f"device {device} has no access to its memory",
        f"Call tmaasync.enable_peer_access([{device}, {peer}]) once, before the first launch",
    )


def _address(member: Placed) -> int:
    return member.address if isinstance(member, ArrayView) else member.byte_bounds[0]


# --- devices of an emulated world -------------------------------------------------------------


def _of_other_worlds(members: Sequence[tuple[str, Placed]]) -> Iterator[Violation]:
    """Yield arrays of a world that was opened in another thread of Python."""
    for name, member in members:
        world = None if member.device is not None else emulate.other_world_of(_address(member))
        if world is not None:
            yield Violation(
                name,
                f"on device {world.device_of(_address(member))} of emulate.devices({len(world)})",
                "a world applies to the thread that opened it, and this is another thread or "
                "context",
                "Launch in that thread, or start this one with contextvars.copy_context().run",
            )


def _emulated(
    world: emulate.World,
    seen: Sequence[View],
    members: Sequence[tuple[str, Placed]],
    asked: int | None,
) -> int:
    """Return the emulated device of a launch on arrays of an emulated world."""

    def where(member: Placed) -> int | None:
        return world.device_of(_address(member))

    LaunchError.raise_for(
        Violation(
            name,
            f"at {_address(member):#x} in host memory",
            "inside emulate.devices every array belongs to a device",
            "Make it with world[device].array(values)",
        )
        for name, member in members
        if where(member) is None
    )
    devices = {where(member) for _, member in members}
    if asked is not None:
        device: int | None = _checked_ordinal(asked, len(world))
    elif devices:
        device = next(iter(devices)) if len(devices) == 1 else _home(seen, devices, where)
    else:
        device = 0
    assert device is not None  # noqa: S101 - every member has one
    LaunchError.raise_for(_beyond_access(world, members, device, where))
    return device


def _beyond_access(
    world: emulate.World, members: Sequence[tuple[str, Placed]], device: int, where: Where
) -> Iterator[Violation]:
    for name, member in members:
        peer = where(member)
        if peer is not None and peer != device and not world.has_peer_access(device, peer):
            yield _no_access(name, device, peer)
