"""The device of a launch on arrays of an emulated world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tmaasync import emulate
from tmaasync.errors import LaunchError, Violation
from tmaasync.kernel.arguments import Placed, View
from tmaasync.kernel.device import Where, address_of, checked_ordinal, home, no_access

__all__ = ["emulated_device", "of_other_worlds"]


def of_other_worlds(members: Sequence[tuple[str, Placed]]) -> Iterator[Violation]:
    """Yield arrays of a world that was opened in another thread of Python."""
    for name, member in members:
        world = None if member.device is not None else emulate.other_world_of(address_of(member))
        if world is not None:
            yield Violation(
                name,
                f"on device {world.device_of(address_of(member))} of emulate.devices({len(world)})",
                "a world applies to the thread that opened it, and this is another thread or "
                "context",
                "Launch in that thread, or start this one with contextvars.copy_context().run",
            )


def emulated_device(
    world: emulate.World,
    seen: Sequence[View],
    members: Sequence[tuple[str, Placed]],
    asked: int | None,
) -> int:
    """Return the emulated device of a launch on arrays of an emulated world."""

    def where(member: Placed) -> int | None:
        return world.device_of(address_of(member))

    LaunchError.raise_for(
        Violation(
            name,
            f"at {address_of(member):#x} in host memory",
            "inside emulate.devices every array belongs to a device",
            "Make it with world[device].array(values)",
        )
        for name, member in members
        if where(member) is None
    )
    devices = {where(member) for _, member in members}
    if asked is not None:
        device: int | None = checked_ordinal(asked, len(world))
    elif devices:
        device = next(iter(devices)) if len(devices) == 1 else home(seen, devices, where)
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
            yield no_access(name, device, peer)
