"""The bytes of cuda.core's `TensorMapDescriptor`, which has no public way to them."""

from __future__ import annotations

import ctypes

from tmaasync.tensormap import TENSOR_MAP_BYTES

__all__ = ["is_descriptor", "map_address", "map_bytes"]

_MODULE, _NAME = "cuda.core._tensor_map", "TensorMapDescriptor"


def is_descriptor(arg: object) -> bool:
    """Return whether an argument is cuda.core's descriptor, without importing cuda.core."""
    kind = type(arg)
    return kind.__name__ == _NAME and kind.__module__ == _MODULE


class _Methods(ctypes.Structure):
    """The methods for Cython in `_tensor_map.pxd`, in its order (cuda.core 1.0 to 1.2)."""

    _fields_ = (
        ("check_context_compat", ctypes.c_void_p),
        ("get_data_ptr", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)),
    )


def map_address(descriptor: object) -> int:
    """Return the address of a descriptor's tensor map, inside of the object."""
    table = type(descriptor).__pyx_vtable__  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(_Methods.from_address(pointer(table, None)).get_data_ptr(descriptor))


def map_bytes(descriptor: object) -> bytes:
    """Return a copy of the 128 bytes of a descriptor's tensor map."""
    return ctypes.string_at(map_address(descriptor), TENSOR_MAP_BYTES)
