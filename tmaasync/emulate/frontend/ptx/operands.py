"""The operands of an instruction in C++."""

from __future__ import annotations

import re

from tmaasync.emulate.frontend.ptx.program import (
    Address,
    AsmReference,
    Immediate,
    Not,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Unit,
    Vector,
    bits_of,
)
from tmaasync.emulate.frontend.ptx.row import Spec, cpp_type
from tmaasync.emulate.frontend.ptx.row_code import PTX
from tmaasync.emulate.frontend.ptx.table import SPECIAL_REGISTERS

__all__ = ["MisfitError", "Operands", "items_of"]


# The functions of addresses that mean the same with and without .shared.
_FUNCTIONS = {"t": "tensor_address", "c": "shared_of_any"}
_FLOATS = ("f32", "f64")
_ON_STACK = re.compile(r"\.(?:local|param)\b")


class MisfitError(Exception):
    """The operands do not match the row."""


class Operands:
    """Writes the operands of one unit's instructions.

    Attributes:
        references: Operands of the statement that wgmma keeps.
        sinks: The sizes in bits of the results that no register takes.
    """

    def __init__(self, unit: Unit) -> None:
        """Begin a unit."""
        self._unit = unit
        self.references: set[int] = set()
        self.sinks: set[int] = set()

    def held(self, operand: Operand) -> str:
        """Return a reference to an operand of the statement, which wgmma keeps."""
        if isinstance(operand, Register) and self._unit.is_body and bits_of(operand.kind) == 32:
            return operand.cpp
        if not isinstance(operand, AsmReference) or operand.letter not in "rf":
            raise MisfitError(
                "takes operands of the statement with the constraint f or r, as in {%0, %1}."
            )
        self.references.add(operand.index)
        return f"tmaasync_r{operand.index}"

    def _constant(self, operand: Operand) -> str:
        if isinstance(operand, Immediate) and operand.float_bits == 0:
            return operand.text
        if isinstance(operand, AsmReference) and operand.letter in "ni":
            return f"tmaasync_a{operand.index}"
        raise MisfitError('takes a constant here: a number, or an operand "n".')

    def target(self, operand: Operand, kind: str) -> str:
        """Return the variable of a result in one register."""
        wanted = bits_of(kind)
        if isinstance(operand, Sink):
            bits = wanted or 32
            self.sinks.add(bits)
            return f"tmaasync_sink_{bits}"
        if isinstance(operand, Register):
            _check_size(operand.cpp, bits_of(operand.kind), kind)
            return operand.cpp
        if isinstance(operand, AsmReference) and operand.bits:
            if not self._unit.operands[operand.index].is_written:
                raise MisfitError(f"writes %{operand.index}, which is an input of the statement.")
            _check_size(f"%{operand.index}", operand.bits, kind)
            return f"tmaasync_a{operand.index}"
        raise MisfitError("needs a register for its result.")

    def result(self, operand: Operand, kind: str) -> str:
        """Return the variable of a result, or the parts that it is unpacked into."""
        if isinstance(operand, Vector):
            return self._unpacked(operand, kind)
        return self.target(operand, kind)

    def _unpacked(self, operand: Vector, kind: str) -> str:
        """Return the parts of a register joined, low bits first."""
        parts = [
            self.target(item, f"b{bits_of(kind) // len(operand.items)}") for item in operand.items
        ]
        return f"{PTX}Parts{{{', '.join(parts)}}}"

    def setting(self, operand: Operand, kind: str, code: str) -> str:
        """Return the statement that gives a result its value."""
        to, cpp = self.result(operand, kind), cpp_type(kind.rstrip("+"))
        # Plain C++ compiles in less time than a template.
        if isinstance(operand, Register) and bits_of(operand.kind) == bits_of(kind):
            if _is_whole(kind):
                return f"{to} = {code}"
            if kind in _FLOATS:
                return f"{to} = __builtin_bit_cast({cpp_type(f'b{kind[1:]}')}, {cpp}({code}))"
        return f"{PTX}set<{cpp}>({to}, {code})"

    def value(self, operand: Operand, kind: str) -> str:
        """Return the value of an operand, of a PTX type, ``pred`` or ``imm``."""
        if kind == "imm":
            return self._constant(operand)
        if kind == "pred":
            return self._predicate(operand)
        cpp = cpp_type(kind.rstrip("+"))
        if isinstance(operand, Vector):
            bits = bits_of(kind) // max(1, len(operand.items))
            parts = ", ".join(self.value(item, f"b{bits}") for item in operand.items)
            return f"{PTX}as<{cpp}>({PTX}joined_parts({parts}))"
        if isinstance(operand, Immediate):
            return _number(operand, kind.rstrip("+"), cpp)
        if isinstance(operand, Special):
            return self._special(operand, cpp)
        return self._register(operand, kind, cpp)

    def _register(self, operand: Operand, kind: str, cpp: str) -> str:
        if isinstance(operand, Register):
            _check_size(operand.cpp, bits_of(operand.kind), kind)
            return _as(kind, operand)
        if isinstance(operand, Symbol):
            return f"static_cast<{cpp}>({operand.cpp})"
        if isinstance(operand, AsmReference) and operand.bits == 0:
            return f"static_cast<{cpp}>(tmaasync_a{operand.index})"
        if isinstance(operand, AsmReference):
            _check_size(f"%{operand.index}", operand.bits, kind)
            return f"{PTX}as<{cpp}>(tmaasync_a{operand.index})"
        raise MisfitError("has an operand of another form than the instruction takes.")

    def _special(self, operand: Special, cpp: str) -> str:
        known = SPECIAL_REGISTERS.get(operand.name)
        if known is None:
            names = ", ".join(f"%{name}" for name in SPECIAL_REGISTERS)
            raise MisfitError(f"reads %{operand.name}, which the CPU lacks. It has {names}.")
        return f"static_cast<{cpp}>({known[0]})"

    def _predicate(self, operand: Operand) -> str:
        if isinstance(operand, Not):
            return f"!{self._predicate(operand.of)}"
        if isinstance(operand, Register) and operand.kind == "pred":
            return operand.cpp
        if isinstance(operand, Immediate):
            return f"({operand.text} != 0)"
        if isinstance(operand, AsmReference) and operand.letter in "ni":
            return f"(tmaasync_a{operand.index} != 0)"
        if isinstance(operand, Special) and SPECIAL_REGISTERS.get(operand.name, ("", 0))[1] == 1:
            return SPECIAL_REGISTERS[operand.name][0]
        raise MisfitError("takes a predicate here, a register of .reg .pred.")

    def address(
        self, spec: Spec, operand: Operand, captures: dict[str, str], opcode: str
    ) -> dict[str, str]:
        """Return the pointer of an address in brackets, and the coordinates of a tensor's."""
        if not isinstance(operand, Address):
            raise MisfitError("takes an address in brackets here.")
        address = self._sum(operand)
        if _ON_STACK.search(opcode) and not isinstance(operand.base, Symbol):
            address = f"{PTX}on_stack({address})"
        if spec.kind.startswith("tensor"):
            count = 5 if spec.kind == "tensor_rows" else int(captures["n"])
            return self._tensor(spec, operand, address, count)
        if operand.more:
            raise MisfitError("takes an address without coordinates here.")
        own = "" if ".shared::cluster" in opcode else "own_"
        if spec.kind == "s":
            function = f"{own}shared_address" if ".shared" in opcode else "shared_of_generic"
        elif spec.kind in _FUNCTIONS:
            function = _FUNCTIONS[spec.kind]
        elif spec.kind == "map":
            function = "map_at" if captures.get("space") else "generic_pointer"
        else:
            in_shared = spec.kind == "g" and captures.get("space", "").startswith("shared")
            function = f"{own}shared_pointer" if in_shared else "generic_pointer"
        return {spec.name: f"{PTX}{function}({address})"}

    def _tensor(
        self,
        spec: Spec,
        operand: Address,
        address: str,
        count: int,
    ) -> dict[str, str]:
        if len(operand.more) != 1:
            raise MisfitError("takes [map, {coordinates}] here.")
        items = items_of(operand.more[0])
        if len(items) != count:
            raise MisfitError(f"has {len(items)} coordinates and takes {count}.")
        return {
            spec.name: f"{PTX}generic_pointer({address})",
            f"{spec.name}_at": ", ".join(self.value(item, "s32") for item in items),
        }

    def _sum(self, address: Address) -> str:
        base = self._base(address.base)
        if address.offset is None:
            return base
        moved = f"{base} + ({self._base(address.offset)})"
        # A sum of 32 bits wraps around: a compiler may subtract first, and add the offset here.
        return f"::std::uint32_t({moved})" if _is_of_32_bits(address.base) else moved

    def _base(self, operand: Operand) -> str:
        if isinstance(operand, Register | Symbol):
            return f"::std::uint64_t({operand.cpp})"
        if isinstance(operand, AsmReference):
            return f"::std::uint64_t(tmaasync_a{operand.index})"
        if isinstance(operand, Immediate) and operand.float_bits == 0:
            return f"::std::uint64_t({operand.text})"
        raise MisfitError("has an address whose base is no register and no number.")


def _is_whole(kind: str) -> bool:
    return kind[0] in "bsu" and kind[1].isdigit()  # bf16 is none


def _as(kind: str, register: Register) -> str:
    """Return the value of a register; plain C++ compiles in less time than a template."""
    name, cpp = register.cpp, cpp_type(kind.rstrip("+"))
    if _is_whole(kind) and bits_of(register.kind) == bits_of(kind):
        return f"{cpp}({name})" if kind[0] == "s" else name
    if kind in _FLOATS:
        return f"__builtin_bit_cast({cpp}, {name})"
    return f"{PTX}as<{cpp}>({name})"


def _is_of_32_bits(operand: Operand) -> bool:
    if isinstance(operand, Register):
        return bits_of(operand.kind) == 32
    return isinstance(operand, AsmReference) and operand.bits == 32


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the items of a vector, or the one operand."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def _check_size(name: str, bits: int, kind: str) -> None:
    wanted = bits_of(kind.rstrip("+"))
    if not wanted or bits == wanted or (kind.endswith("+") and bits > wanted):
        return
    raise MisfitError(f"takes an operand of {wanted} bits where it has {name} of {bits}.")


def _number(operand: Immediate, kind: str, cpp: str) -> str:
    if operand.float_bits == 32:
        return f"{PTX}as<{cpp}>(::std::uint32_t({operand.text}))"
    if operand.float_bits == 64 and kind != "f32":
        return f"{PTX}as<{cpp}>(::std::uint64_t({operand.text}))"
    if operand.float_bits == 64:
        return f"static_cast<float>({PTX}as<double>(::std::uint64_t({operand.text})))"
    if operand.float_bits:
        return f"static_cast<{cpp}>({operand.text})"
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return f"{PTX}as<{cpp}>({cpp_type(f'b{bits_of(kind)}')}({operand.text}))"
    return f"static_cast<{cpp}>({operand.text})"
