"""One translation unit in DWARF: its functions by address, its lines, its shared memory."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tmaasync._forks import cached_property
from tmaasync.emulate.line_table import LineTable, Row, Sections
from tmaasync.emulate.report.debug_info.dwarf_types import (
    OBJECTS,
    POINTERS,
    Ranges,
    bare,
    code_ranges,
    covers,
    is_compound,
    is_implicit,
    members,
    name_of,
    number,
    target,
)

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE

    _Extent = tuple[int, int, DIE]

_INNER_SCOPES = (
    "DW_TAG_inlined_subroutine",
    "DW_TAG_lexical_block",
    "DW_TAG_try_block",
    "DW_TAG_catch_block",
)
_PARAMETER = "DW_TAG_formal_parameter"
# The expression "push a constant, then form a TLS address": its first byte with the size of the
# constant, and its last byte.
_CONSTANT_BYTES = {0x0C: 4, 0x0E: 8}
_THREAD_LOCAL = (0x9B, 0xE0)


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a call chain, and its current line."""

    function: str
    file: str
    line: int


class Unit:
    """One compiler run: its functions by address, its lines, its shared memory."""

    def __init__(self, unit: CompileUnit) -> None:
        self._unit = unit
        self._known: dict[int, tuple[tuple[Ranges, DIE], ...]] = {}

    def covers(self, address: int) -> bool:
        """Return whether the unit has code at the address."""
        return covers(self._ranges, address)

    @cached_property
    def _ranges(self) -> Ranges:
        return code_ranges(self._unit.get_top_DIE())

    @cached_property
    def _table(self) -> LineTable:
        info: Any = self._unit.dwarfinfo
        every = (info.debug_line_sec, info.debug_line_str_sec, info.debug_str_sec)
        sections = Sections(*(one.stream.getvalue() if one else b"" for one in every))
        return LineTable(sections, number(self._unit.get_top_DIE(), "DW_AT_stmt_list", 0))

    def files(self) -> tuple[str, ...]:
        """Return the names of the files that the unit was compiled from."""
        return self._table.files

    # --- addresses -----------------------------------------------------------------------------

    def frames(self, address: int) -> tuple[Frame, ...]:
        """Return the functions that contain the instruction, innermost first."""
        chain = self._chain(address)
        position = self._position(address) if chain else None
        if position is None:
            return ()
        frames = []
        for scope in reversed(chain):
            # Skip implicit functions, such as a copy constructor, whose line is its struct's. But a
            # lambda's operator() is implicit too.
            if scope is chain[0] or name_of(scope) == "operator()" or not is_implicit(scope):
                frames.append(Frame(name_of(scope), *position))
            position = (
                self._table.file_name(number(scope, "DW_AT_call_file", -1)),
                number(scope, "DW_AT_call_line", 0),
            )
        return tuple(frames)

    def entry(self, address: int) -> int:
        """Return the start of the function that contains the address."""
        return min(start for start, _ in code_ranges(self._chain(address)[0]))

    def _chain(self, address: int) -> list[DIE]:
        """Return the function and inlined calls that contain the address, outermost first."""
        chain = []
        scope = _function_at(self._functions, address)
        # Local functions come last: finding them takes as long as all the rest, and few exist.
        scope = scope or _function_at(self._local_functions, address)
        while scope is not None:
            if scope.tag in ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine"):
                chain.append(scope)
            inner = self._inner(scope)
            scope = next((die for ranges, die in inner if covers(ranges, address)), None)
        return chain

    @cached_property
    def _functions(self) -> list[_Extent]:
        return _extents(_functions_in(self._unit.get_top_DIE(), ("DW_TAG_namespace",)))

    @cached_property
    def _local_functions(self) -> list[_Extent]:
        """Functions of local types, mainly lambdas."""
        within = ("DW_TAG_namespace", "DW_TAG_subprogram", "DW_TAG_lexical_block", *OBJECTS)
        return _extents(_functions_in(self._unit.get_top_DIE(), within))

    def _inner(self, scope: DIE) -> tuple[tuple[Ranges, DIE], ...]:
        if scope.offset not in self._known:
            self._known[scope.offset] = tuple(_inner_scopes(scope))
        return self._known[scope.offset]

    def _position(self, address: int) -> tuple[str, int] | None:
        starts, positions = self._lines
        index = bisect.bisect_right(starts, address) - 1
        found = positions[index] if index >= 0 else Row(0)
        return (self._table.file_name(found.file), found.line) if found.line else None

    @cached_property
    def _lines(self) -> tuple[list[int], list[Row]]:
        """Sorted addresses, and the row from each on."""
        rows = [
            row
            for piece in sorted(self._table.sequences(), key=lambda rows: rows[0].address)
            for row in piece
        ]
        return [row.address for row in rows], rows

    def parameter_names(self, function: str) -> tuple[str, ...]:
        """Return the names of a function's parameters; empty if the unit lacks the function."""
        for scope in _functions_in(self._unit.get_top_DIE(), ("DW_TAG_namespace",)):
            if name_of(scope).partition("<")[0] != function:
                continue
            named = [die for die in scope.iter_children() if die.tag == _PARAMETER]
            if named:
                return tuple(map(name_of, named))
        return ()

    # --- shared memory -------------------------------------------------------------------------

    def shared_layouts(self) -> Iterator[DIE]:
        """Yield each ``T`` of a ``dynamic_shared<T>``."""
        for scope in self._unit.get_top_DIE().iter_children():
            if scope.tag != "DW_TAG_namespace" or name_of(scope) != "tmaasync":
                continue
            for function in scope.iter_children():
                if name_of(function).partition("<")[0] == "dynamic_shared":
                    yield from (
                        bare(target(parameter, "DW_AT_type"))
                        for parameter in function.iter_children()
                        if parameter.tag == "DW_TAG_template_type_param"
                    )

    def structs_of(self, variables: frozenset[str]) -> Iterator[DIE]:
        """Yield the structs, with arrays or structs inside, that these variables refer to."""
        if not variables:
            return
        for die in self._unit.iter_DIEs():
            if die.tag == "DW_TAG_variable" and name_of(die) in variables:
                pointer = bare(target(die, "DW_AT_type"))
                if pointer.tag in POINTERS and "DW_AT_type" in pointer.attributes:
                    kind = bare(target(pointer, "DW_AT_type"))
                    if kind.tag in OBJECTS and any(map(is_compound, members(kind))):
                        yield kind

    def thread_locals(self) -> Iterator[tuple[int, DIE]]:
        """Yield the thread_local variables, with their offsets in the TLS segment."""
        for die in self._unit.iter_DIEs():
            where = die.attributes.get("DW_AT_location")
            if die.tag != "DW_TAG_variable" or where is None or not isinstance(where.value, list):
                continue
            width = _CONSTANT_BYTES.get(where.value[0])
            if width is not None and where.value[-1] in _THREAD_LOCAL:
                yield int.from_bytes(bytes(where.value[1 : 1 + width]), "little"), die


def _functions_in(scope: DIE, within: tuple[str, ...]) -> Iterator[DIE]:
    for die in scope.iter_children():
        if die.tag == "DW_TAG_subprogram":
            yield die
        if die.tag in within:
            yield from _functions_in(die, within)


def _extents(functions: Iterator[DIE]) -> list[_Extent]:
    found = [(start, end, die) for die in functions for start, end in code_ranges(die)]
    return sorted(found, key=operator.itemgetter(0))


def _function_at(extents: list[_Extent], address: int) -> DIE | None:
    index = bisect.bisect_right(extents, address, key=operator.itemgetter(0)) - 1
    return extents[index][2] if index >= 0 and address < extents[index][1] else None


def _inner_scopes(scope: DIE) -> Iterator[tuple[Ranges, DIE]]:
    for die in scope.iter_children():
        if die.tag in _INNER_SCOPES:
            ranges = code_ranges(die)
            if ranges:
                yield ranges, die
            else:
                yield from _inner_scopes(die)
