"""Launches of unchanged code on the CPU, with races searched: for pytest and the command line."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Iterator

from tmaasync.emulate import scheduled

# Each with its distribution and its adapter.
_SLOW = (
    ("numba", "numba-cuda", "numba"),
    ("cutlass", "nvidia-cutlass-dsl", "cute_dsl"),
    ("tilelang", "tilelang", "tilelang"),
    ("warp", "warp-lang", "warp"),
)


@contextlib.contextmanager
def searched(text: str = "") -> Iterator[None]:
    """Search every launch inside the ``with`` for races; see `on_cpu`."""
    with on_cpu(text), scheduled(races=True):
        yield


@contextlib.contextmanager
def on_cpu(text: str = "") -> Iterator[None]:
    """Let kernels of other libraries run on the CPU inside the ``with``.

    Triton's launches run on the CPU if it is installed. Numba, CuTe DSL, tilelang and Warp join
    it if they are imported already, because that takes seconds, or if the text names them.

    Args:
        text: The source that is about to run.
    """
    with contextlib.ExitStack() as stack:
        for name in _adapters(text):
            stack.enter_context(importlib.import_module(f"tmaasync.{name}").on_cpu())
        yield


def _adapters(text: str) -> Iterator[str]:
    if "triton" in sys.modules or importlib.util.find_spec("triton") is not None:
        yield "triton"
    for package, distribution, adapter in _SLOW:
        is_used = package in sys.modules or re.search(rf"\b{package}\b", text)
        if is_used and any(importlib.metadata.distributions(name=distribution)):
            yield adapter
