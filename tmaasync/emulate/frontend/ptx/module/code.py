"""A module in C++: one ``__global__`` function, and the functions and variables that it uses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tmaasync._source.symbols import demangled
from tmaasync.emulate.chips import SM_90A, Chip
from tmaasync.emulate.frontend.ptx.module.body import Body, BodyParser, address_of
from tmaasync.emulate.frontend.ptx.module.function import BYTES, function_code, held_as
from tmaasync.emulate.frontend.ptx.module.reader import Function, Module, Variable, read_module
from tmaasync.emulate.frontend.ptx.module.variables import (
    declaration,
    definition,
    shared_definition,
)
from tmaasync.emulate.frontend.ptx.program import Symbol, bits_of
from tmaasync.emulate.frontend.ptx.row_code import PTX
from tmaasync.errors import ArgumentError

__all__ = ["ModuleCode", "included", "module_code"]

_SPACE = "tmaasync_module"
# The functions of CUDA's system that modules call, and the emulator's (ptx_module.hpp).
_SYSTEM = {
    "vprintf": "print_packed",
    "__assertfail": "fail_assertion",
    "malloc": "allocate_packed",
    "free": "release_packed",
}
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def included(text: str) -> str:
    """Return the first lines of a module's C++: its includes."""
    names = ("ptx_module", "wmma_ptx") if "wmma." in text else ("ptx_module",)
    return "".join(f"#include <tmaasync_emulate/{name}.hpp>\n" for name in names)


class ModuleCode(NamedTuple):
    """C++, and the values of the entry's attributes by CUDA's names for them."""

    text: str
    attributes: Mapping[str, Sequence[str]]


def module_code(text: str, source_name: str, entry: str, chip: Chip = SM_90A) -> ModuleCode:
    """Return the C++ of one kernel of a module.

    Args:
        text: The PTX.
        source_name: The module's name for messages.
        entry: The ``.entry``.
        chip: The chip that it runs on.

    Raises:
        ArgumentError: The module has no entry of this name.
        CompileError: The kernel uses an instruction or a directive that the CPU lacks.
    """
    module = read_module(text, source_name)
    function = module.functions.get(entry)
    if function is None or function.body is None or not function.is_entry:
        known = ", ".join(one.name for one in module.functions.values() if one.is_entry)
        rule = f"{source_name} has no .entry of that name"
        raise ArgumentError.broken("name", f"{entry!r}", rule, f"It has: {known or 'none'}")
    return ModuleCode(_Writer(module, function, chip).code(), dict(_attributes(function)))


def _attributes(entry: Function) -> Iterator[tuple[str, Sequence[str]]]:
    given = entry.directives
    block = given.get("reqntid") or given.get("maxntid")
    if block:
        yield "__launch_bounds__", [str(math.prod(block)), *map(str, given.get("minnctapersm", ()))]
    if cluster := given.get("reqnctapercluster"):
        yield "__cluster_dims__", [*map(str, cluster)]


class _Writer:
    def __init__(self, module: Module, entry: Function, chip: Chip) -> None:
        self._module = module
        self._chip = chip
        self._entry = entry
        self._names: dict[str, str] = {}  # C++ names of variables, by their names in the module
        functions, self._variables = _used(module, entry)
        self._functions = [one for one in functions if one.body is not None]
        self._symbols = {
            **{one.name: symbol for one in functions if (symbol := _function_symbol(one))},
            **{one.name: self._symbol(one) for one in self._variables},
        }

    def code(self) -> str:
        # First, because they declare shared variables.
        bodies, shared = "", dict[str, Variable]()
        for number, one in enumerate(self._functions):
            parser = self._parser(one, number)
            bodies += function_code(_head(one), parser.body, parser, self._chip)
            shared |= parser.shared
        declared = (
            *(f"{_head(one)};" for one in self._functions),
            *(declaration(one, self._names[one.name]) for one in self._variables if _is_plain(one)),
            *(self._definition(one) for one in self._variables if _is_plain(one)),
            *(
                shared_definition(one, self._names[one.name])
                for one in self._variables
                if not _is_plain(one)
            ),
            *(shared_definition(one, cpp) for cpp, one in shared.items()),
        )
        name, includes = self._module.name, included(self._module.text)
        return (
            f'{includes}# 1 "{name}"\nnamespace {_SPACE} {{\n{chr(10).join(declared)}\n{bodies}}}\n'
            f'# 1 "the entry of {name}"\n'
            f"TMAASYNC_EMULATE_ENTRY({_SPACE}::{_own_name(self._entry)})\n"
            f"{self._shared_bytes()}"
        )

    def _parser(self, function: Function, number: int) -> BodyParser:
        own = {
            one.name: Symbol(
                address_of(_own_name(one))
                if function.is_entry
                else f"reinterpret_cast<::std::uint64_t>({_own_name(one)})"
            )
            for one in (*function.results, *function.parameters)
        }
        body = Body(self._module, function)
        return BodyParser(body, str(number), {**self._symbols, **own}, self._name)

    def _name(self, symbol: str) -> str:
        """Return the C++ name of a variable: the last one in its source, if that is free."""
        if symbol not in self._names:
            short = demangled(symbol).rpartition("::")[2]
            is_free = _NAME.fullmatch(short) and short not in self._names.values()
            self._names[symbol] = short if is_free else symbol
        return self._names[symbol]

    def _symbol(self, variable: Variable) -> Symbol:
        address = address_of(f"{_SPACE}::{self._name(variable.name)}")
        return Symbol(address if _is_plain(variable) else f"{PTX}converted_to_shared({address})")

    def _definition(self, variable: Variable) -> str:
        def address(name: str) -> str | None:
            symbol = self._symbols.get(name)
            return None if symbol is None else symbol.cpp

        try:
            return definition(variable, self._names[variable.name], address)
        except ValueError as error:
            raise self._module.refusal(
                self._module.text.find(variable.name),
                f"{variable.name} = {error}",
                "has an initial value that the CPU lacks: it takes numbers and addresses.",
            ) from None

    def _shared_bytes(self) -> str:
        """Return the constant by which a module asks for dynamic shared memory."""
        name = f"{self._entry.name}_shared_bytes"
        given = self._module.variables.get(name)
        if given is None:
            return ""
        constant = f'int __attribute__((visibility("default"))) {name}'
        return f'extern "C" {{ extern const {constant}; const {constant} = {given.value}; }}\n'


def _own_name(one: Function | Variable) -> str:
    """Return the C++ name of a function or parameter: in C++ its own may be a keyword."""
    return f"{one.name}_ptx"


def _is_plain(variable: Variable) -> bool:
    return variable.space != "shared"


def _function_symbol(function: Function) -> Symbol | None:
    if function.body is not None:
        return Symbol(address_of(f"{_SPACE}::{_own_name(function)}"))
    own = _SYSTEM.get(function.name)
    return None if own is None else Symbol(address_of(f"{PTX}{own}"))


def _head(function: Function) -> str:
    if function.is_entry:
        given = ", ".join(f"{_passed(one)} {_own_name(one)}" for one in function.parameters)
        return f"__global__ void {_own_name(function)}({given})"
    names = (*function.results, *function.parameters)
    given = ", ".join(f"{BYTES} {_own_name(one)}" for one in names)
    return f"__attribute__((noinline)) static void {_own_name(function)}({given})"


def _passed(parameter: Variable) -> str:
    """Return the C++ type of a kernel's parameter."""
    if parameter.count is not None:
        return f"const {PTX}Bytes<{parameter.size_bytes}, {parameter.align}>"
    floats = {"f32": "float", "f64": "double"}
    return floats.get(parameter.kind) or held_as(bits_of(parameter.kind))


def _used(module: Module, entry: Function) -> tuple[list[Function], list[Variable]]:
    """Return the functions and variables that the entry reaches by their names."""
    waiting, functions, variables = [entry.name], dict[str, Function](), dict[str, Variable]()
    while waiting:
        name = waiting.pop()
        if name in functions or name in variables:
            continue
        if (function := module.functions.get(name)) is not None:
            functions[name] = function
            begin, end = function.body or (0, 0)
            waiting += set(_NAME.findall(module.text, begin, end))
        elif (variable := module.variables.get(name)) is not None:
            variables[name] = variable
            waiting += _NAME.findall(variable.value)
    return list(functions.values()), list(variables.values())
