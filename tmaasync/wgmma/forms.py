"""Forms of ``wgmma.mma_async``: types of operands and accumulators, shapes, and modifiers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tmaasync._elements import Element, element
from tmaasync._hardware import WARPGROUP_THREADS
from tmaasync._kinds import check_integers, shown
from tmaasync.errors import ArgumentError, Violation

INSTRUCTION_M = 64
"""Rows of A and of the accumulators of one instruction, 16 for each warp."""

INSTRUCTION_K_BYTES = 32
"""Depth of one instruction, in bytes of a row of either operand."""

_REGISTER_BYTES = 4
_FLOAT_COLUMNS = tuple(range(8, 257, 8))
_INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))

_PTX = {
    "float16": "f16",
    "bfloat16": "bf16",
    "tfloat32": "tf32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int8": "s8",
    "uint8": "u8",
    "float32": "f32",
    "int32": "s32",
}
_OPERANDS = ("float16", "bfloat16", "tfloat32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8")
_MIXED = (("float8_e4m3fn", "float8_e5m2"), ("int8", "uint8"))
_ACCUMULATORS = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32",),
    "tfloat32": ("float32",),
    "float8_e4m3fn": ("float32", "float16"),
    "float8_e5m2": ("float32", "float16"),
    "int8": ("int32",),
    "uint8": ("int32",),
}


@dataclass(frozen=True, slots=True)
class MmaForm:
    """One form of MMA: 64 rows of A, K deep, times N columns of B, added to accumulators.

    Args:
        a: Element type of A, by NumPy's name.
        b: Element type of B.
        accumulator: Type of the accumulators: float32, float16 or int32.
    """

    a: str
    b: str
    accumulator: str

    def __str__(self) -> str:
        return f"{self.accumulator} += {self.a} x {self.b}"

    @property
    def ptx_types(self) -> str:
        """The type suffix of the instruction.

        >>> mma_form("float8_e4m3fn", "float8_e5m2").ptx_types
        'f32.e4m3.e5m2'
        """
        return ".".join(_PTX[name] for name in (self.accumulator, self.a, self.b))

    @property
    def itemsize(self) -> int:
        """Bytes of an element of either operand."""
        return element(self.a).itemsize

    @property
    def k(self) -> int:
        """Elements along K of one instruction: always 32 bytes of them."""
        return INSTRUCTION_K_BYTES // self.itemsize

    @property
    def columns(self) -> tuple[int, ...]:
        """Every N that an instruction may have."""
        return _INTEGER_COLUMNS if self.accumulator == "int32" else _FLOAT_COLUMNS

    @property
    def has_scales(self) -> bool:
        """True if either operand may be negated (imm-scale-a, imm-scale-b)."""
        return self.accumulator != "int32"

    @property
    def has_transposes(self) -> bool:
        """True if M of A, or N of B, may be the contiguous side in shared memory."""
        return self.itemsize == 2

    def registers(self, n: int) -> int:
        """Return the 32-bit accumulator registers of a thread for 64 rows and ``n`` columns.

        >>> [MmaForm("float16", "float16", kind).registers(256) for kind in ("float32", "float16")]
        [128, 64]
        """
        check_integers(n=n)
        itemsize = element(self.accumulator).itemsize
        return INSTRUCTION_M * n * itemsize // _REGISTER_BYTES // WARPGROUP_THREADS

    def instruction(self, n: int) -> str:
        """Return the instruction's name with shape and types.

        >>> mma_form("bfloat16").instruction(128)
        'wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16'
        """
        check_integers(n=n)
        return f"wgmma.mma_async.sync.aligned.m{INSTRUCTION_M}n{n}k{self.k}.{self.ptx_types}"

    def check_columns(self, n: int, argument: str = "n") -> None:
        """Refuse an N that no instruction has.

        Raises:
            ArgumentError: Naming the legal neighbours.
        """
        check_integers(**{argument: n})
        if n in self.columns:
            return
        near = sorted(self.columns, key=lambda legal: (abs(legal - n), legal))[:2]
        raise ArgumentError.broken(
            argument,
            n,
            f"one instruction with {self.accumulator} accumulators has 8 to 256 columns, in "
            f"steps of {_steps(self)}",
            f"Use {' or '.join(map(str, sorted(near)))}, or several instructions",
        )


def not_a_form(form: object) -> list[Violation]:
    """Return the violation of an argument that is no `MmaForm`."""
    if isinstance(form, MmaForm):
        return []
    return [Violation("form", shown(form), "it must be an MmaForm", "Pass mma_form('bf16')")]


def _steps(form: MmaForm) -> str:
    return "8 up to 32 and of 16 from there" if form.accumulator == "int32" else "8"


def _all_forms() -> tuple[MmaForm, ...]:
    pairs = [(name, name) for name in ("float16", "bfloat16", "tfloat32")]
    pairs += [pair for types in _MIXED for pair in itertools.product(types, types)]
    return tuple(MmaForm(a, b, kind) for a, b in pairs for kind in _ACCUMULATORS[a])


MMA_FORMS = _all_forms()
"""Every form of ``wgmma`` of sm_90a, without the sparse and the binary ones."""


def operand_element(dtype: object, argument: str) -> Element:
    """Return the type as which the tensor cores multiply this dtype; float32 as TF32.

    Raises:
        ArgumentError: The tensor cores do not multiply it.
        ArrayTypeError: It names no element type.
    """
    found = element(dtype, argument=argument)
    name = "tfloat32" if found.name in ("float32", "tfloat32_ftz", "float32_ftz") else found.name
    if name not in _OPERANDS:
        raise ArgumentError.broken(
            argument,
            found,
            f"wgmma multiplies {', '.join(_OPERANDS)}",
            "Convert the operand to one of them",
        )
    return element(name)


def mma_form(a: object, b: object = None, accumulator: object = None) -> MmaForm:
    """Return the form for these types.

    Args:
        a: Element type of A, anything that `create_tma_tile` takes as a dtype. float32 is
            multiplied as TF32: the low 13 bits of each element are ignored.
        b: Element type of B; by default A's.
        accumulator: Type of the accumulators; by default the widest there is.

    Raises:
        ArgumentError: The tensor cores do not multiply these types.

    >>> str(mma_form("int8", "uint8"))
    'int32 += int8 x uint8'
    """
    left = operand_element(a, "a").name
    right = left if b is None else operand_element(b, "b").name
    if left != right and not any({left, right} <= set(types) for types in _MIXED):
        raise ArgumentError.broken(
            "a",
            f"{left} and b is {right}",
            ("wgmma mixes float8_e4m3fn with float8_e5m2 and int8 with uint8, and no other types"),
            "Convert one of them to the type of the other",
        )
    kind = (
        _ACCUMULATORS[left][0]
        if accumulator is None
        else element(accumulator, argument="accumulator").name
    )
    if kind not in _ACCUMULATORS[left]:
        raise ArgumentError.broken(
            "accumulator",
            kind,
            f"{left} accumulates in {' or '.join(_ACCUMULATORS[left])}",
            "Use one of these and convert the result",
        )
    return MmaForm(left, right, kind)


def instruction_n(columns: int, form: MmaForm | None = None, *, panel: int = 8) -> int:
    """Return the widest N with which whole instructions cover ``columns``.

    Args:
        columns: Columns of the tile of one warpgroup, a multiple of 8.
        form: The form; by default one with floating-point accumulators.
        panel: Columns of a swizzled row, where B lies with N contiguous: every instruction then
            starts with a panel or lies inside one.

    Raises:
        ArgumentError: No legal N divides the columns.

    >>> [instruction_n(columns) for columns in (96, 160, 384, 512, 264)]
    [96, 160, 192, 256, 88]
    >>> instruction_n(384, panel=64), instruction_n(272, panel=64), instruction_n(272)
    (192, 16, 136)
    """
    check_integers(columns=columns, panel=panel)
    form = MMA_FORMS[0] if form is None else form
    ArgumentError.raise_for(not_a_form(form))
    if panel < 8 or panel % 8:
        rule, remedy = (
            "a swizzled row has a multiple of 8 columns",
            "Use 64 for 16-bit types and 128B",
        )
        raise ArgumentError.broken("panel", panel, rule, remedy)
    fits = [
        n
        for n in form.columns
        if columns > 0 and columns % n == 0 and (n == columns or n % panel == 0 or panel % n == 0)
    ]
    if not fits:
        raise ArgumentError.broken(
            "columns",
            columns,
            "an instruction has a multiple of 8 columns",
            f"Round up to {max(-(-columns // 8) * 8, 8)} and let TMA fill the rest with zeros",
        )
    return max(fits)
