"""The C++ compiler of this machine, which builds the emulator's libraries."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tmaasync.errors import BackendError

_LOG = logging.getLogger("tmaasync")
_NOTICE_AFTER_SECONDS = 2.0

_COMPILERS = ("c++", "g++", "clang++")
_VERSION_SECONDS = 20.0
_COMPILE_SECONDS = 900.0  # attention takes 1 s


class RefusedError(BackendError):
    """The compiler refused its input: its name and its log."""

    def __init__(self, compiler: str, log: str) -> None:
        super().__init__(f"{compiler} fails:\n{log}")
        self.compiler = compiler
        self.log = log

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str]]:
        return type(self), (self.compiler, self.log)


def compiler_facts() -> tuple[str, str]:
    """Return the compiler's path and version text.

    Raises:
        BackendError: There is no compiler.
    """
    return _compiler_facts(os.environ.get("CXX"), os.environ.get("PATH"))


_CXX_RULE = "CXX is the path of a program, without options. "
_OTHER_COMPILER = "Set CXX to the path of g++ 11 or clang++ 14, or of a later one, or unset it"


@functools.cache
def _compiler_facts(chosen: str | None, folders: str | None) -> tuple[str, str]:
    for candidate in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(candidate, path=folders)
        if path is None:
            continue
        version = run_compiler([path, "-dumpfullversion", "-dumpversion"], _VERSION_SECONDS)
        lines = run_compiler([path, "--version"], _VERSION_SECONDS).stdout.splitlines()
        if not lines or not (version.stdout[:1].isdigit() or "clang" in lines[0]):
            raise BackendError(
                f"the C++ compiler is {path}, which reports no version as g++ and clang++ do. "
                f"{_OTHER_COMPILER}."
            )
        return path, f"{lines[0]} {version.stdout.strip()}"
    raise BackendError(
        f"there is no C++ compiler ({', '.join((chosen,) if chosen else _COMPILERS)}), and kernels "
        f"on host arrays are compiled with one. {_CXX_RULE if chosen else ''}Install "
        "g++ (Debian and Ubuntu: apt install g++; Fedora and RHEL: dnf install gcc-c++) or "
        "clang++, or set CXX to the path of one."
    )


def key_facts() -> tuple[str | None, ...]:
    """Return the compiler, and the variables of the environment that it reads."""
    return (*compiler_facts(), *map(os.environ.get, _READ_VARIABLES))


# As in the manual of gcc, "Environment Variables Affecting GCC", and clang's.
_READ_VARIABLES = (
    *("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"),
    *("CCC_OVERRIDE_OPTIONS", "GCC_COMPARE_DEBUG"),
)
_FOLDER_VARIABLES = ("CPATH", "CPLUS_INCLUDE_PATH")  # which `environment_folders` has
_DROPPED = (*_FOLDER_VARIABLES, "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES")


def environment_folders() -> tuple[Path, ...]:
    """Return the folders of headers that the environment names; an empty name is this folder."""
    found = (os.environ.get(name) for name in _FOLDER_VARIABLES)
    return tuple(Path(one).absolute() for text in found if text for one in text.split(os.pathsep))


def is_clang() -> bool:
    """Return whether the compiler is clang++, and not g++."""
    return "clang" in compiler_facts()[1]


@contextlib.contextmanager
def reported_if_slow(what: str, seconds: float = _NOTICE_AFTER_SECONDS) -> Iterator[None]:
    """Log one line with ``what`` if the block runs for longer than ``seconds``.

    Without a logging setup, Python prints only the text of a warning on stderr.
    ``logging.getLogger("tmaasync").setLevel("ERROR")`` turns the line off.
    """
    timer = threading.Timer(seconds, _LOG.warning, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


# Sources are UTF-8 whatever the locale, and other bytes in headers stay as they are.
TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


def in_file_system(text: str) -> str:
    """Return a file name or an option with the bytes of its UTF-8 text, whatever the locale."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for the compiler's files; errors of the block name it."""
    try:
        with tempfile.TemporaryDirectory(prefix="tmaasync-") as folder:
            yield Path(folder)
    except OSError as error:
        raise _unwritable(str(error)) from error


def _unwritable(reason: str) -> BackendError:
    return BackendError(
        f"the compiler's temporary files cannot be written or read ({reason}). Make room in the "
        "folder for temporary files, or set TMPDIR to another one."
    )


def written(path: Path, compiler: str) -> bytes:
    """Return the file that the compiler should have written."""
    content = path.read_bytes() if path.is_file() else b""
    is_binary = path.suffix in (".o", ".so")
    if not content or (is_binary and not content.startswith(b"\x7fELF")):
        raise BackendError(
            f"the C++ compiler {compiler} reports success and wrote no {path.name} for Linux. "
            f"{_OTHER_COMPILER}."
        )
    return content


def run(command: list[str], folder: Path, shown: Path | None = None) -> str:
    """Run the compiler where it finds the lines that messages show; return its log."""
    ran = run_compiler(command, _COMPILE_SECONDS, shown or folder)
    if ran.returncode < 0 or "Killed signal terminated program" in ran.stderr:
        number = -ran.returncode if ran.returncode < 0 else signal.SIGKILL
        raise BackendError(
            f"the C++ compiler {command[0]} was ended by signal {number} "
            f"({signal.strsignal(number)}). Perhaps this machine has too little memory: free some, "
            f"or compile fewer kernels at once. {_OTHER_COMPILER}."
        )
    log = ran.stderr.replace(f"{folder}/", "")
    if ran.returncode != 0:
        if _NO_SPACE in ran.stderr:
            raise _unwritable(_NO_SPACE)
        raise RefusedError(Path(command[0]).name, log)
    return log


_NO_SPACE = os.strerror(errno.ENOSPC)


def run_compiler(
    command: list[str], seconds: float, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the compiler in the C locale, whose messages are matched.

    Raises:
        BackendError: It cannot be started, or does not end.
    """
    environment = {name: os.environ[name] for name in os.environ if name not in _DROPPED}
    try:
        return subprocess.run(
            [*map(in_file_system, command)],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**environment, "LC_ALL": "C"},
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        problem = f"did not end within {seconds:g} s"
    except OSError as error:
        problem = f"cannot be started ({error.strerror})"
    raise BackendError(f"the C++ compiler {command[0]} {problem}. {_OTHER_COMPILER}.")
