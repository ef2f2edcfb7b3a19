"""PTX as a program: scopes, declarations, labels, and instructions with their operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tmaasync.errors import CompileError

__all__ = [
    "UNIQUE",
    "Address",
    "AsmOperand",
    "AsmReference",
    "Immediate",
    "Instruction",
    "Label",
    "Operand",
    "Pair",
    "Program",
    "Register",
    "Sink",
    "Special",
    "Symbol",
    "Unit",
    "Vector",
    "bits_of",
    "refusal",
]

_KINDS = ("b", "u", "s", "f", "bf")
UNIQUE = "\x03"
"""Stands for ``%=`` in the text of a statement."""
_ASM_BITS = {"h": 16, "r": 32, "l": 64, "f": 32, "d": 64, "q": 128}


def bits_of(kind: str) -> int:
    """Return the size of a register or operand of a PTX type.

    >>> bits_of("f16x2"), bits_of("b64"), bits_of("e4m3x2"), bits_of("tf32")
    (32, 64, 16, 32)
    """
    if kind in ("pred", "p"):
        return 1
    if kind.endswith("x2"):
        return (
            32 if kind in ("f16x2", "bf16x2", "u16x2", "s16x2") else 64 if kind == "f32x2" else 16
        )
    if kind == "tf32":
        return 32
    letters = kind.rstrip("0123456789")
    size = kind.removeprefix(letters)
    return int(size) if letters in _KINDS and size in ("8", "16", "32", "64", "128") else 0


@dataclass(frozen=True)
class AsmOperand:
    """``[name] "constraint" (expression)``."""

    name: str
    constraint: str
    expression: str

    @property
    def letter(self) -> str:
        """The kind of register that holds it, as in ``r``."""
        return self.constraint.lstrip("=+&")

    @property
    def is_written(self) -> bool:
        """Whether the operand is an output."""
        return self.constraint[:1] in ("=", "+")

    @property
    def is_read(self) -> bool:
        """Whether the operand is an input, or an output with ``+``."""
        return self.constraint[:1] != "="


class Unit(Protocol):
    """PTX that is translated as a whole: an ``asm`` statement, or the body of a function."""

    @property
    def operands(self) -> Sequence[AsmOperand]:
        """The operands of an ``asm`` statement."""

    @property
    def is_body(self) -> bool:
        """Whether it is a function's body, whose registers wgmma may keep."""

    def refusal(self, line: int, text: str, reason: str) -> CompileError:
        """Return the error of an instruction that cannot be translated."""


@dataclass(frozen=True)
class Register:
    """A register that the text declares, by its unique C++ name."""

    cpp: str
    kind: str


@dataclass(frozen=True)
class AsmReference:
    """``%3``: an operand of the statement."""

    index: int
    letter: str

    @property
    def bits(self) -> int:
        """Its size; 0 for a constant."""
        return _ASM_BITS.get(self.letter, 0)


@dataclass(frozen=True)
class Immediate:
    """A constant: its C++ text as an integer, or the bits of a float of this size."""

    text: str
    float_bits: int = 0


@dataclass(frozen=True)
class Special:
    """A special register, such as ``%laneid``."""

    name: str


@dataclass(frozen=True)
class Sink:
    """``_``: a dropped result."""


@dataclass(frozen=True)
class Not:
    """``!p``: a negated predicate."""

    of: Operand


@dataclass(frozen=True)
class Vector:
    """``{a, b}``: a vector of operands."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``d|p``: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Address:
    """``[base + offset]``, or ``[map, {x, y}]`` with the operands after the map."""

    base: Operand
    offset: Operand | None
    more: tuple[Operand, ...]


@dataclass(frozen=True)
class Symbol:
    """A variable, a parameter or a function of a module, by the C++ for its address."""

    cpp: str


Operand = (
    Register | AsmReference | Immediate | Special | Symbol | Sink | Not | Vector | Pair | Address
)


@dataclass(frozen=True)
class Label:
    """A branch target, by its unique C++ name."""

    cpp: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """``@!guard opcode operands;``. A branch has its target in place of operands."""

    guard: Operand | None
    guard_is_negated: bool
    opcode: str
    operands: tuple[Operand, ...]
    line: int
    text: str
    target: str = ""


@dataclass(frozen=True)
class Program:
    """The instructions and labels of a unit, in order, and its used registers by name and type."""

    steps: tuple[Label | Instruction, ...]
    registers: tuple[tuple[str, str], ...]


def refusal(file: str, line: int, text: str, reason: str) -> CompileError:
    """Return the error of an instruction that cannot be translated."""
    shown = " ".join(text.replace(UNIQUE, "").split())
    shown = shown.replace("\x01", "%").replace("\x02", "")  # an operand's marks
    name = file.rpartition("/")[2]
    return CompileError(f"{name} does not run on the CPU, at {name}:{line}: `{shown}` {reason}")
