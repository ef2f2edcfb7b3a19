"""Cases of one wgmma instruction: types, shape, layouts; the kernels that run them, the oracle."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import Kernel, Swizzle
from tmaasync._elements import element
from tmaasync.tile import create_tensor_tile
from tmaasync.wgmma import MMA_FORMS, MmaForm

Array = np.ndarray[Any, Any]

SOURCE = Path(__file__).with_name("wgmma_matmuls.cu")
SWIZZLES = (Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128)
DEPTH_BYTES = 256  # two panels of the widest swizzle

_CUDA_TYPES = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "tfloat32": "float",
    "float8_e4m3fn": "float8_e4m3",
    "float8_e5m2": "float8_e5m2",
    "int8": "signed char",
    "uint8": "unsigned char",
}
_REGISTERS = {"float32": "float", "float16": "u32", "int32": "int"}
_SWIZZLE_NAMES = {
    Swizzle.NONE: "kNone",
    Swizzle.B32: "k32B",
    Swizzle.B64: "k64B",
    Swizzle.B128: "k128B",
}
CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.float32}


@dataclass(frozen=True)
class Case:
    """One instruction, and the buffers that it reads a part of."""

    form: MmaForm
    columns: int
    swizzle: Swizzle
    a_is_k_major: bool
    b_is_k_major: bool
    a_in_registers: bool
    scale_a: int
    scale_b: int

    @property
    def depth(self) -> int:
        return DEPTH_BYTES // self.form.itemsize

    @property
    def panel(self) -> int:
        return self.swizzle.span_bytes // self.form.itemsize

    @property
    def first_a(self) -> int:
        return 8 if self.a_is_k_major else self.panel

    @property
    def extent_a(self) -> int:
        return self.first_a + 64

    @property
    def first_b(self) -> int:
        """Somewhere inside the buffer: at any 8 rows; inside a panel, or where the next starts."""
        if self.b_is_k_major:
            return 8 if self.columns <= 248 else 0
        return 8 if self.columns + 8 <= self.panel else self.panel

    @property
    def extent_b(self) -> int:
        multiple = 8 if self.b_is_k_major else self.panel
        return -(-(self.first_b + self.columns) // multiple) * multiple

    @property
    def cuda_type(self) -> str:
        majors = (self.a_is_k_major, self.b_is_k_major)
        return "Case<{}>".format(
            ", ".join(
                (
                    _CUDA_TYPES[self.form.a],
                    _CUDA_TYPES[self.form.b],
                    _REGISTERS[self.form.accumulator],
                    str(self.columns),
                    f"Swizzle::{_SWIZZLE_NAMES[self.swizzle]}",
                    *("Major::kK" if is_k_major else "Major::kMN" for is_k_major in majors),
                    "true" if self.a_in_registers else "false",
                    *map(str, (self.scale_a, self.scale_b, self.extent_a, self.extent_b)),
                    *map(str, (self.first_a, self.first_b, self.depth)),
                )
            )
        )

    @property
    def sums_dtype(self) -> Any:
        return np.int32 if self.form.accumulator == "int32" else np.float32


def arrangements(form: MmaForm) -> tuple[tuple[bool, bool, bool], ...]:
    """Which of A and B is K-major, and whether A comes from registers."""
    if not form.has_transposes:
        return (True, True, False), (True, True, True)
    bits = (True, False)
    # A in registers is loaded from either layout.
    return tuple((a, b, in_registers) for in_registers in bits for a in bits for b in bits)


def case(form: MmaForm, columns: int, swizzle: Swizzle, arrangement: int) -> Case:
    """The scales go through all four pairs as the columns and the arrangements do."""
    turn = columns // 8 + arrangement
    scales = [-1 if form.has_scales and turn >> bit & 1 else 1 for bit in (0, 1)]
    a_is_k_major, b_is_k_major, a_in_registers = arrangements(form)[arrangement]
    return Case(
        form, columns, swizzle, a_is_k_major, b_is_k_major, a_in_registers, scales[0], scales[1]
    )


def every_case(form: MmaForm, swizzle: Swizzle) -> Iterator[Case]:
    for columns, arrangement in itertools.product(form.columns, range(len(arrangements(form)))):
        yield case(form, columns, swizzle, arrangement)


_COLUMNS = (8, 24, 64, 32, 16, 96, 128, 48, 256, 80, 144)
_FLOAT_COLUMNS = (72, 40, 200)  # no integers have these


@functools.cache
def some_cases() -> tuple[Case, ...]:
    """Every form, and of every element size either operand's major side with every swizzle."""
    chosen: list[Case] = []
    for itemsize in (1, 2, 4):
        forms = [form for form in MMA_FORMS if form.itemsize == itemsize]
        # A from registers, from shared memory, and both operands transposed.
        places = (0, 4, 7) if forms[0].has_transposes else (0, 1)
        layouts = list(itertools.product(SWIZZLES, places))
        for number in range(max(len(forms), len(layouts))):
            form = forms[(number + number // len(forms)) % len(forms)]
            columns = _COLUMNS if form.accumulator == "int32" else (*_COLUMNS, *_FLOAT_COLUMNS)
            width = columns[len(chosen) % len(columns)]
            chosen.append(case(form, width, *layouts[number % len(layouts)]))
    return tuple(chosen)


@functools.cache
def value_cases() -> tuple[Case, ...]:
    """Those whose operands hold anything: one or two for every type that is no integer."""
    forms = [form for form in MMA_FORMS if form.a == form.b and form.accumulator != "int32"]
    wide = {1: 256, 2: 128, 4: 64}  # as many columns as K is deep
    return tuple(
        Case(form, wide[form.itemsize], Swizzle.B64, True, True, False, 1, 1) for form in forms
    )


# --- kernels --------------------------------------------------------------------------------------


def entry(name: str, cases: Iterable[Case], *, is_inline: bool) -> str:
    """A kernel of several cases. The CPU's compiler takes them better one by one."""
    calls, functions = "", ""
    for number, one in enumerate(cases):
        called = f"{one.cuda_type}::run"
        if not is_inline:
            functions += f"""
__device__ __noinline__ void {name}_{number}(const Map& a, const Map& b, const Problem& problem) {{
    {called}(a, b, problem);
}}
"""
            called = f"{name}_{number}"
        calls += f"        case {number}: return {called}(a, b, problem);\n"
    return f"""{functions}
extern "C" __global__ void __launch_bounds__(128) {name}(
    const __grid_constant__ Map a, const __grid_constant__ Map b, const void* addends, void* sums,
    u32 accumulates, int which
) {{
    const Problem problem{{addends, sums, accumulates}};
    switch (which) {{
{calls}    }}
}}
"""


@functools.cache
def kernels(groups: tuple[tuple[Case, ...], ...], *, is_inline: bool) -> tuple[Kernel, ...]:
    """One source with an entry for each group of cases."""
    names = [f"multiply_{number}" for number in range(len(groups))]
    entries = (
        entry(name, cases, is_inline=is_inline) for name, cases in zip(names, groups, strict=True)
    )
    text = SOURCE.read_text() + "".join(entries)
    return tuple(Kernel(text, name) for name in names)


@functools.cache
def kernel_of(cases: tuple[Case, ...], *, is_inline: bool) -> Kernel:
    """All these cases in one kernel."""
    return kernels((cases,), is_inline=is_inline)[0]


# --- problems -------------------------------------------------------------------------------------


def numpy_type(name: str) -> np.dtype[Any]:
    return element(name).dtype


def drawn_operand(rng: np.random.Generator, name: str, shape: Sequence[int]) -> Array:
    """Return integers whose matmul every type of accumulator holds exactly."""
    if name in ("int8", "uint8"):
        limits = np.iinfo(name)
        return rng.integers(limits.min, limits.max + 1, shape).astype(name)
    return rng.integers(-2, 3, shape).astype(numpy_type(name))


def drawn_addends(rng: np.random.Generator, one: Case) -> Array:
    if one.sums_dtype is np.int32:  # beyond which they wrap
        return rng.integers(-(2**31), 2**31, (64, one.columns)).astype(np.int32)
    return rng.integers(-99, 100, (64, one.columns)).astype(np.float32)


@dataclass(frozen=True)
class Problem:
    """A case with its numbers: a [extent_a, depth], b [extent_b, depth], addends [64, columns]."""

    case: Case
    a: Array
    b: Array
    addends: Array
    accumulates: bool

    def wanted(self) -> Array:
        """In float64 or int64; integers wrap."""
        one = self.case
        a = self.a[one.first_a : one.first_a + 64].astype(np.float64) * one.scale_a
        b = self.b[one.first_b : one.first_b + one.columns].astype(np.float64) * one.scale_b
        sums = a @ b.T
        if self.accumulates:
            sums = sums + self.addends
        return sums.astype(np.int64).astype(np.int32) if one.sums_dtype is np.int32 else sums

    def run(self, backend: Any, kernel: Kernel, which: int) -> Array:
        one = self.case
        tiles = [
            self._tile(backend, self.a, one.a_is_k_major),
            self._tile(backend, self.b, one.b_is_k_major),
        ]
        sums = backend.array(np.full((64, one.columns), -77, one.sums_dtype))
        arguments = (*tiles, backend.array(self.addends), sums, self.accumulates, which)
        bytes_ = sum(-(-tile.tile_bytes // 1024) * 1024 for tile in tiles) + 1024
        kernel(1, 128, arguments, shared_mem=bytes_)
        return np.asarray(backend.host(sums))

    def _tile(self, backend: Any, operand: Array, is_k_major: bool) -> Any:
        stored = np.ascontiguousarray(operand if is_k_major else operand.T)
        array = backend.array(stored.view(CARRIERS[stored.itemsize]))
        return create_tensor_tile(array, stored.shape, swizzle=self.case.swizzle)


def drawn_problem(one: Case, seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    return Problem(
        one,
        drawn_operand(rng, one.form.a, (one.extent_a, one.depth)),
        drawn_operand(rng, one.form.b, (one.extent_b, one.depth)),
        drawn_addends(rng, one),
        bool(seed % 4),
    )
