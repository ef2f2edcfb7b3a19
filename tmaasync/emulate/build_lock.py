"""Cache files that are made once, even if several processes and threads request them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tmaasync import _compile

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["made_once"]


def made_once(path: Path, make: Callable[[], bytes], facts: Mapping[str, Any]) -> Path:
    """Return the path of a complete cache file; one caller makes it while the others wait."""
    if _compile.load_facts(path) is None:
        with _locked(path.with_suffix(".lock")):
            if _compile.load_facts(path) is None:
                _compile.store_with_facts(path, make(), facts)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock on a temporary file; the lock ends with the process."""
    while True:
        with _opened(path) as descriptor:
            _lock(descriptor)
            if not _is_at(path, descriptor):
                continue  # the previous holder removed the file; there may be a new one by now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
                _unlock(descriptor)
            return


_OPENED: set[IO[str]] = set()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file that children of fork close: with it they would keep its lock."""
    with path.open("w") as file:
        _OPENED.add(file)
        try:
            yield file.fileno()
        finally:
            _OPENED.discard(file)


def _close_in_child() -> None:
    for file in _OPENED:
        file.close()
    _OPENED.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_close_in_child)


def _lock(descriptor: int) -> None:
    """Wait for the lock. On a file system without locks two processes may make the same file."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _unlock(descriptor: int) -> None:
    """Release the lock, of which a child between fork and exec may have a copy."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
