"""Peers that are not on PyPI: modules that are installed, or that the user names."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable
from types import ModuleType

__all__ = ["peer_module", "peer_version"]


def peer_module(name: str, functions: Iterable[str]) -> ModuleType:
    """Return the module, which must have these functions; else the program ends and says why."""
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(f"The peer {name}: {error}") from error
    for function in functions:
        if not hasattr(module, function):
            raise SystemExit(f"The peer {name} has no {function}")
    return module


def peer_version(module: ModuleType) -> str:
    """Return the version of the module's package, or of the module if no package has it."""
    packages = importlib.metadata.packages_distributions().get(module.__name__.partition(".")[0])
    if packages:
        return importlib.metadata.version(packages[0])
    return str(getattr(module, "__version__", "unknown"))
