"""A DLPack capsule read in place (``dlpack.h``, versions 0 and 1)."""

from __future__ import annotations

import ctypes
import math
import operator
from typing import Any, NamedTuple

from tmaasync._arrays.value import (
    MAX_DIMENSIONS,
    described,
    not_an_array,
    require_layout,
    require_memory,
)
from tmaasync._kinds import shown
from tmaasync.errors import ArrayTypeError

_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
_READ_ONLY_FLAG, _IS_COPIED_FLAG = 1, 2
_NEWEST_VERSION = (1, 1)

# DLDataTypeCode. The first seven take a width, the others have theirs in the name.
_NAME_WITH_WIDTH = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}
_NAME = {
    6: "bool",
    7: "float8_e3m4",
    8: "float8_e4m3",
    9: "float8_e4m3b11fnuz",
    10: "float8_e4m3fn",
    11: "float8_e4m3fnuz",
    12: "float8_e5m2",
    13: "float8_e5m2fnuz",
    14: "float8_e8m0fnu",
    15: "float6_e2m3fn",
    16: "float6_e3m2fn",
    17: "float4_e2m1fn",
}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _ManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class ExportedTensor(NamedTuple):
    """The contents of a capsule.

    The capsule is left unconsumed: it frees the exported tensor itself when it is collected, so
    keeping the capsule keeps the memory.
    """

    address: int
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    dtype: str
    itemsize: int
    device: int | None
    read_only: bool
    capsule: object


def export(array: Any, argument: str, *, is_ready: bool = False) -> ExportedTensor:
    """Have ``array`` export itself in place, and read what it exported.

    Args:
        array: An object with ``__dlpack__`` and ``__dlpack_device__``.
        argument: What to call it in an error.
        is_ready: Whether its data are computed. If not, the producer is asked not to wait either.
    """
    kind, ordinal = _device_of(array, argument)
    if kind not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise not_an_array(
            array,
            f"it lies on DLPack device type {kind}, neither host nor CUDA memory",
            "Move it to the host or to a CUDA device first",
            argument,
        )
    device = _ordinal(kind, ordinal)
    try:
        capsule = _capsule_of(array, {} if device is None or is_ready else {"stream": -1})
    except Exception as error:  # of the library's own code
        raise _not_exported(array, error, argument) from error
    tensor, flags = _read(capsule, array, argument)
    theirs = (tensor.device.kind, tensor.device.ordinal)
    if _ordinal(*theirs) != device:
        raise not_an_array(
            array,
            f"__dlpack_device__ returns {(kind, ordinal)}, and its capsule has {theirs}",
            "Let both name the device of the memory",
            argument,
        )
    return _describe(tensor, flags, device, capsule, array, argument)


def have_stream_wait(array: Any, stream: int) -> None:
    """Ask a library to make a stream wait for the work on its array."""
    try:
        array.__dlpack__(stream=stream)
    except Exception as error:  # of the library's own code
        raise _not_exported(array, error, "array") from error


def _not_exported(array: object, error: Exception, argument: str) -> ArrayTypeError:
    rule = f"its library does not export it ({described(error)})"
    return not_an_array(array, rule, "Pass a dense array with memory of its own", argument)


def _device_of(array: Any, argument: str) -> tuple[int, int]:
    try:
        device = array.__dlpack_device__()
    except Exception as error:  # of the library's own code
        raise _not_exported(array, error, argument) from error
    try:
        kind, ordinal = map(operator.index, device)
    except (TypeError, ValueError):
        kind = ordinal = -1
    if ordinal < 0:
        raise not_an_array(
            array,
            f"its __dlpack_device__ returned {shown(device)}, not a device type and a number",
            "Let it return two integers, such as (1, 0) for host memory",
            argument,
        )
    return kind, ordinal


def _ordinal(kind: int, ordinal: int) -> int | None:
    """Return the CUDA ordinal of a DLPack device; None for host memory."""
    return ordinal if kind in (_CUDA, _CUDA_MANAGED) else None


def _capsule_of(array: Any, keywords: dict[str, int]) -> object:
    try:
        return array.__dlpack__(max_version=_NEWEST_VERSION, **keywords)
    except TypeError:
        # Producers from before DLPack 1.0 do not know the keyword.
        return array.__dlpack__(**keywords)


def _read(capsule: object, array: object, argument: str) -> tuple[_Tensor, int]:
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), 0
    if not _is_valid(capsule, b"dltensor_versioned"):
        raise not_an_array(
            array,
            f"its __dlpack__ returned {shown(capsule)}, not an unused DLPack capsule",
            "Let __dlpack__ return a new capsule at every call",
            argument,
        )
    managed = _ManagedTensorVersioned.from_address(_pointer(capsule, b"dltensor_versioned"))
    if managed.major != 1:
        raise not_an_array(
            array,
            f"its capsule is of DLPack {managed.major}.{managed.minor}, and only 0.x and 1.x "
            "can be read",
            "Let __dlpack__ honour max_version",
            argument,
        )
    if managed.flags & _IS_COPIED_FLAG:
        raise not_an_array(
            array,
            "its library exports a copy, which stores would not reach",
            "Pass an array that can be exported in place",
            argument,
        )
    return managed.tensor, managed.flags


def _describe(
    tensor: _Tensor,
    flags: int,
    device: int | None,
    capsule: object,
    array: object,
    argument: str,
) -> ExportedTensor:
    name, bits, lanes = _name(tensor.dtype), tensor.dtype.bits, tensor.dtype.lanes
    if bits * lanes == 0 or bits * lanes % 8 != 0:
        several = "" if lanes == 1 else f"{lanes} x "
        raise not_an_array(
            array,
            f"its elements are {several}{bits}-bit {name}, and TMA on Hopper moves whole bytes",
            "Pack them into bytes",
            argument,
        )
    itemsize = bits * lanes // 8
    shape = _shape(tensor, array, argument)
    strides = _strides(tensor, shape, itemsize)
    address = (tensor.data or 0) + tensor.byte_offset
    require_memory(tensor.data or 0, shape, argument)
    require_layout(array, address, shape, strides, itemsize, argument)
    if lanes > 1 and bits % 8 == 0:
        # A vector element is one more dimension.
        shape, strides, itemsize = (*shape, lanes), (*strides, bits // 8), bits // 8
    return ExportedTensor(
        address=address,
        shape=shape,
        strides_bytes=strides,
        dtype=name,
        itemsize=itemsize,
        device=device,
        read_only=bool(flags & _READ_ONLY_FLAG),
        capsule=capsule,
    )


def _name(dtype: _DataType) -> str:
    if dtype.code in _NAME_WITH_WIDTH:
        return f"{_NAME_WITH_WIDTH[dtype.code]}{dtype.bits}"
    name = _NAME.get(dtype.code, f"DLPack type code {dtype.code}")
    is_byte = name == "bool" or name.startswith("float8")
    return f"{name} of {dtype.bits} bits" if is_byte and dtype.bits != 8 else name


def _shape(tensor: _Tensor, array: object, argument: str) -> tuple[int, ...]:
    """Return the sizes; their number is checked before any is read."""
    if not 0 <= tensor.ndim <= MAX_DIMENSIONS:
        rule = f"its capsule has {tensor.ndim} dimensions, and arrays have 0 to {MAX_DIMENSIONS}"
    elif tensor.ndim > 0 and not tensor.shape:
        rule = f"its capsule has {tensor.ndim} dimensions and no shape"
    else:
        return tuple(tensor.shape[: tensor.ndim]) if tensor.ndim else ()
    raise not_an_array(array, rule, "Let __dlpack__ fill in the whole DLTensor", argument)


def _strides(tensor: _Tensor, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if tensor.ndim and tensor.strides:
        return tuple(stride * itemsize for stride in tensor.strides[: tensor.ndim])
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
