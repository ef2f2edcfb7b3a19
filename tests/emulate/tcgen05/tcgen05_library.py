"""The runtime's tcgen05 parts through C functions, and the numbers of its enumerations."""

from __future__ import annotations

import ctypes
import enum
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tmaasync.emulate import toolchain
from tmaasync.emulate.abi import Mention, MentionKind
from tmaasync.emulate.include_path import EMULATOR_DIR, OWN_FOLDERS, toolkit_folders
from tmaasync.emulate.report.faults import written

Codes = npt.NDArray[np.unsignedinteger[Any]]

KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
TYPES = ("f16", "bf16", "tf32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "u8", "s8")
SUMS = ("f32", "f16", "s32")
CODE_BITS = dict(zip(TYPES, (16, 16, 32, 8, 8, 6, 6, 4, 8, 8), strict=True))
TYPE_CODES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "i8": {"u8": 0, "s8": 1},
    "mxf4": {"e2m1": 1},
}
TYPE_CODES |= {"mxf8f6f4": TYPE_CODES["f8f6f4"], "mxf4nvf4": TYPE_CODES["mxf4"]}
SUM_CODES = {"f16": 0, "f32": 1, "s32": 2}


def code_dtype(kind: str) -> np.dtype[np.unsignedinteger[Any]]:
    return np.dtype(f"u{max(CODE_BITS[kind], 8) // 8}")


class Form(ctypes.Structure):
    """``Tcgen05Form``: what the mnemonic says."""

    _fields_ = tuple(
        (name, ctypes.c_uint8)
        for name in (
            "kind",
            "ctas",
            "is_sparse",
            "is_ws",
            "scale_vector",
            "a_in_tensor_memory",
            "is_sm_103",
        )
    )


def form(kind: str, **facts: int) -> Form:
    return Form(**{"kind": KINDS.index(kind), "ctas": 1, **facts})


class Scales(enum.IntEnum):
    """Bit 23 of the instruction descriptor of block-scaled kinds."""

    UE4M3 = 0
    UE8M0 = 1


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """A tcgen05.mma: its mnemonic and what its descriptor says."""

    kind: str
    a: str
    b: str
    d: str = "f32"
    m: int = 128
    n: int = 32
    negates: tuple[bool, bool] = (False, False)
    transposes: tuple[bool, bool] = (False, False)
    saturates: bool = False
    scales: Scales = Scales.UE8M0
    ids: tuple[int, int] = (0, 0)
    deep: bool = False  # K = 96
    facts: dict[str, int] = field(default_factory=dict)

    @property
    def form(self) -> Form:
        return form(self.kind, **self.facts)

    @property
    def is_scaled(self) -> bool:
        return self.kind.startswith("mx")

    @property
    def is_sparse(self) -> bool:
        return bool(self.facts.get("is_sparse"))

    @property
    def k(self) -> int:
        if self.deep:
            return 96
        dense = {"f16": 16, "tf32": 8, "mxf4": 64, "mxf4nvf4": 64}.get(self.kind, 32)
        return dense * (1 + self.is_sparse)

    @property
    def stored_k(self) -> int:
        return self.k // (1 + self.is_sparse)

    @property
    def scale_count(self) -> int:
        vector = self.facts.get("scale_vector", 0)
        return vector * 3 // 2 if self.deep else vector

    @property
    def bits(self) -> int:
        codes = TYPE_CODES[self.kind]
        word = int(self.is_sparse) << 2 | codes[self.a] << 7 | codes[self.b] << 10
        word |= self.negates[0] << 13 | self.negates[1] << 14
        word |= self.transposes[0] << 15 | self.transposes[1] << 16
        word |= (self.n // 8) << 17 | (self.m // 16) << 24
        if self.is_scaled:
            word |= self.ids[1] << 4 | self.ids[0] << 29 | self.scales << 23 | self.deep << 31
            return word
        return word | SUM_CODES[self.d] << 4 | self.saturates << 3


@dataclass(kw_only=True)
class Operands:
    """Codes of A and B, scale factors, indices of sparse A, and words of D."""

    a: Codes  # [M, stored K]
    b: Codes  # [N, K]
    d: Codes  # [M, N]
    a_scales: Codes | None = None  # [M, scales]
    b_scales: Codes | None = None
    indices: Codes | None = None  # [M, stored K]
    accumulates: bool = True
    scale_input_d: int = 0


def refusal_of(library: ctypes.CDLL) -> str:
    reason = library.tcgen05_reason()
    facts: Iterator[Mention] = iter(reason.mention[: reason.mentions])
    return written(reason.kind, facts, reason.texts, _unnamed)


def _unnamed(kind: MentionKind, value: int) -> str:
    assert kind == MentionKind.HEXADECIMAL
    return f"{value:#x}"


class _Faulted(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("mentions", ctypes.c_uint64),
        ("mention", ctypes.POINTER(Mention)),
        ("texts", ctypes.c_void_p),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """Return the library, compiled as the emulator compiles its runtime."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler: none of c++, g++, clang++ is on the path")
    folders = (EMULATOR_DIR / "runtime", *OWN_FOLDERS, *toolkit_folders())
    target = Path(tempfile.mkdtemp()) / "tcgen05.so"
    built = subprocess.run(
        [
            compiler,
            *toolchain.flags(is_kernel=False),
            *(f"-I{folder}" for folder in folders),
            "-fvisibility=default",
            "-shared",
            str(Path(__file__).with_name("abi.cpp")),
            "-o",
            str(target),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    loaded = ctypes.CDLL(str(target))
    loaded.tcgen05_reason.restype = _Faulted
    return loaded


def multiply(instruction: Instruction, operands: Operands, *, slowly: bool = False) -> Codes:
    """Return D's words, [M, N]."""
    result = np.ascontiguousarray(operands.d, np.uint32).copy()
    held = [
        None if array is None else np.ascontiguousarray(array)
        for array in (
            operands.a,
            operands.b,
            operands.a_scales,
            operands.b_scales,
            operands.indices,
        )
    ]
    library().tcgen05_multiply(
        ctypes.c_uint32(instruction.bits),
        instruction.form,
        *(None if array is None else ctypes.c_void_p(array.ctypes.data) for array in held),
        ctypes.c_uint32(operands.accumulates),
        ctypes.c_uint32(operands.scale_input_d),
        ctypes.c_void_p(result.ctypes.data),
        ctypes.c_uint32(instruction.n),
        ctypes.c_uint32(slowly),
        ctypes.c_uint32(1),
    )
    return result
