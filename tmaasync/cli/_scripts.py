"""Run a user's Python script as `python SCRIPT` would."""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from tmaasync.errors import ArgumentError


def run_script(path: Path, arguments: Sequence[str], *, quietly: bool, wanted: str) -> int:
    """Run a script and return its exit code.

    An exception is printed as Python prints it, and the code is 1.

    Args:
        path: Path of the script.
        arguments: Its ``sys.argv`` after the path.
        quietly: Whether its output, and the output of its kernels and processes, goes to stderr, so
            that stdout is the command's alone.
        wanted: The files that the command takes, for the error.

    Raises:
        ArgumentError: The script cannot be read, or is no Python.
    """
    _check(path, wanted)
    with _on_stderr() if quietly else contextlib.nullcontext(), _as_main(path, arguments):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as asked:
            return _exit_code(asked)
        except Exception as error:  # whatever a script may raise
            _show(error, path)
            return 1
    return 0


def text_of(file: str) -> str:
    """Return the text of a script, or nothing."""
    path = Path(file)
    return path.read_text(errors="replace") if path.is_file() else ""


def _check(path: Path, wanted: str) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec")
    except OSError as error:
        raise ArgumentError.broken(
            "file", f"{str(path)!r}", f"it cannot be read ({error.strerror})", f"Pass {wanted}"
        ) from None
    except (SyntaxError, ValueError) as error:
        raise ArgumentError.broken(
            "file", f"{str(path)!r}", f"it is no Python script ({error})", f"Pass {wanted}"
        ) from None


@contextlib.contextmanager
def _on_stderr() -> Iterator[None]:
    """Send to stderr what Python, the printf of kernels and child processes write to stdout."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        flush(None)
        os.dup2(stdout, 1)
        os.close(stdout)


@contextlib.contextmanager
def _as_main(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set ``sys.argv`` and ``sys.path`` as the script expects them."""
    argv, folders = sys.argv, sys.path[:]
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = folders


def _exit_code(asked: SystemExit) -> int:
    """Convert the argument of SystemExit as Python does: a number, None, or a text to print."""
    if asked.code is None or isinstance(asked.code, int):
        return asked.code or 0
    print(asked.code, file=sys.stderr)
    return 1


def _show(error: Exception, path: Path) -> None:
    """Print the traceback from the script on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != str(path):
        frames = frames.tb_next
    traceback.print_exception(error.with_traceback(frames or error.__traceback__))
