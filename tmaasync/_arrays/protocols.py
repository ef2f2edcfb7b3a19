"""The two protocols by which arrays of any library say where they lie."""

from __future__ import annotations

import ctypes
import operator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tmaasync._arrays.dlpack import export
from tmaasync._arrays.value import (
    ArrayView,
    choose_element,
    described,
    not_an_array,
    require_layout,
    require_memory,
)
from tmaasync._kinds import is_flag, is_integer, shown
from tmaasync.errors import ArgumentError


def view_dlpack(array: Any, dtype: object, argument: str) -> ArrayView:
    """View an array through ``__dlpack__``; the view's lease holds what it exported."""
    tensor = export(array, argument)
    kind = choose_element(tensor.dtype, tensor.itemsize, dtype, argument)
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
    seen = read_interface(array, argument)
    return ArrayView(
        seen.address,
        seen.shape,
        seen.strides_bytes,
        choose_element(seen.dtype, seen.dtype.itemsize, dtype, argument),
        _ordinal_of(seen.address, argument),
        seen.read_only,
        "other",
        array,
    )


def has_interface(array: object) -> bool:
    """Return whether an object has a ``__cuda_array_interface__``, even one that raises."""
    try:
        return hasattr(array, "__cuda_array_interface__")
    except Exception:  # of the library's own code
        return True


class CudaArrayInterface(NamedTuple):
    """The checked members of a ``__cuda_array_interface__``."""

    address: int
    read_only: bool
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: np.dtype[Any]
    stream: int | None


def read_interface(array: Any, argument: str = "array") -> CudaArrayInterface:
    """Read a ``__cuda_array_interface__`` and check every member.

    Raises:
        ArrayTypeError: It cannot be read, is incomplete, or describes no memory.
        ArgumentError: It has elements at address 0.
    """
    try:
        given = dict(array.__cuda_array_interface__)
    except Exception as error:  # of the library's own code
        rule = f"its __cuda_array_interface__ cannot be read ({described(error)})"
        remedy = "Let it return a dict, as version 3 of the interface asks"
        raise not_an_array(array, rule, remedy, argument) from error
    _require_readable(given, array, argument)
    try:
        shape, dtype = _integers("shape", given["shape"]), _dtype_of(given["typestr"])
        address, read_only = _memory_of(given["data"])
        strides, stream = given.get("strides"), given.get("stream")
        strides = None if strides is None else _integers("strides", strides)
        stream = None if stream is None else _integer("stream", stream)
    except _WrongMemberError as wrong:
        rule = f"its __cuda_array_interface__ has {wrong.member} {shown(wrong.value)}"
        remedy = f"Let it have {_MEMBERS[wrong.member]}"
        raise not_an_array(array, rule, remedy, argument) from None
    require_memory(address, shape, argument)
    strides = _contiguous(shape, dtype.itemsize) if strides is None else strides
    require_layout(array, address, shape, strides, dtype.itemsize, argument)
    return CudaArrayInterface(address, read_only, shape, strides, dtype, stream)


def _require_readable(interface: dict[str, Any], array: object, argument: str) -> None:
    missing = [key for key in ("shape", "typestr", "data", "version") if key not in interface]
    version = interface.get("version")
    if missing:
        rule = f"its __cuda_array_interface__ lacks {', '.join(missing)}"
        remedy = "Complete it as version 3 of the interface asks"
    elif not is_integer(version) or version < 2:
        rule = f"its __cuda_array_interface__ is of version {shown(version)}"
        remedy = "Use a release of its library that offers version 2 or 3, or __dlpack__"
    elif interface.get("mask") is not None:
        rule, remedy = "TMA would ignore its mask", "Pass the array without the mask"
    else:
        return
    raise not_an_array(array, rule, remedy, argument)


_MEMBERS = {
    "shape": "a tuple of one int for each dimension",
    "typestr": "the type of its elements, such as '<f4'",
    "data": "a tuple of the address and whether it is read only",
    "strides": "None, or a tuple of one int for each dimension",
    "stream": "None or the handle of a stream",
}


class _WrongMemberError(Exception):
    def __init__(self, member: str, value: object) -> None:
        self.member, self.value = member, value


def _integer(member: str, given: object) -> int:
    if not is_integer(given):
        raise _WrongMemberError(member, given)
    return operator.index(given)


def _integers(member: str, given: object) -> tuple[int, ...]:
    if not isinstance(given, tuple | list) or not all(map(is_integer, given)):
        raise _WrongMemberError(member, given)
    return tuple(map(operator.index, given))


def _dtype_of(given: object) -> np.dtype[Any]:
    try:
        if isinstance(given, str):
            return np.dtype(given)
    except (TypeError, ValueError, SyntaxError):
        pass
    raise _WrongMemberError("typestr", given)


def _memory_of(given: object) -> tuple[int, bool]:
    if isinstance(given, tuple | list) and len(given) == 2:
        address, read_only = given
        if is_integer(address) and (is_flag(read_only) or is_integer(read_only)):
            return operator.index(address), bool(read_only)
    raise _WrongMemberError("data", given)


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
        raise ArgumentError.broken(
            f"{argument}.__cuda_array_interface__",
            f"at {address:#x}",
            f"the driver knows no CUDA memory there (CUresult {status})",
            "Pass an array that is still alive and lies in CUDA memory",
        )
    return ordinal.value


@cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None
