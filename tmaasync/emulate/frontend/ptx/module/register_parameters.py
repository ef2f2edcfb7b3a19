"""Functions of a module that take and return registers, as PTX by hand does.

They become functions with parameters in memory, as compilers write them: the caller stores its
values to them, and the function loads them into its registers. No line moves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tmaasync._source.tokens import at_commas
from tmaasync.emulate.frontend.ptx.program import bits_of

__all__ = ["with_parameters_in_memory"]

_NAME = r"[\w$%]+"
_HEADER = re.compile(
    rf"\.func\b\s*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>{_NAME})\s*"
    r"(?:\((?P<parameters>[^)]*)\))?(?P<opening>[^{;]*\{)?"
)
_REGISTER = re.compile(rf"\.reg\s*\.(\w+)\s+({_NAME})")
_GUARD = rf"(?P<guard>@!?\s*{_NAME}\s+)?"
_RETURN = re.compile(rf"{_GUARD}\bret(?:\.uni)?\s*;")
_CALL = re.compile(
    rf"{_GUARD}\bcall(?:\.uni)?\s+(?:\((?P<results>[^)]*)\)\s*,\s*)?(?P<name>{_NAME})\s*"
    r"(?:,\s*\((?P<arguments>[^)]*)\)\s*)?;"
)
_BRACE = re.compile(r"[{}]")


class _Passed(NamedTuple):
    """A parameter or result that is a register."""

    kind: str
    name: str
    memory: str  # its name as a parameter in memory

    @property
    def declared(self) -> str:
        return f".param .b{bits_of(self.kind)} {self.memory}"

    @property
    def moved(self) -> str:
        """The type of its loads and stores."""
        return self.kind if self.kind in ("f32", "f64") else f"b{bits_of(self.kind)}"

    def store(self, value: str) -> str:
        return f"st.param.{self.moved} [{self.memory}], {value};"

    def load(self, register: str) -> str:
        return f"ld.param.{self.moved} {register}, [{self.memory}];"


@dataclass(frozen=True)
class _Function:
    results: Sequence[_Passed]
    parameters: Sequence[_Passed]


def with_parameters_in_memory(text: str) -> str:
    """Return a module's text without parameters in registers.

    Predicates, and lists that mix registers and memory, stay as they are.
    """
    functions = {
        header["name"]: found
        for header in _HEADER.finditer(text)
        if ".reg" in header[0] and (found := _function(header))
    }
    if not functions:
        return text
    text = _CALL.sub(lambda call: _in_memory(call, functions), text)
    return _rewritten(text, functions)


def _function(header: re.Match[str]) -> _Function | None:
    results, parameters = (_registers(header[group], group) for group in ("results", "parameters"))
    return None if results is None or parameters is None else _Function(results, parameters)


def _registers(texts: str | None, group: str) -> list[_Passed] | None:
    """Return the registers of a list; None if it has anything else."""
    found = [_REGISTER.fullmatch(one.strip()) for one in at_commas(texts or "")]
    passed = [
        _Passed(one[1], one[2], f"tmaasync_{group}_{number}")
        for number, one in enumerate(found)
        if one is not None and bits_of(one[1]) >= 8
    ]
    return passed if len(passed) == len(found) else None


def _in_memory(call: re.Match[str], functions: dict[str, _Function]) -> str:
    function = functions.get(call["name"])
    results = [one.strip() for one in at_commas(call["results"] or "")]
    arguments = [one.strip() for one in at_commas(call["arguments"] or "")]
    if function is None:
        return call[0]
    if (len(results), len(arguments)) != (len(function.results), len(function.parameters)):
        return call[0]
    guard = call["guard"] or ""
    moved_in = (one.store(value) for one, value in zip(function.parameters, arguments, strict=True))
    moved_out = (one.load(value) for one, value in zip(function.results, results, strict=True))
    made = f"call ({_listed(function.results)}), {call['name']}, ({_listed(function.parameters)});"
    steps = " ".join(guard + step for step in (*moved_in, made, *moved_out))
    declared = " ".join(f"{one.declared};" for one in (*function.results, *function.parameters))
    return f"{{ {declared} {steps} }}" + "\n" * call[0].count("\n")


def _listed(passed: Sequence[_Passed]) -> str:
    return ", ".join(one.memory for one in passed)


def _rewritten(text: str, functions: dict[str, _Function]) -> str:
    """Return the text with the headers and bodies of the functions rewritten."""
    made, end = [], 0
    for header in _HEADER.finditer(text):
        function = functions.get(header["name"])
        if function is None or header.start() < end:
            continue
        made.append(text[end : header.start()] + _header(header, function))
        end = header.end()
        if header["opening"]:
            close = _closing(text, end)
            made.append(_body(text[end:close], function))
            end = close
    return "".join((*made, text[end:]))


def _header(header: re.Match[str], function: _Function) -> str:
    memory = {one.name: one.declared for one in (*function.results, *function.parameters)}
    return _REGISTER.sub(lambda one: memory[one[2]], header[0])


def _body(text: str, function: _Function) -> str:
    passed = (*function.results, *function.parameters)
    begin = " ".join(
        (
            *(f".reg .{one.kind} {one.name};" for one in passed),
            *(one.load(one.name) for one in function.parameters),
        )
    )
    stores = [one.store(one.name) for one in function.results]

    def returned(found: re.Match[str]) -> str:
        guard = found["guard"] or ""
        return " ".join(guard + step for step in (*stores, "ret;"))

    return f" {begin}{_RETURN.sub(returned, text)} {' '.join(stores)} "


def _closing(text: str, start: int) -> int:
    """Return where the brace that opened before a position closes."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(text)
