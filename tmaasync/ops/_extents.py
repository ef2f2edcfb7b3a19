"""The largest extents that kernels count in 32 bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tmaasync._hardware import INT32_LIMIT
from tmaasync.errors import ArgumentError, Violation

MAX_EXTENT = INT32_LIMIT - (1 << 18)
"""The largest extent of an operation: 2^31 - 2^18, which is 2,147,221,504.

Kernels count rows, columns and keys in 32 bits with a sign, and so the end of the last tile, which
may lie beyond the array. A tile fits in shared memory: it has fewer than 2^18 elements.
"""

_RULE = f"kernels count in 32 bits, up to 2^31 - 2^18 = {MAX_EXTENT}"


def extent_violations(
    extents: Mapping[str, int], remedy: str = "Pass slices, in several calls"
) -> Iterator[Violation]:
    for name, extent in extents.items():
        if extent > MAX_EXTENT:
            yield Violation(name, extent, _RULE, remedy)


def check_extents(**extents: int) -> None:
    """Check the named extents of an operation."""
    ArgumentError.raise_for(extent_violations(extents))
