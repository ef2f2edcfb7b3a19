"""The declarations that Python shares with the emulator's runtime: structs, enums and numbers.

Their twins are in runtime/abi.hpp; tests/emulate/test_abi.py compares both sides, name by name.
Events and roles of traces are in `tmaasync.trace`.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

from tmaasync.emulate.verified_abi import Interleaving

STATIC_ALIGNMENT = 1024
"""Static shared variables lie after the dynamic shared memory, at a multiple of these bytes."""

ADDRESS_BITS = 48
"""Of the address in a fact of the kind ``OUTSIDE_ARRAY``; the array's number lies above."""


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
    TENSOR = 3


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
    EARLIER_WRITE = 17
    TCGEN05_LOAD = 18
    TCGEN05_STORE = 19
    TCGEN05_MMA = 20
    TCGEN05_COPY = 21
    TCGEN05_SHIFT = 22
    TCGEN05_DEALLOC = 23
    CLUSTER_RESPONSE = 24


class ReportKind(enum.IntEnum):
    """The causes of a launch's early end."""

    NONE = 0
    FAULT = 1
    DEADLOCK = 2
    RACE = 3
    TIMEOUT = 4
    INTERRUPTED = 5
    MEMORY = 6


class WaitKind(enum.IntEnum):
    """The kinds of a thread's wait."""

    NONE = 0
    MBARRIER = 1
    NAMED_BARRIER = 2
    CLUSTER = 3
    WARP = 4
    WARPGROUP = 5
    REGISTERS = 6
    SIGNAL = 7
    TENSOR_MEMORY = 8


class Activity(enum.IntEnum):
    """The activities of threads that wait at no instruction with a name."""

    READY = 0
    RUNNING = 1
    UNWRITTEN_READ = 2
    VOLATILE_READ = 3
    REPEATED_READ = 4


class MentionKind(enum.IntEnum):
    """The kinds of a fault's facts."""

    NUMERAL = 0
    UNSIGNED = 1
    HEXADECIMAL = 2
    TEXT = 3
    PHRASE = 4
    LIST = 5
    BARRIER = 6
    SHARED_OFFSET = 7
    SHARED_BYTES = 8
    SHARED_NAME = 9
    FULL_BARRIER = 10
    LINE = 11
    SIZE_CONSTANT = 12
    ACCESS = 13
    OPERATION = 14
    LANES = 15
    WARPS = 16
    WRITTEN_BEFORE = 17
    OUTSIDE_ARRAY = 18


class RaceFact(enum.IntEnum):
    """Bits: the race detector's knowledge of two accesses."""

    LACKS_FENCE = 1
    WAS_UNWRITTEN = 2
    IS_STORED = 4
    IS_ONE_COPY = 8
    HAS_RELAXED_ARRIVAL = 16
    IS_BETWEEN_DEVICES = 32
    IS_KNOWN = 64
    LACKS_ACQUIRE = 128
    LACKS_READER_FENCE = 256
    LACKS_TENSOR_BEFORE = 512
    LACKS_TENSOR_AFTER = 1024
    IS_ISSUED_BEFORE = 2048


class Rule(enum.IntEnum):
    """The rules that a user may relax."""

    NONE = 0
    CP_ASYNC_AT_EXIT = 1
    STORE_AT_EXIT = 2
    LOAD_AT_EXIT = 3
    BYTES_AT_EXIT = 4
    WGMMA_AT_EXIT = 5
    EXIT_BEFORE_PEER = 6
    INIT_WITHOUT_FENCE = 7
    WRITE_WITHOUT_PROXY_FENCE = 8
    MAP_WITHOUT_ACQUIRE = 9
    POLL_WITHOUT_ACQUIRE = 10
    PLAIN_ACCESS_TO_ATOMIC = 11
    BLOCK_SCOPE_ATOMIC = 12
    SAME_VALUE_STORES = 13
    READ_ONLY_LOAD = 14
    UNWRITTEN_SHARED = 15
    UNWRITTEN_ACCUMULATORS = 16
    WGMMA_REGISTERS = 17
    WGMMA_SWIZZLE = 18
    PDL_WAIT = 19
    SYNCTHREADS_APART = 20
    ELECT_OF_PART = 21
    SHUFFLE_SOURCE = 22
    REPLICATED_LOAD = 23
    OTHER_ARRAY = 24
    TCGEN05_FENCE = 25
    TCGEN05_BY_LANES = 26
    TCGEN05_AT_EXIT = 27
    TENSOR_MEMORY_LANES = 28
    TENSOR_MEMORY_GROWTH = 29
    UNWRITTEN_TENSOR_MEMORY = 30
    RESPONSE_WITHOUT_PROXY_FENCE = 31
    CTAID_OF_FAILURE = 32
    TCGEN05_PAIR_START = 33
    TCGEN05_PROXY_FENCE = 34
    MBARRIER_READ = 35
    WAIT_PARITY = 36


# --- a launch ---------------------------------------------------------------------------------


class ParameterFacts(ctypes.Structure):
    """A parameter of a kernel, which the kernel's library exports."""

    _fields_ = (("kind", ctypes.c_char), ("size_bytes", ctypes.c_uint32))


class Extents(ctypes.Structure):
    """Numbers of threads, blocks or clusters."""

    _fields_ = tuple((axis, ctypes.c_uint32) for axis in "xyz")

    @property
    def sides(self) -> tuple[int, int, int]:
        """The numbers along x, y and z."""
        return self.x, self.y, self.z


class Array(ctypes.Structure):
    """An array of the launch."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("may_hold_pointers", ctypes.c_uint64),
    )


class Subscript(ctypes.Structure):
    """Code that accesses memory by a subscript of a pointer parameter, and the array's number."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("array", ctypes.c_uint32),
        ("is_store", ctypes.c_uint32),
    )


class EventLog(ctypes.Structure):
    """The events and roles of a traced launch, allocated by the runtime."""

    _fields_ = (
        ("events", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("roles", ctypes.c_void_p),
        ("role_count", ctypes.c_uint64),
    )


class RuleNote(ctypes.Structure):
    """The violations of a rule in a launch that goes on, and the address of the first."""

    _fields_ = (("count", ctypes.c_uint64), ("address", ctypes.c_uint64))


class RuleNotes(ctypes.Structure):
    """The notes of a launch; ``broken`` has a bit for each rule, and bit 0 for maps in memory."""

    _fields_ = (
        ("broken", ctypes.c_uint64),
        ("is_unsearched", ctypes.c_uint64),
        ("note", RuleNote * len(Rule)),
    )


class HeldWord(ctypes.Structure):
    """A word of global memory."""

    _fields_ = (("address", ctypes.c_uint64), ("word", ctypes.c_uint64))


class UndoLog(ctypes.Structure):
    """The words that a run changes, as they were before it."""

    _fields_ = (
        ("launch", ctypes.c_uint64),
        ("word", ctypes.POINTER(HeldWord)),
        ("words", ctypes.c_uint64),
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
        ("has_wide_maps", ctypes.c_uint32),
        ("sms", ctypes.c_uint32),
        ("searched_words", ctypes.c_uint64),
        ("log", ctypes.POINTER(EventLog)),
        ("written", ctypes.POINTER(ctypes.c_char)),
        ("grid_barrier", ctypes.POINTER(ctypes.c_uint32)),
        ("fresh", ctypes.c_char_p),
        ("tolerated", ctypes.c_uint64),
        ("notes", ctypes.POINTER(RuleNotes)),
        ("subscripts", ctypes.c_uint64),
        ("subscript", ctypes.POINTER(Subscript)),
        ("interleaving", ctypes.POINTER(Interleaving)),
        ("undo", ctypes.POINTER(UndoLog)),
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
        ("runs_handlers", ctypes.c_uint32),
        ("stops_at_interrupt", ctypes.c_uint32),
    )


# --- the report of a failed launch ------------------------------------------------------------

_ROLE_BYTES = 40


def text_of(raw: bytes) -> str:
    """Return a text of the runtime, or a part of one, on one line."""
    return raw.decode(errors="replace").replace("\n", " ")


def _listed(first: Any, count: int) -> list[Any]:
    return first[:count] if count else []


class Mention(ctypes.Structure):
    """A fact of a fault."""

    _fields_ = (("value", ctypes.c_uint64), ("kind", ctypes.c_uint32))


class Numbers(ctypes.Structure):
    """A list of numbers."""

    _fields_ = (("first", ctypes.POINTER(ctypes.c_uint32)), ("count", ctypes.c_uint64))

    def listed(self) -> list[int]:
        """Return the numbers."""
        return _listed(self.first, self.count)


class WarpReport(ctypes.Structure):
    """A warp of the failed cluster."""

    _fields_ = (
        ("block", Extents),
        ("warp", ctypes.c_uint32),
        ("has_ended", ctypes.c_uint32),
        ("role", ctypes.c_char * _ROLE_BYTES),
    )


class BarrierReport(ctypes.Structure):
    """An mbarrier of the failed cluster, and the warps that arrived and waited."""

    _fields_ = (
        ("block", Extents),
        ("offset", ctypes.c_uint32),
        ("count", ctypes.c_uint32),
        ("arriving_threads", ctypes.c_uint32),
        ("phase", ctypes.c_uint64),
        ("arrived", Numbers),
        ("arrivers", Numbers),
        ("waited", Numbers),
    )


class MbarrierWait(ctypes.Structure):
    """The mbarrier of a wait, in its current phase."""

    _fields_ = (
        ("block", Extents),
        ("offset", ctypes.c_uint32),
        ("phase", ctypes.c_uint64),
        ("missing_bytes", ctypes.c_int64),
        ("expected_bytes", ctypes.c_int64),
        ("missing_arrivals", ctypes.c_uint32),
        ("landings", Numbers),
        ("initialised_at", ctypes.c_uint64),
        ("observed", ctypes.c_uint64),
    )


class NamedBarrierWait(ctypes.Structure):
    """The named barrier of a wait."""

    _fields_ = (("number", ctypes.c_uint32), ("missing_arrivals", ctypes.c_uint32))


class SignalWait(ctypes.Structure):
    """The signal of a wait, and the epoch that it has."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("rank", "number", "epoch", "seen"))


class WaitReport(ctypes.Structure):
    """Threads of one block that wait for the same thing."""

    _fields_ = (
        ("launch", ctypes.c_uint32),
        ("block", Extents),
        ("instruction", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("threads", Numbers),
        ("polled", ctypes.c_uint64),
        ("is_polling", ctypes.c_uint8),
        ("polled_space", ctypes.c_uint8),
        ("kind", ctypes.c_uint8),
        ("activity", ctypes.c_uint8),
        ("role", ctypes.c_char * _ROLE_BYTES),
        ("mbarrier", MbarrierWait),
        ("named", NamedBarrierWait),
        ("signal", SignalWait),
    )


class AccessReport(ctypes.Structure):
    """One of two racing accesses."""

    _fields_ = (
        ("launch", ctypes.c_uint32),
        ("block", Extents),
        ("thread", ctypes.c_uint32),
        ("barrier", ctypes.c_uint32),
        ("address", ctypes.c_uint64),
        ("operation", ctypes.c_uint8),
        ("is_write", ctypes.c_uint8),
        ("bytes", ctypes.c_uint8),
        ("role", ctypes.c_char * _ROLE_BYTES),
    )


class RaceReport(ctypes.Structure):
    """A race."""

    _fields_ = (
        ("start", ctypes.c_uint64),
        ("facts", ctypes.c_uint32),
        ("space", ctypes.c_uint8),
        ("first", AccessReport),
        ("second", AccessReport),
    )


class Report(ctypes.Structure):
    """The report of a failed launch; `interpreter.taken_report` frees it."""

    _fields_ = (
        ("kind", ctypes.c_uint8),
        ("rule", ctypes.c_uint8),
        ("is_endless", ctypes.c_uint8),
        ("has_thread", ctypes.c_uint8),
        ("launch", ctypes.c_uint32),
        ("block", Extents),
        ("thread", ctypes.c_uint32),
        ("role", ctypes.c_char * _ROLE_BYTES),
        ("address", ctypes.c_uint64),
        ("callers", ctypes.c_uint64),
        ("caller", ctypes.POINTER(ctypes.c_uint64)),
        ("fault", ctypes.c_uint32),
        ("mentions", ctypes.c_uint64),
        ("mention", ctypes.POINTER(Mention)),
        ("texts", ctypes.c_void_p),
        ("waits", ctypes.c_uint64),
        ("wait", ctypes.POINTER(WaitReport)),
        ("warps", ctypes.c_uint64),
        ("warp", ctypes.POINTER(WarpReport)),
        ("barriers", ctypes.c_uint64),
        ("barrier", ctypes.POINTER(BarrierReport)),
        ("resident", ctypes.c_uint64),
        ("grid", ctypes.c_uint64),
        ("race", RaceReport),
    )

    def all_callers(self) -> list[int]:
        """Return the addresses of the callers, innermost first."""
        return _listed(self.caller, self.callers)

    def all_mentions(self) -> list[Mention]:
        """Return the facts of a fault, in the order of its sentence."""
        return _listed(self.mention, self.mentions)

    def all_waits(self) -> list[WaitReport]:
        """Return the waits; the failed cluster's come first."""
        return _listed(self.wait, self.waits)

    def all_warps(self) -> list[WarpReport]:
        """Return the warps, by their number in the cluster."""
        return _listed(self.warp, self.warps)

    def all_barriers(self) -> list[BarrierReport]:
        """Return the mbarriers of the cluster."""
        return _listed(self.barrier, self.barriers)
