"""The headers of a source on the CPU, and those that are precompiled for several sources."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tmaasync._source import includes
from tmaasync._source.cache_folder import cache_dir, current_path, load_facts, made_once, read_facts
from tmaasync._source.compile import Source
from tmaasync._source.paths import include_dir
from tmaasync._source.tokens import without_comments
from tmaasync.emulate import toolchain
from tmaasync.emulate.include_path import OWN_FOLDERS, toolkit_folders

_FORMAT = 1
_PREFIX_HEADERS = (
    "tmaasync_emulate/cuda.hpp",
    "tmaasync_emulate/inline_ptx.hpp",
    "cuda_bf16.h",
    "cuda_fp16.h",
    "cuda_fp8.h",
)
# The first include of every source with types of tiles, and of many others.
_PRIMITIVES = "tmaasync/tmaasync.cuh"
_BEGINS_WITH_PRIMITIVES = re.compile(
    rf"(?:\s+|#\s*line[^\n]*\n)*#\s*include\s*<{re.escape(_PRIMITIVES)}>"
)
_MACRO_OPTIONS = ("-D", "-U", "--define-macro", "--undefine-macro")
# Macros that CUDA's headers read; a pattern, because every header of the author's is searched.
_CHOICE = re.compile(r"#\s*(?:define|undef)\s+_*CUDA")

# The compiler searches it before the system's folders, and people put headers there.
_SITE_FOLDERS = (Path("/usr/local/include"),)

Headers = tuple[tuple[str, str], ...]  # (path, digest) of each header


def folders_of(source: Source) -> tuple[Path, ...]:
    """Return the include path of a source, the environment's folders last."""
    toolkit = (*toolkit_folders(), *toolchain.environment_folders())
    return (*_own_folders(source), *toolkit)


def _own_folders(source: Source) -> tuple[Path, ...]:
    return (*OWN_FOLDERS, include_dir(), *source.header_dirs)


def headers_of(whole: str, source: Source) -> Iterator[tuple[str, str]]:
    """Yield the headers that the text includes; with a computed include, all of our folders."""
    folders = (*folders_of(source), *_SITE_FOLDERS)
    try:
        reached = includes.reached_digests(whole, folders)
    except includes.ComputedIncludeError as error:
        if not str(error).startswith("#"):  # a test: its header may appear anywhere, at any time
            yield "built anew", str(time.time_ns())
        every = includes.reached_or_all(whole, folders, _own_folders(source))
        reached = tuple((str(path), includes.file_digest(path)) for path in every)
    yield from reached
    # Our headers named like CUDA's include CUDA's own, which the include path hides.
    paths = (Path(path) for path, _ in reached)
    hidden = (f"#include <{path.name}>\n" for path in paths if path.parent in OWN_FOLDERS)
    yield from includes.reached_digests("".join(hidden), toolkit_folders())


def is_authors(file: str) -> bool:
    """Return whether a file belongs to the source, not to the emulator, CUDA or the compiler."""
    return not file.startswith(tuple(map(str, (*OWN_FOLDERS, *toolkit_folders()))))


def prefix_of(
    source: Source, flags: tuple[str, ...], headers: Headers, *, precompiles: bool
) -> toolchain.Prefix | None:
    """Return the first header, CUDA's number types if the source includes them, and our primitives.

    Parsing number types is half of the compile time of a GEMM: precompiled, 0.62 s of a core become
    0.35 s. The primitives are 18 % of the rest (2026-11-29), and come only where a source begins
    with them.
    The compiler checks whether the source's own options invalidate the precompiled header. Without
    one it reads the same text, so that a source means the same with an empty cache.
    """
    if not toolchain.can_precompile():
        return None
    folders = folders_of(source)
    names = {Path(path).name for path, _ in headers}
    chooses = _chooses(source, headers)
    if chooses:
        names &= {"cuda.hpp", "inline_ptx.hpp"}
    first = [name for name in _PREFIX_HEADERS if Path(name).name in names]
    if not chooses and "inline_ptx.hpp" not in names and _begins_with_primitives(source):
        first.append(_PRIMITIVES)
    text = "".join(f"#include <{name}>\n" for name in first)
    if not precompiles:
        return toolchain.Prefix(text)
    inside, begun_ns = [*headers_of(text, source)], time.time_ns()
    key = includes.digest(
        json.dumps((_FORMAT, text, flags, inside, toolchain.key_facts())).encode()
    )
    path = current_path(cache_dir(), f"prefix-{key}", ".gch")
    facts: dict[str, Any] = {"source": "prefix"}

    def make() -> bytes:
        compiled = toolchain.precompile((*flags, *(f"-I{folder}" for folder in folders)), text)
        facts["also_read"] = includes.recorded(compiled.read, inside, begun_ns)
        return compiled.data

    if not _is_whole(path):
        made_once(path, make, facts)
    also_read = (read_facts(path) or {}).get("also_read", {})
    return toolchain.Prefix(text, path, frozenset(also_read))


def _chooses(source: Source, headers: Headers) -> bool:
    """Return whether the source, or a header of its own, sets a macro for CUDA's headers."""
    own = (Path(path) for path, _ in headers if is_authors(path))
    texts = (source.whole_text, *(includes.text_of(path) for path in own))
    return any(map(_CHOICE.search, texts))


def _begins_with_primitives(source: Source) -> bool:
    """Return whether our primitives come first, and no macro of an option could change them."""
    has_macros = any(option.startswith(_MACRO_OPTIONS) for option in source.options)
    text = without_comments(source.including_text)
    return not has_macros and _BEGINS_WITH_PRIMITIVES.match(text) is not None


_WHOLE_PREFIXES: set[Path] = set()


def _is_whole(path: Path) -> bool:
    """Return whether a precompiled header is in the cache; its 20 MB are read once per process."""
    if path not in _WHOLE_PREFIXES and load_facts(path) is not None:
        _WHOLE_PREFIXES.add(path)
    return path in _WHOLE_PREFIXES and path.is_file()
