"""CUDA C++ that the C++ compiler would accept, or reject in words of its own, is refused first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tmaasync._source.compile import Source
from tmaasync._source.declarations import variables
from tmaasync._source.tokens import tokens, words
from tmaasync.emulate.frontend.cpp.object_file import THREAD_LOCAL, symbol_tables
from tmaasync.emulate.include_path import OWN_FOLDERS
from tmaasync.errors import CompileError

# --- headers of CUDA's libraries ----------------------------------------------------------------

# CUDA header folders with device code that only CUDA's compiler accepts.
_LIBRARIES = ("cooperative_groups", "cub", "cuda", "thrust")
_PREFIXES = (
    *(f"cu{one}" for one in ("blas", "dnn", "fft", "rand", "solver", "sparse", "tensor")),
    *("nccl", "nvshmem"),
)


def check_library_headers(source: Source) -> None:
    """Reject a header of CUDA's libraries without a replacement in the emulator.

    Includes inside ``#if`` may not be meant for the CPU, and are left to the compiler.

    Raises:
        CompileError: Names the header, its line and the supported headers.
    """
    depth = 0
    own = (*OWN_FOLDERS, *source.header_dirs)
    for line, text in enumerate(source.text.split("\n"), 1):
        sign, _, directive = text.lstrip().partition("#")
        directive = "" if sign else directive.lstrip()
        depth += directive.startswith("if") - directive.startswith("endif")
        name = directive.removeprefix("include").lstrip().removeprefix("<").partition(">")[0]
        if depth or not directive.startswith("include") or not _is_missing(name, own):
            continue
        raise CompileError(
            f"{source.name}({line}) includes <{name}>, which the CPU back end lacks. It has "
            "<cuda/barrier>, <cuda/pipeline>, <cuda/ptx>, <cuda/atomic>, much of <cuda/std/...>, "
            "<cooperative_groups.h> and <mma.h>. Write what the kernel needs as __device__ "
            "functions, or pass arrays on a GPU."
        )


def _is_missing(name: str, own: Sequence[Path]) -> bool:
    folder_name, slash, _ = name.partition("/")
    is_header = name.startswith(_PREFIXES) and name.endswith(".h") and not slash
    return (folder_name in _LIBRARIES or is_header) and not any(
        (folder / name).is_file() for folder in own
    )


# --- initialisers that CUDA C++ does not allow and C++ compilers do -------------------------------


def refuse_shared_initializers(source: Source) -> None:
    """Raise a CompileError for the first ``__shared__`` variable with an initialiser, as nvcc does.

    Only the source itself is searched, not its headers.
    """
    code = tokens(source.text)
    for variable, end in variables(code, ("__shared__",)):
        # "struct {" and "struct Point {" begin the type of a variable.
        is_type = any(word in _BEGINS_TYPE for word in (*variable.kind[-1:], variable.name))
        if variable.name and not is_type and words(code[end : end + 1]) != [";"]:
            line = source.text.count("\n", 0, code[end].start) + 1
            message = (
                f"{source.name}:{line} initialises the __shared__ variable {variable.name}: an "
                "initializer is not allowed for a __shared__ variable. Assign it in the kernel, "
                "then call __syncthreads()."
            )
            raise CompileError(message, message)


_BEGINS_TYPE = ("struct", "class", "union", "enum")


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
