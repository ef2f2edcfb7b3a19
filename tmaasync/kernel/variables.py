"""Variables of a kernel's module in ``__constant__`` and ``__device__`` memory."""

from __future__ import annotations

import ctypes
import functools
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tmaasync.errors import ArgumentError

__all__ = ["Symbol", "Variable", "VariableMemory", "symbol_named", "variables_of"]


class VariableMemory(Protocol):
    """The bytes of a variable, in a module that a back end has loaded."""

    def read(self) -> bytes:
        """Return the bytes."""

    def write(self, data: bytes) -> None:
        """Replace all bytes."""


class Variable:
    """A ``__constant__`` or ``__device__`` variable of a kernel, made by `Kernel.variable`.

    Attributes:
        name: As it was asked for.
        size_bytes: The size of the variable.
    """

    def __init__(self, name: str, size_bytes: int, memory: VariableMemory) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._memory = memory

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {self.size_bytes} bytes>"

    def read(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Return a copy of the variable in host memory: an array of one dimension.

        Waits for the device's work.

        Raises:
            ArgumentError: The variable does not hold a whole number of elements of this type.
        """
        element = np.dtype(dtype)
        if element.itemsize == 0 or self.size_bytes % element.itemsize:
            raise ArgumentError(
                f"dtype is {element}, of {element.itemsize} bytes; {self.name} has "
                f"{self.size_bytes} bytes, no multiple of it. Pass the type of its elements."
            )
        return np.frombuffer(self._memory.read(), element).copy()

    def write(self, values: npt.ArrayLike) -> None:
        """Fill the whole variable, as ``cudaMemcpyToSymbol`` does.

        Waits for the device's work; later launches read the new values.

        Args:
            values: A host array or NumPy scalar with as many bytes as the variable.

        Raises:
            ArgumentError: They have more or fewer bytes.
        """
        data = np.asarray(values)
        if data.nbytes != self.size_bytes or data.dtype.hasobject:
            raise ArgumentError(
                f"values has {data.nbytes} bytes ({data.dtype}, shape {data.shape}); {self.name} "
                f"has {self.size_bytes} bytes. Pass an array of its size and element type."
            )
        self._memory.write(data.tobytes())


# --- the symbols of a module --------------------------------------------------------------------


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
    raise ArgumentError(
        f"name is {name!r}; the kernel uses no __constant__ or __device__ variable of that name in "
        f"{source}. It has: {listed}."
    )


@functools.lru_cache(maxsize=64)
def variables_of(path: Path) -> Mapping[str, Symbol]:
    """Return the variables in a cubin or in a library of the emulator, by their C++ names."""
    found = {_demangled(one.symbol): one for one in sorted(_objects(path.read_bytes()))}
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


_HEADER = struct.Struct("<40xQ10xHHH")  # e_shoff, e_shentsize, e_shnum, e_shstrndx
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE, _OBJECT, _WRITABLE = 2, 1, 1
_RESERVED_SECTIONS = 0xFF00


def _objects(elf: bytes) -> Iterator[Symbol]:
    """Yield the symbols of kind STT_OBJECT that have a size, of an ELF file of 64 bits."""
    start, entry_bytes, count, _ = _HEADER.unpack_from(elf)
    sections = [_SECTION.unpack_from(elf, start + i * entry_bytes) for i in range(count)]
    for _, kind, _, _, offset, size, link, _, _, _ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[link][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, _, section, value, size_bytes = _SYMBOL.unpack_from(elf, at)
            if info & 15 == _OBJECT and 0 < section < _RESERVED_SECTIONS and size_bytes:
                end = elf.index(b"\0", names + name)
                is_writable = bool(sections[section][2] & _WRITABLE)
                yield Symbol(elf[names + name : end].decode(), value, size_bytes, is_writable)


def _demangled(symbol: str) -> str:
    """Return the C++ name of a symbol; the symbol itself where the C++ library is missing."""
    demangle, free = _demangler()
    if demangle is None or not symbol.startswith("_Z"):
        return symbol
    status = ctypes.c_int()
    text = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not text:
        return symbol
    try:
        return ctypes.string_at(text).decode()
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
