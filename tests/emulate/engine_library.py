"""The emulator's TMA engine through its C functions, and aligned memory to call them with."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import arrays_in_memory
import numpy as np
import numpy.typing as npt
from emulate import tma_oracle as oracle

from tmaasync.emulate.abi import Mention, MentionKind
from tmaasync.emulate.include_path import DEVICE_DIR, EMULATOR_DIR
from tmaasync.emulate.report.faults import written
from tmaasync.modes import ReduceOp
from tmaasync.tensormap import Im2colSpec, TensorMapSpec

INCLUDE = EMULATOR_DIR / "runtime"
FLAGS = ("-std=c++20", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", f"-I{DEVICE_DIR}")

Spec = TensorMapSpec | Im2colSpec
Bytes = npt.NDArray[np.uint8]


# --- the library --------------------------------------------------------------------------------


class Access(ctypes.Structure):
    _fields_ = (
        ("start", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("is_global", ctypes.c_uint32),
        ("is_write", ctypes.c_uint32),
    )


class Observer(ctypes.Structure):
    _fields_ = (
        ("array_start", ctypes.c_uint64),
        ("array_bytes", ctypes.c_uint64),
        ("accesses", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("log", Access * 4096),
    )

    @classmethod
    def of(cls, start: int, size: int) -> Observer:
        """Return an observer that knows a single array."""
        return cls(start, size, 0, 0)

    def bytes_seen(self, *, is_global: bool, is_write: bool) -> list[int]:
        """Return every byte reported, as often as it was reported."""
        assert self.accesses <= 4096
        return [
            byte
            for one in itertools.islice(self.log, self.accesses)
            if (bool(one.is_global), bool(one.is_write)) == (is_global, is_write)
            for byte in range(one.start, one.start + one.bytes)
        ]


class FaultError(Exception):
    """The reason of a C++ ``Fault``."""


class Faulted(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("mentions", ctypes.c_uint64),
        ("mention", ctypes.POINTER(Mention)),
        ("texts", ctypes.c_void_p),
    )


class Engine:
    """The library with Python's arguments: coordinates innermost first, as on the device."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.tma_reason.restype = Faulted

    def call(self, name: str, *arguments: Any) -> int:
        function = getattr(self.library, f"tma_{name}")
        function.restype = ctypes.c_int64
        result: int = function(*map(_as_c, arguments))
        if result < 0:
            reason = self.library.tma_reason()
            facts = iter(reason.mention[: reason.mentions])
            raise FaultError(written(reason.kind, facts, reason.texts, _unnamed))
        return result

    def decode(self, descriptor: Bytes) -> list[int]:
        numbers = np.zeros(64, np.int64)
        count = self.call("decode", descriptor, numbers)
        return [*map(int, numbers[:count])]


def _unnamed(kind: MentionKind, value: int) -> str:
    assert kind == MentionKind.HEXADECIMAL
    return f"{value:#x}"


def _as_c(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, Observer):
        return ctypes.byref(argument)
    if isinstance(argument, ctypes.c_void_p):
        return argument
    return ctypes.c_int(argument)


# --- memory -------------------------------------------------------------------------------------


def aligned(size: int, alignment: int = 1024) -> Bytes:
    found: Bytes = arrays_in_memory.aligned(size, np.uint8, alignment=alignment)
    return found


def random_bytes(size: int, seed: int) -> Bytes:
    buffer = aligned(size)
    buffer[:] = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return buffer


def descriptor_of(spec: Spec) -> Bytes:
    buffer = aligned(128)
    buffer[:] = np.frombuffer(spec.encode(), np.uint8)
    return buffer


def device_order(start: Sequence[int]) -> npt.NDArray[np.int32]:
    """Return coordinates innermost first, from outermost first."""
    return np.array(start[::-1], np.int32)


# --- copies -------------------------------------------------------------------------------------


@dataclass
class Copy:
    """One instruction and the memory around it."""

    spec: Any
    start: tuple[int, ...]  # outermost first
    memory: Bytes
    shared: Bytes
    shared_offset: int
    offsets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.spec = replace(self.spec, address=self.memory.ctypes.data)
        self.observer = Observer.of(self.memory.ctypes.data, self.memory.size)

    def run(self, engine: Engine, name: str, *leading: Any) -> int:
        offsets = (np.array(self.offsets[::-1], np.uint16),) if self.offsets else ()
        return engine.call(
            name,
            *leading,
            descriptor_of(self.spec),
            device_order(self.start),
            *offsets,
            self.shared,
            self.shared_offset,
            self.observer,
        )

    def places(self) -> Iterator[oracle.Place]:
        if isinstance(self.spec, Im2colSpec):
            return oracle.column_places(self.spec, self.start, self.offsets)
        return oracle.box_places(self.spec, self.start)

    def loaded(self) -> Bytes:
        base = self.memory.ctypes.data
        places = self.places()
        return oracle.load(self.spec, places, self.memory, base, self.shared, self.shared_offset)

    def stored(self, op: ReduceOp | None = None) -> Bytes:
        return oracle.store(
            self.spec,
            self.start,
            self.memory,
            self.memory.ctypes.data,
            self.shared,
            self.shared_offset,
            op,
        )


def footprint_bytes(spec: Spec) -> int:
    """Return the bytes of whole sectors from the first element to the last."""
    row = -(-spec.shape[-1] * spec.dtype.itemsize // 16) * 16
    steps = zip(spec.shape, spec.strides_bytes, strict=False)
    return row + sum((extent - 1) * stride for extent, stride in steps)


def copy_of(spec: Spec, start: tuple[int, ...], seed: int = 0, **changes: Any) -> Copy:
    shared_offset = changes.pop("shared_offset", 0)
    rows = spec.box_bytes // (spec.box_shape_moved[-1] * spec.dtype.itemsize)
    room = shared_offset + max(spec.box_bytes, rows * spec.swizzle.span_bytes)
    shared = random_bytes(-(-room // 1024) * 1024, seed + 1)
    memory = random_bytes(footprint_bytes(spec), seed)
    return Copy(spec, start, memory, shared, shared_offset, **changes)
