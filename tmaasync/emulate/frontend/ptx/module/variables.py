"""The variables of a module in C++: their memory, and their initial values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tmaasync.emulate.frontend.ptx.module.reader import Variable
from tmaasync.emulate.frontend.ptx.program import bits_of

__all__ = ["declaration", "definition", "shared_definition"]

_FLOAT = re.compile(r"0[fFdD]([0-9a-fA-F]{8}|[0-9a-fA-F]{16})")
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)(?=[uU]?$)")
_ADDRESS = re.compile(
    r"(?:generic\s*\(\s*(?P<generic>[\w$%]+)\s*\)|(?P<plain>[A-Za-z_$%][\w$]*))"
    r"\s*(?P<offset>[+-]\s*\d+)?"
)

AddressOf = Callable[[str], str | None]


def _array(variable: Variable, cpp: str) -> str:
    side = "" if variable.count is None else f"[{variable.count or ''}]"
    return f"::std::uint{bits_of(variable.kind)}_t {cpp}{side}"


def _in_elements(variable: Variable) -> Variable:
    """Return an array of bytes as one of elements with its alignment, by which reports count."""
    size = variable.size_bytes
    if variable.kind != "b8" or variable.align not in (2, 4, 8) or size % variable.align:
        return variable
    return replace(variable, kind=f"b{8 * variable.align}", count=size // variable.align)


def declaration(variable: Variable, cpp: str) -> str:
    """Return the declaration of a variable in global or constant memory.

    The linker knows it by its name in the module, which `Kernel.variable` takes. In assembly $
    begins a constant.
    """
    label = "" if "$" in variable.name else f' asm("{variable.name}")'
    return f"extern {_array(variable, cpp)}{label};"


def definition(variable: Variable, cpp: str, address_of: AddressOf) -> str:
    """Return the definition of a variable in global or constant memory.

    Args:
        variable: The variable.
        cpp: Its name in the C++.
        address_of: Returns the C++ for the address of a symbol; None if there is none of this name.

    Raises:
        ValueError: The text of a value that is neither a number nor an address.
    """
    values = ", ".join(_values(variable, address_of))
    attributes = f"alignas({variable.align}) __attribute__((used))"
    return f"{attributes} {_array(variable, cpp)} = {{{values}}};"


def _values(variable: Variable, address_of: AddressOf) -> Iterator[str]:
    mask = (1 << bits_of(variable.kind)) - 1
    for text in map(str.strip, re.sub(r"[{}]", " ", variable.value).split(",")):
        if found := _FLOAT.fullmatch(text):
            yield f"0x{found[1]}u"
        elif found := _INTEGER.match(text):
            yield f"{_integer(found[0]) & mask:#x}u"
        elif text:
            named = _ADDRESS.fullmatch(text)
            address = address_of(named["generic"] or named["plain"]) if named else None
            if named is None or address is None:
                raise ValueError(text)
            yield f"{address}{named['offset'] or ''}"


def _integer(text: str) -> int:
    digits = text.lstrip("-")
    is_octal = digits.startswith("0") and digits.isdecimal()
    return int(text, 8 if is_octal else 0)


def shared_definition(variable: Variable, cpp: str) -> str:
    """Return the definition of a shared variable: static, or an array whose size a launch gives."""
    storage = "" if variable.size_bytes else "extern "
    array = _array(_in_elements(variable), cpp)
    return f"{storage}__shared__ alignas({variable.align}) {array};"
