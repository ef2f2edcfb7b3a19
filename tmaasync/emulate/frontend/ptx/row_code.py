"""The C++ of a row of the table, with the captures of an opcode and the operands filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tmaasync.emulate.frontend.ptx.row import cpp_type

__all__ = ["PTX", "filled", "kind_of"]

PTX = "::tmaasync_ptx::"
"""The namespace of the functions that stand for instructions."""

_RUN = "::tmaasync_emulate::"
_WORD = re.compile(r"(?<![\w:.])([A-Za-z_]\w*)(?=\s*\(|<|::)")
_NAME = re.compile(r"(?<![\w:.>])([A-Za-z_]\w*)(?!\w|::)")
_CAPTURE = re.compile(r"<(\w+)>")
_PLAIN = ("std", "static_cast", "void", "float", "double", "unsigned")
_WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}
_NARROW = {
    "f16": "HalfBits",
    "bf16": "BfloatBits",
    "e4m3": "E4M3Bits",
    "e5m2": "E5M2Bits",
    "e2m1": "E2M1Bits",
    "e2m3": "E2M3Bits",
    "e3m2": "E3M2Bits",
    "ue8m0": "E8M0Bits",
}
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ELEMENTS = {"b32": "U32", "b64": "U64"}
_NAMES = ("cmp", "bool", "op", "class", "vote", "mode")
_ENUMS = {"round": "Round", "order": "Order", "scope": "Reach"}


def kind_of(kind: str, captures: Mapping[str, str]) -> str:
    """Return the PTX type of an operand."""
    if kind == "<wide>":
        return _WIDE[captures["t"]]
    if kind == "<bits>":
        return f"b{captures['t'][1:]}"
    return _CAPTURE.sub(lambda found: captures[found[1]], kind)


def filled(code: str, named: Mapping[str, str], captures: Mapping[str, str]) -> str:
    """Return the C++ of a row with its captures and operands."""

    def qualify(found: re.Match[str]) -> str:
        return found[1] if found[1] in _PLAIN or found[1] in named else f"{PTX}{found[1]}"

    code = _CAPTURE.sub(lambda found: _captured(found[1], captures), code)
    code = _WORD.sub(qualify, code)
    return _NAME.sub(lambda found: named.get(found[1], found[1]), code)


def _captured(name: str, captures: Mapping[str, str]) -> str:
    text = captures.get(name, "") or captures.get(f"{name}1", "")
    if name.startswith("is_"):
        return "true" if text else "false"
    if name in _ENUMS:
        return f"{PTX}{_ENUMS[name]}::k{text.title() or 'None'}"
    others = {
        "reduction": lambda: f"::tmaasync::ptx::ReduceOp::k{captures['op'].title()}",
        "element": lambda: f"::tmaasync::ptx::ElementType::k{_ELEMENTS.get(text, text.title())}",
        "group": lambda: text or "1",
        "columns": lambda: f"{_RUN}BoxMode::kIm2col{text.replace('::', '').upper()}",
        "narrow": lambda: f"{PTX}{_NARROW[text.partition('x')[0]]}",
        "operator": lambda: _OPERATORS[_UNSIGNED.get(text, text)],
        "wide": lambda: cpp_type(_WIDE[captures["t"]]),
        "t": lambda: cpp_type(text),
        "t1": lambda: cpp_type(text),
    }
    if name in _NAMES:
        return f"k{text.title() or 'None'}"
    return others[name]() if name in others else text or f"<{name}>"
