"""Paths of this package's CUDA C++."""

from __future__ import annotations

from pathlib import Path

from tmaasync.errors import ArgumentError, BackendError, Violation

__all__ = ["find_kernel", "include_dir", "kernels_dir"]

_PACKAGE = Path(__file__).resolve().parent
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
        f"{_PACKAGE.parent / 'kernels'} contains {_HEADER}. Reinstall tmaasync."
    )


def include_dir() -> Path:
    """Return the directory to put on a CUDA compiler's include path."""
    return kernels_dir() / "include"


def find_kernel(name: str | Path) -> Path:
    """Return the CUDA source that ``name`` means.

    Args:
        name: The path of a file of yours; or, where no such file exists, the bare name of a kernel
            shipped with the package, such as ``"gemm.cu"``.

    Raises:
        ArgumentError: There is no such file.

    >>> find_kernel("gemm.cu").name
    'gemm.cu'
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path.resolve()
    if path.name == str(name) and (shipped := kernels_dir() / path.name).is_file():
        return shipped
    names = ", ".join(sorted(source.name for source in kernels_dir().glob("*.cu")))
    raise ArgumentError.of(
        [
            Violation(
                "kernel",
                repr(str(name)),
                "there is no such file",
                f"Pass the path of a .cu file, or the name of a shipped kernel: {names}",
            )
        ]
    )
