"""Quote the lines of the source that a report names."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.frontend.ptx import paths_of_lines
from tmaasync.emulate.report.debug_info import debug_info
from tmaasync.errors import TMAError

_FILE_NAME = r"[\w.+-]+(?:/[\w.+-]+)?"


def quote(error: TMAError, programs: Iterable[EmulatedProgram]) -> None:
    """Add a note with the text of each line of the programs' sources that the report names.

    The sources of a PTX module, and headers, are read from the files that they were compiled from.
    Lines of a file that is not on this machine are left out.
    """
    lines = "\n".join(dict.fromkeys(_quoted(str(error), tuple(programs))))
    if lines:
        error.add_note(lines)


def _quoted(report: str, programs: tuple[EmulatedProgram, ...]) -> Iterator[str]:
    own = map(re.escape, (one.source.name for one in programs))
    names = "|".join((*own, _FILE_NAME))
    for name, number in re.findall(rf"(?<![\w/.])({names}):(\d+)", report):
        texts = (_text(program, name, int(number)) for program in programs)
        text = next(filter(None, texts), None)
        if text:
            yield f"  {name}:{number}: {' '.join(text.split())}"


def _text(program: EmulatedProgram, name: str, number: int) -> str:
    """Return a line of a program's source; empty if it is not known."""
    source = program.source
    if name == source.name:
        lines = source.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""
    paths = paths_of_lines(source.text) if source.is_ptx else _headers(program)
    path = paths.get(name, "")
    if not Path(path).is_absolute():
        return ""
    if Path(path).is_file():
        linecache.checkcache(path)
    elif path not in linecache.cache:  # which has the cells of notebooks
        return ""
    return linecache.getline(path, number)


def _headers(program: EmulatedProgram) -> dict[str, str]:
    return debug_info(program.path, program.source.text).header_paths()
