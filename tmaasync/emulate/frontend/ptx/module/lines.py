"""The source line of each line of a function: ``.loc``, with the calls that were inlined."""

from __future__ import annotations

import bisect
import re
from pathlib import PurePath

from tmaasync.emulate.frontend.ptx.module.reader import Function, Module, read_files

__all__ = ["Lines", "paths_of_lines", "without_inlined"]

_LOC = re.compile(
    r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)"
    r"(?:\s*,\s*function_name\s+[^,\n]+,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?"
)
_INLINED = re.compile(r"(.*?)( \(in .*\))")

_MOST_SHOWN = 3  # the innermost of the inlined calls

Position = tuple[int, int, int]  # file, line, column


class Lines:
    """The places of a function's lines in its source; without ``.loc``, in the PTX itself.

    A file's name in the C++ ends with the place of inlined code, as in
    ``softmax.py (in standard.py:216)``: debug information keeps it, and the line is the outermost.
    """

    def __init__(self, module: Module, function: Function) -> None:
        self._module = module
        self._names = _short_names(module.files)
        self._at: list[int] = []  # the lines of the .loc directives
        self._places: list[tuple[str, int]] = []
        self._callers: dict[Position, Position] = {}
        begin, end = function.body or (0, 0)
        for found in _LOC.finditer(module.text, begin, end):
            self._read(found)

    def _read(self, found: re.Match[str]) -> None:
        numbers = [int(one or 0) for one in found.groups()]
        inner: Position = (numbers[0], numbers[1], numbers[2])
        caller: Position = (numbers[3], numbers[4], numbers[5])
        if inner[1] == 0 and self._places:  # line 0: the code belongs to the line before
            return
        if caller[0]:
            self._callers[inner] = caller
        else:
            self._callers.pop(inner, None)
        self._at.append(self._module.line_at(found.start()))
        self._places.append(self._outermost(inner))

    def _outermost(self, inner: Position) -> tuple[str, int]:
        """Return the file of the outermost call, with the calls inside it, and the line."""
        chain = [inner]
        while (caller := self._callers.get(chain[-1])) is not None and caller not in chain:
            chain.append(caller)
        *inside, outer = chain
        shown = (f"{self._name(one)}:{one[1]}" for one in inside[_MOST_SHOWN - 1 :: -1])
        via = f" (in {', '.join(shown)})" if inside else ""
        return self._name(outer) + via, outer[1]

    def _name(self, position: Position) -> str:
        return self._names.get(position[0], self._module.name)

    def place(self, line: int) -> tuple[str, int]:
        """Return the file and the line in the source for a line of the module."""
        index = bisect.bisect_right(self._at, line) - 1
        return self._places[index] if index >= 0 else (self._module.name, line)

    def marker(self, line: int) -> str:
        """Return the line marker of the C++."""
        file, number = self.place(line)
        return f'# {number} "{file}"\n'

    def shown(self, line: int) -> str:
        """Return a line as reports show it, with the module's own."""
        file, number = self.place(line)
        own = f"{self._module.name}:{line}"
        return own if file == self._module.name else f"{without_inlined(file, number)}, {own}"


def without_inlined(file: str, line: int) -> str:
    """Return a place whose file's name may end with the place of inlined code.

    >>> without_inlined("softmax.py (in standard.py:216)", 15)
    'softmax.py:15 (in standard.py:216)'
    """
    found = _INLINED.fullmatch(file)
    return f"{file}:{line}" if found is None else f"{found[1]}:{line}{found[2]}"


def _short_names(files: dict[int, str]) -> dict[int, str]:
    """Return the names of files without folders, or with one folder where two have one name."""
    paths = {number: PurePath(_printable(path)) for number, path in files.items()}
    folders: dict[str, set[PurePath]] = {}
    for path in paths.values():
        folders.setdefault(path.name, set()).add(path)
    return {
        number: path.name if len(folders[path.name]) == 1 else "/".join(path.parts[-2:])
        for number, path in paths.items()
    }


def paths_of_lines(text: str) -> dict[str, str]:
    """Return the paths of the sources of a module's lines, by their names in reports."""
    files = read_files(text)
    return {name: files[number] for number, name in _short_names(files).items()}


def _printable(path: str) -> str:
    return "".join(one if one.isprintable() and one not in '"\\' else "?" for one in path)
