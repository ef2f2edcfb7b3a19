"""The emulator's runtime: a shared library, and an object that is linked into every kernel."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tmaasync._source import includes
from tmaasync._source.cache_folder import cache_dir, load_facts, made_once
from tmaasync.emulate import toolchain
from tmaasync.emulate.include_path import DEVICE_DIR, EMULATOR_DIR, OWN_FOLDERS, toolkit_folders
from tmaasync.errors import BackendError

RUNTIME_SECONDS = "5 to 20 s"
"""A first launch with g++ 12 took 4.8 to 5.0 s on two idle cores (benchmarks/bench_emulate.py,
2026-11-23), and 17 s on two cores at a load of 2.5 (2026-11-29)."""

_RUNTIME_DIR = EMULATOR_DIR / "runtime"
UNITS = (
    ("races", "memory", "barriers", "warps", "copies", "signals", "wgmma"),
    ("launch", "schedule", "state", "crash", "report", "tensor_memory", "tensor_cores", "verify"),
)
"""The folders whose sources make up one translation unit. Two take equally long, and 18 % less of a
core than four, as every unit reads the headers anew (2026-11-28)."""
_CUDA_HEADERS = (
    "vector_types.h",
    *(f"cuda_{name}.{end}" for name in ("bf16", "fp16") for end in ("h", "hpp")),
)
_PART_SOURCE = "linked_into_kernels.cpp"
_FORMAT = 6


@dataclass(frozen=True, slots=True)
class Runtime:
    """The paths of the runtime in the cache."""

    library: Path
    part: Path  # the object that is linked into every kernel's library


def build_runtime(*, notice: bool = True) -> Runtime:
    """Compile the emulator's runtime, or find it in the cache.

    If several processes and threads need it, one compiles and the others wait.

    Args:
        notice: Whether to report a build that takes more than 2 s with a line on stderr.

    Raises:
        BackendError: There is no C++20 compiler, or CUDA's headers are missing.
    """
    runtime = _runtime()
    if _is_built(runtime):
        return runtime
    words = f"tmaasync: building the emulator in {runtime.library.parent} (once, {RUNTIME_SECONDS})"
    facts = {"source": "runtime"}
    with (
        toolchain.reported_if_slow(words) if notice else contextlib.nullcontext(),
        ThreadPoolExecutor(1) as pool,
    ):
        part = pool.submit(made_once, runtime.part, lambda: _compiled([_PART_SOURCE]), facts)
        made_once(runtime.library, lambda: _compiled_library(runtime.library.name), facts)
        part.result()
    return runtime


def runtime_is_built() -> bool:
    """Return whether `build_runtime` would find the runtime in the cache."""
    return _is_built(_runtime())


def _is_built(runtime: Runtime) -> bool:
    files = (runtime.library, runtime.part)
    return all(load_facts(path) is not None for path in files)


def runtime_name() -> str:
    """Return a name that changes with the runtime's sources and its compiler."""
    return _runtime().library.name


def _runtime() -> Runtime:
    cudas = (folder / name for folder in toolkit_folders() for name in _CUDA_HEADERS)
    files = (*_own_files(), *(path for path in cudas if path.is_file()))
    digests = [(path.parts[-2:], includes.file_digest(path)) for path in files]
    flags = toolchain.flags(is_kernel=False)
    facts = json.dumps((_FORMAT, digests, flags, toolchain.key_facts()))
    stem = f"runtime-{includes.digest(facts.encode())}"
    folder = cache_dir()
    return Runtime(folder / f"{stem}.so", folder / f"{stem}-part.o")


@functools.cache
def _own_files() -> tuple[Path, ...]:
    """Return our files in the runtime, listed once: 2 of 3.4 ms, several times for each kernel."""
    found = (*_RUNTIME_DIR.rglob("*.?pp"), *DEVICE_DIR.glob("tmaasync_emulate/*.hpp"))
    return tuple(sorted(found))


def _compiled_library(soname: str) -> bytes:
    with ThreadPoolExecutor(max(2, os.cpu_count() or 2)) as pool, _refused_as_too_old():
        return toolchain.link([*pool.map(_compiled, map(_sources, UNITS))], soname=soname)


def _sources(folders: Sequence[str]) -> list[str]:
    """Return the sources of one translation unit."""
    return [
        str(path.relative_to(_RUNTIME_DIR))
        for folder in folders
        for path in sorted((_RUNTIME_DIR / folder).glob("*.cpp"))
    ]


def _compiled(sources: Sequence[str]) -> bytes:
    folders = (_RUNTIME_DIR, *OWN_FOLDERS, *toolkit_folders())
    options = (*toolchain.flags(is_kernel=False), *(f"-I{folder}" for folder in folders))
    with _refused_as_too_old():
        text = "".join(f'#include "{source}"\n' for source in sources)
        return toolchain.compile_object(options, text).data


@contextlib.contextmanager
def _refused_as_too_old() -> Iterator[None]:
    try:
        yield
    except toolchain.RefusedError as refused:
        raise BackendError(
            f"{refused.compiler} cannot compile the emulator's runtime. It needs a C++20 compiler "
            f"for Linux: g++ 11 or clang++ 14. It says:\n{refused.log}"
        ) from None
