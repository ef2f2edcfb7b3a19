"""Memory of other devices: which pairs of devices reach each other, and which allocations."""

from __future__ import annotations

from typing import Any

from tmaasync._driver import bindings
from tmaasync._driver.devices import on_device

# By the bindings too: a test's stand-in for the driver has pairs of its own.
_ENABLED: set[tuple[Any, int, int]] = set()


def _pair(device: int, peer: int) -> tuple[Any, int, int]:
    return bindings.driver(), device, peer


def can_access_peer(device: int, peer: int) -> bool:
    """Whether the topology lets a device reach the memory of another one."""
    handles = [bindings.call("cuDeviceGet", ordinal) for ordinal in (device, peer)]
    return bool(bindings.call("cuDeviceCanAccessPeer", *handles))


def has_peer_access(device: int, peer: int) -> bool:
    """Whether `enable_peer_access` was called for this pair."""
    return _pair(device, peer) in _ENABLED


def enable_peer_access(device: int, peer: int) -> None:
    """Let kernels of a device reach the memory that its peer allocates by ``cuMemAlloc``."""
    if has_peer_access(device, peer):
        return
    driver = bindings.driver()
    # Never released: a context that nobody retains is destroyed, and the access with it.
    _, of_peer = (
        bindings.call("cuDevicePrimaryCtxRetain", bindings.call("cuDeviceGet", ordinal))
        for ordinal in (device, peer)
    )
    with on_device(device):
        (result,) = driver.cuCtxEnablePeerAccess(of_peer, 0)
    if result.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":  # by the arrays' library
        bindings.require_success("cuCtxEnablePeerAccess", result)
    _ENABLED.add(_pair(device, peer))


def allows_access(device: int, address: int) -> bool:
    """Whether the allocation at an address of another device lets this device read and write it.

    Memory of stream-ordered pools and of virtual memory management has access rights of its own,
    which ``cuCtxEnablePeerAccess`` leaves alone. All other memory follows that call.
    """
    driver = bindings.driver()
    if _attribute(driver, "IS_LEGACY_CUDA_IPC_CAPABLE", address):  # from cuMemAlloc
        return True
    where = driver.CUmemLocation()
    where.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    where.id = device
    pool = _attribute(driver, "MEMPOOL_HANDLE", address)
    if pool:
        return _is_read_write(driver, bindings.call("cuMemPoolGetAccess", pool, where))
    result, flags = driver.cuMemGetAccess(where, address)
    if int(result) != 0:  # no virtual memory management
        return True
    return _is_read_write(driver, flags)


def _attribute(driver: Any, name: str, address: int) -> int:
    """Return an attribute of a pointer as a number; 0 where the allocation has none."""
    which = getattr(driver.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{name}")
    result, value = driver.cuPointerGetAttribute(which, address)
    return int(value) if int(result) == 0 and value is not None else 0


def _is_read_write(driver: Any, flags: Any) -> bool:
    return int(flags) == int(driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
