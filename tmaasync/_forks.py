"""Locks and computed attributes that a forked child finds free.

Threads of the parent, which may hold them at the fork, do not exist in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload


class Lock:
    """A lock for ``with``, free in a forked child.

    It is reentrant: a signal handler may need it in the thread that holds it.

    Attributes:
        depth: How often the thread that holds it has taken it.
    """

    def __init__(self) -> None:
        """Make a free lock."""
        self.renew()
        _LOCKS.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()
        self.depth = 0

    def __enter__(self) -> Self:
        self._lock.acquire()
        self.depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        self._lock.release()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in [*_LOCKS]:
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_all)


_Value = TypeVar("_Value")


class cached_property(Generic[_Value]):  # noqa: N801 - as in functools
    """A property that is computed once: functools' of Python 3.12, which has no lock.

    Before, one lock served all instances of a class, and was held while one was computed.
    """

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        """Take the name and the documentation of the method."""
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> _Value: ...

    def __get__(self, instance: object, owner: type) -> Self | _Value:
        """Compute the value, or return it; later look-ups find it in the instance."""
        if instance is None:
            return self
        values = vars(instance)
        if self._name not in values:
            values[self._name] = self._compute(instance)
        value: _Value = values[self._name]
        return value
