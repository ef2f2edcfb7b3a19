"""Races of an index that led out of its array into another array of the launch.

An access has an address and no pointer: the array that it was meant for is read from its line, as
the only array of both that the line names. If the line names the array that holds the address, no
index is wrong. Where the line does not tell, the text offers both.
"""

from __future__ import annotations

import re

from tmaasync._source.compile import Source
from tmaasync._source.tokens import without_comments
from tmaasync.emulate.report.global_names import GlobalNames
from tmaasync.errors import EmulatedAccess

_INDEXED = ("ordinary read", "ordinary write", "atomic operation", "cp.async")
_ASSIGNMENT = re.compile(r"(?<![=!<>])=(?!=)")
_NAME = re.compile(r"[A-Za-z_]\w*")


def with_stray(
    cause: str,
    names: GlobalNames,
    address: int,
    accesses: tuple[EmulatedAccess, EmulatedAccess],
    source: Source,
) -> str:
    """Return the cause of a race at an address of global memory, with the index that may be wrong.

    Args:
        cause: The cause if no index is wrong.
        names: The names of the launch's arrays.
        address: The first byte of both accesses.
        accesses: The two accesses.
        source: The kernel's source.
    """
    holders = names.holders(address)
    indexed = [
        (access, named)
        for access in accesses
        if access.operation in _INDEXED and not holders & (named := _named(access, source))
    ]
    near = names.strays(address) if indexed else []
    for access, named in indexed:
        for parameter, place in near:
            if parameter in named:
                holder = " or ".join(sorted(holders))
                return (
                    f"the {access.operation} at {access.source} names {parameter}, and the address "
                    f"is {place}, in {holder}. Check the index and its bound. If the access is "
                    f"meant for {holder}: {cause}"
                )
    if near:
        return f"{cause}. Or an index is wrong, and the access is meant for {near[0][1]}"
    return cause


def _named(access: EmulatedAccess, source: Source) -> set[str]:
    """Return the names on an access's line, on its side of an assignment."""
    found = re.match(rf"{re.escape(source.name)}:(\d+)", access.source or "")
    # After a #line directive, the text's lines have other numbers.
    if found is None or "#line" in source.text:
        return set()
    lines = without_comments(source.text).splitlines()
    number = int(found[1])
    line = lines[number - 1] if 0 < number <= len(lines) else ""
    left, *right = _ASSIGNMENT.split(line, maxsplit=1)
    if right and access.operation != "atomic operation":
        line = left if access.is_write else right[0]
    return {*_NAME.findall(line)}
