"""Line tables of DWARF 2 to 5 (DWARF 5, 6.2): the place in the source of each instruction.

Every build of a kernel reads its own, and pyelftools takes ten times as long.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class Row(NamedTuple):
    """The place in the source of the instructions from an address on; line 0 ends the code."""

    address: int
    file: int = 0
    line: int = 0
    column: int = 0  # in bytes, from 1


class Sections(NamedTuple):
    """The sections of a library that its line tables are read from."""

    lines: bytes
    line_strings: bytes = b""
    strings: bytes = b""


class _Reader:
    """Numbers and texts, one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def number(self, size_bytes: int) -> int:
        self.at += size_bytes
        return int.from_bytes(self.data[self.at - size_bytes : self.at], "little")

    def unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        begin, value = self.at, self.unsigned()
        bits = 7 * (self.at - begin)
        return value - (1 << bits) if value >> (bits - 1) else value

    def text(self) -> bytes:
        begin, end = self.at, self.data.index(b"\0", self.at)
        self.at = end + 1
        return self.data[begin:end]


class LineTable:
    """The places in the source of a unit's instructions.

    Raises:
        ValueError: The table is damaged, or of a version that is unknown.
    """

    files: tuple[str, ...]
    """The names of the files, in the order of their numbers."""

    def __init__(self, sections: Sections, offset: int) -> None:
        """Read the header of the table at this offset of the section with the lines."""
        reader = _Reader(sections.lines, offset)
        size_bytes = reader.number(4)
        self.end = reader.at + size_bytes
        version = reader.number(2)
        if not 2 <= version <= 5 or self.end > len(sections.lines):
            raise ValueError(f"a line table of version {version} and {size_bytes} bytes")
        reader.at += 2 if version >= 5 else 0
        header_bytes = reader.number(4)
        self._begin = reader.at + header_bytes
        self._step = reader.number(1)
        reader.at += 2 if version >= 4 else 1
        self._line_base = (reader.number(1) ^ 0x80) - 0x80
        self._line_range, self._special = reader.number(1), reader.number(1)
        self._operands = [reader.number(1) for _ in range(self._special - 1)]
        self._data = sections.lines
        is_old = version < 5
        self._first_file = int(is_old)
        files = _old_files(reader) if is_old else _files(reader, sections)
        self.files = tuple(name.decode(errors="replace") for name in files)

    def file_name(self, number: int) -> str:
        """Return the name of a row's file; empty if it has none."""
        index = number - self._first_file
        return self.files[index] if 0 <= index < len(self.files) else ""

    def sequences(self) -> Iterator[list[Row]]:
        """Yield rows by increasing address, a list for each contiguous piece of code."""
        code, rows = self._code(self._begin), list[Row]()
        while code.at < self.end:
            operation = code.number(1)
            if operation >= self._special:
                steps, lines = divmod(operation - self._special, self._line_range)
                code.address += steps * self._step
                code.line += self._line_base + lines
                code.is_row = True
            elif operation in code.known:
                code.known[operation]()
            else:
                for _ in range(self._operands[operation - 1]):
                    code.unsigned()
            # Line 0 is compiler-generated code; it belongs to the previous line.
            if code.is_row and code.line:
                rows.append(Row(code.address, code.file, code.line, code.column))
            if code.is_end:
                rows.append(Row(code.address))
                if rows[0].address != 0:  # the linker dropped code at address 0
                    yield rows
                code, rows = self._code(code.at), []
            code.is_row = False

    def _code(self, at: int) -> _Code:
        constant = (255 - self._special) // self._line_range * self._step
        return _Code(self._data, at, self._step, constant)


class _Code(_Reader):
    """A line table's program: the row so far, and operations by their numbers."""

    def __init__(self, data: bytes, at: int, step: int, constant: int) -> None:
        super().__init__(data, at)
        self.address, self.file, self.line, self.column = 0, 1, 1, 0
        self.is_row = self.is_end = False
        self._step, self._constant = step, constant
        self.known: dict[int, Callable[[], None]] = {
            0: self._extended,
            1: self._row,
            2: self._advance,
            3: self._advance_line,
            4: self._set_file,
            5: self._set_column,
            8: self._advance_constantly,
            9: self._advance_exactly,
        }

    def _extended(self) -> None:
        size_bytes = self.unsigned()
        after, kind = self.at + size_bytes, self.number(1)
        if kind == 1:
            self.is_end = True
        elif kind == 2:
            self.address = self.number(size_bytes - 1)
        self.at = after

    def _row(self) -> None:
        self.is_row = True

    def _advance(self) -> None:
        self.address += self.unsigned() * self._step

    def _advance_line(self) -> None:
        self.line += self.signed()

    def _set_file(self) -> None:
        self.file = self.unsigned()

    def _set_column(self) -> None:
        self.column = self.unsigned()

    def _advance_constantly(self) -> None:
        self.address += self._constant

    def _advance_exactly(self) -> None:
        self.address += self.number(2)


def _old_files(reader: _Reader) -> Iterator[bytes]:
    """Yield the names of the files before version 5, whose folder 0 is the compiler's."""
    folders = [b"", *iter(reader.text, b"")]
    while name := reader.text():
        folder, _, _ = reader.unsigned(), reader.unsigned(), reader.unsigned()
        yield folders[folder] + b"/" + name if folder else name


_PATH, _FOLDER = 1, 2


def _files(reader: _Reader, sections: Sections) -> Iterator[bytes]:
    """Yield the names of the files. Folder 0 is the compiler's, and may be listed once more."""
    folders = [entry[_PATH] for entry in _entries(reader, sections)]
    for entry in _entries(reader, sections):
        folder = folders[entry.get(_FOLDER, 0)]
        yield entry[_PATH] if folder == folders[0] else folder + b"/" + entry[_PATH]


def _entries(reader: _Reader, sections: Sections) -> list[dict[int, Any]]:
    forms = _forms(reader, sections)
    kinds = [(reader.unsigned(), reader.unsigned()) for _ in range(reader.number(1))]
    return [{kind: forms[form]() for kind, form in kinds} for _ in range(reader.unsigned())]


def _forms(reader: _Reader, sections: Sections) -> dict[int, Callable[[], Any]]:
    """Return how to read a value of each form (DWARF 5, 7.5.6) that a line table may have."""

    def text_in(strings: bytes) -> bytes:
        return _Reader(strings, reader.number(4)).text()

    def block(size_bytes: int) -> bytes:
        reader.at += size_bytes
        return b""

    return {
        0x05: lambda: reader.number(2),
        0x06: lambda: reader.number(4),
        0x07: lambda: reader.number(8),
        0x08: reader.text,
        0x09: lambda: block(reader.unsigned()),
        0x0B: lambda: reader.number(1),
        0x0E: lambda: text_in(sections.strings),
        0x0F: reader.unsigned,
        0x1E: lambda: block(16),
        0x1F: lambda: text_in(sections.line_strings),
    }


def line_tables(library: bytes) -> Iterator[LineTable]:
    """Yield the line table of each unit of a library.

    Raises:
        ValueError: A table is damaged.
    """
    found = _sections(library, (b".debug_line", b".debug_line_str", b".debug_str"))
    sections, offset = Sections(*found), 0
    while offset < len(sections.lines):
        table = LineTable(sections, offset)
        yield table
        offset = table.end


# 64-bit ELF (System V ABI, chapter 4). Section: name, type, flags, offset, size.
_SECTION = struct.Struct("<IIQ8xQQ24x")
_COMPRESSED, _ZLIB, _COMPRESSION_BYTES = 0x800, 1, 24


def _sections(file: bytes, names: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield the contents of the sections with these names; nothing for a missing one."""
    (start,) = struct.unpack_from("<Q", file, 0x28)
    count, name_index = struct.unpack_from("<HH", file, 0x3C)
    headers = [_SECTION.unpack_from(file, start + at * _SECTION.size) for at in range(count)]
    texts = headers[name_index][3]
    by_name = {_Reader(file, texts + header[0]).text(): header for header in headers}
    for name in names:
        _, _, flags, begin, size_bytes = by_name.get(name, (0, 0, 0, 0, 0))
        data = file[begin : begin + size_bytes]
        if flags & _COMPRESSED:
            is_zlib = int.from_bytes(data[:4], "little") == _ZLIB
            data = zlib.decompress(data[_COMPRESSION_BYTES:]) if is_zlib else b""
        yield data
