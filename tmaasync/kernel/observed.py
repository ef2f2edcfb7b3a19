"""Observers of kernels that code makes or launches, for tools that read their sources."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tmaasync._source.compile import Source
from tmaasync.kernel.recipe import Recipe


class SeenKernel(NamedTuple):
    """A kernel to compile: its entry function, source and requested architecture.

    ``arch`` is None if the source and the device decide.
    """

    name: str
    source: Source
    arch: str | None


class SkippedLaunch:
    """The placeholder for a prepared launch if the observer launches nothing."""

    def __call__(self) -> None:
        """Launch nothing."""

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        """Launch nothing."""

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        """Return a call that launches nothing."""
        del addresses, stream
        return self

    def release(self) -> None:
        """Release nothing."""


class KernelObserver:
    """The kernels made or launched so far.

    Args:
        launches: Whether launches run; if not, their outputs stay as they are.
    """

    def __init__(self, *, launches: bool) -> None:
        self.launches = launches
        self._seen: dict[SeenKernel, None] = {}

    @property
    def kernels(self) -> tuple[SeenKernel, ...]:
        """The distinct kernels, in the order of first sight."""
        return tuple(self._seen)

    def see(self, kernel: SeenKernel) -> None:
        """Add a kernel."""
        self._seen[kernel] = None


_OBSERVER = contextvars.ContextVar[KernelObserver | None]("tmaasync kernels", default=None)

# The context variable's own method, for speed: every launch calls it.
current_observer: Callable[[], KernelObserver | None] = _OBSERVER.get
"""Return the observer of kernels made and launched here and now; None without one."""


def see(recipe: Recipe) -> bool:
    """Report a kernel to the current observer; return True if it launches nothing."""
    observer = current_observer()
    if observer is None:
        return False
    observer.see(SeenKernel(recipe.name, recipe.source, recipe.arch))
    return not observer.launches


@contextlib.contextmanager
def observe(*, launches: bool = True) -> Iterator[KernelObserver]:
    """Collect the kernels that are made or launched inside the ``with``."""
    observer = KernelObserver(launches=launches)
    token = _OBSERVER.set(observer)
    try:
        yield observer
    finally:
        _OBSERVER.reset(token)
