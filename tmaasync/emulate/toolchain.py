"""The C++ compiler of this machine, which builds the emulator's libraries."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tmaasync.errors import BackendError

__all__ = [
    "Prefix",
    "RefusedError",
    "can_precompile",
    "compile_object",
    "compiler_facts",
    "flags",
    "link",
    "precompile",
    "reported_if_slow",
    "run_compiler",
]

_LOG = logging.getLogger("tmaasync")
_NOTICE_AFTER_SECONDS = 2.0

_COMPILERS = ("c++", "g++", "clang++")
_PREFIX = "prefix.hpp"
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


def precompile(options: Sequence[str], prefix: str) -> bytes:
    """Precompile a common prefix for `compile_object` with the same options, except macros.

    Raises:
        RefusedError: With the compiler's log.
    """
    compiler, _ = compiler_facts()
    with _temporary_folder() as folder:
        header, compiled = Path(folder, _PREFIX), Path(folder, f"{_PREFIX}.gch")
        header.write_text(prefix, **_TEXT)
        kind = ("-x", "c++-header", "-c")
        _run([compiler, *options, *kind, str(header), "-o", str(compiled)], folder)
        return _written(compiled, compiler)


@dataclass(frozen=True)
class Prefix:
    """The prefix of a C++ text, and its precompiled file from `precompile`."""

    text: str
    precompiled: Path


def compile_object(
    options: Sequence[str],
    text: str,
    *,
    prefix: Prefix | None = None,
    other_files: Mapping[str, str] | None = None,
    translate: Callable[[str], str] | None = None,
) -> bytes:
    """Compile one C++ text.

    If the precompiled file does not match, the compiler reads the prefix as text. ``translate``
    changes the preprocessed text.

    Raises:
        RefusedError: With the compiler's log.
        BackendError: There is no compiler.
    """
    compiler, _ = compiler_facts()
    with _temporary_folder() as folder:
        source, compiled = Path(folder, "kernel.cpp"), Path(folder, "kernel.o")
        source.write_text(text, **_TEXT)
        for name, content in (other_files or {}).items():
            Path(folder, _in_file_system(name)).write_text(content, **_TEXT)
        if prefix is not None:
            Path(folder, _PREFIX).write_text(prefix.text, **_TEXT)
            Path(folder, f"{_PREFIX}.gch").symlink_to(prefix.precompiled.absolute())
            options = (*options, "-include", _PREFIX)
        if translate is not None:
            source = _preprocessed(compiler, options, source, translate)
            options = (*options, "-fpreprocessed")
        _run([compiler, *options, "-c", str(source), "-o", str(compiled)], folder)
        return _written(compiled, compiler)


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
        library = Path(folder, "kernel.so")
        paths = [Path(folder, f"{number}.o") for number in range(len(objects))]
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
    compiler: str, options: Sequence[str], source: Path, translate: Callable[[str], str]
) -> Path:
    """Preprocess a text, translate it, and return the file with the result."""
    expanded, target = source.with_suffix(".i"), source.with_suffix(".ii")
    # Keep a precompiled prefix as a pragma.
    keeps_prefix = () if _is_clang() else ("-fpch-preprocess",)
    command = [compiler, *options, *keeps_prefix, "-E", str(source), "-o", str(expanded)]
    _run(command, str(source.parent))
    _written(expanded, compiler)
    target.write_text(translate(expanded.read_text(**_TEXT)), **_TEXT)
    return target


# Sources are UTF-8 whatever the locale, and other bytes in headers stay as they are.
_TEXT = {"encoding": "utf-8", "errors": "surrogateescape"}


def _in_file_system(text: str) -> str:
    """Return a file name or an option with the bytes of its UTF-8 text, whatever the locale."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


@contextlib.contextmanager
def _temporary_folder() -> Iterator[str]:
    try:
        with tempfile.TemporaryDirectory(prefix="tmaasync-") as folder:
            yield folder
    except OSError as error:
        raise BackendError(
            f"the compiler's temporary files cannot be written or read ({error}). Make room in the "
            "folder for temporary files, or set TMPDIR to another one."
        ) from error


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


def _run(command: list[str], folder: str) -> None:
    ran = run_compiler(command, _COMPILE_SECONDS, folder)
    if ran.returncode < 0 or "Killed signal terminated program" in ran.stderr:
        number = -ran.returncode if ran.returncode < 0 else signal.SIGKILL
        raise BackendError(
            f"the C++ compiler {command[0]} was ended by signal {number} "
            f"({signal.strsignal(number)}). Perhaps this machine has too little memory: free some, "
            f"or compile fewer kernels at once. {_OTHER_COMPILER}."
        )
    if ran.returncode != 0:
        raise RefusedError(Path(command[0]).name, ran.stderr.replace(f"{folder}/", ""))


def run_compiler(
    command: list[str], seconds: float, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the compiler in the C locale, whose messages are matched.

    Raises:
        BackendError: It cannot be started, or does not end.
    """
    try:
        return subprocess.run(
            [*map(_in_file_system, command)],
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        problem = f"did not end within {seconds:g} s"
    except OSError as error:
        problem = f"cannot be started ({error.strerror})"
    raise BackendError(f"the C++ compiler {command[0]} {problem}. {_OTHER_COMPILER}.")
