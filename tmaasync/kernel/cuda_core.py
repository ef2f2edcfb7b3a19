"""The bytes of cuda.core's `TensorMapDescriptor`, which has no public way to them."""

from __future__ import annotations

import ctypes
import functools
import sys

from tmaasync.errors import LaunchError
from tmaasync.tensormap import TENSOR_MAP_BYTES

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


_KNOWN_VERSIONS = ("1.0", "1.1", "1.2")  # of cuda.core: their tables are as in _Methods


@functools.cache
def _require_known_version() -> None:
    version = str(getattr(sys.modules["cuda.core"], "__version__", "unknown"))
    if ".".join(version.split(".")[:2]) not in _KNOWN_VERSIONS:
        raise LaunchError.broken(
            "a TensorMapDescriptor",
            f"of cuda.core {version}",
            f"its bytes are known of cuda.core {', '.join(_KNOWN_VERSIONS)}",
            "Pass a tile of create_tma_tile instead",
        )


def map_address(descriptor: object) -> int:
    """Return the address of a descriptor's tensor map, inside of the object.

    Raises:
        LaunchError: This version of cuda.core may keep it elsewhere.
    """
    _require_known_version()
    table = type(descriptor).__pyx_vtable__  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(_Methods.from_address(pointer(table, None)).get_data_ptr(descriptor))


def map_bytes(descriptor: object) -> bytes:
    """Return a copy of the 128 bytes of a descriptor's tensor map."""
    return ctypes.string_at(map_address(descriptor), TENSOR_MAP_BYTES)
