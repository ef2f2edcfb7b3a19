"""The two protocols by which arrays of any library say where they lie."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from tmaasync._arrays.dlpack import export
from tmaasync._arrays.value import ArrayView, choose_element, not_an_array, require_memory
from tmaasync.errors import ArgumentError, Violation

__all__ = ["view_cuda_array_interface", "view_dlpack"]


def view_dlpack(array: Any, dtype: object, argument: str) -> ArrayView:
    """View an array through ``__dlpack__``; the view's lease holds what it exported."""
    tensor = export(array, argument)
    kind = choose_element(tensor.dtype, tensor.itemsize, dtype, argument)
    require_memory(tensor.address, tensor.shape, argument)
    return ArrayView(
        tensor.address,
        tensor.shape,
        tensor.strides_bytes,
        kind,
        tensor.device,
        tensor.read_only,
        "other",
        array,
        tensor.capsule,
    )


def view_cuda_array_interface(array: Any, dtype: object, argument: str) -> ArrayView:
    """View an array through ``__cuda_array_interface__``, version 2 or 3."""
    interface = array.__cuda_array_interface__
    _require_readable(interface, array, argument)
    address, read_only = interface["data"]
    shape = tuple(int(size) for size in interface["shape"])
    own = np.dtype(interface["typestr"])
    strides = interface.get("strides")
    require_memory(address, shape, argument)
    return ArrayView(
        address,
        shape,
        _contiguous(shape, own.itemsize) if strides is None else tuple(int(s) for s in strides),
        choose_element(own, own.itemsize, dtype, argument),
        _ordinal_of(address, argument),
        bool(read_only),
        "other",
        array,
    )


def _require_readable(interface: Any, array: object, argument: str) -> None:
    missing = [key for key in ("shape", "typestr", "data", "version") if key not in interface]
    if missing:
        rule = f"its __cuda_array_interface__ lacks {', '.join(missing)}"
        remedy = "Complete it as version 3 of the interface asks"
    elif interface["version"] < 2:
        rule = f"its __cuda_array_interface__ is of version {interface['version']}"
        remedy = "Use a release of its library that offers version 2 or 3, or __dlpack__"
    elif interface.get("mask") is not None:
        rule, remedy = "TMA would ignore its mask", "Pass the array without the mask"
    else:
        return
    raise not_an_array(array, rule, remedy, argument)


def _contiguous(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= size
    return tuple(reversed(strides))


_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9


def _ordinal_of(address: int, argument: str) -> int:
    """Ask the driver for the memory's device, which the interface lacks."""
    driver = _driver()
    # Without a driver nothing will run on the array, and the first device stands in for its own.
    if driver is None or address == 0:
        return 0
    ordinal = ctypes.c_int()
    status = driver.cuPointerGetAttribute(
        ctypes.byref(ordinal), _CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ctypes.c_uint64(address)
    )
    if status != 0:
        raise ArgumentError.of(
            [
                Violation(
                    f"{argument}.__cuda_array_interface__",
                    f"at {address:#x}",
                    f"the driver knows no CUDA memory there (CUresult {status})",
                    "Pass an array that is still alive and lies in CUDA memory",
                )
            ]
        )
    return ordinal.value


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None
