"""Decode a debug build's records of hung waits into threads, barrier names and likely causes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tmaasync._hardware import WARP_THREADS
from tmaasync._source.compile import Source
from tmaasync._source.names import RingPart, ring_part, role_name
from tmaasync.errors import HungThreads

# Mirrors of the structs in kernels/include/tmaasync/instrument/draining.cuh.
WAIT_RECORD = np.dtype(
    [
        ("is_written", "<u4"),
        ("block", "<u4", 3),
        ("cta_rank", "<u4"),
        ("warp", "<u4"),
        ("lanes", "<u4"),
        ("barrier", "<u4"),
        ("dynamic", "<u4"),
        ("phase", "<u4"),
        ("line", "<u4"),
        ("role_number", "<u4"),
        ("word", "<u8"),
        ("waited_ns", "<u8"),
        ("file", "S96"),
        ("function", "S96"),
        ("role", "S32"),
    ]
)
HANG_STATE = np.dtype(
    [
        ("records", "<u8"),
        ("budget_ns", "<u8"),
        ("first_cluster", "<u8"),
        ("drains_since_ns", "<u8"),
        ("is_draining", "<u4"),
        ("waits_of_cluster", "<u4"),
        ("waits_of_others", "<u4"),
        ("padding", "<u4"),
    ]
)
_RECORDS_OF_CLUSTER, _RECORDS_OF_OTHERS = 48, 16
RECORDS = _RECORDS_OF_CLUSTER + _RECORDS_OF_OTHERS

BarrierName = Callable[[int], str | None]
"""Returns the name of the mbarrier at an offset in dynamic shared memory, as in ``full[2]``."""


# --- the 64 bits of a barrier -----------------------------------------------------------------


class BarrierWord(NamedTuple):
    """The fields of an mbarrier's 64 bits for the current phase."""

    arrivals: int
    missing_arrivals: int
    missing_bytes: int
    phase: int

    @classmethod
    def decode(cls, word: int) -> BarrierWord:
        """Decode the bits; the PTX ISA does not specify their layout (docs/hardware.md)."""
        return cls(
            arrivals=-_field(word, _ARRIVALS) % _COUNTS,
            missing_arrivals=-_field(word, _MISSING_ARRIVALS) % _COUNTS,
            missing_bytes=-_signed(_field(word, _BYTES_BEYOND), _BYTES_BEYOND[1]),
            phase=word >> 63,
        )


# (first bit, width). The hardware counts arrivals up to 2^20, and bytes up to 0.
_ARRIVALS, _BYTES_BEYOND, _MISSING_ARRIVALS = (1, 20), (21, 21), (43, 20)
_COUNTS = 1 << 20


def _field(word: int, bits: tuple[int, int]) -> int:
    first, width = bits
    return word >> first & (1 << width) - 1


def _signed(value: int, width: int) -> int:
    return value - (1 << width) if value >> (width - 1) else value


# --- the likely cause -------------------------------------------------------------------------


def _causes(word: BarrierWord, phase: int, part: RingPart | None) -> Iterator[str]:
    """Yield the likely causes, most likely first; ``part`` is the barrier's role in a ring."""
    arrived, missing_bytes = word.arrivals - word.missing_arrivals, word.missing_bytes
    if word.arrivals == 0:
        yield "these 8 bytes are no mbarrier: init() was not called, or something overwrote it"
    if word.phase != phase:
        yield "the phase has ended since: this wait is not what the kernel hangs of"
    if missing_bytes < 0 and arrived == 0:
        yield (
            f"copies delivered {-missing_bytes} bytes that no thread expected: call expect_bytes() "
            "on the barrier that the load credits"
        )
    if missing_bytes < 0:
        yield (
            f"copies delivered {-missing_bytes} bytes more than were expected: expect what each "
            "load brings, its whole box"
        )
    if missing_bytes and word.missing_arrivals == 0:
        yield (
            "the bytes expected exceed what the copies delivered: a load was not issued, credits "
            "another barrier or other CTAs, or brings less than expected"
        )
    if missing_bytes:
        yield "bytes are expected, and not everybody has arrived: expect_tx() does not arrive"
    if arrived == 0:
        yield (
            f"{_nobody(part)}: the arriving threads never reached it, or wait "
            f"too; or the waiter means the phase before, whose parity is {phase ^ 1}"
        )
    yield (
        f"{arrived} of {word.arrivals} have arrived: init() counts more than arrive, or some left "
        "or wait elsewhere"
    )


def _nobody(part: RingPart | None) -> str:
    """Return the likely cause if no thread has arrived."""
    if part is not None and part.member == "empty":
        return f"no consumer has released {part.stage_name}"
    if part is not None and part.member == "full":
        return f"the producer has not filled {part.stage_name}"
    return "no thread has arrived in this phase"


# --- from records to threads ------------------------------------------------------------------


def hung_threads(records: bytes, source: Source, name_of: BarrierName) -> Iterator[HungThreads]:
    """Yield the waiting threads; warps with the same wait share one entry.

    Waits of the first cluster that exceeded the budget come first, then the rest, longest first.

    Args:
        records: The bytes of `RECORDS` records.
        source: The kernel's source.
        name_of: Returns the names of barriers; see `HostBackend.barrier_names`.
    """
    parts = np.split(np.frombuffer(records, WAIT_RECORD), [_RECORDS_OF_CLUSTER])
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for one in itertools.chain(*map(_longest_first, parts)):
        names = (one["file"], one["line"], one["role"], one["role_number"])
        same = (*one["block"].tolist(), one["barrier"], one["phase"], *names)
        groups.setdefault(same, []).append(one)
    for group in groups.values():
        yield _hung(group, source, name_of)


def _longest_first(records: Any) -> list[Any]:
    written = (one for one in records if one["is_written"])
    return sorted(written, key=lambda one: -int(one["waited_ns"]))


def _hung(group: list[Any], source: Source, name_of: BarrierName) -> HungThreads:
    first = group[0]
    word = BarrierWord.decode(int(first["word"]))
    phase = int(first["phase"])
    file, line = Path(first["file"].decode(errors="replace")), int(first["line"])
    # The shared-memory windows of a cluster's CTAs are multiples of 16 MiB apart.
    offset = (int(first["barrier"]) - int(first["dynamic"])) % _WINDOW_BYTES
    name = name_of(offset) if offset < _WINDOW_BYTES // 2 else None
    part = ring_part(name)
    return HungThreads(
        block=tuple(first["block"].tolist()),
        cta_rank=int(first["cta_rank"]),
        threads=tuple(sorted({thread for one in group for thread in _threads(one)})),
        source=f"{file.name}:{line}",
        code=_code(source, file, line),
        function=first["function"].decode(errors="replace"),
        barrier_name=name,
        barrier_offset=offset if offset < _WINDOW_BYTES // 2 else offset - _WINDOW_BYTES,
        phase=phase,
        arrivals=word.arrivals,
        missing_arrivals=word.missing_arrivals,
        missing_bytes=word.missing_bytes,
        waited_seconds=max(int(one["waited_ns"]) for one in group) / 1e9,
        cause=next(_causes(word, phase, part)),
        role=role_name(first["role"], int(first["role_number"])),
        ring=None if part is None else part.ring or None,
        stage=None if part is None else part.stage,
    )


def unrecorded(state: bytes) -> int:
    """Return the number of waits without a record, from the bytes of a `HANG_STATE`."""
    counts = np.frombuffer(state, HANG_STATE)[0]
    return max(0, int(counts["waits_of_cluster"]) - _RECORDS_OF_CLUSTER) + max(
        0, int(counts["waits_of_others"]) - _RECORDS_OF_OTHERS
    )


_WINDOW_BYTES = 1 << 24


def _threads(record: Any) -> Iterator[int]:
    lanes = int(record["lanes"])
    return (
        int(record["warp"]) * WARP_THREADS + lane
        for lane in range(WARP_THREADS)
        if lanes >> lane & 1
    )


def _code(source: Source, file: Path, line: int) -> str | None:
    """Return the text of a line of the kernel or a header; None if it is not found."""
    if str(file) == source.name:
        text = source.text
    elif file.is_file():
        text = file.read_text(encoding="utf-8", errors="replace")
    else:
        return None
    lines = text.splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else None
