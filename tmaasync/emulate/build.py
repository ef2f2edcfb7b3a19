"""From CUDA source to a shared library for this machine, in the same cache as the cubins.

Nothing of the source is rewritten: a header that is included first gives CUDA's words their
meaning, and our ``tmaasync/ptx/*.cuh`` come first on the include path.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmaasync import _compile
from tmaasync._compile import Parameter, Source
from tmaasync._sources import include_dir
from tmaasync.errors import ArgumentError, BackendError, CompileError

__all__ = ["EmulatedProgram", "build"]

_FORMAT = 1
_INCLUDE_DIR = Path(__file__).resolve().parent / "include"
_COMPILERS = ("c++", "g++", "clang++")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims)__\s*\((?:[^()]|\([^()]*\))*\)")
_ENTRY = re.compile(r"__global__[^;(){}]*?(\w+)\s*\(")
_DYNAMIC_SHARED = re.compile(r"\bextern\s+__shared__\b[^;]*?(\w+)\s*\[\s*\]\s*;")
_ASM = re.compile(r"\basm\b|\b__asm__\b")
_UNDEFINED = re.compile(
    r"error: (?:use of undeclared identifier|unknown type name|'?)\s*'?(\w+)'?"
    r"(?: was not declared| does not name a type| has not been declared|\n|;)"
)
_DEFINITION = re.compile(r"(?:-D|--define-macro=|-U|--undefine-macro=)(.+)")


@dataclass(frozen=True, slots=True)
class EmulatedProgram:
    """One ``__global__`` function, compiled for the host and loaded."""

    path: Path
    name: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    library: Any


def build(source: Source, name: str) -> EmulatedProgram:
    """Compile one function of a source for this machine, or take it from the cache.

    Raises:
        ArgumentError: The source has no ``__global__`` function of this name.
        CompileError: The compiler refused the source; the message shows its words.
        BackendError: There is no C++20 compiler, or CUDA's headers are missing.
    """
    _check_source(source, name)
    whole = _translation_unit(source, name)
    command = (*_compiler_command(), *_options(source))
    path = _compile.cache_dir() / f"{_cache_key(source, whole, command)}.so"
    if _compile.load_facts(path) is None:
        library = _run_compiler(source, whole, command)
        _compile.store_with_facts(path, library, {"source": source.name, "entry": name})
    return _loaded(path, name)


# --- the source -------------------------------------------------------------------------------


def entry_names(text: str) -> tuple[str, ...]:
    """The ``__global__`` functions that the text defines.

    >>> entry_names('extern "C" __global__ void __launch_bounds__(32, 1) f(int x) {}')
    ('f',)
    """
    bare = _BOUNDS.sub("", _COMMENT.sub("", text))
    return tuple(dict.fromkeys(_ENTRY.findall(bare)))


def _check_source(source: Source, name: str) -> None:
    names = entry_names(source.text)
    if name not in names:
        known = ", ".join(names) or "none"
        raise ArgumentError(
            f'name is {name!r}; {source.name} has no extern "C" __global__ function of that name. '
            f"It has: {known}."
        )
    bare = _COMMENT.sub(lambda found: "\n" * found[0].count("\n"), source.text)
    assembly = _ASM.search(bare)
    if assembly:
        line = bare.count("\n", 0, assembly.start()) + 1
        raise CompileError(
            f"{source.name}({line}) holds inline assembly, which the CPU cannot run. Call the "
            "function of <tmaasync/ptx/...> that has the instruction, or pass arrays on a GPU."
        )


def _translation_unit(source: Source, name: str) -> str:
    arrays = dict.fromkeys(_DYNAMIC_SHARED.findall(_COMMENT.sub("", source.text)))
    aliases = "".join(f"TMAASYNC_EMULATE_DYNAMIC_SHARED({array})\n" for array in arrays)
    return (
        "#include <tmaasync_emulate/cuda.hpp>\n"
        f"{source.whole_text}\n"
        f'#line 1 "the entry of {source.name}"\n'
        f"TMAASYNC_EMULATE_ENTRY({name})\n"
        f"{aliases}"
    )


# --- the compiler -----------------------------------------------------------------------------


@functools.cache
def _compiler() -> tuple[str, str]:
    """The compiler's path, and what it says of its version."""
    chosen = os.environ.get("CXX")
    for candidate in (chosen,) if chosen else _COMPILERS:
        path = shutil.which(candidate)
        if path is None:
            continue
        version = _output([path, "--version"]).splitlines()[0]
        return path, f"{version} {_output([path, '-dumpfullversion', '-dumpversion']).strip()}"
    raise BackendError(
        f"there is no C++ compiler ({', '.join((chosen,) if chosen else _COMPILERS)}), and kernels "
        "on host arrays are compiled with one. Install g++ or clang++, or name one in CXX."
    )


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def _compiler_command() -> tuple[str, ...]:
    path, version = _compiler()
    is_clang = "clang" in version
    # The dialect in which the compiler asks for a thread_local's address by a call.
    dialect = "gnu" if platform.machine() in ("x86_64", "AMD64") else "trad"
    gcc = ("-fno-extern-tls-init", "-fno-gnu-unique", f"-mtls-dialect={dialect}")
    own = () if is_clang else gcc
    return (
        path,
        "-x",
        "c++",
        "-std=c++20",
        "-O2",
        "-g1",
        "-w",
        "-fPIC",
        "-shared",
        "-fno-strict-aliasing",
        "-fvisibility-inlines-hidden",
        "-ffp-contract=off",
        "-U_FORTIFY_SOURCE",
        "-fstack-clash-protection",  # so that no frame steps over the page below its stack
        *own,
    )


def _folders(source: Source) -> tuple[Path, ...]:
    return (_INCLUDE_DIR, include_dir(), *source.include_dirs, *_toolkit())


def _toolkit() -> tuple[Path, ...]:
    folders = _compile.toolkit_include_dirs()
    if not any((folder / "cuda_bf16.h").is_file() for folder in folders):
        raise BackendError(
            "CUDA's headers for bfloat16, float16 and float8 are missing, which kernels use on the "
            "CPU too. Install them with: pip install 'tmaasync[cuda13]'."
        )
    return folders


def _options(source: Source) -> tuple[str, ...]:
    """Of the options for the CUDA compiler those that mean the same here."""
    kept = [option for option in source.options if _DEFINITION.fullmatch(option)]
    plain = [
        option.replace("--define-macro=", "-D").replace("--undefine-macro=", "-U")
        for option in kept
    ]
    return (*plain, *(f"-I{folder}" for folder in _folders(source)))


def _run_compiler(source: Source, whole: str, command: tuple[str, ...]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tmaasync-") as folder:
        text, library = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        text.write_text(whole)
        Path(folder, Path(source.name).name).write_text(source.text)  # for the lines in messages
        ran = subprocess.run(
            [*command, str(text), "-o", str(library), "-Wl,-Bsymbolic", "-pthread"],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
        )
        if ran.returncode != 0:
            log = ran.stderr.replace(f"{text}", source.name)
            undefined = _UNDEFINED.findall(log)
            raise CompileError(_compile.refusal(source, log, Path(command[0]).name, undefined), log)
        return library.read_bytes()


def _cache_key(source: Source, whole: str, command: tuple[str, ...]) -> str:
    folders = _folders(source)
    flags = [option for option in command[1:] if not option.startswith("-I")]
    headers = [(str(path), digest) for path, digest in _headers(whole, folders)]
    facts = (_FORMAT, whole, flags, headers, _compiler())
    return _compile.digest(json.dumps(facts).encode())


def _headers(whole: str, folders: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """All that the text reaches; of an include that names a macro, everything in our folders."""
    try:
        reached = _compile.reached(whole, folders)
    except _compile.ComputedIncludeError:
        reached = [path for folder in folders[:-1] for path in sorted(folder.rglob("*.*"))]
    for path in reached:
        if path.is_file():
            yield path, _compile.file_digest(path)


# --- the library ------------------------------------------------------------------------------


class _ParameterFacts(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("size_bytes", ctypes.c_uint32))


def _loaded(path: Path, name: str) -> EmulatedProgram:
    library = ctypes.CDLL(str(path))
    facts = ctypes.POINTER(_ParameterFacts)()
    count = library.tmaasync_emulate_parameters(ctypes.byref(facts))
    return EmulatedProgram(
        path=path,
        name=name,
        parameters=tuple(_parameter(facts[index]) for index in range(count)),
        shared_bytes=_shared_bytes(library, name),
        library=library,
    )


def _parameter(facts: _ParameterFacts) -> Parameter:
    kind = facts.kind.decode()
    return Parameter("struct" if kind == "S" else kind, facts.size_bytes)


def _shared_bytes(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.c_int.in_dll(library, f"{name}_shared_bytes").value
    except ValueError:
        return None
