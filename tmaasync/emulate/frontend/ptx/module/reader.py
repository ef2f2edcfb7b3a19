"""The functions, variables and files of a PTX module (PTX ISA, "Directives")."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tmaasync._source.tokens import at_commas
from tmaasync.emulate.frontend.ptx.module.register_parameters import with_parameters_in_memory
from tmaasync.emulate.frontend.ptx.program import bits_of, refusal
from tmaasync.errors import CompileError

__all__ = ["Function", "Module", "Variable", "declared_variable", "read_files", "read_module"]

# In inline PTX, LLVM adds the line within the asm text to the line of the statement: the .loc
# before the text is right, those in it are not.
_INLINE_ASM = re.compile(r"// begin inline asm\n.*?// end inline asm", re.DOTALL)
_LOC = re.compile(r"\.loc\b[^\n]*")
_STRING_OR_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TO_LINE_END = re.compile(r"\.(?:version|target|address_size|loc|file)\b[^\n]*|[$%\w.]+:")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"(?:\s+"([^"]*)")?')
_SECTION = re.compile(r"\.section\s[^{]*\{[^}]*\}")
_FUNCTION = re.compile(
    r"(?:\.\w+\s+)*?\.(?P<kind>entry|func)\b\s*(?:\((?P<result>[^)]*)\)\s*)?"
    r"(?P<name>[\w$%]+)\s*(?:\((?P<parameters>[^)]*)\))?(?P<directives>[^{;]*)"
)
_DIRECTIVE = re.compile(r"\.(\w+)([^.]*)")
_VARIABLE = re.compile(
    r"(?P<linking>(?:\.(?:visible|extern|weak|common)\s+)*)"
    r"\.(?P<space>global|const|shared|local|param|reg)\b\s*(?:\.attribute\s*\([^)]*\)\s*)?"
    r"(?:\.align\s+(?P<align>\d+)\s*)?(?:\.v(?P<lanes>[248])\s*)?\.(?P<kind>\w+)\s+"
    r"(?:\.ptr\s*(?:\.\w+\s*(?:\d+\s+)?)*)?"
    r"(?P<name>[\w$%]+)\s*(?P<sides>(?:\[\s*\d*\s*\]\s*)*)(?:=\s*(?P<value>.*))?",
    re.DOTALL,
)
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True)
class Variable:
    """A variable or a parameter; ``count`` is None for one that is no array."""

    name: str
    space: str
    kind: str
    align: int
    count: int | None
    value: str
    is_extern: bool

    @property
    def size_bytes(self) -> int:
        """The size; 0 for an array whose size the launch gives."""
        return bits_of(self.kind) // 8 * (1 if self.count is None else self.count)


@dataclass(frozen=True)
class Function:
    """An ``.entry`` or ``.func``; ``body`` is the range between its braces, None without one."""

    name: str
    is_entry: bool
    results: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    directives: Mapping[str, tuple[int, ...]]
    body: tuple[int, int] | None
    line: int


class Module(NamedTuple):
    """A module; ``text`` has no comments, and the lines of the original."""

    name: str
    text: str
    line_starts: list[int]
    functions: dict[str, Function]
    variables: dict[str, Variable]
    files: dict[int, str]

    def line_at(self, position: int) -> int:
        """Return the line of a character, from 1."""
        return bisect.bisect_right(self.line_starts, position)

    def refusal(self, position: int, text: str, reason: str) -> CompileError:
        """Return the error of a directive that the CPU lacks."""
        return refusal(self.name, self.line_at(position), text, reason)


def read_module(text: str, name: str) -> Module:
    """Read the directives of a module.

    Args:
        text: The module.
        name: Its name for messages.

    Raises:
        CompileError: A directive is not PTX.
    """
    own = _INLINE_ASM.sub(lambda found: _LOC.sub("", found[0]), text)
    plain = with_parameters_in_memory(_STRING_OR_COMMENT.sub(_blank, own))
    starts = [0, *(at + 1 for at, letter in enumerate(plain) if letter == "\n")]
    module = Module(name, plain, starts, {}, {}, read_files(text))
    _read(module)
    return module


def read_files(text: str) -> dict[int, str]:
    """Return the paths of the sources of a module's lines, by their numbers."""
    return {int(one[1]): _path(one) for one in _FILE.finditer(text)}


def _path(found: re.Match[str]) -> str:
    return f"{found[2]}/{found[3]}" if found[3] else found[2]


def _blank(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else " " + "\n" * found[0].count("\n")


def _read(module: Module) -> None:
    text, position = module.text, 0
    while (position := _after_space(text, position)) < len(text):
        skipped = _TO_LINE_END.match(text, position) or _SECTION.match(text, position)
        if skipped is not None:
            position = skipped.end()
            continue
        header = _FUNCTION.match(text, position)
        if header is not None:
            position = _read_function(module, header)
            continue
        end = text.find(";", position)
        end = len(text) if end < 0 else end
        if text.startswith((".pragma", ".alias"), position):
            position = end + 1
            continue
        directive = text[position:end].strip()
        variable = declared_variable(directive)
        if variable is None:
            raise module.refusal(position, directive[:60], "is no directive that the CPU knows.")
        if variable.name not in module.variables or not variable.is_extern:
            module.variables[variable.name] = variable
        position = end + 1


_SPACE = re.compile(r"[\s;]*")


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    return position if found is None else found.end()


def _read_function(module: Module, header: re.Match[str]) -> int:
    """Add a function, and return the position after it."""
    end, body = header.end(), None
    if module.text.startswith("{", end):
        body = (end + 1, _closing(module, end))
        end = body[1]
    name = header["name"]
    found = Function(
        name=name,
        is_entry=header["kind"] == "entry",
        results=tuple(_parameters(module, header, "result")),
        parameters=tuple(_parameters(module, header, "parameters")),
        directives={
            directive: tuple(map(int, re.findall(r"\d+", values)))
            for directive, values in _DIRECTIVE.findall(header["directives"])
        },
        body=body,
        line=module.line_at(header.start("name")),
    )
    if body is not None or name not in module.functions:
        module.functions[name] = found
    return end + 1


def _closing(module: Module, opening: int) -> int:
    depth = 0
    for brace in _BRACE.finditer(module.text, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    raise module.refusal(opening, "{", "is a brace that nothing closes.")


def _parameters(module: Module, header: re.Match[str], group: str) -> Iterator[Variable]:
    for text in at_commas(header[group] or ""):
        variable = declared_variable(text)
        if variable is None or variable.space != "param":
            raise module.refusal(
                header.start(group),
                text,
                "is no parameter in memory; the CPU takes .param, as compilers write it.",
            )
        yield variable


def declared_variable(text: str) -> Variable | None:
    """Return the variable that a directive declares; None if it declares none.

    >>> declared_variable(".shared .align 8 .b8 ring[64]").size_bytes
    64
    """
    found = _VARIABLE.fullmatch(text.strip())
    if found is None or not bits_of(found["kind"]):
        return None
    sides = [int(side) if side else 0 for side in re.findall(r"\[\s*(\d*)\s*\]", found["sides"])]
    lanes = int(found["lanes"] or 1)
    count = math.prod(sides) * lanes if sides or lanes > 1 else None
    value = (found["value"] or "").strip()
    if count == 0 and value:
        count = len(re.findall(r"[^\s{},]+", value))
    return Variable(
        name=found["name"],
        space=found["space"],
        kind=found["kind"],
        align=int(found["align"] or bits_of(found["kind"]) // 8 * lanes),
        count=count,
        value=value,
        is_extern=".extern" in found["linking"],
    )
