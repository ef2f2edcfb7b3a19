"""CUDA C++ that the C++ compiler would accept, or reject in words of its own, is refused first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tmaasync._comments import without_comments
from tmaasync._compile import Source
from tmaasync.emulate.frontend.cpp.object_file import THREAD_LOCAL, symbol_tables
from tmaasync.emulate.include_path import OWN_FOLDERS
from tmaasync.errors import CompileError

__all__ = ["check_library_headers", "refuse_dynamic_initializers", "refuse_shared_initializers"]

# --- headers of CUDA's libraries ----------------------------------------------------------------

# CUDA header folders with device code that only CUDA's compiler accepts.
_LIBRARIES = ("cooperative_groups", "cub", "cuda", "thrust")
_LIBRARY_HEADERS = re.compile(
    r"(?:cu(?:blas|dnn|fft|rand|solver|sparse|tensor)|nccl|nvshmem)\w*\.h"
)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(if|endif|include)\w*[ \t]*<?([^>\n]*)", re.MULTILINE)


def check_library_headers(source: Source) -> None:
    """Reject a header of CUDA's libraries without a replacement in the emulator.

    Includes inside ``#if`` may not be meant for the CPU, and are left to the compiler.

    Raises:
        CompileError: Names the header, its line and the supported headers.
    """
    depth = 0
    for directive in _DIRECTIVE.finditer(source.text):
        word, name = directive.groups()
        depth += {"if": 1, "endif": -1}.get(word, 0)
        own = (*OWN_FOLDERS, *source.header_dirs)
        if word != "include" or depth or not _is_missing(name, own):
            continue
        line = source.text.count("\n", 0, directive.start()) + 1
        raise CompileError(
            f"{source.name}({line}) includes <{name}>, which the CPU back end lacks. It has "
            "<cuda/barrier>, <cuda/pipeline>, <cuda/ptx>, <cuda/atomic>, much of <cuda/std/...>, "
            "<cooperative_groups.h> and <mma.h>. Write what the kernel needs as __device__ "
            "functions, or pass arrays on a GPU."
        )


def _is_missing(name: str, own: Sequence[Path]) -> bool:
    folder_name, slash, _ = name.partition("/")
    is_library = bool(slash and folder_name in _LIBRARIES) or _LIBRARY_HEADERS.fullmatch(name)
    return bool(is_library) and not any((folder / name).is_file() for folder in own)


# --- initialisers that CUDA C++ does not allow and C++ compilers do -------------------------------

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
