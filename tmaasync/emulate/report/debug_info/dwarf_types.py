"""DWARF entries and types: names and offsets of an object's members."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

Ranges = tuple[tuple[int, int], ...]
"""Addresses of code: where each piece begins and ends."""

OBJECTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
POINTERS = ("DW_TAG_pointer_type", "DW_TAG_reference_type")
_SAME_TYPE = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_NAMED_BY = ("DW_AT_abstract_origin", "DW_AT_specification")
_BARRIERS = ("SharedMemBarrier", "barrier")
_ATOMIC = "atomic<"
_TILE, _TILE_MEMBERS = "Shared", ["bytes"]

# --- types -------------------------------------------------------------------------------------


def place_name(layout: DIE | None, offset: int) -> str | None:
    """Return the name at this byte of the type; None if there is no name."""
    if layout is None or not 0 <= offset < size_bytes(layout):
        return None
    return leaf_at(layout, offset)[0].removeprefix(".") or None


def has_member(kind: DIE | None, name: str) -> bool:
    """Return whether a dotted, indexed name leads from the type to a member."""
    for step in name.replace("[", ".[").split("."):
        if kind is None:
            return False
        kind = bare(kind)
        if step.startswith("["):
            is_array = kind.tag == "DW_TAG_array_type"
            kind = target(kind, "DW_AT_type") if is_array else None
        else:
            kind = _member_type(kind, step)
    return kind is not None


def _member_type(kind: DIE, name: str) -> DIE | None:
    """Return the type of a member by name, including bases' and anonymous members."""
    for member, _ in members(kind):
        inner = target(member, "DW_AT_type")
        if name_of(member) == name and member.tag == "DW_TAG_member":
            return inner
        is_open = member.tag != "DW_TAG_member" or "DW_AT_name" not in member.attributes
        found = _member_type(bare(inner), name) if is_open else None
        if found is not None:
            return found
    return None


def leaf_at(kind: DIE, offset: int) -> tuple[str, DIE]:
    """Return name and type of the smallest part of the type at this byte, preferring barriers.

    A union may have several parts there.
    """
    kind = bare(kind)
    if _is_tile(kind) and (data := _data_bytes(kind)) <= offset:
        return f"{PAST_THE_END}{data} bytes of data", kind
    leaves = []
    for name, part, start in _parts(kind, offset):
        below, leaf = leaf_at(part, offset - start)
        leaves.append((name + below, leaf))
    return min(leaves, key=_leaf_order, default=("", kind))


PAST_THE_END = " past the end of its "
"""In the name of a place in a tile's padding."""


def _data_bytes(tile: DIE) -> int:
    return max(start + size_bytes(target(member, "DW_AT_type")) for member, start in members(tile))


def _leaf_order(leaf: tuple[str, DIE]) -> tuple[bool, int]:
    return not _is_barrier(leaf[1]), size_bytes(leaf[1])


def _parts(kind: DIE, offset: int) -> Iterator[tuple[str, DIE, int]]:
    """Yield name, type and start of the element, or the members and bases, at this byte."""
    if kind.tag == "DW_TAG_array_type":
        element = target(kind, "DW_AT_type")
        flat = offset // size_bytes(element)
        yield _subscripts(_counts(kind), flat), element, flat * size_bytes(element)
    elif kind.tag in OBJECTS and not _is_whole(kind):
        for member, start in members(kind):
            inner = target(member, "DW_AT_type")
            if start <= offset < start + size_bytes(inner):
                name = name_of(member) if member.tag == "DW_TAG_member" else ""
                # Hide reserved names of the C++ library, such as the element array of std::array.
                is_reserved = name.startswith("__") or (name[:1] == "_" and name[1:2].isupper())
                is_shown = name and not is_reserved
                yield (f".{name}" if is_shown else ""), inner, start


def _is_barrier(kind: DIE) -> bool:
    """Return whether the type is a SharedMemBarrier or a cuda::barrier."""
    return name_of(kind).partition("<")[0] in _BARRIERS


def _is_whole(kind: DIE) -> bool:
    """Return whether the type's members have no useful names: a barrier's word, a tile's bytes."""
    return _is_barrier(kind) or name_of(kind).startswith(_ATOMIC) or _is_tile(kind)


def _is_tile(kind: DIE) -> bool:
    """Return whether the type is a tile in shared memory."""
    is_named = kind.tag in OBJECTS and name_of(kind) == _TILE
    return is_named and [name_of(member) for member, _ in members(kind)] == _TILE_MEMBERS


def members(kind: DIE) -> Iterator[tuple[DIE, int]]:
    """Yield the members and bases with a constant offset, one per object."""
    for member in kind.iter_children():
        start = number(member, "DW_AT_data_member_location", 0)
        is_part = member.tag in ("DW_TAG_member", "DW_TAG_inheritance")
        if is_part and "DW_AT_external" not in member.attributes:
            yield member, start + number(member, "DW_AT_data_bit_offset", 0) // 8


def is_compound(member: tuple[DIE, int]) -> bool:
    """Return whether the member is an array or an object."""
    return bare(target(member[0], "DW_AT_type")).tag in ("DW_TAG_array_type", *OBJECTS)


def _counts(array: DIE) -> list[int]:
    """Return the elements along each dimension, outermost first."""
    ranges = [die for die in array.iter_children() if die.tag == "DW_TAG_subrange_type"]
    return [number(die, "DW_AT_count", number(die, "DW_AT_upper_bound", -1) + 1) for die in ranges]


def _subscripts(counts: list[int], flat: int) -> str:
    text = ""
    for count in reversed(counts):
        text = f"[{flat % count}]{text}"
        flat //= count
    return text


def size_bytes(kind: DIE) -> int:
    """Return the size of an object of the type; 0 if unknown."""
    kind = bare(kind)
    if kind.tag == "DW_TAG_array_type":
        return math.prod(_counts(kind)) * size_bytes(target(kind, "DW_AT_type"))
    return number(kind, "DW_AT_byte_size", 0)


def bare(kind: DIE) -> DIE:
    """Return the type without typedefs and qualifiers."""
    while kind.tag in _SAME_TYPE:
        kind = target(kind, "DW_AT_type")
    return kind


# --- entries -----------------------------------------------------------------------------------


def name_of(die: DIE) -> str:
    """Return the entry's name; an instance takes its origin's."""
    if "DW_AT_name" in die.attributes:
        name: bytes = die.attributes["DW_AT_name"].value
        return name.decode(errors="replace")
    origin = next((link for link in _NAMED_BY if link in die.attributes), None)
    return "" if origin is None else name_of(die.get_DIE_from_attribute(origin))


def is_implicit(function: DIE) -> bool:
    """Return whether the compiler declared the function implicitly."""
    if "DW_AT_artificial" in function.attributes:
        return True
    origin = next((link for link in _NAMED_BY if link in function.attributes), None)
    return origin is not None and is_implicit(function.get_DIE_from_attribute(origin))


def target(die: DIE, attribute: str) -> DIE:
    """Return the entry that the attribute refers to; an instance takes its origin's."""
    while attribute not in die.attributes:
        die = die.get_DIE_from_attribute(next(x for x in _NAMED_BY if x in die.attributes))
    return die.get_DIE_from_attribute(attribute)


def number(die: DIE, attribute: str, unknown: int) -> int:
    """Return the value of the attribute, or ``unknown`` if it is missing."""
    found = die.attributes.get(attribute)
    return found.value if found is not None and isinstance(found.value, int) else unknown


def covers(ranges: Ranges, address: int) -> bool:
    """Return whether the address lies in one of the ranges."""
    return any(start <= address < end for start, end in ranges)


def code_ranges(die: DIE) -> Ranges:
    """Return the addresses of an entry's code; the linker has dropped code at address 0."""
    if "DW_AT_ranges" in die.attributes:
        return tuple((start, end) for start, end in _listed_ranges(die) if start != 0)
    start = number(die, "DW_AT_low_pc", 0)
    if start == 0 or "DW_AT_high_pc" not in die.attributes:
        return ()
    high = die.attributes["DW_AT_high_pc"]
    return ((start, high.value if high.form == "DW_FORM_addr" else start + high.value),)


def _listed_ranges(die: DIE) -> Iterator[tuple[int, int]]:
    base = number(die.cu.get_top_DIE(), "DW_AT_low_pc", 0)
    lists: Any = die.cu.dwarfinfo.range_lists()
    for entry in lists.get_range_list_at_offset(die.attributes["DW_AT_ranges"].value, die.cu):
        if hasattr(entry, "base_address"):
            base = entry.base_address
        else:
            moved = 0 if entry.is_absolute else base
            yield entry.begin_offset + moved, entry.end_offset + moved
