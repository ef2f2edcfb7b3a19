"""The device of a launch, and access checks for arrays on other devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tmaasync import _driver
from tmaasync._arrays import ArrayView
from tmaasync._kinds import is_integer, shown
from tmaasync._tile.argument import KernelArgument
from tmaasync.errors import BackendError, LaunchError, Violation
from tmaasync.kernel.arguments import Placed, View
from tmaasync.kernel.backend import host_backend

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
    devices = {member.device for _, member in members}
    if None in devices or not devices:
        host = host_backend()
        host.check_worlds(members)
        emulated = host.emulated_device(seen, members, asked) if devices <= {None} else None
        if emulated is not None:
            return Placement(None, emulated)
    if asked is None and len(devices) == 1:
        return Placement(next(iter(devices)))
    if asked is None and not devices:
        return Placement(_without_arrays())
    if asked is None:
        device = home(seen, devices, lambda member: member.device)
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
    if host_backend().is_scheduled():
        return None
    try:
        current = _driver.current_device()
    except BackendError:
        return None
    return 0 if current is None else current


def _checked(asked: int, devices: set[int | None]) -> int:
    if devices == {None}:
        rule = "the arguments lie in host memory, where the emulator runs the kernel"
        remedy = "Leave out device, or move the arrays to the device"
        raise LaunchError.broken("device", asked, rule, remedy)
    return checked_ordinal(asked, _driver.device_count())


def checked_ordinal(asked: int, count: int) -> int:
    """Return the caller's ``device=`` if this process has that device."""
    if not is_integer(asked):
        raise LaunchError.broken("device", shown(asked), "it is a device's ordinal", "Pass an int")
    if not 0 <= asked < count:
        raise LaunchError.broken(
            "device", asked, f"this process sees {count} devices", f"Pass 0 to {count - 1}"
        )
    return asked


def home(seen: Sequence[View], devices: set[int | None], where: Where) -> int | None:
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
        raise LaunchError.broken(
            "args",
            f"on {names}",
            "one launch takes one device",
            "Move them to one device",
            verb="lie",
        )
    ordinals = sorted(device for device in devices if device is not None)
    raise LaunchError.broken(
        "args",
        f"on {names}",
        "one launch runs on one device",
        f"Pass device=, after tmaasync.enable_peer_access({ordinals}), or move them to one device",
        verb="lie",
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
            yield no_access(name, device, member.device)
        elif not _driver.allows_access(device, address_of(member)):
            yield Violation(
                name,
                f"on device {member.device}, in memory of a pool of {member.framework}'s",
                f"the pool gives device {device} no access, whatever enable_peer_access did",
                _REMEDIES.get(member.framework, _OTHER_REMEDY),
            )


def no_access(name: str, device: int, peer: int, devices: list[int] | None = None) -> Violation:
    """Return the violation by a peer's array; ``devices``: all that need access to each other."""
    among = devices or [device, peer]
    return Violation(
        name,
        f"on device {peer}",
        f"device {device} has no access to its memory",
        f"Call tmaasync.enable_peer_access({among}) once, before the first launch",
    )


def address_of(member: Placed) -> int:
    """Return an address inside the array of an argument."""
    return member.address if isinstance(member, ArrayView) else member.byte_bounds[0]
