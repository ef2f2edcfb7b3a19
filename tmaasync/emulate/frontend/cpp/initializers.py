"""Initialisers that CUDA C++ does not allow and C++ compilers do."""

from __future__ import annotations

import re

from tmaasync._comments import without_comments
from tmaasync._compile import Source
from tmaasync.emulate.frontend.cpp.object_file import THREAD_LOCAL, symbol_tables
from tmaasync.errors import CompileError

__all__ = ["refuse_dynamic_initializers", "refuse_shared_initializers"]

_INITIALIZED = re.compile(
    r"\b__shared__\b(?:\s*(?:alignas|__align__)\s*\([^)]*\))*"
    r"(?P<type>[^;{}()=]*?[\s&*>,])(?P<name>\w+)\s*(?:\[[^\]]*\]\s*)*[={]"
)
# "struct Point {" and "struct {" begin the type of a variable.
_BEGINS_TYPE = re.compile(r"\b(?:struct|class|union|enum)\s*$")


def refuse_shared_initializers(source: Source) -> None:
    """Raise a CompileError for the first ``__shared__`` variable with an initialiser, as nvcc does.

    Only the source itself is searched, not its headers.
    """
    bare = without_comments(source.text)
    for found in _INITIALIZED.finditer(bare):
        is_type = _BEGINS_TYPE.search(found["type"]) or _BEGINS_TYPE.fullmatch(found["name"])
        if not is_type:
            line = bare.count("\n", 0, found.start("name")) + 1
            message = (
                f"{source.name}:{line} initialises the __shared__ variable {found['name']}: an "
                "initializer is not allowed for a __shared__ variable. Assign it in the kernel, "
                "then call __syncthreads()."
            )
            raise CompileError(message, message)


# When a file is loaded, a function initialises its variables. A static variable of a function has a
# guard (Itanium C++ ABI, 2.8 and 3.3.3). <iostream> has a variable of the host that a function
# initialises. Shared variables are thread_local and have guards too, but nothing initialises them.
_RUN_WHEN_LOADED, _GUARD, _IOSTREAM = b"_GLOBAL__sub_I_", b"_ZGV", b"_ZStL8__ioinit\0"


def refuse_dynamic_initializers(source: Source, compiled: bytes) -> None:
    """Raise a CompileError for variables whose initialiser is code, as nvcc does."""
    for symbols, names_at in symbol_tables(compiled):
        names = [names_at + name for _, (name, info, *_) in symbols if info & 15 != THREAD_LOCAL]
        if any(compiled.startswith(_IOSTREAM, name) for name in names):
            continue
        if any(compiled.startswith((_RUN_WHEN_LOADED, _GUARD), name) for name in names):
            message = (
                f"{source.name} initialises a __device__, __constant__ or static variable by a "
                "function or a constructor that is not constexpr: dynamic initialization is not "
                "supported for it. Give it a constant, or set it before the launch with "
                "kernel.variable(name)."
            )
            raise CompileError(message, message)
