"""Build CUDA source into a shared library for this machine, in the same cache as the cubins.

Nothing of the source is rewritten: a header that is included first gives CUDA's words their
meaning, and our ``tmaasync/ptx/*.cuh`` come first on the include path. What the instructions do is
in the runtime, a library of its own that is compiled once.
"""

from __future__ import annotations

import ctypes
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmaasync import _compile
from tmaasync._compile import Parameter, Source
from tmaasync._sources import include_dir
from tmaasync.emulate import toolchain
from tmaasync.errors import ArgumentError, BackendError, CompileError

__all__ = ["EmulatedProgram", "build"]

_FORMAT = 2
_INCLUDE_DIR = Path(__file__).resolve().parent / "include"
_RUNTIME_DIR = Path(__file__).resolve().parent / "runtime"
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


@dataclass(frozen=True)
class EmulatedProgram:
    """One ``__global__`` function, compiled for the host and loaded.

    With ``races`` it reports its ordinary loads and stores to the runtime.
    """

    path: Path
    name: str
    source: Source = field(repr=False)
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    library: Any = field(repr=False)
    runtime: Any = field(repr=False)
    races: bool

    def built(self, *, races: bool) -> EmulatedProgram:
        """Return the build that reports every access to the runtime, or the other one."""
        return self if races == self.races else self._other

    @functools.cached_property
    def _other(self) -> EmulatedProgram:
        return build(self.source, self.name, races=not self.races)


def build(source: Source, name: str, *, races: bool = False) -> EmulatedProgram:
    """Compile one function of a source for this machine, or take it from the cache.

    Args:
        source: What to compile.
        name: The function.
        races: Whether its ordinary loads and stores are reported to the runtime.

    Raises:
        ArgumentError: The source has no ``__global__`` function of this name.
        CompileError: The compiler refused the source; the message shows its words.
        BackendError: There is no C++20 compiler, or CUDA's headers are missing.
    """
    _check_source(source, name)
    runtime = _runtime()
    whole = _translation_unit(source, name)
    options = (*toolchain.flags(is_kernel=True, races=races), *_options(source))
    path = _compile.cache_dir() / f"{_cache_key(source, whole, options)}.so"
    if _compile.load_facts(path) is None:
        library = _compiled(source, whole, options, runtime)
        _compile.store_with_facts(path, library, {"source": source.name, "entry": name})
    return _loaded(path, name, source, runtime, races)


# --- the runtime ------------------------------------------------------------------------------


def _runtime() -> Path:
    """The runtime's library in the cache."""
    files = sorted((*_RUNTIME_DIR.glob("*.?pp"), *_INCLUDE_DIR.glob("tmaasync_emulate/*.hpp")))
    digests = [(path.name, _compile.file_digest(path)) for path in files]
    options = (
        *toolchain.flags(is_kernel=False),
        *(f"-I{folder}" for folder in (_RUNTIME_DIR, _INCLUDE_DIR, *_toolkit())),
    )
    facts = (_FORMAT, digests, toolchain.flags(is_kernel=False), toolchain.compiler_facts())
    path = _compile.cache_dir() / f"runtime-{_compile.digest(json.dumps(facts).encode())}.so"
    if _compile.load_facts(path) is None:
        try:
            library = toolchain.make_library(
                options, (_RUNTIME_DIR / "calls.cpp").read_text(), soname=path.name
            )
        except toolchain.RefusedError as refused:
            raise BackendError(
                f"{refused.compiler} cannot compile the emulator's runtime. It needs a C++20 "
                f"compiler for Linux: g++ 11 or clang++ 14. It says:\n{refused.log}"
            ) from None
        _compile.store_with_facts(path, library, {"source": "runtime"})
    return path


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
    """Return the CUDA compiler's options that mean the same here."""
    kept = [option for option in source.options if _DEFINITION.fullmatch(option)]
    plain = [
        option.replace("--define-macro=", "-D").replace("--undefine-macro=", "-U")
        for option in kept
    ]
    return (*plain, *(f"-I{folder}" for folder in _folders(source)))


def _compiled(source: Source, whole: str, options: tuple[str, ...], runtime: Path) -> bytes:
    try:
        return toolchain.make_library(
            options,
            whole,
            other_files={Path(source.name).name: source.text},  # for the lines in messages
            libraries=(runtime,),
        )
    except toolchain.RefusedError as refused:
        log = refused.log.replace("kernel.cpp", source.name)
        undefined = _UNDEFINED.findall(log)
        message = _compile.refusal(source, log, refused.compiler, undefined)
        raise CompileError(message, log) from None


def _cache_key(source: Source, whole: str, options: tuple[str, ...]) -> str:
    folders = _folders(source)
    kept = [option for option in options if not option.startswith("-I")]
    headers = [(str(path), digest) for path, digest in _headers(whole, folders)]
    facts = (_FORMAT, whole, kept, headers, _runtime().name, toolchain.compiler_facts())
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


_RUNTIMES: dict[str, Any] = {}


def _loaded_runtime(path: Path) -> Any:
    # By name, as the loader does for the kernels' libraries: of two caches' copies one serves all.
    if path.name not in _RUNTIMES:
        _RUNTIMES[path.name] = ctypes.CDLL(str(path))
    return _RUNTIMES[path.name]


def _loaded(path: Path, name: str, source: Source, runtime: Path, races: bool) -> EmulatedProgram:
    loaded_runtime = _loaded_runtime(runtime)  # before the library that asks for it by name
    library = ctypes.CDLL(str(path))
    facts = ctypes.POINTER(_ParameterFacts)()
    count = library.tmaasync_emulate_parameters(ctypes.byref(facts))
    return EmulatedProgram(
        path=path,
        name=name,
        source=source,
        parameters=tuple(_parameter(facts[index]) for index in range(count)),
        shared_bytes=_shared_bytes(library, name),
        library=library,
        runtime=loaded_runtime,
        races=races,
    )


def _parameter(facts: _ParameterFacts) -> Parameter:
    kind = facts.kind.decode()
    return Parameter("struct" if kind == "S" else kind, facts.size_bytes)


def _shared_bytes(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.c_int.in_dll(library, f"{name}_shared_bytes").value
    except ValueError:
        return None
