"""Probes of this machine for everything that kernels are built and run with."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from tmaasync import _compile, _driver, _sources
from tmaasync._driver import DeviceLimits
from tmaasync.emulate import toolchain
from tmaasync.errors import TMAError

__all__ = ["Part", "parts"]

_CPP20 = '#include <bit>\nextern "C" unsigned bits(unsigned x) { return std::bit_width(x); }\n'
_CUPY_WHEELS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing to build or run kernels with.

    Attributes:
        name: What it is called; devices are numbered.
        works: Whether it is there and serves.
        found: What there is, or why it does not serve.
        remedy: What to do about it; empty where it works, or is not needed.
        is_needed: Whether some task cannot do without it.
    """

    name: str
    works: bool
    found: str
    remedy: str = ""
    is_needed: bool = True


def parts() -> tuple[Part, ...]:
    """Look at everything; nothing is launched."""
    return (
        _probe("driver", _driver_found),
        *_devices(),
        _probe("NVRTC", _nvrtc_found),
        *_fit(),
        _probe("tmaasync's headers", lambda: str(_sources.include_dir())),
        _cuda_headers(),
        _compiler(),
        _probe("cache", _cache_found),
        _cupy(),
        *(_optional(name) for name in ("torch", "jax")),
        _matplotlib(),
    )


def _probe(name: str, find: Callable[[], str]) -> Part:
    """Run a probe; return its finding, or the error that it raised."""
    try:
        return Part(name=name, works=True, found=find())
    except TMAError as error:
        found, _, rest = str(error).partition(". ")
        remedy = re.sub(r"\s*\(.*\)$", "", rest, flags=re.DOTALL)  # the loader's own words
        return Part(name=name, works=False, found=found, remedy=remedy)


# --- the GPU ----------------------------------------------------------------------------------


def _driver_found() -> str:
    major, minor = _driver.driver_version()
    return f"for CUDA {major}.{minor}"


def _devices() -> Iterator[Part]:
    try:
        count = _driver.device_count()
    except TMAError:
        count = 0
    for number in range(count):
        yield _device(f"device {number}", _driver.device_limits(number))
    if count == 0:
        yield Part(
            name="device",
            works=False,
            found="none is visible",
            remedy="Use a machine with an H100 or H200, or pass NumPy arrays.",
        )


def _device(name: str, limits: DeviceLimits) -> Part:
    capability = limits.compute_capability
    found = (
        f"{limits.name}, sm_{capability[0]}{capability[1]}, {limits.multiprocessors} "
        f"multiprocessors, {limits.shared_bytes // 1024} KiB of shared memory a block"
    )
    if capability == _HOPPER:
        return Part(name=name, works=True, found=found)
    lacks = "it has no TMA" if capability < _HOPPER else "the shipped kernels are for sm_90a"
    remedy = "Use an H100 or H200, or pass NumPy arrays."
    return Part(name=name, works=False, found=f"{found}: {lacks}", remedy=remedy)


def _fit() -> Iterator[Part]:
    """Check that the driver loads NVRTC's output; one of an older CUDA refuses it."""
    try:
        driver, compiler = _driver.driver_version(), _compile.nvrtc_version()
    except TMAError:
        return
    name = "driver and NVRTC"
    if compiler[0] <= driver[0]:
        yield Part(name=name, works=True, found="the driver loads what NVRTC makes")
        return
    older = ", or install: pip install 'tmaasync[cuda12]'" if driver[0] == 12 else ""
    yield Part(
        name=name,
        works=False,
        found=f"NVRTC is of CUDA {compiler[0]}, the driver of CUDA {driver[0]}",
        remedy=f"Update the driver{older}.",
    )


# --- compilers --------------------------------------------------------------------------------


def _nvrtc_found() -> str:
    major, minor = _compile.nvrtc_version()
    return f"{major}.{minor}"


def _cuda_headers() -> Part:
    name = "CUDA's headers"
    folders = _compile.toolkit_include_dirs()
    holder = next((folder for folder in folders if (folder / "cuda_bf16.h").is_file()), None)
    if holder is not None:
        return Part(name=name, works=True, found=str(holder))
    return Part(
        name=name,
        works=False,
        found="there is no cuda_bf16.h",
        remedy="Install them with: pip install 'tmaasync[cuda13]'.",
    )


def _compiler() -> Part:
    """The compiler of the emulator; a version alone does not say whether C++20 links."""
    part = _probe("C++ compiler", lambda: " ".join(toolchain.compiler_facts()))
    if not part.works:
        return part
    try:
        toolchain.make_library(toolchain.flags(is_kernel=False), _CPP20)
    except toolchain.RefusedError as refused:
        said = (refused.log.splitlines() or ["it does not say why"])[0]
        return Part(
            name=part.name,
            works=False,
            found=f"{part.found} compiles no C++20: {said}",
            remedy="Install g++ 11 or clang++ 14, or name one in CXX.",
        )
    return part


def _cache_found() -> str:
    folder = _compile.cache_dir()
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        raise TMAError(
            f"{folder} cannot be written ({error.strerror}). Set TMAASYNC_CACHE_DIR to a folder of "
            "your own."
        ) from None
    return f"{folder}, {free / 2**30:.1f} GiB free"


# --- Python packages --------------------------------------------------------------------------


def _cupy() -> Part:
    """CuPy loads what is launched on a GPU, whosever arrays they are."""
    name, remedy = "CuPy", "Install it with: pip install 'tmaasync[cuda13]', or [cuda12]."
    try:
        import_module("cupy")
    except ImportError as error:
        first = (str(error).strip().splitlines() or ["it cannot be imported"])[0]
        return Part(name=name, works=False, found=first, remedy=remedy)
    wheels = [wheel for wheel in _CUPY_WHEELS if _version(wheel)]
    if len(wheels) > 1:
        found, remedy = " and ".join(wheels), "Uninstall all but one of them."
        return Part(name=name, works=False, found=f"{found} are both installed", remedy=remedy)
    return Part(name=name, works=True, found=" ".join(f"{it} {_version(it)}" for it in wheels))


def _optional(name: str) -> Part:
    """A library whose arrays are taken; importing it would take seconds."""
    version = _version(name)
    found = "not installed; its arrays would be taken" if version is None else version
    return Part(name=name, works=version is not None, found=found, is_needed=False)


def _matplotlib() -> Part:
    if importlib.util.find_spec("matplotlib") is not None:
        return Part(name="matplotlib", works=True, found=_version("matplotlib") or "installed")
    remedy = "Install it with: pip install 'tmaasync[plot]'."
    return Part(name="matplotlib", works=False, found="not installed", remedy=remedy)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
