"""Compile CUDA source to a cubin on disk, cached under a hash of everything that went into it.

CuPy's own cache ignores edits to included headers and reaches ``sm_90a`` only by accident, so the
cubin is built here with NVRTC and handed to CuPy as a file.
"""

from __future__ import annotations

import functools
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tmaasync._source.cache_folder import cache_dir, current_path, load_facts, store_with_facts
from tmaasync._source.includes import (
    ComputedIncludeError,
    Records,
    digest,
    file_digest,
    reached_digests,
    reached_or_all,
    recorded,
    text_of,
)
from tmaasync._source.paths import header_of_names, include_dir
from tmaasync._source.program import Assembly, Entry, Parameter, Program, entries_of, entry_from
from tmaasync._source.tokens import joined, tokens, words
from tmaasync._wheels import install_command
from tmaasync.errors import BackendError, CompileError

__all__ = [
    "Assembly",
    "Entry",
    "Parameter",
    "Program",
    "Source",
    "assemble",
    "compile_source",
    "header_texts",
    "headers_near",
    "load_nvrtc",
    "namespace_hint",
    "nvrtc_include_dirs",
    "nvrtc_version",
    "option_values",
    "refusal",
    "run_nvrtc",
    "target_of",
    "toolkit_include_dirs",
]

_FORMAT = 4
# NVRTC 12.8 has no __builtin_FILE, by which debug builds and signals name a line.
_OLDEST_NVRTC = (12, 9)
_UNSUPPORTED = re.compile(r"Instruction '([\w.]+)[^']*' not supported on .target '(\w+)'")
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_MISSING_HEADER = re.compile(r'cannot open source file "([^"]+)"')
_C_HEADERS = Path(__file__).resolve().parent / "nvrtc_headers"
"""The names of C headers, which <cuda.h> and kernels ask for. NVRTC has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source to compile: its text, its name in errors, and the directories of its headers."""

    text: str
    name: str
    include_dirs: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    # The entry's name where NVRTC has to look up its symbol: "softmax<float, 128>".
    expression: str = ""
    preamble: str = field(default="", repr=False)
    is_file: bool = False  # whose quoted includes are not searched in the working folder
    is_ptx: bool = False  # a module that is compiled already
    # The caller's names in dynamic shared memory, by offset: for reports.
    shared_names: tuple[tuple[int, str], ...] = ()

    @property
    def whole_text(self) -> str:
        """The preamble, then the text with line numbers that count from its own first line."""
        return f'{self.preamble}#line 1 "{self.name}"\n{self.text}'

    @property
    def header_dirs(self) -> tuple[Path, ...]:
        """The folders of its own headers, which options name too, as absolute paths."""
        named = (Path(folder) for _, folder in option_values(_FOLDER, self.options))
        return tuple(folder.absolute() for folder in (*self.include_dirs, *named))

    @property
    def including_text(self) -> str:
        """The whole text after an include of each header that options name."""
        named = (header for _, header in option_values(_HEADER, self.options))
        paths = ((Path(header).absolute(), header) for header in named)
        headers = (path if path.is_file() else header for path, header in paths)
        return "".join(f'#include "{header}"\n' for header in headers) + self.whole_text


_FOLDER = ("--include-path", "-I")
_HEADER = ("--include", "-include", "--pre-include", "-pre-include")


def option_values(names: Iterable[str], options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of these names, each with its value.

    The value may be the next word. After a short option it may follow at once: ``-Ifolder``.
    """
    for word, following in zip(options, (*options, "")[1:], strict=True):
        for name in names:
            rest = word.removeprefix(name)
            if word in (name, f"{name}="):
                yield name, following
            elif rest != word and (rest[0] == "=" or len(name) == len("-I")):
                yield name, rest[1:] if rest[0] in "= " else rest


def compile_source(source: Source, arch: str) -> Program:
    """Compile for an architecture such as ``"sm_90a"``, or take the cubin from the cache.

    Raises:
        CompileError: The compiler refused the source; the message shows its log.
        BackendError: There is no NVRTC, or the cache folder cannot be used.
    """
    begun_ns, headers = time.time_ns(), _headers(source)
    key = None if headers is None else _cache_key(source, arch, headers)
    folder = cache_dir()
    path = current_path(folder, key, ".cubin") if key else None
    cached = _load(path) if path else None
    if cached is not None:
        return cached
    cubin, ptx, log, symbol = run_nvrtc(source, _options(source, arch))
    program = Program(
        path=path or folder / f"{digest(cubin)}.cubin",
        arch=arch,
        entries=entries_of(ptx, log, source.expression, symbol),
        log=log,
    )
    _store(program, cubin, recorded((), headers or (), begun_ns))
    return program


def assemble(source: Source, arch: str) -> Assembly:
    """Compile for an architecture such as ``"sm_90a"``, past the cache, which has no PTX.

    Raises:
        CompileError: The compiler refused the source; the message shows its log.
        BackendError: There is no NVRTC.
    """
    _, ptx, log, symbol = run_nvrtc(source, _options(source, arch))
    return Assembly(ptx, entries_of(ptx, log, source.expression, symbol), log)


def nvrtc_version() -> tuple[int, int]:
    """Return the compiler's version.

    Raises:
        BackendError: There is no NVRTC.
    """
    nvrtc = _nvrtc()
    _, major, minor = nvrtc.nvrtcVersion()
    return int(major), int(minor)


# --- the compiler -----------------------------------------------------------------------------


@functools.cache
def _nvrtc() -> Any:
    return load_nvrtc(_bindings)


def _bindings() -> Any:
    from cuda.bindings import nvrtc

    return nvrtc


def load_nvrtc(load: Callable[[], Any]) -> Any:
    """Load the bindings of NVRTC, and NVRTC with them.

    Raises:
        BackendError: There is no NVRTC, or it is too old.
    """
    try:
        nvrtc = load()
        _, *version = nvrtc.nvrtcVersion()
    except Exception as error:  # the loader raises RuntimeError, ImportError or its own kind
        reason, _, _ = str(error).partition("\n")  # not the folders that were searched
        raise BackendError(
            "there is no NVRTC, which compiles the kernels. Install it with: "
            f"{install_command('cuda13', 'nvidia')}. ({reason})"
        ) from error
    if tuple(version) < _OLDEST_NVRTC:
        found, oldest = (".".join(map(str, one)) for one in (version, _OLDEST_NVRTC))
        raise BackendError(
            f"NVRTC is {found}; the headers of kernels need {oldest} or newer. Install it with: "
            f"{install_command('cuda12', 'nvidia')} for a driver of CUDA 12, or "
            f"{install_command('cuda13', 'nvidia')}"
        )
    return nvrtc


@functools.cache
def toolkit_include_dirs() -> tuple[Path, ...]:
    """Return the folders of CUDA's own headers, as far as they are installed."""
    from cuda import pathfinder

    found = (pathfinder.find_nvidia_header_directory(name) for name in ("cudart", "cccl"))
    return tuple(dict.fromkeys(Path(path) for path in found if path))


@functools.cache
def nvrtc_include_dirs() -> tuple[Path, ...]:
    """Return the folders of headers for NVRTC: CUDA's own, the ones of its release first.

    NVRTC 12 refuses the headers of CUDA 13, with which tmaasync is installed for the CPU.
    """
    from cuda import pathfinder

    try:
        library = pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path
    except pathfinder.DynamicLibNotFoundError:
        library = None
    own = headers_near(Path(library)) if library else ()
    return tuple(dict.fromkeys((*own, *toolkit_include_dirs(), _C_HEADERS)))


def headers_near(nvrtc: Path) -> tuple[Path, ...]:
    """Return the folders of CUDA's headers in the toolkit, or next to the wheel, of this NVRTC.

    CUDA 13 has libcu++ in a folder of its own.
    """
    root = nvrtc.resolve().parents[1]
    folders = (root / "include", root.parent / "cuda_runtime" / "include")
    found = [folder for folder in folders if (folder / "cuda_bf16.h").is_file()]
    libraries = (folder / "cccl" for folder in found)
    return (*found, *(folder for folder in libraries if (folder / "cuda" / "barrier").is_file()))


def _options(source: Source, arch: str) -> tuple[str, ...]:
    folders = (f"--include-path={folder}" for folder in _folders(source))
    return (*folders, *_flags(source, arch))


def _flags(source: Source, arch: str) -> tuple[str, ...]:
    return (
        f"{_ARCH_OPTION}{arch}",
        *(() if _has_standard(source) else _CPP20),
        # Generic lambdas too, which NVRTC 13.0 takes for host functions otherwise.
        "--device-as-default-execution-space",
        "--generate-line-info",
        "--ptxas-options=-v",
        *source.options,
    )


def _folders(source: Source) -> tuple[Path, ...]:
    return (include_dir(), *source.header_dirs, *nvrtc_include_dirs())


# The emulator's headers need C++20, and a kernel has one standard on both back ends. NVRTC 13.5
# gives 35 builds of the shipped kernels the same instructions as C++17 (2026-11-23). No warnings
# of what C++20 deprecates and CUDA code has everywhere: `volatile`, [=] that captures `this`.
_CPP20 = ("--std=c++20", "--diag-suppress=2908,3010,3011,3012,3013,3014,3531,3532")


def _has_standard(source: Source) -> bool:
    return any(option_values(("--std", "-std"), source.options))


_ARCH_OPTION = "--gpu-architecture="


def target_of(arch: str) -> int | None:
    """Return the number of an architecture; None for other words.

    >>> target_of("sm_90a"), target_of("sm_100"), target_of("compute_90")
    (90, 100, None)
    """
    number = arch.removeprefix("sm_").removesuffix("a").removesuffix("f")
    return int(number) if arch.startswith("sm_") and number.isdecimal() else None


def _require_target(nvrtc: Any, arch: str) -> None:
    """Refuse an architecture that is newer or older than the compiler."""
    _, targets = nvrtc.nvrtcGetSupportedArchs()
    if target_of(arch) not in targets:
        known = ", ".join(f"sm_{target}" for target in targets)
        version = "{}.{}".format(*nvrtc_version())
        raise BackendError(
            f"arch is {arch!r}; NVRTC {version} compiles for {known}, and for their variants like "
            "sm_90a. For a newer GPU, update NVRTC: "
            f"{install_command('cuda13', 'nvidia', options='-U')}."
        )


def run_nvrtc(source: Source, options: tuple[str, ...]) -> tuple[bytes, str, str, str]:
    """Compile with these options and no others; return cubin, PTX, log and the entry's symbol.

    The symbol is empty unless the source has an expression.

    Raises:
        BackendError: There is no NVRTC.
        CompileError: The source is refused.
    """
    nvrtc = _nvrtc()
    for option in options:
        if option.startswith(_ARCH_OPTION):
            _require_target(nvrtc, option.removeprefix(_ARCH_OPTION))
    text = source.whole_text.encode()
    # NVRTC searches quoted includes of the text in the folder of its name. Without that search
    # (--no-source-include) it finds no header next to a header, as cooperative_groups needs.
    name = f"/dev/null/{source.name}" if source.is_file else source.name
    _, program = nvrtc.nvrtcCreateProgram(text, name.encode(), 0, [], [])
    expression, symbol = source.expression.encode(), ""
    try:
        if expression:
            nvrtc.nvrtcAddNameExpression(program, expression)
        (result,) = nvrtc.nvrtcCompileProgram(
            program, len(options), [option.encode() for option in options]
        )
        log = _read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode(
            errors="replace"
        )
        if int(result) != 0:
            undefined = _UNDEFINED.findall(log)
            raise CompileError(refusal(source, log, result.name, undefined), log, undefined)
        cubin = _read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program, text=False)
        ptx = _read(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).decode(errors="replace")
        if expression:
            symbol = nvrtc.nvrtcGetLoweredName(program, expression)[1].decode()
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return cubin, ptx, log, symbol


def _read(size_of: Any, read: Any, program: Any, *, text: bool = True) -> bytes:
    size: int = size_of(program)[1]
    buffer = bytes(size)
    read(program, buffer)
    return buffer.rstrip(b"\0 ") if text else buffer


def refusal(source: Source, log: str, result: str, undefined: Iterable[str]) -> str:
    """Return the compiler's errors, with a hint at names and targets that the host may supply."""
    namespace, others = namespace_hint(source, dict.fromkeys(undefined))
    hint = _target_hint(log) + _header_hint(log) + namespace
    if others:
        hint += (
            f"\nNot defined: {', '.join(others)}. If the host should supply one of them, pass "
            "types={'Name': tile} or constants={'NAME': value} to Kernel."
        )
    return f"{source.name} does not compile ({result}):\n{log.strip()}{hint}"


# Types that each source has to include; of a kernel's parameters above all.
_CUDA_TYPES = {
    "cuda.h": re.compile(r"CU(?:tensorMap|deviceptr)\w*"),
    "cuda_fp16.h": re.compile(r"(?:__)?half2?"),
    "cuda_bf16.h": re.compile(r"__nv_bfloat162?|nv_bfloat162?"),
    "cuda_fp8.h": re.compile(r"__nv_fp8\w+"),
    "cstdint": re.compile(r"u?int(?:8|16|32|64|ptr)_t"),
}


def namespace_hint(source: Source, undefined: Iterable[str]) -> tuple[str, list[str]]:
    """Say how to reach the undefined names of tmaasync and CUDA, and return the other names."""
    ours = header_of_names()
    headers, others, hint = {}, [], ""
    for name in undefined:
        header = next((key for key, names in _CUDA_TYPES.items() if names.fullmatch(name)), None)
        if header is not None:
            hint += f"\nNot defined: {name}. Add #include <{header}>."
        elif name in ours:
            headers[name] = ours[name]
        else:
            others.append(name)
    if not headers:
        return hint, others
    hint += f"\nNot defined: {', '.join(headers)}, of namespace tmaasync."
    folders = (include_dir(), *source.header_dirs)
    known = reached_or_all(source.including_text, folders, folders)
    missing = [
        f"#include <{header}>"
        for header in dict.fromkeys(headers.values())
        if include_dir() / header not in known
    ]
    if missing:
        hint += f" Add {', '.join(missing)}."
    code = joined(words(tokens(source.text))).replace("namespace::", "namespace ")
    if "using namespace tmaasync;" not in code:
        qualified = ", ".join(f"tmaasync::{name}" for name in headers)
        hint += f" Write {qualified}, or add `using namespace tmaasync;`."
    return hint, others


def _target_hint(log: str) -> str:
    """Say for which architecture an instruction exists that the assembler refuses."""
    found = _UNSUPPORTED.search(log)
    if found is None:
        return ""
    instruction, target = found.groups()
    if instruction.startswith("wgmma"):
        return f"\n{instruction} exists on compute capability 9.0 alone. Compile it for sm_90a."
    if target.endswith(("a", "f")):
        return ""
    return f"\n{instruction} may need the architecture-specific target. Try arch={target + 'a'!r}."


def _header_hint(log: str) -> str:
    """Say where a missing header comes from."""
    found = _MISSING_HEADER.search(log)
    if found is None:
        return ""
    name = found[1]
    library, _, _ = name.partition("/")
    packages = {"cuda": "nvidia-cuda-cccl", "nv": "nvidia-cuda-cccl"}
    package = "nvidia-cuda-runtime" if name.startswith("coop") else packages.get(library)
    if package is None:
        return (
            f"\n<{name}> is in no folder of headers. Pass its folder as include_dirs. NVRTC has no "
            "C and C++ library: include <cuda/std/...> instead of its headers."
        )
    extra = "headers" if package.endswith("runtime") else "cuda13"
    return (
        f"\n<{name}> comes with CUDA. Install it with: {install_command(extra, package)} "
        f"('{package}-cu12' for CUDA 12), or pass its folder as include_dirs."
    )


# --- the cache --------------------------------------------------------------------------------


_Headers = tuple[tuple[str, str], ...]  # path and digest


def _headers(source: Source) -> _Headers | None:
    """Return the headers that the source may reach; None where an include names a macro."""
    own_folder = None if source.is_file else os.path.split(source.name)[0] or "."
    try:
        return reached_digests(source.including_text, _folders(source), own_folder)
    except ComputedIncludeError:
        return None


def _cache_key(source: Source, arch: str, headers: _Headers) -> str:
    """Return a hash of all that the cubin depends on."""
    text = (source.name, source.whole_text, source.expression)
    files = [(str(path), file_digest(path)) for path in _files_in(source.options)]
    environment = [os.environ.get(name) for name in _ENVIRONMENT]
    flags = (_flags(source, arch), files, environment)
    whole = (_FORMAT, *text, flags, headers, nvrtc_version())
    return digest(json.dumps(whole).encode())


_ENVIRONMENT = ("NVRTC_PREPEND_FLAGS", "NVRTC_APPEND_FLAGS")


def _files_in(options: Iterable[str]) -> Iterator[Path]:
    """Yield the files that options name, such as a precompiled header."""
    values = (Path(option.rpartition("=")[2]) for option in options)
    return (path for path in values if path.is_file())


def header_texts(source: Source) -> Iterator[str]:
    """Yield the headers that the source reaches in its own folders."""
    folders = source.header_dirs
    for path in reached_or_all(source.including_text, folders, folders):
        yield text_of(path)


def _store(program: Program, cubin: bytes, also_read: Records) -> None:
    facts = {
        "arch": program.arch,
        "log": program.log,
        "entries": [asdict(entry) for entry in program.entries.values()],
        "also_read": also_read,
    }
    store_with_facts(program.path, cubin, facts)


def _load(path: Path) -> Program | None:
    """Return the cached program; None if it is missing or was changed."""
    facts = load_facts(path)
    try:
        if facts is None:
            return None
        entries = {item["name"]: entry_from(item) for item in facts["entries"]}
        return Program(path=path, arch=facts["arch"], entries=entries, log=facts["log"])
    except (KeyError, TypeError):
        return None
