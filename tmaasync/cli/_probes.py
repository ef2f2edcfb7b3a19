"""Probes of what kernels are built and run with: the driver, devices, compilers, packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from tmaasync import _driver
from tmaasync._driver import DeviceLimits
from tmaasync._hardware import HOPPER
from tmaasync._source import compile as nvrtc
from tmaasync._source import paths
from tmaasync._source.cache_folder import cache_dir
from tmaasync._wheels import install_command
from tmaasync.emulate import toolchain
from tmaasync.errors import BackendError, CompileError, TMAError
from tmaasync.kernel import Kernel

TEST_KERNEL = "test kernel on the CPU"

# A half, launch bounds and the package's headers: CUDA's headers and the compiler must go together.
_KERNEL = """#include <cuda_fp16.h>
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void __launch_bounds__(32, 1) count(__half* out) {
    out[threadIdx.x] = __float2half(float(threadIdx.x));
}
"""
_CUPY_WHEELS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
_CUPY_COMMANDS = (
    f"{install_command('cuda13', 'cupy')}, or with a driver for CUDA 12 "
    f"{install_command('cuda12', 'cupy')}"
)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _run_on_cpu() -> None:
    out = np.zeros(32, np.float16)
    Kernel(_KERNEL, "count")(1, 32, (out,))
    if out.tolist() != [*range(32)]:
        raise BackendError(f"it counts {out.tolist()}. Try another compiler: set CXX to its path.")


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The functions that the probes call; by default this machine's.

    They raise what the package's own functions of these names raise.

    Attributes:
        run_on_cpu: Compiles a kernel with launch bounds for the CPU, and runs it.
        version: The version of a distribution; None where it is not installed.
        is_installed: Whether a package can be imported.
    """

    driver_version: Callable[[], tuple[int, int]] = _driver.driver_version
    device_count: Callable[[], int] = _driver.device_count
    device_limits: Callable[[int], DeviceLimits] = _driver.device_limits
    nvrtc_version: Callable[[], tuple[int, int]] = nvrtc.nvrtc_version
    toolkit_include_dirs: Callable[[], tuple[Path, ...]] = nvrtc.toolkit_include_dirs
    compiler_facts: Callable[[], tuple[str, str]] = toolchain.compiler_facts
    run_on_cpu: Callable[[], None] = _run_on_cpu
    import_module: Callable[[str], object] = import_module
    version: Callable[[str], str | None] = _version
    is_installed: Callable[[str], bool] = _is_installed


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


def parts(machine: Machine) -> tuple[Part, ...]:
    """Look at everything; nothing is launched."""
    cupy = _cupy(machine)
    return (
        _probe("driver", lambda: f"for CUDA {_dotted(machine.driver_version())}"),
        *_devices(machine),
        _probe("NVRTC", lambda: _dotted(machine.nvrtc_version())),
        *_fit(machine),
        _probe("tmaasync's headers", lambda: str(paths.include_dir())),
        *_cpu_parts(machine),
        _probe("cache", _cache_found),
        cupy,
        *(_optional(name, machine) for name in ("torch", "jax")),
        _gpu_arrays(cupy, machine),
        _matplotlib(machine),
    )


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def _probe(name: str, find: Callable[[], str]) -> Part:
    """Run a probe; return its finding, or the error that it raised."""
    try:
        return Part(name=name, works=True, found=find())
    except CompileError:
        raise
    except TMAError as error:
        found, _, rest = str(error).partition(". ")
        remedy = re.sub(r"\s*\(.*\)$", "", rest, flags=re.DOTALL)  # the loader's own words
        return Part(name=name, works=False, found=found, remedy=remedy)


# --- the GPU ----------------------------------------------------------------------------------


def _devices(machine: Machine) -> Iterator[Part]:
    try:
        count = machine.device_count()
    except TMAError:
        count = 0
    for number in range(count):
        yield _device(f"device {number}", machine.device_limits(number))
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
        f"{limits.name}, sm_{capability[0]}{capability[1]}, {limits.sms} SMs, "
        f"{limits.shared_bytes // 1024} KiB of shared memory a block"
    )
    if capability == HOPPER:
        return Part(name=name, works=True, found=found)
    if capability > HOPPER:
        limit = "untested, and without wgmma: no matmul, conv2d or attention"
        return Part(name=name, works=True, found=f"{found}: {limit}")
    remedy = "Use an H100 or H200, or pass NumPy arrays."
    return Part(name=name, works=False, found=f"{found}: it has no TMA", remedy=remedy)


def _fit(machine: Machine) -> Iterator[Part]:
    """Check that the driver loads NVRTC's output; one of an older CUDA refuses it."""
    try:
        driver, compiler = machine.driver_version(), machine.nvrtc_version()
    except TMAError:
        return
    name = "driver and NVRTC"
    if compiler[0] <= driver[0]:
        yield Part(name=name, works=True, found="the driver loads what NVRTC makes")
        return
    older = f", or run: {install_command('cuda12')}" if driver[0] == 12 else ""
    yield Part(
        name=name,
        works=False,
        found=f"NVRTC is of CUDA {compiler[0]}, the driver of CUDA {driver[0]}",
        remedy=f"Update the driver{older}.",
    )


# --- compilers --------------------------------------------------------------------------------


def _cuda_headers(machine: Machine) -> Part:
    name = "CUDA's headers"
    folders = machine.toolkit_include_dirs()
    holder = next((folder for folder in folders if (folder / "cuda_bf16.h").is_file()), None)
    if holder is not None:
        return Part(name=name, works=True, found=str(holder))
    return Part(
        name=name,
        works=False,
        found="there is no cuda_bf16.h",
        remedy=f"Install them with: {install_command('headers')}.",
    )


def _cpu_parts(machine: Machine) -> Iterator[Part]:
    """Return the parts of the CPU back end; with all of them, the test kernel too."""
    needed = (
        _cuda_headers(machine),
        _probe("C++ compiler", lambda: " ".join(machine.compiler_facts())),
    )
    yield from needed
    if all(part.works for part in needed):
        yield _test_kernel(machine)


def _test_kernel(machine: Machine) -> Part:
    """Build a kernel and run it: a compiler's version alone does not say whether it can."""

    def found() -> str:
        machine.run_on_cpu()
        return "compiles, and counts to 31"

    try:
        return _probe(TEST_KERNEL, found)
    except CompileError as refused:
        lines = refused.log.splitlines() or ["the compiler gives no reason"]
        return Part(
            name=TEST_KERNEL,
            works=False,
            found=next((line for line in lines if "error:" in line), lines[0]),
            remedy="Install g++ 11 or clang++ 14, or a later one, or set CXX to the path of one.",
        )


def _cache_found() -> str:
    folder = cache_dir()
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


def _cupy(machine: Machine) -> Part:
    """Look for CuPy, with which the package makes the GPU arrays of its own measurements."""
    name, remedy = "CuPy", f"Install it with: {_CUPY_COMMANDS}."
    try:
        machine.import_module("cupy")
    except ImportError as error:
        first = (str(error).strip().splitlines() or ["it cannot be imported"])[0]
        return Part(name=name, works=False, found=first, remedy=remedy)
    versions = {wheel: machine.version(wheel) for wheel in _CUPY_WHEELS}
    wheels = [wheel for wheel, version in versions.items() if version]
    if len(wheels) > 1:
        found, remedy = " and ".join(wheels), "Uninstall all but one of them."
        return Part(name=name, works=False, found=f"{found} are both installed", remedy=remedy)
    found = " ".join(f"{wheel} {versions[wheel]}" for wheel in wheels)
    return Part(name=name, works=True, found=found)


def _optional(name: str, machine: Machine) -> Part:
    """Return a library whose arrays are taken; importing it would take seconds."""
    version = machine.version(name)
    found = "not installed; its arrays would be taken" if version is None else version
    return Part(name=name, works=version is not None, found=found, is_needed=False)


def _gpu_arrays(cupy: Part, machine: Machine) -> Part:
    """Return the libraries whose GPU arrays kernels can write."""
    name, torch = "GPU arrays", machine.version("torch")
    found = ["CuPy"] if cupy.works else []
    if torch is not None and not torch.endswith("+cpu"):
        found.append("torch")
    if found:
        return Part(name=name, works=True, found=f"of {' and '.join(found)}")
    return Part(
        name=name,
        works=False,
        found="there is neither CuPy nor a torch that was built with CUDA",
        remedy=f"Install one with: {install_command('torch', 'torch')}, or {_CUPY_COMMANDS}.",
    )


def _matplotlib(machine: Machine) -> Part:
    if machine.is_installed("matplotlib"):
        found = machine.version("matplotlib") or "installed"
        return Part(name="matplotlib", works=True, found=found)
    remedy = f"Install it with: {install_command('plot')}."
    return Part(name="matplotlib", works=False, found="not installed", remedy=remedy)
