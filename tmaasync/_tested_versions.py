"""A warning where a compiler of kernels is another release than its adapter was tested with."""

from __future__ import annotations

import functools
import importlib.metadata
import warnings


@functools.cache
def check_version(distribution: str, tested: str, adapter: str) -> None:
    """Warn once if the installed release is another one.

    Args:
        distribution: The name on the package index.
        tested: The first numbers of the version, as in ``"3.9"``.
        adapter: The module that calls it.
    """
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # built from source, or under another name
        return
    if version != tested and not version.startswith(f"{tested}."):
        warnings.warn(
            f"{distribution} is {version}; {adapter} was tested with {tested}, and may fail with "
            f"another. Install {distribution}=={tested}.*, or launch the PTX with tmaasync.Kernel.",
            stacklevel=2,
        )
