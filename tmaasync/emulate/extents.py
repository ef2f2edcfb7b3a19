"""Extents of a launch's arrays."""

from __future__ import annotations

from typing import NamedTuple


class Extent(NamedTuple):
    """An array's address, its byte range from ``first`` to ``end`` relative to it, and its layout.

    An array that may hold pointers may refer to arrays that are not arguments. ``member`` is the
    array's number in an argument of several: the tile of a `TMATensorTileArray`, a rank's pad.
    A launch that writes to an array that ``is_read_only`` is refused when it ends. ``name`` is the
    array's own, where it differs from the parameter's.
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
    name: str | None = None

    @property
    def span(self) -> range:
        """The addresses of its bytes."""
        return range(self.address + self.first, self.address + self.end)

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
        own, others = self.span, other.span
        return own.start < others.stop + _WORD_BYTES and others.start < own.stop + _WORD_BYTES

    def distance(self, address: int) -> int:
        """Return the distance of an address before (negative) or after the array; 0 if inside."""
        after = address - (self.address + self.end - 1)
        return max(0, after) or min(0, address - self.address - self.first)


# The race detector notes writes by words of these bytes.
_WORD_BYTES = 8
