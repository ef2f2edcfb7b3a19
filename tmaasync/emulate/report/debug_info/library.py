"""The debug information of a library, by address and by offset in shared memory."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tmaasync._forks import Lock, cached_property
from tmaasync._source.paths import include_dir, kernels_dir
from tmaasync._source.tokens import without_comments
from tmaasync.emulate.frontend.ptx import ASM_SUFFIX, without_inlined
from tmaasync.emulate.include_path import EMULATOR_DIR
from tmaasync.emulate.report.debug_info.dwarf_types import (
    has_member,
    leaf_at,
    name_of,
    place_name,
    size_bytes,
    target,
)
from tmaasync.emulate.report.debug_info.dwarf_unit import Frame, Unit

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

__all__ = ["DebugInfo", "Frame", "debug_info", "source_frame"]

_Answer = TypeVar("_Answer")
_MOST_CALLS = 3  # of a header's function that a report lists


class DebugInfo:
    """The debug information of one library, read on first use.

    Without pyelftools, or if the file is missing, damaged or stripped, all queries return nothing.
    """

    def __init__(self, path: Path, source_text: str = "") -> None:
        """Store the library's path and the text that it was compiled from, without reading it."""
        self._path = path
        self._source_text = source_text
        # Several launches may report concurrently, and pyelftools seeks in one shared stream.
        self._lock = Lock()

    def frames(self, address: int) -> tuple[Frame, ...]:
        """Return the functions that contain the instruction, innermost first; empty if unknown.

        Args:
            address: Relative to the library's load address. For a call that has not returned, pass
                the return address minus one.
        """
        return self._asked(lambda: self._frames(address), ())

    def source_line(self, address: int, source_name: str) -> str | None:
        """Return the line in the kernel's source, as in ``gemm.cu:120``.

        For a function of a header that is not this library's, its line follows: ``gemm.cu:120 (in
        util.hpp:7)``. If it is not inlined, the first line is the source's call of it, or its calls
        if there are at most three.
        """
        frames = self.frames(address)
        own, header = source_frame(frames, source_name), header_frame(frames, source_name)
        place = _place(own) if own != header else None
        lines = [place] if place else []
        lines = lines or self._lines_of_calls(address, source_name)
        if header is None or is_of_toolchain(header.file):
            # The callers of this library's functions are too many to list.
            return lines[0] if len(lines) == 1 else _place(header)
        if not 0 < len(lines) <= _MOST_CALLS:
            return _place(header)
        return f"{' or '.join(lines)} (in {Path(header.file).name}:{header.line})"

    def _source_line_at(self, address: int, source_name: str) -> str | None:
        frames = self.frames(address)
        own = source_frame(frames, source_name)
        is_own = own is not None and own != header_frame(frames, source_name)
        return _place(own) if is_own else None

    def _lines_of_calls(self, address: int, source_name: str) -> list[str]:
        seen, functions, lines = set[int](), {address}, set[str]()
        while functions:
            calls = {call for inside in functions for call in self.callers(inside)} - seen
            seen |= calls
            found = {call: self._source_line_at(call, source_name) for call in calls}
            lines |= set(filter(None, found.values()))
            functions = {call for call, line in found.items() if line is None}
        return sorted(lines, key=lambda line: (len(line), line))

    def header_paths(self) -> dict[str, str]:
        """Return the paths of headers by their names in `source_line`, without the toolchain's."""
        return self._asked(self._header_paths, {})

    def callers(self, address: int) -> tuple[int, ...]:
        """Return the calls of the function that contains the instruction, except inlined calls.

        Args:
            address: As in `frames`, which accepts the results too.
        """
        return self._asked(lambda: tuple(self._calls.get(self._entry(address), ())), ())

    def shared_name(self, offset: int) -> str | None:
        """Return the name at this byte of dynamic shared memory's struct, as in ``full[2]``.

        The struct is the type of `dynamic_shared`, else the only type to which the source casts an
        ``extern __shared__`` array; None if there is neither.
        """
        return self._asked(lambda: place_name(self._layout, offset), None)

    def has_shared_member(self, name: str) -> bool:
        """Return whether dynamic shared memory's struct has a member of this name."""
        return self._asked(lambda: has_member(self._layout, name), False)

    def static_shared_name(self, offset: int) -> str | None:
        """Return the ``__shared__`` variable at this byte of the library's thread_local segment."""
        return self._asked(lambda: self._static_name(offset), None)

    def parameter_names(self, function: str) -> tuple[str, ...]:
        """Return the names of a function's parameters in the source."""
        return self._asked(lambda: self._parameter_names(function), ())

    def _asked(self, question: Callable[[], _Answer], unknown: _Answer) -> _Answer:
        # Names are optional: a broken file must not suppress the report itself.
        with self._lock:
            try:
                return question()
            except Exception:
                return unknown

    @cached_property
    def _units(self) -> tuple[Unit, ...]:
        from elftools.elf.elffile import ELFFile

        try:
            file = ELFFile(io.BytesIO(self._path.read_bytes()))
            return tuple(Unit(unit) for unit in file.get_dwarf_info().iter_CUs())
        except Exception:
            return ()

    def _frames(self, address: int) -> tuple[Frame, ...]:
        for unit in self._units:
            if unit.covers(address):
                return unit.frames(address)
        return ()

    def _header_paths(self) -> dict[str, str]:
        paths = {path.removesuffix(ASM_SUFFIX) for unit in self._units for path in unit.files()}
        return {Path(path).name: path for path in paths if not is_of_toolchain(path)}

    def _entry(self, address: int) -> int:
        return next((unit.entry(address) for unit in self._units if unit.covers(address)), 0)

    @cached_property
    def _calls(self) -> dict[int, list[int]]:
        """Map each function's first address to the last bytes of the instructions that call it.

        Calls are found in the machine code, because without -fvar-tracking compilers list none.
        Other bytes that look like a call do not lead to the start of a function.
        """
        from elftools.elf.elffile import ELFFile

        file: Any = ELFFile(io.BytesIO(self._path.read_bytes()))
        text = file.get_section_by_name(".text")
        code, start = text.data(), text["sh_addr"]
        found: dict[int, list[int]] = {}
        for offset, entry in CALLS_OF[file["e_machine"]](code):
            found.setdefault(start + entry, []).append(start + offset)
        return found

    def _parameter_names(self, function: str) -> tuple[str, ...]:
        for unit in self._units:
            names = unit.parameter_names(function)
            if names:
                return names
        return ()

    @cached_property
    def _layout(self) -> DIE | None:
        every = (tuple(unit.shared_layouts()) for unit in self._units)
        own = max(next(filter(None, every), ()), key=size_bytes, default=None)
        return own or self._layout_of_casts()

    def _layout_of_casts(self) -> DIE | None:
        """Return the struct of the variables for dynamic shared memory; None if not unique."""
        variables = variables_of_casts(self._source_text)
        found = [kind for unit in self._units for kind in unit.structs_of(variables)]
        return found[0] if len({(name_of(kind), size_bytes(kind)) for kind in found}) == 1 else None

    @cached_property
    def _static_variables(self) -> tuple[tuple[int, DIE], ...]:
        return tuple(variable for unit in self._units for variable in unit.thread_locals())

    def _static_name(self, offset: int) -> str | None:
        for start, variable in self._static_variables:
            kind = target(variable, "DW_AT_type")
            if 0 <= offset - start < size_bytes(kind):
                return name_of(variable) + leaf_at(kind, offset - start)[0]
        return None


@functools.lru_cache
def debug_info(path: Path, source_text: str = "") -> DebugInfo:
    """Return the debug information of a library and its source, cached."""
    return DebugInfo(path, source_text)


def source_frame(frames: Sequence[Frame], source_name: str) -> Frame | None:
    """Return the innermost frame in the kernel's own source, else outside this library's headers.

    Headers next to the shipped kernels count as their source. An ``asm`` statement counts as an
    instruction: for a function that wraps one, the result is its caller's frame.
    """
    ours = (f"{include_dir()}/", f"{EMULATOR_DIR}/")
    frames = [_of_shipped(frame) for frame in _without_asm(frames)]
    pieces = {path.name for path in _shipped_headers()}
    own = (frame for frame in frames if frame.file in {source_name, *pieces})
    others = (frame for frame in frames if not frame.file.startswith(ours))
    return next(own, None) or next(others, None)


def header_frame(frames: Sequence[Frame], source_name: str) -> Frame | None:
    """Return the innermost frame, if it is in a header that is neither this library's nor own.

    Frames of a PTX module have names of files without folders, and are no header's.
    """
    ours = (f"{include_dir()}/", f"{EMULATOR_DIR}/")
    outside = (
        frame for frame in map(_of_shipped, _without_asm(frames)) if not frame.file.startswith(ours)
    )
    found = next(outside, None)
    pieces = {path.name for path in _shipped_headers()}
    if found is None or not Path(found.file).is_absolute():
        return None
    return None if found.file in {source_name, *pieces} else found


def is_of_toolchain(file: str) -> bool:
    """Return whether a file is a header of the compiler or of the system."""
    return file.startswith("/usr/") or "/c++/" in file


def _place(frame: Frame | None) -> str | None:
    return None if frame is None else without_inlined(frame.file, frame.line)


def _without_asm(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the frames, those with asm statements (by file name) last."""
    yield from (frame for frame in frames if not frame.file.endswith(ASM_SUFFIX))
    for frame in frames:
        if frame.file.endswith(ASM_SUFFIX):
            yield replace(frame, file=frame.file.removesuffix(ASM_SUFFIX))


def _of_shipped(frame: Frame) -> Frame:
    """Shorten the path of a header next to the shipped kernels to its file name."""
    path = Path(frame.file)
    return replace(frame, file=path.name) if path in _shipped_headers() else frame


@functools.cache
def _shipped_headers() -> frozenset[Path]:
    """Return the headers next to the shipped kernels, of one family or shared by all."""
    folder = kernels_dir()
    return frozenset(
        path for path in folder.rglob("*.cuh") if not path.is_relative_to(include_dir())
    )


# --- casts of ``extern __shared__`` arrays, whose types describe dynamic shared memory ---------

# Patterns, because a wrong guess costs no more than a name in a report.
_ARRAY = re.compile(r"\bextern\b[^;{}()]*?\b__shared__\b[^;{}]*?\b(\w+)\s*\[\s*\]")
# A declaration or assignment from a cast of the entire array, as in
# "auto& shared = *reinterpret_cast<SharedMemory*>(&raw[0]);".
_FROM_CAST = (
    r"\b(\w+)\s*[=({]\s*\*?\s*\(?\s*"
    r"(?:(?:reinterpret|static)_cast\s*<[^;()]*[*&]\s*>\s*\(|\([^;()]*\*\s*\))\s*"
    r"(?:static_cast\s*<\s*void\s*\*\s*>\s*\(\s*)?"
    r"(?:&\s*(?:%s)\s*\[\s*0\s*\]|&?\s*(?:%s)\b(?!\s*[\[+]))"
)


def variables_of_casts(text: str) -> frozenset[str]:
    """Return the variables that point or refer to the start of dynamic shared memory.

    >>> variables_of_casts("extern __shared__ char raw[]; auto& s = *reinterpret_cast<S*>(raw);")
    frozenset({'s'})
    """
    bare = without_comments(text)
    arrays = "|".join(sorted(set(_ARRAY.findall(bare))))
    if not arrays:
        return frozenset()
    return frozenset(re.findall(_FROM_CAST % (arrays, arrays), bare))


# --- calls in machine code, which debug information lists only with variable tracking ----------


def calls_of_x86(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end and the target of each ``call``, relative to the start of the code."""
    for found in re.finditer(rb"\xe8(?=(.{4}))", code, re.DOTALL):
        end = found.start() + 5
        yield end - 1, end + int.from_bytes(found[1], "little", signed=True)


def calls_of_arm(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end and the target of each ``bl``, relative to the start of the code."""
    for at in range(0, len(code) - 3, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        if word >> 26 == 0b100101:
            words = (word & (1 << 26) - 1 ^ 1 << 25) - (1 << 25)
            yield at + 3, at + 4 * words


CALLS_OF = {"EM_X86_64": calls_of_x86, "EM_AARCH64": calls_of_arm}
