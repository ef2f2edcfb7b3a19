"""Compiling and linking: texts in, objects and libraries out, all in temporary folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tmaasync.emulate.toolchain.compiler import (
    TEXT,
    compiler_facts,
    in_file_system,
    is_clang,
    run,
    temporary_folder,
    written,
)

_PREFIX = "prefix.hpp"
UNIT = "tmaasync translation unit.cpp"
"""The file that is compiled. Its folder has nothing else that a source could include."""


def can_precompile() -> bool:
    """Return whether `precompile` works: g++ checks that a header matches, clang++ does not."""
    return not is_clang()


class Compiled(NamedTuple):
    """An object or a precompiled header, the files that the compiler has read, log and text."""

    data: bytes
    read: frozenset[str]
    log: str = ""
    text: str = ""


def precompile(options: Sequence[str], prefix: str) -> Compiled:
    """Precompile a common prefix for `compile_object` with the same options, except macros.

    Raises:
        RefusedError: With the compiler's log.
    """
    compiler, _ = compiler_facts()
    with temporary_folder() as folder:
        header, compiled = folder / _PREFIX, folder / f"{_PREFIX}.gch"
        header.write_text(prefix, **TEXT)
        kind = ("-x", "c++-header", *_listed(folder), "-c")
        run([compiler, *options, *kind, str(header), "-o", str(compiled)], folder)
        return Compiled(written(compiled, compiler), _files_read(folder))


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
    with temporary_folder() as folder:
        made, shown = folder / "made", folder / "shown"
        source, compiled = folder / UNIT, made / "kernel.o"
        made.mkdir()
        shown.mkdir()
        source.write_text(text, **TEXT)
        for name, content in (other_files or {}).items():
            (shown / in_file_system(name)).write_text(content, **TEXT)
        if prefix is not None:
            (made / _PREFIX).write_text(prefix.text, **TEXT)
            if prefix.precompiled is not None:
                (made / f"{_PREFIX}.gch").symlink_to(prefix.precompiled)
            options = (*options, "-include", str(made / _PREFIX))
        if translate is None:
            options = (*options, *_listed(folder))
        else:
            text = _preprocessed(compiler, options, folder, translate)
            source = folder / "made" / "kernel.ii"
            source.write_text(text, **TEXT)
            options = (*options, "-fpreprocessed")
        log = run([compiler, *options, "-c", str(source), "-o", str(compiled)], folder, shown)
        data = written(compiled, compiler)
        read = _files_read(folder) | (prefix.read if prefix else frozenset())
        return Compiled(data, read, log, text)


def _listed(folder: Path) -> tuple[str, ...]:
    """Return options with which the compiler lists the files that it reads."""
    return ("-MD", "-MT", "unit", "-MF", str(folder / _LIST))


_LIST = "read.d"


def _files_read(folder: Path) -> frozenset[str]:
    """Return the files that the compiler listed, without temporary ones."""
    _, _, names = (folder / _LIST).read_text(**TEXT).replace("\\\n", " ").partition(": ")
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
    with temporary_folder() as folder:
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
        if runtime is not None and not is_clang():
            # The runtime brings the C++ library; reading its symbols is most of the linker's work.
            options += ["-nodefaultlibs", "-lm", "-lc", "-lgcc"]
        run([compiler, *map(str, paths), *options, "-o", str(library)], folder)
        return written(library, compiler)


def _preprocessed(
    compiler: str, options: Sequence[str], folder: Path, translate: Callable[[str], str]
) -> str:
    """Preprocess the unit, translate it, and return the result."""
    expanded = folder / "made" / "kernel.i"
    # Keep a precompiled prefix as a pragma.
    keeps_prefix = () if is_clang() else ("-fpch-preprocess",)
    command = [compiler, *options, *keeps_prefix, *_listed(folder), "-E", str(folder / UNIT)]
    run([*command, "-o", str(expanded)], folder, folder / "shown")
    written(expanded, compiler)
    return translate(expanded.read_text(**TEXT))
