"""The DWARF of a compiled kernel: the names in its shared memory, the lines of its code."""

from __future__ import annotations

import bisect
import functools
import io
import math
import operator
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tmaasync._sources import include_dir, kernels_dir
from tmaasync.emulate.dynamic_shared import variables_of_casts
from tmaasync.emulate.inline_ptx import ASM_SUFFIX

if TYPE_CHECKING:
    from elftools.dwarf.compileunit import CompileUnit
    from elftools.dwarf.die import DIE

    _Extent = tuple[int, int, DIE]

__all__ = ["DebugInfo", "Frame", "debug_info", "source_frame"]

_Answer = TypeVar("_Answer")
_Ranges = tuple[tuple[int, int], ...]

_NAMED_BY = ("DW_AT_abstract_origin", "DW_AT_specification")
_INNER_SCOPES = (
    "DW_TAG_inlined_subroutine",
    "DW_TAG_lexical_block",
    "DW_TAG_try_block",
    "DW_TAG_catch_block",
)
_SAME_TYPE = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
_OBJECTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
_POINTERS = ("DW_TAG_pointer_type", "DW_TAG_reference_type")
_PARAMETER = "DW_TAG_formal_parameter"
_BARRIERS = ("SharedMemBarrier", "barrier")
_ATOMIC = "atomic<"
_TILE, _TILE_MEMBERS = "Shared", ["bytes"]
# Of an expression "push this constant, then make an address of it": its first and last byte.
_CONSTANT_BYTES = {0x0C: 4, 0x0E: 8}
_THREAD_LOCAL = (0x9B, 0xE0)
_RESERVED = re.compile(r"_[A-Z]|__")
_STEP = re.compile(r"\w+|\[\d+\]")


@dataclass(frozen=True, slots=True)
class Frame:
    """One function of a call chain, and the line it had come to."""

    function: str
    file: str
    line: int


class DebugInfo:
    """The debug information of one library, read when something is asked for the first time.

    Without pyelftools, or of a file that is missing, damaged or stripped, nothing is known.
    """

    def __init__(self, path: Path, source_text: str = "") -> None:
        """Remember the library and the text that it was compiled from; nothing is read."""
        self._path = path
        self._source_text = source_text
        # Reports of several launches may come at once, and pyelftools seeks in one stream.
        self._lock = threading.Lock()

    def frames(self, address: int) -> tuple[Frame, ...]:
        """Return the functions that the instruction belongs to, innermost first; none when unknown.

        Args:
            address: Counted from where the library is loaded. Of a call that has not returned yet
                that is the return address less one.
        """
        return self._asked(lambda: self._frames(address), ())

    def callers(self, address: int) -> tuple[int, ...]:
        """Return the calls of the function that the instruction belongs to, inlined ones apart.

        Args:
            address: As of `frames`, which take the results too.
        """
        return self._asked(lambda: tuple(self._calls.get(self._entry(address), ())), ())

    def shared_name(self, offset: int) -> str | None:
        """Return the name at this byte of dynamic shared memory's struct, as in ``full[2]``.

        The struct is the type of `dynamic_shared`, or else the only one that the source casts an
        ``extern __shared__`` array to. None where there is neither.
        """
        return self._asked(lambda: _place_name(self._layout, offset), None)

    def has_shared_member(self, name: str) -> bool:
        """Return whether dynamic shared memory's struct has a member of this name."""
        return self._asked(lambda: _has_member(self._layout, name), False)

    def static_shared_name(self, offset: int) -> str | None:
        """Return the ``__shared__`` variable at this byte of the library's thread_local segment."""
        return self._asked(lambda: self._static_name(offset), None)

    def parameter_names(self, function: str) -> tuple[str, ...]:
        """Return the names of a function's parameters, as the source has them."""
        return self._asked(lambda: self._parameter_names(function), ())

    def _asked(self, question: Callable[[], _Answer], unknown: _Answer) -> _Answer:
        # Names adorn a report. Whatever is wrong with the file, the report itself must come.
        with self._lock:
            try:
                return question()
            except Exception:
                return unknown

    @functools.cached_property
    def _units(self) -> tuple[_Unit, ...]:
        from elftools.elf.elffile import ELFFile

        try:
            file = ELFFile(io.BytesIO(self._path.read_bytes()))
            return tuple(_Unit(unit) for unit in file.get_dwarf_info().iter_CUs())
        except Exception:
            return ()

    def _frames(self, address: int) -> tuple[Frame, ...]:
        for unit in self._units:
            if unit.covers(address):
                return unit.frames(address)
        return ()

    def _entry(self, address: int) -> int:
        return next((unit.entry(address) for unit in self._units if unit.covers(address)), 0)

    @functools.cached_property
    def _calls(self) -> dict[int, list[int]]:
        """Of each function's first address the last bytes of the instructions that call it.

        Found in the code: without -fvar-tracking compilers list no calls. Whatever else has the
        same bytes does not lead to the start of a function.
        """
        from elftools.elf.elffile import ELFFile

        file: Any = ELFFile(io.BytesIO(self._path.read_bytes()))
        text = file.get_section_by_name(".text")
        code, start = text.data(), text["sh_addr"]
        found: dict[int, list[int]] = {}
        for offset, target in _CALLS[file["e_machine"]](code):
            found.setdefault(start + target, []).append(start + offset)
        return found

    def _parameter_names(self, function: str) -> tuple[str, ...]:
        for unit in self._units:
            names = unit.parameter_names(function)
            if names:
                return names
        return ()

    @functools.cached_property
    def _layout(self) -> DIE | None:
        every = (tuple(unit.shared_layouts()) for unit in self._units)
        own = max(next(filter(None, every), ()), key=_size_bytes, default=None)
        return own or self._layout_of_casts()

    def _layout_of_casts(self) -> DIE | None:
        """Return the struct that a variable for dynamic shared memory has; None if several do."""
        variables = variables_of_casts(self._source_text)
        found = [kind for unit in self._units for kind in unit.structs_of(variables)]
        return found[0] if len({(_name(kind), _size_bytes(kind)) for kind in found}) == 1 else None

    @functools.cached_property
    def _static_variables(self) -> tuple[tuple[int, DIE], ...]:
        return tuple(variable for unit in self._units for variable in unit.thread_locals())

    def _static_name(self, offset: int) -> str | None:
        for start, variable in self._static_variables:
            kind = _target(variable, "DW_AT_type")
            if 0 <= offset - start < _size_bytes(kind):
                return _name(variable) + _leaf(kind, offset - start)[0]
        return None


@functools.lru_cache
def debug_info(path: Path, source_text: str = "") -> DebugInfo:
    """Return the debug information of a library and its source, the same object each time."""
    return DebugInfo(path, source_text)


def source_frame(frames: Sequence[Frame], source_name: str) -> Frame | None:
    """Return the innermost frame in the kernel's own source, or else in no header of this library.

    The headers next to the shipped kernels are parts of their source. An ``asm`` statement counts
    as an instruction: of a function around one, the frame is the one that calls it.
    """
    ours = (f"{include_dir()}/", f"{Path(__file__).resolve().parent}/")
    frames = [_of_shipped(frame) for frame in _without_asm(frames)]
    pieces = {path.name for path in _shipped_headers()}
    own = (frame for frame in frames if frame.file in {source_name, *pieces})
    others = (frame for frame in frames if not frame.file.startswith(ours))
    return next(own, None) or next(others, None)


def _without_asm(frames: Sequence[Frame]) -> Iterator[Frame]:
    """Yield the frames with the asm statements last, by the names of their files."""
    yield from (frame for frame in frames if not frame.file.endswith(ASM_SUFFIX))
    for frame in frames:
        if frame.file.endswith(ASM_SUFFIX):
            yield replace(frame, file=frame.file.removesuffix(ASM_SUFFIX))


def _of_shipped(frame: Frame) -> Frame:
    """Shorten the name of a header next to the shipped kernels to its file name."""
    path = Path(frame.file)
    return replace(frame, file=path.name) if path in _shipped_headers() else frame


@functools.cache
def _shipped_headers() -> frozenset[Path]:
    """The headers next to the shipped kernels, of one family or shared by all."""
    folder = kernels_dir()
    return frozenset(
        path for path in folder.rglob("*.cuh") if not path.is_relative_to(include_dir())
    )


# --- one translation unit ----------------------------------------------------------------------


class _Unit:
    """One compiler run: its functions by address, its lines, its shared memory."""

    def __init__(self, unit: CompileUnit) -> None:
        self._unit = unit
        self._known: dict[int, tuple[tuple[_Ranges, DIE], ...]] = {}

    def covers(self, address: int) -> bool:
        return _covers(self._ranges, address)

    @functools.cached_property
    def _ranges(self) -> _Ranges:
        return _ranges(self._unit.get_top_DIE())

    # --- addresses -----------------------------------------------------------------------------

    def frames(self, address: int) -> tuple[Frame, ...]:
        chain = self._chain(address)
        position = self._position(address) if chain else None
        if position is None:
            return ()
        frames = []
        for scope in reversed(chain):
            # A copy constructor that the compiler wrote has the line of its struct; the operator()
            # of a lambda counts as written by the compiler too.
            if scope is chain[0] or _name(scope) == "operator()" or not _is_implicit(scope):
                frames.append(Frame(_name(scope), *position))
            position = (
                self._file_name(_number(scope, "DW_AT_call_file", -1)),
                _number(scope, "DW_AT_call_line", 0),
            )
        return tuple(frames)

    def entry(self, address: int) -> int:
        """Return where the function begins that the address is in."""
        return min(start for start, _ in _ranges(self._chain(address)[0]))

    def _chain(self, address: int) -> list[DIE]:
        """Return the function and the inlined calls that the address is in, outermost first."""
        chain = []
        scope = _function_at(self._functions, address)
        # Looking into each function takes as long as all the rest, and few have any inside.
        scope = scope or _function_at(self._local_functions, address)
        while scope is not None:
            if scope.tag in ("DW_TAG_subprogram", "DW_TAG_inlined_subroutine"):
                chain.append(scope)
            inner = self._inner(scope)
            scope = next((die for ranges, die in inner if _covers(ranges, address)), None)
        return chain

    @functools.cached_property
    def _functions(self) -> list[_Extent]:
        return _extents(_functions_in(self._unit.get_top_DIE(), ("DW_TAG_namespace",)))

    @functools.cached_property
    def _local_functions(self) -> list[_Extent]:
        """Functions of types that a function declares, lambdas above all."""
        within = ("DW_TAG_namespace", "DW_TAG_subprogram", "DW_TAG_lexical_block", *_OBJECTS)
        return _extents(_functions_in(self._unit.get_top_DIE(), within))

    def _inner(self, scope: DIE) -> tuple[tuple[_Ranges, DIE], ...]:
        if scope.offset not in self._known:
            self._known[scope.offset] = tuple(_inner_scopes(scope))
        return self._known[scope.offset]

    def _position(self, address: int) -> tuple[str, int] | None:
        starts, positions = self._lines
        index = bisect.bisect_right(starts, address) - 1
        found = positions[index] if index >= 0 else None
        return None if found is None else (self._file_name(found[0]), found[1])

    @functools.cached_property
    def _lines(self) -> tuple[list[int], list[tuple[int, int] | None]]:
        """Addresses in order, and from each on the file and line; ``None`` where code ends."""
        starts: list[int] = []
        positions: list[tuple[int, int] | None] = []
        for rows in sorted(self._sequences(), key=lambda rows: rows[0][0]):
            for start, position in rows:
                starts.append(start)
                positions.append(position)
        return starts, positions

    def _sequences(self) -> Iterator[list[tuple[int, tuple[int, int] | None]]]:
        program: Any = self._unit.dwarfinfo.line_program_for_CU(self._unit)
        rows: list[tuple[int, tuple[int, int] | None]] = []
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            if state.end_sequence:
                rows.append((state.address, None))
                if rows[0][0] != 0:  # the linker dropped what lies at 0
                    yield rows
                rows = []
            elif state.line:  # 0 is what the compiler added; it belongs to the line before
                rows.append((state.address, (state.file, state.line)))

    def parameter_names(self, function: str) -> tuple[str, ...]:
        for scope in _functions_in(self._unit.get_top_DIE(), ("DW_TAG_namespace",)):
            if _name(scope).partition("<")[0] != function:
                continue
            named = [die for die in scope.iter_children() if die.tag == _PARAMETER]
            if named:
                return tuple(map(_name, named))
        return ()

    def _file_name(self, number: int) -> str:
        index = number - self._first_file
        return self._files[index] if 0 <= index < len(self._files) else ""

    @functools.cached_property
    def _first_file(self) -> int:
        return 0 if self._unit["version"] >= 5 else 1

    @functools.cached_property
    def _files(self) -> tuple[str, ...]:
        program: Any = self._unit.dwarfinfo.line_program_for_CU(self._unit)
        own = self._unit.get_top_DIE().attributes["DW_AT_comp_dir"].value
        folders = [own] * self._first_file + list(program.header.include_directory)
        return tuple(
            (b"" if folders[file.dir_index] == own else folders[file.dir_index] + b"/").decode()
            + file.name.decode()
            for file in program.header.file_entry
        )

    # --- shared memory -------------------------------------------------------------------------

    def shared_layouts(self) -> Iterator[DIE]:
        """Yield each ``T`` of a ``dynamic_shared<T>``."""
        for scope in self._unit.get_top_DIE().iter_children():
            if scope.tag != "DW_TAG_namespace" or _name(scope) != "tmaasync":
                continue
            for function in scope.iter_children():
                if _name(function).partition("<")[0] == "dynamic_shared":
                    yield from (
                        _bare(_target(parameter, "DW_AT_type"))
                        for parameter in function.iter_children()
                        if parameter.tag == "DW_TAG_template_type_param"
                    )

    def structs_of(self, variables: frozenset[str]) -> Iterator[DIE]:
        """Yield the structs, with arrays or structs inside, that these variables refer to."""
        if not variables:
            return
        for die in self._unit.iter_DIEs():
            if die.tag == "DW_TAG_variable" and _name(die) in variables:
                pointer = _bare(_target(die, "DW_AT_type"))
                if pointer.tag in _POINTERS and "DW_AT_type" in pointer.attributes:
                    kind = _bare(_target(pointer, "DW_AT_type"))
                    if kind.tag in _OBJECTS and any(map(_is_compound, _members(kind))):
                        yield kind

    def thread_locals(self) -> Iterator[tuple[int, DIE]]:
        """Variables that each thread has its own of, and where they lie in the segment of these."""
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
    found = [(start, end, die) for die in functions for start, end in _ranges(die)]
    return sorted(found, key=operator.itemgetter(0))


def _function_at(extents: list[_Extent], address: int) -> DIE | None:
    index = bisect.bisect_right(extents, address, key=operator.itemgetter(0)) - 1
    return extents[index][2] if index >= 0 and address < extents[index][1] else None


def _inner_scopes(scope: DIE) -> Iterator[tuple[_Ranges, DIE]]:
    for die in scope.iter_children():
        if die.tag in _INNER_SCOPES:
            ranges = _ranges(die)
            if ranges:
                yield ranges, die
            else:
                yield from _inner_scopes(die)


def _calls_of_x86(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each ``call`` ends, and where it leads, both from the start of the code."""
    for found in re.finditer(rb"\xe8(?=(.{4}))", code, re.DOTALL):
        end = found.start() + 5
        yield end - 1, end + int.from_bytes(found[1], "little", signed=True)


def _calls_of_arm(code: bytes) -> Iterator[tuple[int, int]]:
    """The same for ``bl``."""
    for at in range(0, len(code) - 3, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        if word >> 26 == 0b100101:
            words = (word & (1 << 26) - 1 ^ 1 << 25) - (1 << 25)
            yield at + 3, at + 4 * words


_CALLS = {"EM_X86_64": _calls_of_x86, "EM_AARCH64": _calls_of_arm}


# --- types -------------------------------------------------------------------------------------


def _place_name(layout: DIE | None, offset: int) -> str | None:
    if layout is None or not 0 <= offset < _size_bytes(layout):
        return None
    return _leaf(layout, offset)[0].removeprefix(".") or None


def _has_member(kind: DIE | None, name: str) -> bool:
    """True if the names between dots and brackets lead from the type to a member."""
    for step in _STEP.findall(name):
        if kind is None:
            return False
        kind = _bare(kind)
        if step.startswith("["):
            is_array = kind.tag == "DW_TAG_array_type"
            kind = _target(kind, "DW_AT_type") if is_array else None
        else:
            kind = _member_type(kind, step)
    return kind is not None


def _member_type(kind: DIE, name: str) -> DIE | None:
    """Return the type of the member of this name; members of bases and anonymous ones count."""
    for member, _ in _members(kind):
        inner = _target(member, "DW_AT_type")
        if _name(member) == name and member.tag == "DW_TAG_member":
            return inner
        is_open = member.tag != "DW_TAG_member" or "DW_AT_name" not in member.attributes
        found = _member_type(_bare(inner), name) if is_open else None
        if found is not None:
            return found
    return None


def _leaf(kind: DIE, offset: int) -> tuple[str, DIE]:
    """The smallest part of the type that has this byte, barriers first: its name there, its type.

    Of a union's members there may be several.
    """
    kind = _bare(kind)
    leaves = []
    for name, part, start in _parts(kind, offset):
        below, leaf = _leaf(part, offset - start)
        leaves.append((name + below, leaf))
    return min(leaves, key=_leaf_order, default=("", kind))


def _leaf_order(leaf: tuple[str, DIE]) -> tuple[bool, int]:
    return not _is_barrier(leaf[1]), _size_bytes(leaf[1])


def _parts(kind: DIE, offset: int) -> Iterator[tuple[str, DIE, int]]:
    """Yield the element, or the members and bases, that have this byte: name, type and start."""
    if kind.tag == "DW_TAG_array_type":
        element = _target(kind, "DW_AT_type")
        flat = offset // _size_bytes(element)
        yield _subscripts(_counts(kind), flat), element, flat * _size_bytes(element)
    elif kind.tag in _OBJECTS and not _is_whole(kind):
        for member, start in _members(kind):
            inner = _target(member, "DW_AT_type")
            if start <= offset < start + _size_bytes(inner):
                name = _name(member) if member.tag == "DW_TAG_member" else ""
                # The C++ library's own names are reserved: of an array's elements, say.
                is_shown = name and not _RESERVED.match(name)
                yield (f".{name}" if is_shown else ""), inner, start


def _is_barrier(kind: DIE) -> bool:
    """True for a SharedMemBarrier and for a cuda::barrier."""
    return _name(kind).partition("<")[0] in _BARRIERS


def _is_whole(kind: DIE) -> bool:
    """True if nothing inside has a name of interest: a barrier's word, a tile's bytes."""
    name = _name(kind)
    return (
        _is_barrier(kind)
        or name.startswith(_ATOMIC)
        or (name == _TILE and [_name(member) for member, _ in _members(kind)] == _TILE_MEMBERS)
    )


def _members(kind: DIE) -> Iterator[tuple[DIE, int]]:
    """Members and bases of which an object has one each at an offset known beforehand."""
    for member in kind.iter_children():
        start = _number(member, "DW_AT_data_member_location", 0)
        is_part = member.tag in ("DW_TAG_member", "DW_TAG_inheritance")
        if is_part and "DW_AT_external" not in member.attributes:
            yield member, start + _number(member, "DW_AT_data_bit_offset", 0) // 8


def _is_compound(member: tuple[DIE, int]) -> bool:
    return _bare(_target(member[0], "DW_AT_type")).tag in ("DW_TAG_array_type", *_OBJECTS)


def _counts(array: DIE) -> list[int]:
    """Elements along each dimension, outermost first."""
    ranges = [die for die in array.iter_children() if die.tag == "DW_TAG_subrange_type"]
    return [
        _number(die, "DW_AT_count", _number(die, "DW_AT_upper_bound", -1) + 1) for die in ranges
    ]


def _subscripts(counts: list[int], flat: int) -> str:
    text = ""
    for count in reversed(counts):
        text = f"[{flat % count}]{text}"
        flat //= count
    return text


def _size_bytes(kind: DIE) -> int:
    kind = _bare(kind)
    if kind.tag == "DW_TAG_array_type":
        return math.prod(_counts(kind)) * _size_bytes(_target(kind, "DW_AT_type"))
    return _number(kind, "DW_AT_byte_size", 0)


def _bare(kind: DIE) -> DIE:
    """Return the type without its other names and qualifiers."""
    while kind.tag in _SAME_TYPE:
        kind = _target(kind, "DW_AT_type")
    return kind


# --- entries -----------------------------------------------------------------------------------


def _name(die: DIE) -> str:
    """Return the entry's name; an instance takes its origin's."""
    if "DW_AT_name" in die.attributes:
        name: bytes = die.attributes["DW_AT_name"].value
        return name.decode()
    origin = next((link for link in _NAMED_BY if link in die.attributes), None)
    return "" if origin is None else _name(die.get_DIE_from_attribute(origin))


def _is_implicit(function: DIE) -> bool:
    """Return whether the compiler declared it."""
    if "DW_AT_artificial" in function.attributes:
        return True
    origin = next((link for link in _NAMED_BY if link in function.attributes), None)
    return origin is not None and _is_implicit(function.get_DIE_from_attribute(origin))


def _target(die: DIE, attribute: str) -> DIE:
    """Return the entry that the attribute refers to; an instance takes its origin's."""
    while attribute not in die.attributes:
        die = die.get_DIE_from_attribute(next(x for x in _NAMED_BY if x in die.attributes))
    return die.get_DIE_from_attribute(attribute)


def _number(die: DIE, attribute: str, unknown: int) -> int:
    found = die.attributes.get(attribute)
    return found.value if found is not None and isinstance(found.value, int) else unknown


def _covers(ranges: _Ranges, address: int) -> bool:
    return any(start <= address < end for start, end in ranges)


def _ranges(die: DIE) -> _Ranges:
    """Return the addresses of its code; what lies at 0 the linker has dropped."""
    if "DW_AT_ranges" in die.attributes:
        return tuple((start, end) for start, end in _listed_ranges(die) if start != 0)
    start = _number(die, "DW_AT_low_pc", 0)
    if start == 0 or "DW_AT_high_pc" not in die.attributes:
        return ()
    high = die.attributes["DW_AT_high_pc"]
    return ((start, high.value if high.form == "DW_FORM_addr" else start + high.value),)


def _listed_ranges(die: DIE) -> Iterator[tuple[int, int]]:
    base = _number(die.cu.get_top_DIE(), "DW_AT_low_pc", 0)
    lists: Any = die.cu.dwarfinfo.range_lists()
    for entry in lists.get_range_list_at_offset(die.attributes["DW_AT_ranges"].value, die.cu):
        if hasattr(entry, "base_address"):
            base = entry.base_address
        else:
            moved = 0 if entry.is_absolute else base
            yield entry.begin_offset + moved, entry.end_offset + moved
