"""The packed arguments of a launch."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from tmaasync._driver import BLANK_BYTES, blank_address
from tmaasync.emulate.extents import Extent
from tmaasync.errors import LaunchError, Violation

__all__ = ["PackedArguments"]

# The memory through which ragged maps load if nothing is in bounds.
_BLANK = Extent(blank_address(None), 0, BLANK_BYTES)
_ADDRESS = struct.Struct("<Q")
_ALIGNMENT = 128


class PackedArguments:
    """The arguments of a launch in one buffer, each aligned, and the arrays of each.

    Attributes:
        arrays: The extents of each argument's arrays.
        pointers: A pointer to each argument, for the runtime.
    """

    __slots__ = ("_buffer", "_offsets", "_start", "arrays", "pointers")

    def __init__(self, arguments: Sequence[bytes], arrays: Sequence[Iterable[Extent]]) -> None:
        """Copy the arguments into a buffer with room to align it."""
        self._offsets, end = [0], 0
        for argument in arguments:
            end += -(-len(argument) // _ALIGNMENT) * _ALIGNMENT
            self._offsets.append(end)
        self._buffer = ctypes.create_string_buffer(end + _ALIGNMENT)
        self._start = -(-ctypes.addressof(self._buffer) // _ALIGNMENT) * _ALIGNMENT
        self.arrays = list(arrays)
        addresses = [self._start + offset for offset in self._offsets]
        for address, argument in zip(addresses, arguments, strict=False):
            ctypes.memmove(address, argument, len(argument))
        self.pointers: Any = (ctypes.c_void_p * len(addresses))(*addresses)

    def snapshot(self) -> PackedArguments:
        """Return a copy, which later changes of the arguments do not reach."""
        sides = zip(self._offsets, self._offsets[1:], strict=False)
        copied = [ctypes.string_at(self._start + first, end - first) for first, end in sides]
        return PackedArguments(copied, list(map(list, self.arrays)))

    def write(self, addresses: Sequence[int]) -> None:
        """Replace the addresses of the first arguments, which are tiles or pointers."""
        start = self._start - ctypes.addressof(self._buffer)
        for index, (offset, address) in enumerate(zip(self._offsets, addresses, strict=False)):
            _ADDRESS.pack_into(self._buffer, start + offset, address)
            extents = tuple(self.arrays[index])
            if extents:
                first = extents[0]._replace(address=address, is_read_only=False)
                self.arrays[index] = (first, *extents[1:])

    def extents(self) -> list[Extent]:
        """Return the extents of the arrays, and of arguments that may hold pointers."""
        found = [_BLANK]
        sides = zip(self._offsets, self._offsets[1:], self.arrays, strict=False)
        for first, end, each in sides:
            extents = list(each)
            found += extents or [
                Extent(self._start + first, 0, end - first, may_hold_pointers=True)
            ]
        return found

    def refuse_written(self, written: bytes) -> None:
        """Refuse a launch that has written to read-only arrays.

        An array whose memory another argument may write is not checked.

        Args:
            written: For each of `extents`, whether the launch wrote to it.

        Raises:
            LaunchError: Names the arguments.
        """
        members = [list(each) for each in self.arrays]
        writable = [one for each in members for one in each if not one.is_read_only]
        flags = iter(written[1:])  # the first is of the blank memory
        found = []
        for position, each in enumerate(members):
            # An argument without arrays has a flag too, for its own bytes.
            noted = list(itertools.islice(flags, max(1, len(each))))
            for one, is_written in zip(each, noted, strict=False):
                if is_written and one.is_read_only and not any(map(one.meets, writable)):
                    member = "" if one.member is None else f"[{one.member}]"
                    rule, remedy = "the kernel wrote to it", "Pass a writable array, such as a copy"
                    argument = f"args[{position}]{member}"
                    found.append(Violation(argument, "a read-only array", rule, remedy))
        LaunchError.raise_for(found)
