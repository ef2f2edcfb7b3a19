"""The C++ compiler of this machine, which builds the emulator's libraries."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tmaasync.errors import BackendError

__all__ = [
    "UNIT",
    "Compiled",
    "Prefix",
    "RefusedError",
    "can_precompile",
    "compile_object",
    "compiler_facts",
    "environment_folders",
    "flags",
    "key_facts",
    "link",
    "precompile",
    "reported_if_slow",
    "run_compiler",
]

_LOG = logging.getLogger("tmaasync")
_NOTICE_AFTER_SECONDS = 2.0

_COMPILERS = ("c++", "g++", "clang++")
_PREFIX = "prefix.hpp"
UNIT = "tmaasync translation unit.cpp"
"""The file that is compiled. Its folder has nothing else that a source could include."""
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


def _is_clang() -> bool:
    return "clang" in compiler_facts()[1]


_FIRST_GCC_WITH_PATTERNS = 12


def flags(*, is_kernel: bool) -> tuple[str, ...]:
    """Return the compiler's options for a kernel or for the runtime.

    The sanitizer inserts calls to the functions of tmaasync_emulate/accesses.hpp; no sanitizer
    runtime is linked.
    """
    is_clang = _is_clang()
    common = (
        "-std=c++20",
        "-O2",
        "-w",
        "-Wno-psabi",  # even with -w, g++ adds notes about the ABI of old releases to errors
        "-fPIC",
        "-fno-strict-aliasing",
        "-ffp-contract=off",
        "-U_FORTIFY_SOURCE",
        "-fstack-clash-protection",  # so that no frame skips the guard page below its stack
    )
    if not is_kernel:
        fast = ("-O1", "-finline-small-functions", *_without(_POINTLESS_PASSES), _GARBAGE_LIMIT)
        return (*common, *(() if is_clang else fast), "-fvisibility=hidden")
    # The TLS dialect in which the compiler gets a thread_local's address by a call.
    dialect = "gnu" if platform.machine() in ("x86_64", "AMD64") else "trad"
    gcc = (
        "-fno-extern-tls-init",
        "-fno-gnu-unique",
        f"-mtls-dialect={dialect}",
        # With elision, a returned struct reaches memory without a store that g++ instruments.
        "-fno-elide-constructors",
        "-fno-crossjumping",  # keep equal calls in two branches separate, each with its line
        "-fno-tree-tail-merge",
        "-fno-var-tracking",  # reports name lines and members, not the values of variables
        "-fdata-sections",  # `link` sorts the sections
    )
    kernel = (
        *("-x", "c++"),
        *common,
        "-g",
        "-fvisibility-inlines-hidden",
        "-fno-optimize-sibling-calls",  # keep the frame and line of a tail call to the runtime
        "-fno-exceptions",  # as in device code
        "-fno-builtin-printf",  # printf calls go to tmaasync_emulate/c_library.hpp
        # Calls of these go to tmaasync_emulate/accesses.hpp: no sanitizer sees moves in line.
        *("-fno-builtin-memcpy", "-fno-builtin-memmove", "-fno-builtin-memset"),
        "-fstack-protector-strong",  # a write beyond a local array ends the launch
    )
    marks = ("-ftrivial-auto-var-init=pattern",) if _marks_variables() else ()
    return (*kernel, *marks, *(() if is_clang else gcc), *_sanitizer(is_clang))


def _marks_variables() -> bool:
    """Return whether the compiler can mark uninitialised variables, as runtime/mma.hpp expects."""
    version = compiler_facts()[1].split()[-1].partition(".")[0]
    return _is_clang() or (version.isdecimal() and int(version) >= _FIRST_GCC_WITH_PATTERNS)


# g++ -O1 passes that gain almost nothing in kernel code, which is mostly calls. Without them
# attention compiles in 1.05 s instead of 1.30 s, and runs as fast.
_POINTLESS_PASSES = (
    *("combine-stack-adjustments", "compare-elim", "cprop-registers", "dse", "forward-propagate"),
    *("if-conversion", "if-conversion2", "ipa-profile", "ipa-reference"),
    *("move-loop-invariants", "reorder-blocks", "shrink-wrap", "tree-bit-ccp"),
    *("tree-dse", "tree-pta", "tree-sink", "tree-slsr"),
)
# Three more passes, only for kernels: without the first two of them the runtime's race search takes
# 50 % longer, without the third 9 %.
_POINTLESS_IN_KERNELS = (*_POINTLESS_PASSES, "ipa-pure-const", "tree-ch", "tree-dominator-opts")

# g++ starts garbage collection only at 256 MiB: 10 % less compile time, 490 MiB at most.
_GARBAGE_LIMIT = "--param=ggc-min-heapsize=262144"


def _without(passes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"-fno-{name}" for name in passes)


def _sanitizer(is_clang: bool) -> tuple[str, ...]:
    """Return options that turn memory accesses into calls.

    Code around calls has little to optimise: -O1 compiles attention in 1.17 s instead of 1.65 s.
    """
    settings = ("tsan-instrument-func-entry-exit=0", "tsan-distinguish-volatile=1")
    if is_clang:
        return ("-fsanitize=thread", *(f"-mllvm=-{setting}" for setting in settings))
    fast = ("-O1", "-finline-small-functions", *_without(_POINTLESS_IN_KERNELS))
    return (*fast, "-fsanitize=thread", *(f"--param={setting}" for setting in settings))


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


def can_precompile() -> bool:
    """Return whether `precompile` works: g++ checks that a header matches, clang++ does not."""
    return not _is_clang()


class Compiled(NamedTuple):
    """An object or a precompiled header, and the files that the compiler has read for it."""

    data: bytes
    read: frozenset[str]


def precompile(options: Sequence[str], prefix: str) -> Compiled:
    """Precompile a common prefix for `compile_object` with the same options, except macros.

    Raises:
        RefusedError: With the compiler's log.
    """
    compiler, _ = compiler_facts()
    with _temporary_folder() as folder:
        header, compiled = folder / _PREFIX, folder / f"{_PREFIX}.gch"
        header.write_text(prefix, **_TEXT)
        kind = ("-x", "c++-header", *_listed(folder), "-c")
        _run([compiler, *options, *kind, str(header), "-o", str(compiled)], folder)
        return Compiled(_written(compiled, compiler), _files_read(folder))


@dataclass(frozen=True)
class Prefix:
    """The prefix of a C++ text, and its precompiled file from `precompile`, if there is one."""

    text: str
    precompiled: Path | None = None
    read: frozenset[str] = frozenset()


def compile_object(
    options: Sequence[str],
    text: str,
    *,
    prefix: Prefix | None = None,
    other_files: Mapping[str, str] | None = None,
    translate: Callable[[str], str] | None = None,
) -> Compiled:
    """Compile one C++ text.

    If the precompiled file does not match, the compiler reads the prefix as text. ``translate``
    changes the preprocessed text.

    Raises:
        RefusedError: With the compiler's log.
        BackendError: There is no compiler, or no space for its files.
    """
    compiler, _ = compiler_facts()
    with _temporary_folder() as folder:
        made, shown = folder / "made", folder / "shown"
        source, compiled = folder / UNIT, made / "kernel.o"
        made.mkdir()
        shown.mkdir()
        source.write_text(text, **_TEXT)
        for name, content in (other_files or {}).items():
            (shown / _in_file_system(name)).write_text(content, **_TEXT)
        if prefix is not None:
            (made / _PREFIX).write_text(prefix.text, **_TEXT)
            if prefix.precompiled is not None:
                (made / f"{_PREFIX}.gch").symlink_to(prefix.precompiled)
            options = (*options, "-include", str(made / _PREFIX))
        if translate is None:
            options = (*options, *_listed(folder))
        else:
            source = _preprocessed(compiler, options, folder, translate)
            options = (*options, "-fpreprocessed")
        _run([compiler, *options, "-c", str(source), "-o", str(compiled)], folder, shown)
        data = _written(compiled, compiler)
        return Compiled(data, _files_read(folder) | (prefix.read if prefix else frozenset()))


def _listed(folder: Path) -> tuple[str, ...]:
    """Return options with which the compiler lists the files that it reads."""
    return ("-MD", "-MT", "unit", "-MF", str(folder / _LIST))


_LIST = "read.d"


def _files_read(folder: Path) -> frozenset[str]:
    """Return the files that the compiler listed, without temporary ones."""
    _, _, names = (folder / _LIST).read_text(**_TEXT).replace("\\\n", " ").partition(": ")
    words = (re.sub(r"\\([ #])", r"\1", word) for word in re.findall(r"(?:\\.|\S)+", names))
    files = (word.replace("$$", "$") for word in words)
    return frozenset(file for file in files if not file.startswith(f"{folder}/"))


def link(
    objects: Sequence[bytes],
    *,
    part: Path | None = None,
    runtime: Path | None = None,
    soname: str | None = None,
) -> bytes:
    """Link objects into a shared library: the runtime's or a kernel's.

    A kernel's library has one more object, ``part``, and finds the runtime in its own folder.

    Raises:
        RefusedError: With the linker's log.
        BackendError: There is no compiler.
    """
    compiler, _ = compiler_facts()
    with _temporary_folder() as folder:
        library = folder / "kernel.so"
        paths = [folder / f"{number}.o" for number in range(len(objects))]
        for path, compiled in zip(paths, objects, strict=True):
            path.write_bytes(compiled)
        paths += filter(None, (part, runtime))
        options = ["-shared", "-Wl,-Bsymbolic", "-Wl,-rpath,$ORIGIN", "-pthread"]
        # Sort static shared variables by alignment, so that an array before an mbarrier starts
        # where ptxas puts it: g++ writes them from the last to the first.
        options.append("-Wl,--sort-section=alignment")
        if soname is not None:
            options.append(f"-Wl,-soname,{soname}")
        if runtime is not None and not _is_clang():
            # The runtime brings the C++ library; reading its symbols is most of the linker's work.
            options += ["-nodefaultlibs", "-lm", "-lc", "-lgcc"]
        _run([compiler, *map(str, paths), *options, "-o", str(library)], folder)
        return _written(library, compiler)


def _preprocessed(
    compiler: str, options: Sequence[str], folder: Path, translate: Callable[[str], str]
) -> Path:
    """Preprocess the unit, translate it, and return the file with the result."""
    expanded, target = folder / "made" / "kernel.i", folder / "made" / "kernel.ii"
    # Keep a precompiled prefix as a pragma.
    keeps_prefix = () if _is_clang() else ("-fpch-preprocess",)
    command = [compiler, *options, *keeps_prefix, *_listed(folder), "-E", str(folder / UNIT)]
    _run([*command, "-o", str(expanded)], folder, folder / "shown")
    _written(expanded, compiler)
    target.write_text(translate(expanded.read_text(**_TEXT)), **_TEXT)
    return target


# Sources are UTF-8 whatever the locale, and other bytes in headers stay as they are.
_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


def _in_file_system(text: str) -> str:
    """Return a file name or an option with the bytes of its UTF-8 text, whatever the locale."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
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


def _written(path: Path, compiler: str) -> bytes:
    """Return the file that the compiler should have written."""
    content = path.read_bytes() if path.is_file() else b""
    is_binary = path.suffix in (".o", ".so")
    if not content or (is_binary and not content.startswith(b"\x7fELF")):
        raise BackendError(
            f"the C++ compiler {compiler} reports success and wrote no {path.name} for Linux. "
            f"{_OTHER_COMPILER}."
        )
    return content


def _run(command: list[str], folder: Path, shown: Path | None = None) -> None:
    """Run the compiler where it finds the lines that messages show."""
    ran = run_compiler(command, _COMPILE_SECONDS, shown or folder)
    if ran.returncode < 0 or "Killed signal terminated program" in ran.stderr:
        number = -ran.returncode if ran.returncode < 0 else signal.SIGKILL
        raise BackendError(
            f"the C++ compiler {command[0]} was ended by signal {number} "
            f"({signal.strsignal(number)}). Perhaps this machine has too little memory: free some, "
            f"or compile fewer kernels at once. {_OTHER_COMPILER}."
        )
    if ran.returncode != 0:
        if _NO_SPACE in ran.stderr:
            raise _unwritable(_NO_SPACE)
        raise RefusedError(Path(command[0]).name, ran.stderr.replace(f"{folder}/", ""))


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
            [*map(_in_file_system, command)],
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
