"""The declarations of `tmaasync.emulate.abi` for verified launches."""

from __future__ import annotations

import ctypes
import enum


class SyncKind(enum.IntEnum):
    """The kinds of events that synchronise threads."""

    OPERATION = 0
    LANDING = 1
    PHASE = 2


class Unordered(enum.IntEnum):
    """What changes if the second of two unordered events comes first."""

    ARRIVAL = 0
    WAIT = 1
    MISSED_PHASE = 2
    EXPECTATION = 3
    ACCESS = 4
    REFUSAL = 5
    CONTEXT = 6


MOST_PAIRS = 4096
"""The unordered pairs that a run lists."""

NAMED = 1 << 31
"""A named barrier's number lies below this bit of a `SyncEvent`'s barrier."""


class SyncEvent(ctypes.Structure):
    """An event that synchronises threads."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("barrier", ctypes.c_uint32),
        ("owner", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
    )


class UnorderedPair(ctypes.Structure):
    """Two events whose order another interleaving may reverse."""

    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("barrier", ctypes.c_uint32),
        ("cta", ctypes.c_uint64),
        ("word", ctypes.c_uint64),
        ("first", SyncEvent),
        ("second", SyncEvent),
    )


class Hold(ctypes.Structure):
    """An event that waits until another one has happened."""

    _fields_ = (("event", SyncEvent), ("until", SyncEvent))


class UnusedAtomic(ctypes.Structure):
    """An atomic function whose result is unused, by the address of its call."""

    _fields_ = (("address", ctypes.c_uint64), ("operation", ctypes.c_uint64))


class Interleaving(ctypes.Structure):
    """The order of one run of a verified launch."""

    _fields_ = (
        ("holds", ctypes.c_uint64),
        ("hold", ctypes.POINTER(Hold)),
        ("refusals", ctypes.c_uint64),
        ("refusal", ctypes.POINTER(SyncEvent)),
        ("reductions", ctypes.c_uint64),
        ("reduction", ctypes.POINTER(UnusedAtomic)),
        ("pair", ctypes.POINTER(UnorderedPair)),
        ("pairs", ctypes.c_uint64),
        ("operations", ctypes.c_uint64),
        ("phases", ctypes.c_uint64),
        ("signature", ctypes.c_uint64),
    )
