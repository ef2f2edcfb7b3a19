"""The line table of one translation unit in DWARF."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tmaasync._forks import cached_property

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit

__all__ = ["LineTable", "Row", "line_tables"]


class Row(NamedTuple):
    """The place in the source of the instructions from an address on; line 0 ends the code."""

    address: int
    file: int = 0
    line: int = 0
    column: int = 0  # in bytes, from 1


class LineTable:
    """The places in the source of a unit's instructions."""

    def __init__(self, unit: CompileUnit) -> None:
        """Store the unit; pyelftools reads it on first use."""
        self._unit = unit

    def sequences(self) -> Iterator[list[Row]]:
        """Yield rows by increasing address, a list for each contiguous piece of code."""
        rows: list[Row] = []
        for entry in self._program.get_entries():
            state = entry.state
            if state is None:
                continue
            if state.end_sequence:
                rows.append(Row(state.address))
                if rows[0].address != 0:  # the linker dropped code at address 0
                    yield rows
                rows = []
            elif state.line:  # line 0 is compiler-generated code; it belongs to the previous line
                rows.append(Row(state.address, state.file, state.line, state.column))

    def file_name(self, number: int) -> str:
        """Return the name of a row's file; empty if it has none."""
        index = number - self._first_file
        return self.files[index] if 0 <= index < len(self.files) else ""

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The names of the files, in the order of their numbers."""
        own = self._unit.get_top_DIE().attributes["DW_AT_comp_dir"].value
        header = self._program.header
        folders = [own] * self._first_file + list(header.include_directory)
        return tuple(
            (
                (b"" if folders[file.dir_index] == own else folders[file.dir_index] + b"/")
                + file.name
            ).decode(errors="replace")
            for file in header.file_entry
        )

    @cached_property
    def _program(self) -> Any:
        return self._unit.dwarfinfo.line_program_for_CU(self._unit)

    @property
    def _first_file(self) -> int:
        return 0 if self._unit["version"] >= 5 else 1


def line_tables(library: bytes) -> Iterator[LineTable]:
    """Yield the line table of each unit of a library."""
    from elftools.elf.elffile import ELFFile

    yield from map(LineTable, ELFFile(io.BytesIO(library)).get_dwarf_info().iter_CUs())
