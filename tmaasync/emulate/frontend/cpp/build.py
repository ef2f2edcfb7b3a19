"""Build CUDA source into a shared library for this machine, in the same cache as the cubins.

There are two interfaces to the emulator. ``tmaasync_emulate/cuda.hpp``, included first, defines
CUDA's built-ins. The emulator's ``tmaasync/ptx/*.cuh`` (and the hang watch in
``tmaasync/instrument``) come first on the include path. Only inline PTX of the source is rewritten
(`frontend.ptx`). The instructions are in the runtime, a separate library that is compiled once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tmaasync._source import includes
from tmaasync._source.cache_folder import cache_dir, current_path, made_once
from tmaasync._source.compile import Source, header_texts, option_values
from tmaasync._source.entries import check_entry, declaring_text, entry_names
from tmaasync._source.tokens import without_comments
from tmaasync.emulate import toolchain
from tmaasync.emulate.chips import SM_90A, Chip
from tmaasync.emulate.chips.macros import macros_of
from tmaasync.emulate.frontend import ptx
from tmaasync.emulate.frontend.cpp import edg, subscripts
from tmaasync.emulate.frontend.cpp.compile_errors import refusal
from tmaasync.emulate.frontend.cpp.headers import (
    Headers,
    folders_of,
    headers_of,
    is_authors,
    prefix_of,
)
from tmaasync.emulate.frontend.cpp.object_file import with_dynamic_shared
from tmaasync.emulate.frontend.cpp.refusals import (
    check_library_headers,
    refuse_dynamic_initializers,
    refuse_shared_initializers,
)
from tmaasync.emulate.frontend.cpp.unit import module_unit, translation_unit
from tmaasync.emulate.frontend.program import EmulatedProgram, loaded_program
from tmaasync.emulate.runtime_library import (
    Runtime,
    build_runtime,
    runtime_is_built,
    runtime_name,
)
from tmaasync.errors import CompileError

_FORMAT = 6
_UNDEFINED = re.compile(
    r"error: (?:use of undeclared identifier|unknown type name|'?)\s*'?(\w+)'?"
    r"(?: was not declared| does not name a type| has not been declared|\n|;)"
)
_Translation = Callable[[str], ptx.Translated]
_DEFINITION = ("-D", "-U", "--define-macro", "--undefine-macro")


def build(source: Source, name: str, chip: Chip = SM_90A) -> EmulatedProgram:
    """Compile one function of a source for this machine, or take it from the cache.

    Args:
        source: The source to compile.
        name: The function.
        chip: The chip that it runs on.

    Raises:
        ArgumentError: The source has no ``__global__`` function, or no ``.entry``, of this name.
        CompileError: The compiler rejected the source; the message shows the compiler's error.
        BackendError: There is no C++20 compiler, or CUDA's headers are missing.
    """
    begun_ns, is_ptx = time.time_ns(), source.is_ptx
    has_asm = not is_ptx and _has_asm(source)
    # A module is translated only if its library is missing.
    first = ptx.included(source.text) if is_ptx else ""
    whole = f"{first}{name}\n{source.text}" if is_ptx else _unit(source, name, has_asm)
    headers = tuple(headers_of(first or whole, source))
    flags = (*toolchain.flags(is_kernel=True), *macros_of(chip))
    key = _cache_key(whole, (*flags, *_options(source)), headers, has_ptx=is_ptx or has_asm)
    path = current_path(cache_dir(), key, ".so")
    facts: dict[str, Any] = {"source": source.name, "entry": name}

    def make() -> bytes:
        unit = module_unit(source, name, chip) if is_ptx else whole
        translation = functools.partial(_without_asm, source, chip) if has_asm else None
        made = _compiled(source, unit, flags, headers, translation)
        facts["also_read"] = includes.recorded(made.read, headers, begun_ns)
        if not is_ptx:
            # A preprocessed text has no macros.
            macros = _macros(source, headers) if made.text == unit else ()
            known = subscripts.places(made.text, name, source.name, macros)
            facts["subscripts"] = subscripts.instructions(made.data, source.name, known)
        return made.data

    made_once(path, make, facts)
    return loaded_program(path, name, source, chip)


def _unit(source: Source, name: str, has_asm: bool) -> str:
    declaring = declaring_text(source.text, name, functools.partial(header_texts, source))
    check_entry(declaring, source.name, name)
    check_library_headers(source)
    refuse_shared_initializers(source)
    return translation_unit(source, name, declaring, has_asm=has_asm)


def _options(source: Source) -> tuple[str, ...]:
    """Return the CUDA compiler's options that the C++ compiler understands too."""
    short = {"--define-macro": "-D", "--undefine-macro": "-U"}
    found = option_values(_DEFINITION, source.options)
    plain = (f"{short.get(name, name)}{value}" for name, value in found)
    return (*plain, *(f"-I{folder}" for folder in folders_of(source)))


def _macros(source: Source, headers: Headers) -> tuple[str, ...]:
    """Return the texts whose macros the kernel may use: all but the headers of CUDA."""
    named = (f"#define {value}" for _, value in option_values(_DEFINITION, source.options))
    own = (includes.text_of(Path(path)) for path, _ in headers if is_authors(path))
    return (source.whole_text, *named, *own)


def _compiled(
    source: Source,
    whole: str,
    flags: tuple[str, ...],
    headers: Headers,
    translation: _Translation | None,
) -> toolchain.Compiled:
    """Compile and link, and build the runtime at the same time if it is missing."""
    words = f"tmaasync: compiling {source.name} for the CPU"
    is_built = runtime_is_built()
    notice = toolchain.reported_if_slow(words) if is_built else contextlib.nullcontext()
    with ThreadPoolExecutor(1) as pool, notice:
        building = pool.submit(build_runtime)
        # While the runtime is compiled, precompiling takes 0.6 s of a core and saves 0.3 s at most.
        prefix = prefix_of(source, flags, headers, precompiles=is_built)
        compiled = _compiled_object(source, whole, flags, prefix, translation)
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
    translation: _Translation | None,
) -> toolchain.Compiled:
    translations: list[ptx.Translated] = []

    def translate(text: str) -> str:
        assert translation is not None  # noqa: S101 - else it is not called
        translations.append(translation(text))
        return translations[-1].text

    try:
        attempt = functools.partial(
            toolchain.compile_object,
            text=whole,
            prefix=prefix,
            other_files={Path(source.name).name: source.text},  # for source lines in messages
        )
        options = (*flags, *_options(source))
        return edg.compiled(attempt, options, translate if translation else None)
    except toolchain.RefusedError as refused:
        for one in translations:
            if error := one.refusal_in(refused.log):
                raise error from None
        log = refused.log.replace(toolchain.UNIT, source.name).replace(ptx.ASM_SUFFIX, "")
        undefined = _UNDEFINED.findall(log)
        message = refusal(source, log, refused.compiler, undefined, folders_of(source))
        raise CompileError(message, log, undefined) from None


def _cache_key(whole: str, options: tuple[str, ...], headers: Headers, *, has_ptx: bool) -> str:
    kept = [option for option in options if not option.startswith("-I")]
    modules = (*_modules_of(__file__), *(_modules_of(ptx.__file__) if has_ptx else ()))
    facts = (_FORMAT, whole, kept, headers, runtime_name(), toolchain.key_facts(), modules)
    return includes.digest(json.dumps(facts).encode())


# --- inline PTX ---------------------------------------------------------------------------------


def _has_asm(source: Source) -> bool:
    """Return whether the source, or a header of its own, may have an ``asm`` statement."""
    if ptx.has_asm(without_comments(source.whole_text)):
        return True
    headers = headers_of(source.including_text, source)
    return any(_file_has_asm(*header) for header in headers if is_authors(header[0]))


@functools.lru_cache(maxsize=512)
def _file_has_asm(path: str, digest: str) -> bool:
    return ptx.has_asm(without_comments(includes.text_of(Path(path))))


# libcu++ for NVRTC declares std's tuple protocol with parameter packs, and CUTLASS up to 4.6
# repeats the declaration. The host's library declares it differently. The text is preprocessed,
# several MB, and only the pattern's match changes.
_TUPLE_PROTOCOL = re.compile(
    r"template\s*<\s*(?:size_t\s+\w+\s*,\s*)?class\s*\.\.\.\s*\w+\s*>\s*"
    r"struct\s+tuple_(?:size|element)\s*;"
)


def _without_asm(source: Source, chip: Chip, text: str) -> ptx.Translated:
    text = _TUPLE_PROTOCOL.sub(lambda found: "\n" * found[0].count("\n"), text)

    def is_translated(file: str, flags: str) -> bool:
        return (
            "3" not in flags.split()
            and not file.startswith(("<", "the entry of "))
            and is_authors(file)
        )

    return ptx.translated(text, is_translated, entry_names(source.text), chip)


@functools.cache
def _modules_of(file: str) -> tuple[tuple[str, str], ...]:
    """Return the names and digests of the modules in this file's folder, which make libraries."""
    modules = sorted(Path(file).parent.rglob("*.py"))
    return tuple((path.name, includes.file_digest(path)) for path in modules)
