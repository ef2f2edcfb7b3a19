"""Paths of this package's CUDA C++."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from tmaasync.errors import ArgumentError, BackendError

_PACKAGE = Path(__file__).resolve().parents[1]
_HEADER = Path("include", "tmaasync", "tmaasync.cuh")


def kernels_dir() -> Path:
    """Return the directory of the shipped kernels.

    In an installed package it is ``tmaasync/kernels``, in a checkout its sibling ``kernels``.

    Raises:
        BackendError: Neither is there.
    """
    # The package's own first: next to an installed package a folder "kernels" is someone else's.
    for candidate in (_PACKAGE / "kernels", _PACKAGE.parent / "kernels"):
        if (candidate / _HEADER).is_file():
            return candidate
    raise BackendError(
        f"The CUDA headers of tmaasync are missing: neither {_PACKAGE / 'kernels'} nor "
        f"{_PACKAGE.parent / 'kernels'} contains {_HEADER}. Reinstall tmaasync "
        "from its checkout or wheel."
    )


def include_dir() -> Path:
    """Return the directory of the CUDA headers, for the include path of any compiler.

    nvcc, CuPy's ``RawModule`` and cuda.core's ``Program`` compile them as C++17, with nothing
    else of this package. On the command line ``tmaasync include`` prints the directory.

    Raises:
        BackendError: The headers are missing from the installation.

    >>> (include_dir() / "tmaasync" / "tmaasync.cuh").is_file()
    True
    """
    return kernels_dir() / "include"


# Patterns for the layout of our own headers: members are indented, and names that the namespace
# itself declares are not.
_NAMESPACE = re.compile(r"^namespace tmaasync \{\n(.*?)^\}  // namespace", re.MULTILINE | re.DOTALL)
_DECLARED = re.compile(
    r"^(?:(?:struct|class|enum class|using) (?:alignas\(\w+\) )?(\w+)\b(?! *::)"
    r"|(?:__device__|constexpr|inline)\b[^=({;]*?\b(\w+) *[=({])",
    re.MULTILINE,
)


@functools.cache
def header_of_names() -> Mapping[str, str]:
    """Return the names that headers declare in namespace tmaasync, each with its header.

    >>> header_of_names()["warp_index"]
    'tmaasync/warp.cuh'
    """
    folder = include_dir()
    return {
        kind or function: header.relative_to(folder).as_posix()
        for header in sorted(folder.rglob("*.cuh"), reverse=True)
        for declarations in _NAMESPACE.findall(header.read_text(encoding="utf-8"))
        for kind, function in _DECLARED.findall(declarations)
    }


def shipped_kernels() -> tuple[Path, ...]:
    """Return the source of every shipped kernel, in the order of their names.

    They lie in `kernels_dir` or in a folder of it, one for each family; no two have the same name.
    """
    folder = kernels_dir()
    found = (*folder.glob("*.cu"), *folder.glob("*/*.cu"))
    return tuple(sorted(found, key=lambda source: source.name))


def find_kernel(name: str | Path) -> Path:
    """Return the path of the CUDA source called ``name``.

    Args:
        name: The path of your file. If no file has it, the bare name of a kernel that the package
            ships, such as ``"gemm.cu"``, in any folder.

    Raises:
        ArgumentError: No file has this name.

    >>> find_kernel("gemm.cu").name
    'gemm.cu'
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    shipped = {source.name: source for source in shipped_kernels()}
    if str(name) in shipped:
        return shipped[str(name)]
    names = ", ".join(shipped)
    raise ArgumentError.broken(
        "kernel",
        repr(str(name)),
        "no file has this name",
        f"Pass the path of a .cu file, or the name of a shipped kernel: {names}",
    )
