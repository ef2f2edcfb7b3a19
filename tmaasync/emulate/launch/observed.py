"""An observer of emulated launches, for tools that count them and their errors."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

LaunchObserver = Callable[[str, Exception | None], None]
"""Takes the kernel's name after each launch, and the error that ended it."""

_OBSERVER = contextvars.ContextVar[LaunchObserver | None]("tmaasync launches", default=None)

current_launch_observer: Callable[[], LaunchObserver | None] = _OBSERVER.get


@contextlib.contextmanager
def observe_launches(observer: LaunchObserver) -> Iterator[None]:
    """Call the observer after each launch inside the ``with``, errors that code catches included.

    Inside `emulate.devices` it is called when a launch is queued.
    """
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
