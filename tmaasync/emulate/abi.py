"""The declarations that Python shares with the emulator's runtime: structs, enums and numbers.

Their twins are in runtime/abi.hpp; tests/emulate/test_abi.py compares both sides, name by name.
Events and roles of traces are in `tmaasync.trace`.
"""

from __future__ import annotations

import ctypes
import enum

__all__ = [
    "STATIC_ALIGNMENT",
    "Array",
    "DeviceLaunch",
    "EventLog",
    "Extents",
    "Interpreter",
    "LaunchNumbers",
    "Operation",
    "ParameterFacts",
    "Policy",
    "Space",
]

STATIC_ALIGNMENT = 1024
"""Static shared variables lie after the dynamic shared memory, at a multiple of these bytes."""


class Policy(enum.IntEnum):
    """The policies of a schedule."""

    ROUND_ROBIN = 0
    RANDOM = 1
    ADVERSARIAL = 2


class Space(enum.IntEnum):
    """The memory of a race."""

    SHARED = 0
    GLOBAL = 1
    REGISTERS = 2


class Operation(enum.IntEnum):
    """The operations of accesses that a report names."""

    READ = 0
    WRITE = 1
    ATOMIC = 2
    STMATRIX = 3
    TMA_LOAD = 4
    TMA_STORE = 5
    TMA_REDUCE = 6
    WGMMA = 7
    BARRIER_INIT = 8
    BARRIER_USE = 9
    REGISTERS = 10
    MAP_READ = 11
    THREAD_COPY = 12
    TMA_PUSH = 13
    TMA_PUSH_REDUCE = 14
    LDMATRIX = 15
    BLOCK_ATOMIC = 16


# --- a launch ---------------------------------------------------------------------------------


class ParameterFacts(ctypes.Structure):
    """A parameter of a kernel, which the kernel's library exports."""

    _fields_ = (("kind", ctypes.c_char), ("size_bytes", ctypes.c_uint32))


class Extents(ctypes.Structure):
    """Numbers of threads, blocks or clusters."""

    _fields_ = tuple((axis, ctypes.c_uint32) for axis in "xyz")


class Array(ctypes.Structure):
    """An array of the launch."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("may_hold_pointers", ctypes.c_uint64),
    )


class EventLog(ctypes.Structure):
    """The events and roles of a traced launch, allocated by the runtime."""

    _fields_ = (
        ("events", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("roles", ctypes.c_void_p),
        ("role_count", ctypes.c_uint64),
    )


class LaunchNumbers(ctypes.Structure):
    """The parameters of a launch."""

    _fields_ = (
        ("grid", Extents),
        ("block", Extents),
        ("cluster", Extents),
        ("shared_bytes", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("workers", ctypes.c_uint32),
        ("resident", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("budget_seconds", ctypes.c_double),
        ("arrays", ctypes.c_uint64),
        ("array", ctypes.POINTER(Array)),
        ("registers", ctypes.c_uint32),
        ("stops_at_interrupt", ctypes.c_uint32),
        ("searched_words", ctypes.c_uint64),
        ("log", ctypes.POINTER(EventLog)),
        ("written", ctypes.POINTER(ctypes.c_char)),
        ("grid_barrier", ctypes.POINTER(ctypes.c_uint32)),
        ("fresh", ctypes.c_char_p),
    )


class DeviceLaunch(ctypes.Structure):
    """One of the launches that run together."""

    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("numbers", ctypes.POINTER(LaunchNumbers)),
        ("arguments", ctypes.c_void_p),
        ("device", ctypes.c_uint32),
        ("queue", ctypes.c_uint32),
    )


class Interpreter(ctypes.Structure):
    """Functions of Python's C API."""

    _fields_ = (
        ("release", ctypes.c_void_p),
        ("acquire", ctypes.c_void_p),
        ("run_handlers", ctypes.c_void_p),
        ("is_main_thread", ctypes.c_uint32),
    )
