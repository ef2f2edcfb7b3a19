"""Calls of the runtime, during which Python's signal handlers run, and the memory it returns."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tmaasync.emulate.abi import Interpreter, Report

__all__ = ["heeding_signals", "is_main_thread", "take_bytes", "taken_report"]


def _interpreter(*, is_main: bool) -> Interpreter:
    python = ctypes.pythonapi
    functions = (python.PyEval_SaveThread, python.PyEval_RestoreThread, python.PyErr_CheckSignals)
    return Interpreter(*(ctypes.cast(one, ctypes.c_void_p) for one in functions), is_main)


_IN_MAIN_THREAD, _IN_ANOTHER = _interpreter(is_main=True), _interpreter(is_main=False)

# A call begins and ends with the GIL, and raises the exception of a handler.
_WITH_GIL = ctypes.PYFUNCTYPE(ctypes.c_void_p)


def is_main_thread() -> bool:
    """Return whether this is the thread that runs Python's signal handlers."""
    return threading.get_ident() == threading.main_thread().ident


def heeding_signals(function: Any) -> Callable[..., int | None]:
    """Return a function of the runtime without its last argument, the interpreter.

    In the main thread a signal handler runs during the call. If it raises an exception, the call
    ends early and raises it.
    """
    interpreter = _IN_MAIN_THREAD if is_main_thread() else _IN_ANOTHER
    call = _WITH_GIL(ctypes.cast(function, ctypes.c_void_p).value or 0)
    return lambda *arguments: call(*arguments, ctypes.byref(interpreter))


_LIBC = ctypes.CDLL(None)
_LIBC.free.argtypes = (ctypes.c_void_p,)
_LIBC.free.restype = None


def take_bytes(address: int | None, size: int) -> bytes:
    """Return bytes of the runtime, and free them."""
    if not address:
        return b""
    try:
        return ctypes.string_at(address, size)
    finally:
        _LIBC.free(address)


@contextlib.contextmanager
def taken_report(runtime: Any, address: int) -> Iterator[Report]:
    """Return the runtime's report of a failed launch, and free it at the end of the ``with``."""
    try:
        yield Report.from_address(address)
    finally:
        runtime.tmaasync_emulate_free_report(ctypes.c_void_p(address))
