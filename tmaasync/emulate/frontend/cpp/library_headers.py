"""Headers of CUDA's libraries: the emulator supports some, and rejects the others by name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tmaasync._compile import Source
from tmaasync.emulate.include_path import OWN_FOLDERS
from tmaasync.errors import CompileError

__all__ = ["check_library_headers"]

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
