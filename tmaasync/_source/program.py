"""A compiled program: its entries and their facts, read from the PTX and the compiler's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmaasync._source.entries import function_name

_MODULE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*\.version\s+\d", re.DOTALL)
_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+(?:\d+\s+)?)*)?"  # of sm_100 and later
    r"[\w$%]+(?:\[(\d+)\])?"
)
_SHARED_BYTES = re.compile(r"\.u32 (\w+)_shared_bytes = (\d+);")
_PROPERTIES = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*?Used (\d+) registers"
)
_REMARK = re.compile(r"\(C\d+\)\s*(.*)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter as the PTX declares it: ``kind`` is ``u``, ``s``, ``f`` or ``b``.

    PTX has ``u`` for integers of both signs and for pointers. Where the source declares more, a
    `Signature` makes it ``i`` (signed), ``n`` (unsigned) or ``t`` (bool).
    """

    kind: str
    size_bytes: int

    @property
    def is_struct(self) -> bool:
        """Whether the parameter is passed as raw bytes."""
        return self.kind == "struct"


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``__global__`` function of a program, with the compiler's facts about it.

    ``symbol`` is its name in the machine code.
    """

    name: str
    symbol: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled source: the cubin's path, its entries, and the compiler's log."""

    path: Path
    arch: str
    entries: Mapping[str, Entry]
    log: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the compiler's warnings, a line each; `remarks` too."""
        lines = self.log.splitlines()
        return tuple(one for one in lines if "warning" in one.lower() or _REMARK.search(one))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the assembler's advice on lost speed: an ignored setmaxnreg, serialised wgmma.

        It prints them as information with a number such as C7508, which is left out.
        """
        return tuple(dict.fromkeys(_REMARK.findall(self.log)))


@dataclass(frozen=True, slots=True)
class Assembly:
    """The compiler's intermediate results: the PTX of a source, and its log."""

    ptx: str
    entries: Mapping[str, Entry]
    log: str


def is_ptx(text: str) -> bool:
    """Return whether a text is a PTX module, which begins with ``.version``.

    >>> is_ptx("// made by hand\\n.version 8.0\\n"), is_ptx("__global__ void f() {}")
    (True, False)
    """
    return _MODULE.match(text) is not None


def required_block(ptx: str, entry: str) -> tuple[int, int, int] | None:
    """Return the block that ``.reqntid`` of an entry requires; None without one.

    >>> required_block(".entry f() .reqntid 64, 2 { ret; }", "f")
    (64, 2, 1)
    """
    found = re.search(rf"\.entry\s+{re.escape(entry)}\b[^{{]*?\.reqntid\s+([\d,\s]+)", ptx)
    if found is None:
        return None
    x, y, z = (*map(int, found[1].strip(" ,\n\t").split(",")), 1, 1)[:3]
    return x, y, z


def entries_of(ptx: str, log: str, expression: str, expressed: str) -> dict[str, Entry]:
    """Return the entries of a PTX text by name, with what the assembler's log says of them.

    Args:
        ptx: The PTX.
        log: The compiler's log.
        expression: The name in CUDA C++ of the entry whose symbol is ``expressed``.
        expressed: Its symbol, or an empty string.
    """
    shared = {name: int(size) for name, size in _SHARED_BYTES.findall(ptx)}
    properties = {found[0]: found[1:] for found in _PROPERTIES.findall(log)}
    entries = {}
    for symbol, parameters in _ENTRY.findall(ptx):
        stack, stores, loads, registers = (int(n) for n in properties.get(symbol, (0, 0, 0, 0)))
        name = expression if symbol == expressed else symbol
        entries[name] = Entry(
            name=name,
            symbol=symbol,
            parameters=tuple(_parameter(*found) for found in _PARAMETER.findall(parameters)),
            shared_bytes=shared.get(function_name(name)),
            registers=registers,
            stack_bytes=stack,
            spill_bytes=stores + loads,
        )
    return entries


def _parameter(kind: str, bits: str, count: str) -> Parameter:
    size = int(bits) // 8
    return Parameter("struct", size * int(count)) if count else Parameter(kind, size)


def entry_from(item: dict[str, Any]) -> Entry:
    """Return an entry from its fields in JSON."""
    parameters = tuple(Parameter(**parameter) for parameter in item.pop("parameters"))
    return Entry(parameters=parameters, **item)
