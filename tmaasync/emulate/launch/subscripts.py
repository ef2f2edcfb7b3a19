"""The code of a kernel that accesses memory by subscripts of its pointer parameters."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from tmaasync._source.cache_folder import read_facts
from tmaasync.emulate import abi


def own_subscripts(
    path: Path, pointers: Callable[[], Mapping[int, int]]
) -> ctypes.Array[abi.Subscript]:
    """Return the subscripts in a kernel's library of parameters that were given an array.

    Args:
        path: The library.
        pointers: Returns the array's number in the launch for each parameter that points to one.
    """
    recorded = _recorded(path)
    numbers = pointers() if recorded else {}
    found = [
        abi.Subscript(start, end, numbers[parameter], is_store)
        for start, end, parameter, is_store in recorded
        if parameter in numbers
    ]
    return (abi.Subscript * len(found))(*found)


@functools.lru_cache(maxsize=256)
def _recorded(path: Path) -> tuple[tuple[int, int, int, int], ...]:
    """Return what the front end has recorded; nothing of a damaged record."""
    facts = read_facts(path) or {}
    try:
        return tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in facts["subscripts"])
    except (KeyError, TypeError, ValueError):
        return ()
