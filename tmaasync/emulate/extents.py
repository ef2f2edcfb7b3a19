"""Extents of a launch's arrays, and names for addresses in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tmaasync.errors import LaunchError, Violation

__all__ = ["Extent", "GlobalNames", "refuse_written"]


class Extent(NamedTuple):
    """An array's address, its byte range from ``first`` to ``end`` relative to it, and its layout.

    An array that may hold pointers may refer to arrays that are not arguments. ``member`` is the
    array's number in an argument of several: the tile of a `TMATensorTileArray`, a rank's pad.
    A launch that writes to an array that ``is_read_only`` is refused when it ends.
    """

    address: int
    first: int
    end: int
    shape: tuple[int, ...] = ()
    strides_bytes: tuple[int, ...] = ()
    element_bytes: int = 1
    may_hold_pointers: bool = False
    member: int | None = None
    is_read_only: bool = False

    def element_at(self, address: int) -> str | None:
        """Return the element's index at this address, as in ``[3][12]``; None between elements.

        The index along the outermost side may lie outside the array.

        >>> rows = Extent(4096, 0, 4 * 15, (2, 8), (28, 4), 4)
        >>> rows.element_at(4096 + 28 + 8), rows.element_at(4096 - 28), rows.element_at(4096 + 3)
        ('[1][2]', '[-1][0]', '[0][0]')
        """
        offset = address - self.address
        sides: list[str] = []
        for stride in self.strides_bytes:
            if stride <= 0 or (sides and stride > self.strides_bytes[len(sides) - 1]):
                return None
            index, offset = divmod(offset, stride)
            sides.append(f"[{index}]")
        return "".join(sides) if offset < self.element_bytes else None

    def meets(self, other: Extent) -> bool:
        """Return whether a word of memory has bytes of both arrays."""
        first, end = self.address + self.first, self.address + self.end
        other_first, other_end = other.address + other.first, other.address + other.end
        return first < other_end + _WORD_BYTES and other_first < end + _WORD_BYTES

    def distance(self, address: int) -> int:
        """Return the distance of an address before (negative) or after the array; 0 if inside."""
        after = address - (self.address + self.end - 1)
        return max(0, after) or min(0, address - self.address - self.first)


# The race detector notes writes by words of these bytes.
_WORD_BYTES = 8


def refuse_written(arrays: Sequence[Iterable[Extent]], written: bytes) -> None:
    """Refuse a launch that has written to read-only arrays.

    An array whose memory another argument may write is not checked.

    Args:
        arrays: The extents of each argument's arrays.
        written: For each array of `abi.LaunchNumbers`, whether the launch wrote to it.

    Raises:
        LaunchError: Names the arguments.
    """
    members = [list(each) for each in arrays]
    writable = [one for each in members for one in each if not one.is_read_only]
    flags = iter(written)
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


_FAR_BYTES = 1 << 24  # an address farther away is unrelated to the array


_CLOSE_BYTES = 256


def _outside(parameter: str, extent: Extent, address: int) -> str:
    index = extent.element_at(address)
    element = "" if index is None else f"{parameter}{index}, "
    before = extent.address + extent.first - address
    if before > 0:
        return f"{element}{before} bytes before the start of {parameter}"
    after = address - extent.address - extent.end
    where = f"{after} bytes after" if after else "right after"
    return f"{element}{where} the end of {parameter}"


class GlobalNames:
    """Names of addresses in the arrays of one launch, by the kernel's parameters."""

    def __init__(
        self,
        arrays: Sequence[Iterable[Extent]] | None,
        parameters: Sequence[str],
        variables: Mapping[str, Extent] = MappingProxyType({}),
    ) -> None:
        """Store the arrays of each argument, the known parameter names, and variables."""
        self._variables = variables
        self._arrays = [] if arrays is None else arrays
        self._parameters = parameters

    def name(self, address: int) -> str | None:
        """Return parameter and index, as in ``total[12]``; None outside all arrays."""
        for parameter, extent in self._named():
            if extent.distance(address) == 0 and extent.end > extent.first:
                return self._element(parameter, extent, address)
        return None

    def place(self, address: int) -> str | None:
        """Return array and index, or the distance to the nearest array; None far from all."""
        return self.name(address) or self._next_to(address)

    def _next_to(self, address: int) -> str | None:
        """Name an address by the nearest array: "total[64], 4 bytes after the end of total".

        Between two arrays that are close together, name both.
        """
        near: dict[tuple[int, int], tuple[int, str]] = {}
        for parameter, extent in self._named():
            if extent.shape:
                known = (abs(extent.distance(address)), _outside(parameter, extent, address))
                near.setdefault((extent.address, extent.end), known)
        first, *others = sorted(near.values()) or [(_FAR_BYTES, "")]
        if first[0] >= _FAR_BYTES:
            return None
        close = [first, *(other for other in others[:1] if other[0] < _CLOSE_BYTES)]
        return ", or ".join(words for _, words in close)

    def _element(self, parameter: str, extent: Extent, address: int) -> str:
        index = extent.element_at(address) if extent.shape else None
        offset = address - extent.address
        return f"byte {offset} of {parameter}" if index is None else f"{parameter}{index}"

    def _named(self) -> Iterator[tuple[str, Extent]]:
        for position, extents in enumerate(self._arrays):
            known = self._parameters[position] if position < len(self._parameters) else ""
            parameter = known or f"args[{position}]"
            for extent in extents:
                member = "" if extent.member is None else f"[{extent.member}]"
                yield f"{parameter}{member}", extent
        yield from self._variables.items()
