"""The declarations that Python shares with the emulator's runtime: structs, enums and numbers.

Structs have the fields, and rules the names, of runtime/abi.hpp, which is read here. Other enums
and numbers stand in both. tests/emulate/test_abi.py compares all with what a compiler says.
Events and roles of traces are in `tmaasync.trace`.
"""

from __future__ import annotations

import ctypes
import enum
import re
from typing import Any

from tmaasync.emulate.include_path import DEVICE_DIR, EMULATOR_DIR

STATIC_ALIGNMENT = 1024
"""Static shared variables lie after the dynamic shared memory, at a multiple of these bytes."""

ADDRESS_BITS = 48
"""Of the address in a fact of the kind ``OUTSIDE_ARRAY``; the array's number lies above."""

MOST_PAIRS = 4096
"""The unordered pairs that a run lists."""

NAMED = 1 << 31
"""A named barrier's number lies below this bit of a `SyncEvent`'s barrier."""


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


# --- structs ----------------------------------------------------------------------------------

_ROLE_BYTES = 40
_HEADERS = (
    EMULATOR_DIR / "runtime" / "abi.hpp",
    DEVICE_DIR / "tmaasync_emulate" / "fault.hpp",
    DEVICE_DIR / "tmaasync_emulate" / "calls.hpp",
)
_CODE = re.sub(r" *//.*", "", "".join(one.read_text(encoding="utf-8") for one in _HEADERS))
_ENUM = re.compile(r"^enum class (\w+) : (\w+)", re.MULTILINE)
_STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(
    r"^ {4}(?P<type>\w[\w *]*[ *])(?P<name>\w+)(?:\[(?P<count>\w+)\])?(?: = \w+)?;"
    r"|^ {4}\w+\*? \(\*(?P<function>\w+)\)\(",
    re.MULTILINE,
)
_BODIES = dict(_STRUCT.findall(_CODE))
_RULES = re.findall(r"k(\w+)", _CODE.partition("enum class Rule : uint8_t {")[2].partition("}")[0])
_COUNTS = {"kRoleBytes": _ROLE_BYTES, "kRules": len(_RULES)}
_TYPES: dict[str, Any] = {
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "uintptr_t": ctypes.c_uint64,
    "int64_t": ctypes.c_int64,
    **{f"uint{bits}_t": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
    "const char*": ctypes.c_char_p,
    "const uint8_t*": ctypes.c_char_p,
    "uint8_t*": ctypes.POINTER(ctypes.c_char),
}
_TYPES |= {name: _TYPES[held] for name, held in _ENUM.findall(_CODE)}


def _read(struct: type[Any]) -> type[Any]:
    """Give a class the fields of the headers' struct of the same name."""
    struct._fields_ = tuple(map(_field, _FIELD.finditer(_BODIES[struct.__name__])))
    _TYPES[struct.__name__] = struct
    return struct


def _field(found: re.Match[str]) -> tuple[str, Any]:
    """Return a field; functions, and pointers to what Python does not read, are addresses."""
    if found["function"]:
        return found["function"], ctypes.c_void_p
    written = found["type"].strip()
    kind = _TYPES.get(written)
    if kind is None:
        pointed = _TYPES.get(written.removeprefix("const ").removesuffix("*"))
        kind = ctypes.c_void_p if pointed is None else ctypes.POINTER(pointed)
    return found["name"], kind * _COUNTS[found["count"]] if found["count"] else kind


RULE_NAMES = tuple(re.sub(r"\B(?=[A-Z])", "-", name).lower() for name in _RULES)
"""The rules that a user may relax, by number; the first is none."""


@_read
class ParameterFacts(ctypes.Structure):
    """A parameter of a kernel, which the kernel's library exports."""


@_read
class Extents(ctypes.Structure):
    """Numbers of threads, blocks or clusters."""

    @property
    def sides(self) -> tuple[int, int, int]:
        """The numbers along x, y and z."""
        return self.x, self.y, self.z


@_read
class Array(ctypes.Structure):
    """An array of the launch."""


@_read
class Subscript(ctypes.Structure):
    """Code that accesses memory by a subscript of a pointer parameter, and the array's number."""


@_read
class EventLog(ctypes.Structure):
    """The events and roles of a traced launch, allocated by the runtime."""


@_read
class RuleNote(ctypes.Structure):
    """The violations of a rule in a launch that goes on, and the address of the first."""


@_read
class RuleNotes(ctypes.Structure):
    """The notes of a launch; ``broken`` has a bit for each rule, and bit 0 for maps in memory."""


@_read
class SyncEvent(ctypes.Structure):
    """An event that synchronises threads."""


@_read
class UnorderedPair(ctypes.Structure):
    """Two events whose order another interleaving may reverse."""


@_read
class Hold(ctypes.Structure):
    """An event that waits until another one has happened."""


@_read
class Interleaving(ctypes.Structure):
    """The order of one run of a verified launch."""


@_read
class HeldWord(ctypes.Structure):
    """A word of global memory."""


@_read
class HeldBlock(ctypes.Structure):
    """A block of the kernels' heap."""


@_read
class UndoLog(ctypes.Structure):
    """The words and blocks that a run changes, as they were before it."""


@_read
class LaunchNumbers(ctypes.Structure):
    """The parameters of a launch."""


@_read
class DeviceLaunch(ctypes.Structure):
    """One of the launches that run together."""


@_read
class Interpreter(ctypes.Structure):
    """Functions of Python's C API."""


# --- the report of a failed launch ------------------------------------------------------------


def text_of(raw: bytes) -> str:
    """Return a text of the runtime, or a part of one, on one line."""
    return raw.decode(errors="replace").replace("\n", " ")


def _listed(first: Any, count: int) -> list[Any]:
    return first[:count] if count else []


@_read
class Mention(ctypes.Structure):
    """A fact of a fault."""


@_read
class Numbers(ctypes.Structure):
    """A list of numbers."""

    def listed(self) -> list[int]:
        """Return the numbers."""
        return _listed(self.first, self.count)


@_read
class WarpReport(ctypes.Structure):
    """A warp of the failed cluster."""


@_read
class BarrierReport(ctypes.Structure):
    """An mbarrier of the failed cluster, and the warps that arrived and waited."""


@_read
class MbarrierWait(ctypes.Structure):
    """The mbarrier of a wait, in its current phase."""


@_read
class NamedBarrierWait(ctypes.Structure):
    """The named barrier of a wait."""


@_read
class SignalWait(ctypes.Structure):
    """The signal of a wait, and the epoch that it has."""


@_read
class WaitReport(ctypes.Structure):
    """Threads of one block that wait for the same thing."""


@_read
class AccessReport(ctypes.Structure):
    """One of two racing accesses."""


@_read
class RaceReport(ctypes.Structure):
    """A race."""


@_read
class Report(ctypes.Structure):
    """The report of a failed launch; `interpreter.taken_report` frees it."""

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
