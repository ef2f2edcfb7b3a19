"""One row of the table of instructions: a pattern of opcodes, its operands, and the C++ for it.

An opcode's pattern is written as the PTX ISA writes one. ``{x}`` is optional, ``(a|b)`` a choice,
``<name:a|b>`` a choice that the C++ uses by this name, ``$NAME`` a list of types of `TYPES`.

Operands, separated by commas:

* ``d = t``, ``a : t``: a result, or a value, of PTX type ``t``; ``<name>`` is the type that the
  opcode chose, ``<bits>`` that type without a sign, and for ``t+`` the register may be wider.
* ``&d : t``: a register that the C++ writes itself; ``&d* : t``: one register or a vector.
* ``&d|p : t``: two registers; the second may be missing.
* ``a* : t``: a vector of values, or a single one.
* ``[a : s]``: a shared address of 32 bits; without ``.shared`` a generic address is converted.
* ``[a : g]``: a pointer into the space that ``<space>`` names. ``[a : m]``, ``[a : w]``: generic.
* ``[a : t]``: an address in tensor memory. ``[a : c]``: a shared address, or a generic one.
* ``@d*``, ``@a*``: a vector of operands of the statement, by reference.
* ``n : imm``: a constant.
* ``?``: this operand and all after it may be missing; their default follows ``~``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tmaasync._forks import cached_property

__all__ = ["TYPES", "Row", "Spec", "cpp_type", "family_of"]

TYPES = {
    "CARRIED": "u32|s32|u64|s64|b32|b64",
    "INT": "u16|s16|u32|s32|u64|s64",
    "BITS": "b16|b32|b64",
    "ANY": "b8|u8|s8|b16|u16|s16|b32|u32|s32|b64|u64|s64|b128|f16|f16x2|bf16|bf16x2|f32|f64",
    "FLOAT": "f32|f64",
    "HALF": "f16x2|f16|bf16x2|bf16",
    "SCOPE": "cta|cluster|gpu|sys",
    "ROUND": "rn|rz|rm|rp",
    "SHARED": "{.shared{::cta|::cluster}}",
    "HINT": "{.L2::cache_hint}",
}

_CPP = {
    "pred": "bool",
    "f16": "::tmaasync_ptx::F16",
    "bf16": "::tmaasync_ptx::BF16",
    "f16x2": "::tmaasync_ptx::Pair<::tmaasync_ptx::F16>",
    "bf16x2": "::tmaasync_ptx::Pair<::tmaasync_ptx::BF16>",
    "f32": "float",
    "f64": "double",
    "f32x2": "::tmaasync_ptx::Pair<float>",
    "tf32": "::std::uint32_t",
    "b128": "unsigned __int128",
    "e4m3x2": "::std::uint16_t",
    "e5m2x2": "::std::uint16_t",
}
_PATTERN = re.compile(r"\$([A-Z]+)|<(\w+):|([{}>.])")
_SPEC = re.compile(
    r"(?P<optional>\?)?\s*(?P<mark>[&@])?(?P<open>\[)?(?P<name>[\w|]+)(?P<many>\*)?"
    r"(?:\s*(?P<sign>[=:])\s*(?P<kind><?\w+>?\+?))?\]?(?:\s*~\s*(?P<default>\w+))?"
)


def cpp_type(kind: str) -> str:
    """Return the C++ type of a PTX type.

    >>> cpp_type("s32"), cpp_type("b16")
    ('::std::int32_t', '::std::uint16_t')
    """
    if kind in _CPP:
        return _CPP[kind]
    return f"::std::{'' if kind[0] == 's' else 'u'}int{int(kind[1:])}_t"


def family_of(opcode: str) -> str:
    """Return the part of an opcode that names its family.

    >>> family_of("cp.async.bulk.tensor.2d.global"), family_of("mbarrier.init.shared.b64")
    ('cp.async', 'mbarrier')
    """
    parts = opcode.split(".")
    return ".".join(parts[:2]) if parts[0] in ("cp", "wgmma") else parts[0]


@dataclass(frozen=True)
class Spec:
    """One operand of a row."""

    name: str
    mark: str  # = a result, : a value, & a register, @ by reference, [ an address
    kind: str
    is_many: bool
    is_optional: bool
    default: str  # for a missing operand: C++, or the name of another operand


@dataclass(frozen=True)
class Row:
    """A pattern of opcodes, the operands, and the C++ expression or statement."""

    pattern: str
    operands: str
    code: str

    @cached_property
    def matcher(self) -> re.Pattern[str]:
        """The regular expression that an opcode must match."""
        return re.compile(_regular(self.pattern))

    @cached_property
    def specs(self) -> tuple[Spec, ...]:
        """The operands, in order."""
        return tuple(_specs(self.operands))

    @property
    def shown(self) -> str:
        """The pattern as messages show it."""
        return _PATTERN.sub(_shown, self.pattern)


def _shown(found: re.Match[str]) -> str:
    others = {">": ")"}
    return TYPES[found[1]] if found[1] else "(" if found[2] else others.get(found[3], found[3])


def _regular(pattern: str) -> str:
    """Return the regular expression of a pattern."""

    def part(found: re.Match[str]) -> str:
        if found[1]:
            return _regular(TYPES[found[1]])
        if found[2]:
            return f"(?P<{found[2]}>"
        return {"{": "(?:", "}": ")?", ">": ")", ".": r"\."}[found[3]]

    return _PATTERN.sub(part, pattern)


def _specs(text: str) -> Iterator[Spec]:
    is_optional = False
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        found = _SPEC.fullmatch(part)
        assert found is not None, part  # noqa: S101 - the table is ours
        is_optional = is_optional or bool(found["optional"])
        mark = "[" if found["open"] else found["mark"] or found["sign"] or ":"
        many = bool(found["many"])
        default = found["default"] or "0"
        yield Spec(found["name"], mark, found["kind"] or "", many, is_optional, default)
