"""Names for addresses in the arrays of a launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from tmaasync.emulate.extents import Extent

_FAR_BYTES = 1 << 24  # an address farther away is unrelated to the array
_CLOSE_BYTES = 256
_STRAY_BYTES = 4096  # or a row: a wrong index leads no farther beyond an array


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

    def extent(self, address: int) -> Extent | None:
        """Return the array that holds the address, without its access; None outside all arrays."""
        for _, extent in self._named():
            if extent.distance(address) == 0 and extent.end > extent.first:
                return extent._replace(is_read_only=False)
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

    def outside(self, number: int, address: int) -> str:
        """Name an address beyond an argument's array, by the array's number in the launch."""
        first = 1  # the launch's own blank memory is array 0
        for position, extents in enumerate(self._arrays):
            each = list(extents)
            if first == number and each:
                return _outside(self._parameter(position), each[0], address)
            first += max(1, len(each))
        return f"{address:#x}"

    def holders(self, address: int) -> set[str]:
        """Return the names of the arrays that hold the address."""
        return {name for name, one in self._named() if one.distance(address) == 0 and one.end}

    def strays(self, address: int) -> list[tuple[str, str]]:
        """Return the arrays that a wrong index may have left for an address, nearest first.

        Each has its name and the place: ``scale``, ``scale[4], right after the end of scale``.
        """
        near = []
        for parameter, extent in self._named():
            row = max(extent.strides_bytes, default=0)
            distance = abs(extent.distance(address))
            if extent.shape and 0 < distance <= max(row, _STRAY_BYTES):
                near.append((distance, parameter, _outside(parameter, extent, address)))
        return [(parameter, place) for _, parameter, place in sorted(near)]

    def _element(self, parameter: str, extent: Extent, address: int) -> str:
        index = extent.element_at(address) if extent.shape else None
        offset = address - extent.address
        return f"byte {offset} of {parameter}" if index is None else f"{parameter}{index}"

    def _parameter(self, position: int) -> str:
        known = self._parameters[position] if position < len(self._parameters) else ""
        return known or f"args[{position}]"

    def _named(self) -> Iterator[tuple[str, Extent]]:
        for position, extents in enumerate(self._arrays):
            parameter = self._parameter(position)
            for extent in extents:
                member = "" if extent.member is None else f"[{extent.member}]"
                yield extent.name or f"{parameter}{member}", extent
        yield from self._variables.items()
