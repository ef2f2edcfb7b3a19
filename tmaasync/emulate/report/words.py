"""The names and lines of a kernel's source, for reports."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from tmaasync._driver import LaunchConfig
from tmaasync._forks import cached_property
from tmaasync._hardware import MAX_SHARED_BYTES
from tmaasync._source.entries import function_name
from tmaasync._source.names import element_of, ring_part
from tmaasync._source.symbols import variables_of
from tmaasync.emulate.abi import (
    ADDRESS_BITS,
    STATIC_ALIGNMENT,
    MbarrierWait,
    MentionKind,
    Report,
    Space,
)
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.report.debug_info import debug_info
from tmaasync.emulate.report.debug_info.dwarf_types import PAST_THE_END
from tmaasync.emulate.report.faults import written
from tmaasync.emulate.report.global_names import GlobalNames
from tmaasync.emulate.report.sentences import SENTENCES
from tmaasync.trace.events import NameOf, offset_name


def shared_names(program: EmulatedProgram, shared_bytes: int) -> NameOf:
    """Return the source's names for offsets in the kernel's shared memory."""
    words = Words(program, shared_bytes)
    return functools.cache(lambda offset: words.name(offset) or offset_name(offset))


@dataclass(frozen=True, slots=True)
class Facts:
    """The host's knowledge of a launch; ``device`` is its ordinal in an emulated world."""

    program: EmulatedProgram
    config: LaunchConfig
    budget_seconds: float
    size: str  # of the launch, in words
    arrays: Sequence[Iterable[Extent]]
    # By name, that are no arguments.
    others: Mapping[str, Extent] = field(default_factory=dict)
    device: int | None = None
    # The launch before: its program, and the arrays of its arguments.
    before: tuple[EmulatedProgram, Sequence[Iterable[Extent]]] | None = None


_OWN_VARIABLES = ("first_variable", "dynamic_memory")  # of cuda.hpp


class Words:
    """The names and lines of one kernel's source."""

    def __init__(
        self,
        program: EmulatedProgram,
        shared_bytes: int,
        arrays: Sequence[Iterable[Extent]] | None = None,
        device: int | None = None,
        others: Mapping[str, Extent] = MappingProxyType({}),
        before: tuple[EmulatedProgram, Sequence[Iterable[Extent]]] | None = None,
    ) -> None:
        self.program = program
        self._before = before
        self.device = device  # ordinal in an emulated world
        self._info = debug_info(program.path, program.source.text)
        self._arrays = arrays
        self._others = others
        self._static = -(-shared_bytes // STATIC_ALIGNMENT) * STATIC_ALIGNMENT

    def line(self, address: int) -> str | None:
        """Return the line in the kernel's source, as in ``gemm.cu:120``."""
        if not address:
            return None
        return self._info.source_line(address, self.program.source.name)

    def name(self, offset: int) -> str | None:
        """Return the source's name for this offset in shared memory."""
        if offset < self._static:
            given = self.program.source.shared_names
            before = bisect.bisect_right(given, offset, key=lambda one: one[0])
            return given[before - 1][1] if before else self._info.shared_name(offset)
        # Static variables keep their order, without the dynamic array among them.
        static = offset - self._static
        offsets = (static, static + MAX_SHARED_BYTES)
        names = filter(None, map(self._info.static_shared_name, offsets))
        own = next((name for name in names if not name.startswith(_OWN_VARIABLES)), None)
        return own or self._info.shared_name(offset)  # beyond the launch's dynamic memory

    def barrier_of_module(self, barrier: MbarrierWait) -> str | None:
        """Name an mbarrier in a PTX module's dynamic memory, which has no names, by its init."""
        line = self.line(barrier.initialised_at) if self.program.source.is_ptx else None
        return None if line is None else f"the mbarrier of {line} (shared offset {barrier.offset})"

    def place_name(self, space: int, start: int) -> str | None:
        """Return the source's name for an address in shared or global memory."""
        if space == Space.GLOBAL:
            return self.globals.name(start)
        return self.name(start) if space == Space.SHARED else None

    @cached_property
    def globals(self) -> GlobalNames:
        """The names for addresses in global memory."""
        names = self._info.parameter_names(function_name(self.program.name))
        return GlobalNames(
            self._arrays, names, {**extents_of_variables(self.program), **self._others}
        )

    def _written_before(self, address: int) -> str:
        """Name an address by an array of the launch before: " as scratch[0] of first"."""
        if self._before is None:
            return ""
        program, arrays = self._before
        before = Words(program, 0, arrays).globals
        place = before.name(address)
        if place is None:
            return ""
        name = f" as {place} of {function_name(program.name)}"
        if before.extent(address) == self.globals.extent(address):
            return name
        return f"{name} (if that array was freed, the memory is in use again)"

    def reason(self, report: Report) -> str:
        """Return a fault's reason, with the names of barriers, buffers, lines and arrays."""
        text = written(report.fault, iter(report.all_mentions()), report.texts, self._mentioned)
        if PAST_THE_END not in text:
            return text
        return text.replace(SENTENCES["Initialise"].partition("{")[0], "Check the index")

    def sibling(self, name: str | None, member: str) -> str | None:
        """Return another member of the stage of this name; None if there is none."""
        part = ring_part(name)
        other = None if part is None else part.sibling(member)
        return other if other is not None and self._info.has_shared_member(other) else None

    def _unnamed_barrier(self, offset: int) -> str:
        """Name an unnamed offset by the mbarriers before it: "empty[3] of 3"."""
        unnamed = f"the mbarrier at shared offset {offset}"
        for steps in range(1, _MAX_BARRIERS_BEYOND):
            name = self.name(offset - steps * _BARRIER_BYTES)
            if name is None:
                continue
            element = element_of(name)
            if element is None:
                return f"{unnamed}, {steps * _BARRIER_BYTES} bytes after {name},"
            array, last = element
            return f"{array}[{last + steps}] of {last + 1}"
        return unnamed

    def _mentioned(self, kind: MentionKind, value: int) -> str:
        if kind == MentionKind.LINE:
            line = self.line(value)
            return "" if line is None else f" at {line}"
        if kind == MentionKind.HEXADECIMAL:
            place = self.globals.place(value) if value > _MAX_OFFSET else None
            return f"{value:#x}" if place is None else f"{value:#x} ({place})"
        if kind == MentionKind.OUTSIDE_ARRAY:
            return self.globals.outside(value >> ADDRESS_BITS, value & (1 << ADDRESS_BITS) - 1)
        if kind == MentionKind.WRITTEN_BEFORE:
            return self._written_before(value)
        if kind == MentionKind.SIZE_CONSTANT:
            constant = f"{function_name(self.program.name)}_shared_bytes"
            return f'`extern "C" __device__ const int {constant}`'
        return self._mentioned_shared(kind, value)

    def _mentioned_shared(self, kind: MentionKind, offset: int) -> str:
        name = self.name(offset)
        if kind == MentionKind.BARRIER:
            return name or self._unnamed_barrier(offset)
        if kind == MentionKind.SHARED_NAME and name is not None:
            return name
        if kind == MentionKind.FULL_BARRIER:
            full = self.sibling(name, "full")
            return "" if full is None else f": {full} ends the loads into the stage"
        address = f"shared {'bytes' if kind == MentionKind.SHARED_BYTES else 'offset'} {offset}"
        return address if name is None else f"{address} ({name})"


# Smaller numbers are masks and offsets. A Python that is no PIE has its heap below 4 GiB.
_MAX_OFFSET = 2**24 - 1
_BARRIER_BYTES = 8
_MAX_BARRIERS_BEYOND = 16  # an mbarrier farther away is not a bad index of the array


def extents_of_variables(program: EmulatedProgram) -> Mapping[str, Extent]:
    """Return the extents of the kernel's variables in constant and global memory."""
    found = variables_of(program.path) if program.path.is_file() else {}
    return {
        name: Extent(program.address_of(one.address), 0, one.size_bytes)
        for name, one in found.items()
    }
