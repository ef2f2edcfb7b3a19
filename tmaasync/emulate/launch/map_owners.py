"""Owners of tensor maps in global memory: the runtime knows their maps from launch to launch.

Memory that is given back may hold another map later, which is no change of the first.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tmaasync.emulate import abi
from tmaasync.emulate.extents import Extent

_OWNED: dict[tuple[int, int, int], tuple[int, int]] = {}  # the bytes of live objects


def keep_maps(
    runtime: ctypes.CDLL, arguments: Sequence[object], arrays: Sequence[Iterable[Extent]]
) -> None:
    """Let the runtime forget the maps that lie in no live object which a launch was given."""
    for argument, extents in zip(arguments, arrays, strict=False):
        owner = _owner(argument)
        for extent in extents:
            start, end = extent.address + extent.first, extent.address + extent.end
            key = (id(owner), start, end)
            if key in _OWNED:
                continue
            try:
                weakref.finalize(owner, _forget, runtime, key).atexit = False
            except TypeError:  # the object has no weak references
                continue
            _OWNED[key] = (start, end - start)
    _keep(runtime)


def _owner(argument: object) -> Any:
    while isinstance(argument, np.ndarray) and isinstance(argument.base, np.ndarray):
        argument = argument.base
    return argument


def _forget(runtime: ctypes.CDLL, key: tuple[int, int, int]) -> None:
    _OWNED.pop(key, None)
    _keep(runtime)


def _keep(runtime: ctypes.CDLL) -> None:
    owned = list(_OWNED.values())
    arrays = (abi.Array * len(owned))(*(abi.Array(*one) for one in owned))
    runtime.tmaasync_emulate_keep_maps(arrays, ctypes.c_uint64(len(owned)))
