"""The variables of a compiled module: of a cubin, or of a library of the emulator."""

from __future__ import annotations

import ctypes
import functools
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tmaasync.errors import ArgumentError


class Symbol(NamedTuple):
    """A variable as the ELF file of a module has it.

    The address counts from where the file, or the variable's section, is loaded.
    """

    symbol: str
    address: int
    size_bytes: int
    is_writable: bool


def symbol_named(path: Path, name: str, source: str) -> Symbol:
    """Return the variable that CUDA C++ calls ``name``.

    Raises:
        ArgumentError: The module has none of this name, or several.
    """
    known = variables_of(path)
    wanted = _plain(name)
    found = [symbol for written, symbol in known.items() if _plain(written) == wanted]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(known) or "none"
    raise ArgumentError.broken(
        "name",
        f"{name!r}",
        f"the kernel uses no __constant__ or __device__ variable of that name in {source}",
        f"It has: {listed}",
    )


@functools.lru_cache(maxsize=64)
def variables_of(path: Path) -> Mapping[str, Symbol]:
    """Return the variables in a cubin or in a library of the emulator, by their C++ names."""
    found = {demangled(one.symbol): one for one in sorted(_objects(path))}
    return {name: one for name, one in found.items() if not _is_ours(name)}


def _plain(name: str) -> str:
    """Return a name without spaces, a leading ``::`` and unnamed namespaces."""
    return "".join(_UNNAMED.sub("", name).split()).removeprefix("::")


_UNNAMED = re.compile(r"\(anonymous namespace\)::|_INTERNAL_\w+::")  # g++'s and NVRTC's words


_OURS = ("tmaasync", "std::", "cuda::", "__", "vtable ", "typeinfo ", "guard variable ", "VTT ")


def _is_ours(name: str) -> bool:
    """Whether a variable belongs to a header or the compiler, or is a static local one."""
    bare = _UNNAMED.sub("", name)
    is_local = ")::" in bare or "." in bare or "$" in bare
    return is_local or bare.startswith(_OURS) or bare.endswith("_shared_bytes")


def _objects(path: Path) -> Iterator[Symbol]:
    """Yield the symbols of kind STT_OBJECT that have a size, of an ELF file."""
    from elftools.elf.constants import SH_FLAGS
    from elftools.elf.elffile import ELFFile

    file: Any = ELFFile(io.BytesIO(path.read_bytes()))
    for table in file.iter_sections("SHT_SYMTAB"):
        for one in table.iter_symbols():
            is_object = one["st_info"]["type"] == "STT_OBJECT" and one["st_size"]
            if is_object and isinstance(one["st_shndx"], int):  # SHN_UNDEF and the like are names
                flags = file.get_section(one["st_shndx"])["sh_flags"]
                is_writable = bool(flags & SH_FLAGS.SHF_WRITE)
                yield Symbol(one.name, one["st_value"], one["st_size"], is_writable)


def demangled(symbol: str) -> str:
    """Return the C++ name of a symbol; the symbol itself where the C++ library is missing."""
    demangle, free = _demangler()
    if demangle is None or not symbol.startswith("_Z"):
        return symbol
    status = ctypes.c_int()
    text = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not text:
        return symbol
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        free(ctypes.c_void_p(text))


@functools.cache
def _demangler() -> tuple[Any, Any]:
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except OSError:
        return None, None
    demangle.restype = ctypes.c_void_p
    return demangle, ctypes.CDLL(None).free
