"""The parameters and the arguments of a launch, as the runtime reads them."""

from __future__ import annotations

import contextvars
import ctypes
import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tmaasync._driver import BLANK_BYTES, LaunchConfig, blank_address
from tmaasync.emulate import abi
from tmaasync.emulate.abi import Interleaving
from tmaasync.emulate.extents import Extent
from tmaasync.emulate.frontend.program import EmulatedProgram
from tmaasync.emulate.launch.estimate import LaunchEstimate, estimate
from tmaasync.emulate.launch.last_verdict import RunNotes
from tmaasync.emulate.launch.schedule import Schedule
from tmaasync.emulate.launch.subscripts import own_subscripts
from tmaasync.emulate.rules import bits_of
from tmaasync.errors import LaunchError, Violation


class LaunchBefore(NamedTuple):
    """The previous launch's arrays, for each whether it wrote to it, and those by argument."""

    extents: Sequence[Extent]
    written: bytes
    program: EmulatedProgram
    arrays: Sequence[Iterable[Extent]]


_BEFORE: contextvars.ContextVar[LaunchBefore | None] = contextvars.ContextVar(
    "tmaasync launch before", default=None
)


def launch_before() -> LaunchBefore | None:
    """Return the previous launch of this context; None before the first."""
    return _BEFORE.get()


keep_before = _BEFORE.set


class Parameters(NamedTuple):
    """The parameters of a launch, valid while its schedule and arrays stay the same."""

    schedule: Schedule
    extents: Sequence[Extent]
    size: LaunchEstimate
    numbers: abi.LaunchNumbers
    read_only: Sequence[int]  # the numbers of these extents

    @classmethod
    def of(
        cls,
        program: EmulatedProgram,
        config: LaunchConfig,
        schedule: Schedule,
        extents: Sequence[Extent],
        pointers: Callable[[], Mapping[int, int]],
    ) -> Parameters:
        """Return the parameters of a launch.

        ``pointers`` returns, for each parameter that points to an array, its number in ``extents``.

        Raises:
            LaunchError: The launch is too large for this machine or for the schedule.
        """
        size = estimate(program, config, schedule.workers or _cores())
        LaunchError.raise_for(size.violations(schedule.max_threads))
        relaxed = schedule.tolerated(
            is_ptx=program.source.is_ptx, has_tensor_memory=bool(program.chip.tensor_memory)
        )
        numbers = _numbers(config, schedule, size, extents, program, bits_of(relaxed))
        if schedule.searched_words:
            known = own_subscripts(program.path, pointers)
            numbers.subscripts, numbers.subscript = len(known), known
        read_only = [number for number, one in enumerate(extents) if one.is_read_only]
        return cls(schedule, extents, size, numbers, read_only)

    def start(self, *, pdl: bool) -> None:
        """Reset the fields that the last launch may have changed."""
        numbers = self.numbers
        ctypes.memset(numbers.written, 0, max(1, numbers.arrays))
        numbers.notes.contents.has_pointed = 0
        if numbers.grid_barrier:
            numbers.grid_barrier.contents.value = 0
        numbers.fresh = _fresh(self.extents) if pdl else None

    def keep_written(self, program: EmulatedProgram, arrays: Sequence[Iterable[Extent]]) -> None:
        """Keep for the next launch which arrays this one wrote to."""
        keep_before(LaunchBefore(self.extents, self.written(), program, tuple(arrays)))

    def written(self) -> bytes:
        """Return, per extent, whether the launch wrote to it."""
        return ctypes.string_at(self.numbers.written, self.numbers.arrays)

    def repeat(self, interleaving: Interleaving | None, undo: abi.UndoLog | None) -> None:
        """Have the next run follow an interleaving, and log the words that it changes."""
        self.numbers.interleaving = None if interleaving is None else ctypes.pointer(interleaving)
        self.numbers.undo = None if undo is None else ctypes.pointer(undo)

    @property
    def has_notes(self) -> bool:
        """Whether the launch broke a rule and went on, or used maps in global memory."""
        return bool(self.numbers.notes.contents.broken)

    def run_notes(self) -> RunNotes:
        """Return what the launch leaves open."""
        notes = self.numbers.notes.contents
        facts = (notes.is_unsearched, notes.has_forgotten, notes.has_pointed)
        return RunNotes(notes.broken, *map(bool, facts))

    @property
    def wrote_read_only(self) -> bool:
        """Whether the launch wrote to an array that is read only."""
        return any(self.numbers.written[number] != b"\0" for number in self.read_only)


def _numbers(
    config: LaunchConfig,
    schedule: Schedule,
    size: LaunchEstimate,
    known: Sequence[Extent],
    program: EmulatedProgram,
    tolerated: int,
) -> abi.LaunchNumbers:
    arrays = (abi.Array * len(known))(
        *(
            abi.Array(one.address + one.first, one.end - one.first, one.may_hold_pointers)
            for one in known
        )
    )
    return abi.LaunchNumbers(
        abi.Extents(*config.grid),
        abi.Extents(*config.block),
        abi.Extents(*(config.cluster or (1, 1, 1))),
        config.shared_bytes,
        schedule.abi_policy,
        size.workers,
        size.resident,
        schedule.seed % 2**64,
        schedule.budget_seconds,
        len(known),
        arrays,
        program.registers,
        program.chip.has_wide_maps,
        program.chip.device.sms,
        program.chip.tensor_memory is not None,
        schedule.searched_words,
        None,
        ctypes.create_string_buffer(max(1, len(known))),
        ctypes.pointer(ctypes.c_uint32(0)) if config.cooperative else None,
        None,
        tolerated,
        ctypes.pointer(abi.RuleNotes()),
        0,
        None,
        None,
        None,
    )


def _fresh(known: Sequence[Extent]) -> bytes | None:
    """Return, per array, whether the previous launch wrote to it; None if it wrote to none."""
    before = launch_before()
    if before is None:
        return None
    flags = zip(before.extents, before.written, strict=True)
    written = [one.span for one, flag in flags if flag]
    fresh = bytes(
        any(one.span.start < other.stop and other.start < one.span.stop for other in written)
        for one in known
    )
    return fresh if any(fresh) else None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# --- arguments --------------------------------------------------------------------------------

# The memory through which ragged maps load if nothing is in bounds.
_BLANK = Extent(blank_address(None), 0, BLANK_BYTES)
_ADDRESS = struct.Struct("<Q")
_ALIGNMENT = 128


class PackedArguments:
    """The arguments of a launch in one buffer, each aligned, and the arrays of each.

    Attributes:
        arrays: The extents of each argument's arrays.
        pointers: A pointer to each argument, for the runtime.
    """

    __slots__ = ("_buffer", "_offsets", "_start", "arrays", "pointers")

    def __init__(self, arguments: Sequence[bytes], arrays: Sequence[Iterable[Extent]]) -> None:
        """Copy the arguments into a buffer with room to align it."""
        self._offsets, end = [0], 0
        for argument in arguments:
            end += -(-len(argument) // _ALIGNMENT) * _ALIGNMENT
            self._offsets.append(end)
        self._buffer = ctypes.create_string_buffer(end + _ALIGNMENT)
        self._start = -(-ctypes.addressof(self._buffer) // _ALIGNMENT) * _ALIGNMENT
        self.arrays = list(arrays)
        addresses = [self._start + offset for offset in self._offsets]
        for address, argument in zip(addresses, arguments, strict=False):
            ctypes.memmove(address, argument, len(argument))
        self.pointers: Any = (ctypes.c_void_p * len(addresses))(*addresses)

    def snapshot(self) -> PackedArguments:
        """Return a copy, which later changes of the arguments do not reach."""
        sides = zip(self._offsets, self._offsets[1:], strict=False)
        copied = [ctypes.string_at(self._start + first, end - first) for first, end in sides]
        return PackedArguments(copied, list(map(list, self.arrays)))

    def write(self, addresses: Sequence[int]) -> None:
        """Replace the addresses of the first arguments, which are tiles or pointers."""
        start = self._start - ctypes.addressof(self._buffer)
        for index, (offset, address) in enumerate(zip(self._offsets, addresses, strict=False)):
            _ADDRESS.pack_into(self._buffer, start + offset, address)
            extents = tuple(self.arrays[index])
            if extents:
                first = extents[0]._replace(address=address, is_read_only=False)
                self.arrays[index] = (first, *extents[1:])

    def pointers_to_arrays(self) -> dict[int, int]:
        """Return for each argument that is a pointer to one array the number in `extents`."""
        numbers: dict[int, int] = {}
        number = 1
        for position, (offset, each) in enumerate(zip(self._offsets, self.arrays, strict=False)):
            members = list(each)
            start = self._start - ctypes.addressof(self._buffer) + offset
            address = _ADDRESS.unpack_from(self._buffer, start)[0]
            if len(members) == 1 and members[0].member is None and members[0].address == address:
                numbers[position] = number
            number += max(1, len(members))
        return numbers

    def extents(self) -> list[Extent]:
        """Return the extents of the arrays, and of arguments that may hold pointers."""
        found = [_BLANK]
        sides = zip(self._offsets, self._offsets[1:], self.arrays, strict=False)
        for first, end, each in sides:
            extents = list(each)
            found += extents or [
                Extent(self._start + first, 0, end - first, may_hold_pointers=True)
            ]
        return found

    def words(self) -> Iterator[int]:
        """Yield the words of the arguments that are no arrays; some may be pointers."""
        start = self._start - ctypes.addressof(self._buffer)
        for first, end, each in zip(self._offsets, self._offsets[1:], self.arrays, strict=False):
            if not list(each):
                part = memoryview(self._buffer).cast("B")[start + first : start + end]
                yield from part.cast("Q")

    def refuse_written(self, written: bytes) -> None:
        """Refuse a launch that has written to read-only arrays.

        An array whose memory another argument may write is not checked.

        Args:
            written: For each of `extents`, whether the launch wrote to it.

        Raises:
            LaunchError: Names the arguments.
        """
        members = [list(each) for each in self.arrays]
        writable = [one for each in members for one in each if not one.is_read_only]
        flags = iter(written[1:])  # the first is of the blank memory
        found = []
        for position, each in enumerate(members):
            # An argument without arrays has a flag too, for its own bytes.
            noted = list(itertools.islice(flags, max(1, len(each))))
            for one, is_written in zip(each, noted, strict=False):
                if is_written and one.is_read_only and not any(map(one.meets, writable)):
                    member = "" if one.member is None else f"[{one.member}]"
                    rule, remedy = "the kernel wrote to it", "Pass a writable array, such as a copy"
                    argument = one.name or f"args[{position}]{member}"
                    found.append(Violation(argument, "a read-only array", rule, remedy))
        LaunchError.raise_for(found)
