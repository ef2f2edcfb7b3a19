"""Build CUDA source into a shared library for this machine, in the same cache as the cubins.

There are two interfaces to the emulator. ``tmaasync_emulate/cuda.hpp``, included first, defines
CUDA's built-ins. The emulator's ``tmaasync/ptx/*.cuh`` (and the hang watch in
``tmaasync/instrument``) come first on the include path. Only inline PTX of the source is rewritten
(`inline_ptx`). The instructions are in the runtime, a separate library that is compiled once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmaasync import _compile, _includes
from tmaasync._cache_folder import cache_dir, current_path
from tmaasync._comments import without_comments
from tmaasync._compile import Parameter, Source
from tmaasync._entries import check_entry, declaring_text, entry_names, function_name, template_of
from tmaasync._symbols import demangled
from tmaasync.emulate import toolchain
from tmaasync.emulate.abi import ParameterFacts
from tmaasync.emulate.chips.occupancy import MAX_STATIC_SHARED_BYTES
from tmaasync.emulate.frontend import ptx
from tmaasync.emulate.frontend.cpp.dynamic_shared import with_dynamic_shared
from tmaasync.emulate.frontend.cpp.headers import (
    Headers,
    folders_of,
    headers_of,
    is_authors,
    prefix_of,
)
from tmaasync.emulate.frontend.cpp.initializers import (
    refuse_dynamic_initializers,
    refuse_shared_initializers,
)
from tmaasync.emulate.frontend.cpp.library_headers import check_library_headers
from tmaasync.emulate.frontend.cpp.refusals import refusal
from tmaasync.emulate.runtime_library import (
    Runtime,
    build_runtime,
    runtime_is_built,
    runtime_name,
)
from tmaasync.emulate.toolchain import made_once
from tmaasync.errors import BackendError, CompileError
from tmaasync.registers import launch_registers

__all__ = ["EmulatedProgram", "build"]

_FORMAT = 4
_UNDEFINED = re.compile(
    r"error: (?:use of undeclared identifier|unknown type name|'?)\s*'?(\w+)'?"
    r"(?: was not declared| does not name a type| has not been declared|\n|;)"
)
_DEFINITION = re.compile(r"(-[DU]|--(?:un)?define-macro(?==|$))[= ]?(.*)", re.DOTALL)


@dataclass(frozen=True)
class EmulatedProgram:
    """One ``__global__`` function, compiled for the host and loaded."""

    path: Path
    name: str
    source: Source = field(repr=False)
    parameters: tuple[Parameter, ...]
    shared_bytes: int | None
    max_threads: int | None  # from __launch_bounds__
    cluster: tuple[int, int, int] | None  # from __cluster_dims__
    registers: int  # initial registers per thread; 0 if only the compiler knows
    static_bytes: int  # static shared memory
    library: Any = field(repr=False)
    runtime: Any = field(repr=False)

    def address_of(self, offset: int) -> int:
        """Return the memory address for an offset in the library's file."""
        loaded = ctypes.cast(self.library.tmaasync_emulate_call, ctypes.c_void_p).value
        begin = self.runtime.tmaasync_emulate_library_address
        begin.restype, begin.argtypes = ctypes.c_uint64, (ctypes.c_void_p,)
        return int(begin(loaded)) + offset


def build(source: Source, name: str) -> EmulatedProgram:
    """Compile one function of a source for this machine, or take it from the cache.

    Args:
        source: The source to compile.
        name: The function.

    Raises:
        ArgumentError: The source has no ``__global__`` function of this name.
        CompileError: The compiler rejected the source; the message shows the compiler's error.
        BackendError: There is no C++20 compiler, or CUDA's headers are missing.
    """
    declaring = declaring_text(source.text, name, functools.partial(_compile.header_texts, source))
    check_entry(declaring, source.name, name)
    check_library_headers(source)
    refuse_shared_initializers(source)
    has_asm, begun_ns = _has_asm(source), time.time_ns()
    whole = _translation_unit(source, name, declaring, has_asm=has_asm)
    headers = tuple(headers_of(whole, source))
    flags = toolchain.flags(is_kernel=True)
    key = _cache_key(whole, (*flags, *_options(source)), headers, has_asm=has_asm)
    path = current_path(cache_dir(), key, ".so")
    facts: dict[str, Any] = {"source": source.name, "entry": name}

    def make() -> bytes:
        library, read = _compiled(source, whole, flags, headers, has_asm=has_asm)
        facts["also_read"] = _includes.recorded(read, headers, begun_ns)
        return library

    made_once(path, make, facts)
    return _loaded(path, name, source)


# --- the source -------------------------------------------------------------------------------


def _translation_unit(source: Source, name: str, declaring: str, *, has_asm: bool) -> str:
    own = _own_integers(source.text)
    renamed = "".join(f"#define {name} tmaasync_own_{name}\n" for name in own)
    kept = "".join(f"#undef {name}\n" for name in own)
    return (
        f"#include <tmaasync_emulate/{'inline_ptx' if has_asm else 'cuda'}.hpp>\n"
        f"{renamed}{source.including_text}\n{kept}"
        f'#line 1 "the entry of {source.name}"\n'
        f"TMAASYNC_EMULATE_ENTRY({name})\n"
        f"{_attributes(declaring, name)}"
    )


# NVRTC has no <cstdint>, so kernels define its names, differently from the host's compiler.
_OWN_INTEGERS = re.compile(
    r"\btypedef\s+[\w\s]+?\b(u?int(?:8|16|32|64|ptr)_t)\s*;"
    r"|\busing\s+(u?int(?:8|16|32|64|ptr)_t)\s*="
)
_HEADERS_WITH_INTEGERS = re.compile(r"#\s*include\s*<(?:cuda/|cooperative_groups|tmaasync/)")


def _own_integers(text: str) -> tuple[str, ...]:
    """Return the names of <cstdint> that the source defines and its headers do not need."""
    bare = without_comments(text)
    if _HEADERS_WITH_INTEGERS.search(bare):
        return ()
    return tuple(dict.fromkeys(one or other for one, other in _OWN_INTEGERS.findall(bare)))


_ATTRIBUTES = {
    "__launch_bounds__": ("tmaasync_emulate_max_threads", "tmaasync_emulate_min_blocks"),
    "__cluster_dims__": tuple(f"tmaasync_emulate_cluster_{side}" for side in "xyz"),
}
_VALUE = r"((?:[^(),]|\([^()]*\))+)"
_BLOCK_SIZE = re.compile(r"__block_size__\s*\(\s*\(([^()]*)\)\s*(?:,\s*\(([^()]*)\))?\s*\)")


def _spelled_out(block_size: re.Match[str]) -> str:
    """Expand ``__block_size__((x, y, z), (x, y, z))`` into threads and clusters."""
    sides, cluster = block_size.groups()
    bounds = f"__launch_bounds__(({sides.replace(',', ')*(')}))"
    return f"{bounds} __cluster_dims__({cluster})" if cluster else bounds


def _attributes(text: str, name: str) -> str:
    """Return constants with the values of the entry's __launch_bounds__ and __cluster_dims__."""
    bare = _BLOCK_SIZE.sub(_spelled_out, without_comments(text))
    function = function_name(name)
    found = re.search(rf"__global__[^;{{}}]*?\b{re.escape(function)}\s*\(", bare)
    lines = []
    for attribute, constants in _ATTRIBUTES.items():
        more = rf"(?:,{_VALUE})?" * (len(constants) - 1)
        values = found and re.search(rf"{attribute}\s*\({_VALUE}{more}", found[0])
        lines += [
            _exported(constant, value, text, name)
            for constant, value in zip(
                constants, values.groups("1") if values else (), strict=False
            )
        ]
    return "".join(lines)


def _exported(constant: str, value: str, text: str, name: str) -> str:
    """Return an exported constant, whose value may depend on the entry's template arguments."""
    function = function_name(name)
    scope, arguments = name.partition("<")[0].rpartition("::")[0], name.partition("<")[2]
    parameters = template_of(text, function)
    head = ""
    if scope or parameters is not None:
        template = f"template <{parameters}> " if parameters is not None else ""
        holder = f"{template}struct {constant}_of {{ static constexpr int value = ({value}); }};"
        head = f"namespace {scope} {{ {holder} }}\n" if scope else f"{holder}\n"
        value = f"::{scope}{'::' if scope else ''}{constant}_of{'<' + arguments}::value"
        if parameters is None:
            value = value.replace("<::value", "::value")
    return (
        f'{head}extern "C" {{ extern const int __attribute__((visibility("default"))) {constant}; '
        f"const int {constant} = ({value}); }}\n"
    )


def _launch_registers(source: Source, max_threads: int | None, min_blocks: int | None) -> int:
    if max_threads is None or any("maxrregcount" in option for option in source.options):
        return 0
    return launch_registers(max_threads * max(1, min_blocks or 1))


def _options(source: Source) -> tuple[str, ...]:
    """Return the CUDA compiler's options that the C++ compiler understands too."""
    short = {"--define-macro": "-D", "--undefine-macro": "-U"}
    found = _compile.option_values(_DEFINITION, source.options)
    plain = (f"{short.get(name, name)}{value}" for name, value in found)
    return (*plain, *(f"-I{folder}" for folder in folders_of(source)))


def _compiled(
    source: Source, whole: str, flags: tuple[str, ...], headers: Headers, *, has_asm: bool
) -> toolchain.Compiled:
    """Compile and link, and build the runtime at the same time if it is missing."""
    words = f"tmaasync: compiling {source.name} for the CPU"
    is_built = runtime_is_built()
    notice = toolchain.reported_if_slow(words) if is_built else contextlib.nullcontext()
    with ThreadPoolExecutor(1) as pool, notice:
        building = pool.submit(build_runtime)
        # While the runtime is compiled, precompiling takes 0.6 s of a core and saves 0.3 s at most.
        prefix = prefix_of(source, flags, headers, precompiles=is_built)
        compiled = _compiled_object(source, whole, flags, prefix, has_asm=has_asm)
        refuse_dynamic_initializers(source, compiled.data)
        runtime = building.result()
        library = _linked(source, with_dynamic_shared(compiled.data), runtime)
        return compiled._replace(data=library)


def _linked(source: Source, compiled: bytes, runtime: Runtime) -> bytes:
    try:
        return toolchain.link([compiled], part=runtime.part, runtime=runtime.library)
    except toolchain.RefusedError as refused:
        message = (
            f"{source.name} compiles and does not link for the CPU. Rename or define what the "
            f"linker names, or pass arrays on a GPU. {refused.compiler} says:\n{refused.log}"
        )
        raise CompileError(message, refused.log) from None


def _compiled_object(
    source: Source,
    whole: str,
    flags: tuple[str, ...],
    prefix: toolchain.Prefix | None,
    *,
    has_asm: bool,
) -> toolchain.Compiled:
    translations: list[ptx.Translated] = []

    def translate(text: str) -> str:
        translations.append(_without_asm(source, text))
        return translations[-1].text

    try:
        return toolchain.compile_object(
            (*flags, *_options(source)),
            whole,
            prefix=prefix,
            other_files={Path(source.name).name: source.text},  # for source lines in messages
            translate=translate if has_asm else None,
        )
    except toolchain.RefusedError as refused:
        for one in translations:
            if error := one.refusal_in(refused.log):
                raise error from None
        log = refused.log.replace(toolchain.UNIT, source.name).replace(ptx.ASM_SUFFIX, "")
        undefined = _UNDEFINED.findall(log)
        message = refusal(source, log, refused.compiler, undefined, folders_of(source))
        raise CompileError(message, log, undefined) from None


def _cache_key(whole: str, options: tuple[str, ...], headers: Headers, *, has_asm: bool) -> str:
    kept = [option for option in options if not option.startswith("-I")]
    table = _translator_facts() if has_asm else ()
    facts = (_FORMAT, whole, kept, headers, runtime_name(), toolchain.key_facts(), table)
    return _includes.digest(json.dumps(facts).encode())


# --- inline PTX ---------------------------------------------------------------------------------


def _has_asm(source: Source) -> bool:
    """Return whether the source, or a header of its own, may have an ``asm`` statement."""
    if ptx.has_asm(without_comments(source.whole_text)):
        return True
    headers = headers_of(source.including_text, source)
    return any(_file_has_asm(*header) for header in headers if is_authors(header[0]))


@functools.lru_cache(maxsize=512)
def _file_has_asm(path: str, digest: str) -> bool:
    return ptx.has_asm(without_comments(_includes.text_of(Path(path))))


# libcu++ for NVRTC declares std's tuple protocol with parameter packs, and CUTLASS up to 4.6
# repeats the declaration. The host's library declares it differently.
_TUPLE_PROTOCOL = re.compile(
    r"template\s*<\s*(?:size_t\s+\w+\s*,\s*)?class\s*\.\.\.\s*\w+\s*>\s*"
    r"struct\s+tuple_(?:size|element)\s*;"
)


def _without_asm(source: Source, text: str) -> ptx.Translated:
    text = _TUPLE_PROTOCOL.sub(lambda found: "\n" * found[0].count("\n"), text)

    def is_translated(file: str, flags: str) -> bool:
        return (
            "3" not in flags.split()
            and not file.startswith(("<", "the entry of "))
            and is_authors(file)
        )

    return ptx.translated(text, is_translated, entry_names(source.text))


@functools.cache
def _translator_facts() -> tuple[tuple[str, str], ...]:
    folder = Path(ptx.__file__).parent
    return tuple((path.name, _includes.file_digest(path)) for path in sorted(folder.rglob("*.py")))


# --- the library ------------------------------------------------------------------------------


_RUNTIMES: dict[str, Any] = {}


def _loaded_runtime(path: Path) -> Any:
    # Keyed by name, like the dynamic loader for kernel libraries: copies in two caches are one.
    if path.name not in _RUNTIMES:
        try:
            _RUNTIMES[path.name] = ctypes.CDLL(str(path))
        except OSError as error:
            raise BackendError(
                f"the emulator cannot be loaded: {error}. If its folder is mounted noexec, set "
                "TMAASYNC_CACHE_DIR to a folder of your own."
            ) from None
    return _RUNTIMES[path.name]


def _loaded(path: Path, name: str, source: Source) -> EmulatedProgram:
    loaded_runtime = _loaded_runtime(
        build_runtime().library
    )  # before the library, which refers to the runtime by name
    library = _opened_kernel(path, source)
    all_static = loaded_runtime.tmaasync_emulate_static_bytes(library.tmaasync_emulate_call)
    facts = ctypes.POINTER(ParameterFacts)()
    count = library.tmaasync_emulate_parameters(ctypes.byref(facts))
    max_threads, min_blocks, *cluster = (
        _constant(library, constant) for names in _ATTRIBUTES.values() for constant in names
    )
    return EmulatedProgram(
        path=path,
        name=name,
        source=source,
        parameters=tuple(_parameter(facts[index]) for index in range(count)),
        shared_bytes=_constant(library, f"{function_name(name)}_shared_bytes"),
        max_threads=max_threads,
        cluster=None if cluster[0] is None else (cluster[0], cluster[1] or 1, cluster[2] or 1),
        registers=_launch_registers(source, max_threads, min_blocks),
        static_bytes=_static_shared(source, name, all_static),
        library=library,
        runtime=loaded_runtime,
    )


def _static_shared(source: Source, name: str, bytes_of_all: int) -> int:
    """Return the bytes of static shared memory; reject a size that ptxas rejects.

    For several kernels in one source only their sum is known.
    """
    is_alone = len(entry_names(source.text)) == 1
    if bytes_of_all <= MAX_STATIC_SHARED_BYTES * (1 if is_alone else 2):
        return min(bytes_of_all, MAX_STATIC_SHARED_BYTES)
    kernels = name if is_alone else "its kernels"
    message = (
        f"{source.name} declares {bytes_of_all} bytes of static shared memory or more in "
        f"{kernels}; a kernel has at most {MAX_STATIC_SHARED_BYTES}. Declare dynamic shared "
        "memory, extern __shared__ or dynamic_shared<T>(), and pass its bytes as shared_mem."
    )
    raise CompileError(message, message)


_MISSING = re.compile(r"undefined symbol: (\w+)")


def _opened_kernel(path: Path, source: Source) -> ctypes.CDLL:
    try:
        return _opened(path)
    except BackendError as error:
        missing = _MISSING.search(str(error))
        if missing is None:
            raise
        what = demangled(missing[1])
        message = (
            f"{source.name} calls {what}, which is declared but not on the CPU. Define "
            "it as a __device__ function, call another function, or pass arrays on a GPU."
        )
        raise CompileError(message, str(error), [what]) from None


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(
            f"a library that the C++ compiler made for the CPU cannot be loaded ({error}). Set CXX "
            "to a C++ compiler for this machine, such as g++, and clear the cache: tmaasync cache "
            "--clear."
        ) from None


def _parameter(facts: ParameterFacts) -> Parameter:
    kind = facts.kind.decode()
    return Parameter("struct" if kind == "S" else kind, facts.size_bytes)


def _constant(library: ctypes.CDLL, name: str) -> int | None:
    try:
        return ctypes.c_int.in_dll(library, name).value
    except ValueError:
        return None
