"""Access of devices to the memory of their peers, over NVLink or PCIe.

A tensor map over an array of another device works like any other, once the devices have access to
each other's memory. Signals order their accesses (`tmaasync.signal`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tmaasync import _driver, emulate
from tmaasync._kinds import is_integer, is_sequence, shown
from tmaasync.errors import ArgumentError, Violation

__all__ = ["enable_peer_access"]


def enable_peer_access(devices: Sequence[int]) -> None:
    """Let each of these devices read and write the memory of all others.

    Call it once in a process, before the first launch with arrays of a peer. It covers memory of
    ``cudaMalloc``, from which CuPy and torch take theirs by default. Memory of stream-ordered pools
    (``cudaMallocAsync``) and of virtual memory management (torch's expandable segments, symmetric
    memory) has access rights of its own. A launch checks them, and refuses an array that its device
    cannot access. Inside ``with emulate.devices(count)`` the devices are the emulated ones.

    Args:
        devices: Ordinals of devices, each once; fewer than two change nothing.

    Raises:
        ArgumentError: An ordinal is unknown or given twice, or there is no link between two
            devices; every pair without one is listed, and nothing is enabled.
        BackendError: No driver, or no device.
    """
    world = emulate.current_world()
    count = _driver.device_count() if world is None else len(world)
    ArgumentError.raise_for(_violations(devices, count))
    pairs = list(itertools.permutations(devices, 2))
    if world is not None:
        world.enable_peer_access(pairs)
        return
    ArgumentError.raise_for(_unlinked(pairs))
    for device, peer in pairs:
        _driver.enable_peer_access(device, peer)


def _violations(devices: Sequence[int], count: int) -> Iterator[Violation]:
    if not is_sequence(devices) or not all(map(is_integer, devices)):
        rule = "it must be a sequence of the ordinals of CUDA devices"
        yield Violation("devices", shown(devices), rule, "Pass a list, such as [0, 1]")
        return
    for position, device in enumerate(devices):
        if not 0 <= device < count:
            rule = f"this process sees {count} devices"
            remedy = f"Pass 0 to {count - 1}, or check CUDA_VISIBLE_DEVICES"
            yield Violation(f"devices[{position}]", device, rule, remedy)
    if len(set(devices)) < len(devices):
        yield Violation("devices", list(devices), "it names a device twice", "Name each once")


def _unlinked(pairs: Sequence[tuple[int, int]]) -> Iterator[Violation]:
    for device, peer in pairs:
        if not _driver.can_access_peer(device, peer):
            yield Violation(
                "devices",
                f"[{device}, {peer}]",
                f"device {device} cannot reach the memory of device {peer} (cuDeviceCanAccessPeer)",
                "Pass GPUs that NVLink or one PCIe switch connects: nvidia-smi topo -m lists the "
                "links",
            )
