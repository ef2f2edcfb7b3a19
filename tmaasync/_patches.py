"""Functions of another library, replaced for the threads that are inside a ``with``."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Patches:
    """Replacements that are in place while some thread is inside `applied`.

    Attributes:
        undo: Undoes them, in reverse order, when the last thread leaves.
    """

    def __init__(self, name: str, apply: Callable[[Patches], None]) -> None:
        """Take a name for the context variable, and the function that makes the replacements."""
        self.undo = contextlib.ExitStack()
        self._apply = apply
        self._value = contextvars.ContextVar[Any](f"tmaasync {name}", default=None)
        self._lock = threading.Lock()
        self._users = 0

    @property
    def value(self) -> Any:
        """The value of the innermost `applied` of this thread or context; None outside."""
        return self._value.get()

    @contextlib.contextmanager
    def applied(self, value: Any = True) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._apply_all()
            self._users += 1
        token = self._value.set(value)
        try:
            yield
        finally:
            self._value.reset(token)
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self.undo.close()

    def set(self, of: Any, name: str, new: Any) -> None:
        """Set an attribute of a class, module or object, for every thread."""
        if name in vars(of):
            self.undo.callback(setattr, of, name, vars(of)[name])
        else:
            self.undo.callback(delattr, of, name)
        setattr(of, name, new)

    def replace(self, of: Any, name: str, ours: Callable[..., Any]) -> None:
        """Let a function be ours inside `applied`, and theirs in other threads.

        Ours gets theirs before the arguments.
        """
        theirs = getattr(of, name)

        @functools.wraps(theirs)
        def function(*args: Any, **named: Any) -> Any:
            return theirs(*args, **named) if self.value is None else ours(theirs, *args, **named)

        self.set(of, name, function)

    def _apply_all(self) -> None:
        try:
            self._apply(self)
        except BaseException:
            self.undo.close()
            raise
