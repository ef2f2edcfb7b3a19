"""Compile CUDA source to a cubin on disk, cached under a hash of everything that went into it.

CuPy's own cache ignores edits to included headers and reaches ``sm_90a`` only by accident, so the
cubin is built here with NVRTC and handed to CuPy as a file.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tmaasync._entries import function_name
from tmaasync._includes import ComputedIncludeError, digest, file_digest, reached, reached_or_all
from tmaasync._sources import header_of_names, include_dir
from tmaasync._wheels import install_command
from tmaasync.errors import BackendError, CompileError

__all__ = [
    "Assembly",
    "Entry",
    "Parameter",
    "Program",
    "Source",
    "assemble",
    "cache_dir",
    "compile_source",
    "header_texts",
    "headers_near",
    "load_facts",
    "load_nvrtc",
    "namespace_hint",
    "nvrtc_include_dirs",
    "nvrtc_version",
    "refusal",
    "run_nvrtc",
    "store_with_facts",
    "toolkit_include_dirs",
    "write_whole",
]

_FORMAT = 3
# NVRTC 12.8 has no __builtin_FILE, by which debug builds and signals name a line.
_OLDEST_NVRTC = (12, 9)
_ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(([^)]*)\)")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+"
    r"(?:\.ptr\s+(?:\.\w+\s+(?:\d+\s+)?)*)?"  # of sm_100 and later
    r"\w+(?:\[(\d+)\])?"
)
_SHARED_BYTES = re.compile(r"\.u32 (\w+)_shared_bytes = (\d+);")
_PROPERTIES = re.compile(
    r"Function properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
    r"(\d+) bytes spill loads\n.*?Used (\d+) registers"
)
_REMARK = re.compile(r"\(C\d+\)\s*(.*)")
_ADVICE = re.compile(rf"warning|{_REMARK.pattern}", re.IGNORECASE)
_UNSUPPORTED = re.compile(r"Instruction '([\w.]+)[^']*' not supported on .target '(\w+)'")
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_MISSING_HEADER = re.compile(r'cannot open source file "([^"]+)"')
_C_HEADERS = Path(__file__).resolve().parent / "_nvrtc_headers"
"""The names of C headers, which <cuda.h> and kernels ask for. NVRTC has none."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One kernel parameter as the PTX declares it: ``kind`` is ``u``, ``s``, ``f`` or ``b``.

    PTX has ``u`` for integers of both signs and for pointers. Where the source declares more, a
    `Signature` makes it ``i`` (signed), ``n`` (unsigned) or ``t`` (bool).
    """

    kind: str
    size_bytes: int

    @property
    def is_struct(self) -> bool:
        """Whether the parameter is passed as raw bytes."""
        return self.kind == "struct"


@dataclass(frozen=True, slots=True)
class Entry:
    """One ``__global__`` function of a program, with the compiler's facts about it.

    ``symbol`` is its name in the machine code.
    """

    name: str
    symbol: str
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    registers: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled source: the cubin's path, its entries, and the compiler's log."""

    path: Path
    arch: str
    entries: Mapping[str, Entry]
    log: str

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return the compiler's warnings, a line each; `remarks` too."""
        return tuple(line for line in self.log.splitlines() if _ADVICE.search(line))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return the assembler's advice on lost speed: an ignored setmaxnreg, serialised wgmma.

        It prints them as information with a number such as C7508, which is left out.
        """
        return tuple(dict.fromkeys(_REMARK.findall(self.log)))


@dataclass(frozen=True, slots=True)
class Assembly:
    """The compiler's intermediate results: the PTX of a source, and its log."""

    ptx: str
    entries: Mapping[str, Entry]
    log: str


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

    @property
    def whole_text(self) -> str:
        """The preamble, then the text with line numbers that count from its own first line."""
        return f'{self.preamble}#line 1 "{self.name}"\n{self.text}'


def cache_dir() -> Path:
    """Return the folder of compiled kernels, private to its owner (mode 0700).

    ``TMAASYNC_CACHE_DIR`` names another one.

    Raises:
        BackendError: The folder cannot be made, or belongs to another user.
    """
    chosen = os.environ.get("TMAASYNC_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(chosen) if chosen else Path(base) / "tmaasync"
    remedy = "Set TMAASYNC_CACHE_DIR to a folder of your own."
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise BackendError(
                f"the kernel cache {path} belongs to user {status.st_uid}, so what it holds cannot "
                f"be trusted. {remedy}"
            )
        if status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise BackendError(f"the kernel cache {path} cannot be used: {error}. {remedy}") from error
    return path


def compile_source(source: Source, arch: str) -> Program:
    """Compile for an architecture such as ``"sm_90a"``, or take the cubin from the cache.

    Raises:
        CompileError: The compiler refused the source; the message shows its log.
        BackendError: There is no NVRTC, or the cache folder cannot be used.
    """
    options = _options(source, arch)
    key = _cache_key(source, arch, options)
    folder = cache_dir()
    cached = _load(folder, key) if key else None
    if cached is not None:
        return cached
    cubin, ptx, log, symbol = run_nvrtc(source, options)
    program = Program(
        path=folder / f"{key or digest(cubin)}.cubin",
        arch=arch,
        entries=_entries(source, ptx, log, symbol),
        log=log,
    )
    _store(program, cubin)
    return program


def assemble(source: Source, arch: str) -> Assembly:
    """Compile for an architecture such as ``"sm_90a"``, past the cache, which has no PTX.

    Raises:
        CompileError: The compiler refused the source; the message shows its log.
        BackendError: There is no NVRTC.
    """
    _, ptx, log, symbol = run_nvrtc(source, _options(source, arch))
    return Assembly(ptx, _entries(source, ptx, log, symbol), log)


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
    folders = (include_dir(), *source.include_dirs, *nvrtc_include_dirs())
    return (
        f"{_ARCH_OPTION}{arch}",
        *(() if _has_standard(source) else _CPP20),
        # Generic lambdas too, which NVRTC 13.0 takes for host functions otherwise.
        "--device-as-default-execution-space",
        "--generate-line-info",
        "--ptxas-options=-v",
        *source.options,
        *(f"--include-path={folder}" for folder in folders),
    )


# The emulator's headers need C++20, and a kernel has one standard on both back ends. NVRTC 13.5
# gives 35 builds of the shipped kernels the same instructions as C++17 (2026-11-23). No warnings
# of what C++20 deprecates and CUDA code has everywhere: `volatile`, [=] that captures `this`.
_CPP20 = ("--std=c++20", "--diag-suppress=2908,3010,3011,3012,3013,3014,3531,3532")


def _has_standard(source: Source) -> bool:
    return any(re.match("--?std(=|$)", option) for option in source.options)


_ARCH_OPTION = "--gpu-architecture="
_ARCH = re.compile(r"sm_(\d+)[af]?")


def _require_target(nvrtc: Any, arch: str) -> None:
    """Refuse an architecture that is newer or older than the compiler."""
    _, targets = nvrtc.nvrtcGetSupportedArchs()
    found = _ARCH.fullmatch(arch)
    if found is None or int(found[1]) not in targets:
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
    _, program = nvrtc.nvrtcCreateProgram(text, source.name.encode(), 0, [], [])
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


def namespace_hint(source: Source, undefined: Iterable[str]) -> tuple[str, list[str]]:
    """Say how to reach the undefined names of namespace tmaasync, and return the other names."""
    ours = header_of_names()
    headers, others = {}, []
    for name in undefined:
        if name in ours:
            headers[name] = ours[name]
        else:
            others.append(name)
    if not headers:
        return "", others
    hint = f"\nNot defined: {', '.join(headers)}, of namespace tmaasync."
    folders = (include_dir(), *source.include_dirs)
    known = reached_or_all(source.whole_text, folders, folders)
    missing = [
        f"#include <{header}>"
        for header in dict.fromkeys(headers.values())
        if include_dir() / header not in known
    ]
    if missing:
        hint += f" Add {', '.join(missing)}."
    if not _USING_OURS.search(source.text):
        qualified = ", ".join(f"tmaasync::{name}" for name in headers)
        hint += f" Write {qualified}, or add `using namespace tmaasync;`."
    return hint, others


_USING_OURS = re.compile(r"\busing\s+namespace\s+(?:::)?tmaasync\s*;")


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


# --- the compiler's log -----------------------------------------------------------------------


def _entries(source: Source, ptx: str, log: str, expressed: str) -> dict[str, Entry]:
    shared = {name: int(size) for name, size in _SHARED_BYTES.findall(ptx)}
    properties = {found[0]: found[1:] for found in _PROPERTIES.findall(log)}
    entries = {}
    for symbol, parameters in _ENTRY.findall(ptx):
        stack, stores, loads, registers = (int(n) for n in properties.get(symbol, (0, 0, 0, 0)))
        name = source.expression if symbol == expressed else symbol
        entries[name] = Entry(
            name=name,
            symbol=symbol,
            parameters=tuple(_parameter(*found) for found in _PARAMETER.findall(parameters)),
            shared_bytes=shared.get(function_name(name)),
            registers=registers,
            stack_bytes=stack,
            spill_bytes=stores + loads,
        )
    return entries


def _parameter(kind: str, bits: str, count: str) -> Parameter:
    size = int(bits) // 8
    return Parameter("struct", size * int(count)) if count else Parameter(kind, size)


# --- the cache --------------------------------------------------------------------------------


def _cache_key(source: Source, arch: str, options: Iterable[str]) -> str | None:
    """Return a hash of all that the cubin depends on; None where an include names a macro."""
    folders = (include_dir(), *source.include_dirs, *nvrtc_include_dirs())
    try:
        headers = [(str(path), file_digest(path)) for path in reached(source.whole_text, folders)]
    except ComputedIncludeError:
        return None
    flags = [option for option in options if not option.startswith("--include-path=")]
    text = (source.name, source.whole_text, source.expression)
    whole = (_FORMAT, *text, arch, flags, headers, nvrtc_version())
    return digest(json.dumps(whole).encode())


def header_texts(source: Source) -> Iterator[str]:
    """Yield the headers that the source reaches in its own folders."""
    folders = source.include_dirs
    for path in reached_or_all(source.whole_text, folders, folders):
        if path.is_file():
            yield path.read_text(encoding="utf-8", errors="replace")


def _store(program: Program, cubin: bytes) -> None:
    facts = {
        "arch": program.arch,
        "log": program.log,
        "entries": [asdict(entry) for entry in program.entries.values()],
    }
    store_with_facts(program.path, cubin, facts)


def store_with_facts(path: Path, data: bytes, facts: Mapping[str, object]) -> None:
    """Put a compiled file into the cache, with a file of its facts."""
    write_whole(path, data)
    whole = {"sha256": digest(data), **facts}
    write_whole(path.with_suffix(".json"), json.dumps(whole, indent=1).encode())


def load_facts(path: Path) -> dict[str, Any] | None:
    """Return the facts of a cached file; None if it is missing or was changed."""
    try:
        facts: dict[str, Any] = json.loads(path.with_suffix(".json").read_bytes())
        return facts if digest(path.read_bytes()) == facts["sha256"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_whole(path: Path, data: bytes) -> None:
    """Write a file; another process sees the whole file or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _load(folder: Path, key: str) -> Program | None:
    """Return the cached program; None if it is missing or was changed."""
    path = folder / f"{key}.cubin"
    facts = load_facts(path)
    try:
        if facts is None:
            return None
        entries = {item["name"]: _entry_from(item) for item in facts["entries"]}
        return Program(path=path, arch=facts["arch"], entries=entries, log=facts["log"])
    except (KeyError, TypeError):
        return None


def _entry_from(item: dict[str, Any]) -> Entry:
    parameters = tuple(Parameter(**parameter) for parameter in item.pop("parameters"))
    return Entry(parameters=parameters, **item)
