"""Run Warp kernels on the CPU emulator: Warp compiles them to PTX, without a GPU.

Warp itself packs the arguments; the first parameter has the sides of the launch. Reports name the
lines of the PTX, because Warp writes no line table. Written for Warp 1.19.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tmaasync import _arrays, _torch_cuda
from tmaasync._arrays import ArrayView
from tmaasync._kinds import shown
from tmaasync._patches import Patches
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.emulate import LIMITS
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel

__all__ = ["launch", "on_cpu"]

_BLOCK = 256  # threads per block, where the launch names none


def launch(
    kernel: Any,
    dim: int | Sequence[int],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    block_dim: int = _BLOCK,
) -> None:
    """Launch a Warp kernel on arrays in host memory, as ``wp.launch`` does on a GPU.

    The first launch compiles the kernel's whole module.

    Args:
        kernel: A function with ``@wp.kernel``.
        dim: Threads along each side of the launch.
        inputs: The first arguments: Warp's arrays on the CPU, arrays of NumPy, numbers, structs.
        outputs: The arguments after them.
        block_dim: Threads per block.

    Raises:
        ArgumentError: The kernel is none of Warp's, or the arguments are not as many as it takes.
        EmulatedRace, EmulatedFault, EmulatedDeadlock, EmulatedTimeout: As for each `Kernel`.
    """
    if not hasattr(kernel, "adj") or not hasattr(kernel, "get_mangled_name"):
        rule, remedy = "it has no @wp.kernel", "Pass the function below @wp.kernel"
        raise ArgumentError.broken("kernel", shown(kernel), rule, remedy)
    values, parameters = [*inputs, *outputs], kernel.adj.args
    if len(values) != len(parameters):
        rule = f"{kernel.key} takes {len(parameters)}"
        raise ArgumentError.broken("inputs", f"{len(values)} arguments", rule, "Pass one for each")
    check_version("warp-lang", "1.19", __name__)
    import warp
    from warp._src.context import _build_launch_bounds_from_tuple, pack_arg

    warp.init()
    sides = (dim,) if isinstance(dim, int) else tuple(dim)
    compiled, shared_bytes = _compiled(kernel, block_dim)  # finds the sides that the kernel reads
    bounds = _build_launch_bounds_from_tuple(sides, kernel.adj.kernel_dim)
    given = [PackedArgument(_bytes(bounds))]
    for one, value in zip(parameters, values, strict=True):
        packed = pack_arg(kernel, one.type, one.label, value, "cpu")
        given.append(PackedArgument(_bytes(packed), [*_views(one.label, value)]))
    grid = max(1, -(-math.prod(sides) // block_dim))
    compiled(grid, block_dim, given, shared_mem=shared_bytes)


# --- launches of unchanged code -----------------------------------------------------------------


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Run the launches of Warp kernels inside the ``with`` on the emulator.

    ``wp.launch`` and ``wp.launch_tiled`` take Warp's arrays on the CPU and arrays of NumPy, and
    the device ``cuda`` of Warp and of torch is the CPU. It applies to this thread or context
    alone.

    Raises:
        ImportError: Warp is not installed.
        ArgumentError: A launch asks for ``adjoint`` or ``record_cmd``.

    Warns:
        UserWarning: It is another release than this module was tested with.
    """
    with _PATCHES.applied(), _torch_cuda.redirected():
        yield


def _patch(patches: Patches) -> None:
    check_version("warp-lang", "1.19", __name__)
    import warp
    from warp._src import context

    for module in (warp, context):
        patches.replace(module, "launch", _launch)
        patches.replace(module, "launch_tiled", _launch_tiled)
    patches.replace(warp, "is_cuda_available", lambda theirs: True)
    patches.replace(context.Runtime, "get_device", _device)
    _torch_cuda.patch(patches, LIMITS)


_PATCHES = Patches("warp", _patch)


def _device(theirs: Callable[..., Any], runtime: Any, ident: Any = None) -> Any:
    is_cuda = isinstance(ident, str) and ident.partition(":")[0] == "cuda"
    return runtime.cpu_device if is_cuda else theirs(runtime, ident)


def _launch(theirs: Callable[..., Any], *args: Any, **named: Any) -> None:
    """Launch a kernel, and record it on the tape: its backward launch is refused."""
    from warp._src.context import runtime

    call = inspect.signature(theirs).bind(*args, **named)
    call.apply_defaults()
    given = call.arguments
    kernel, dim, inputs, outputs = (given[name] for name in ("kernel", "dim", "inputs", "outputs"))
    for name in ("adjoint", "record_cmd"):
        if given[name]:
            rule, remedy = (
                "the CPU has forward launches alone",
                "Launch it on a GPU, outside on_cpu",
            )
            raise ArgumentError.broken(name, f"True in a launch of {kernel.key}", rule, remedy)
    concrete = kernel
    if kernel.is_generic:
        concrete = kernel.add_overload(kernel.infer_argument_types([*inputs, *outputs]))
    launch(concrete, dim, inputs, outputs, block_dim=given["block_dim"] or _BLOCK)
    if given["record_tape"] and runtime.tape:
        runtime.tape.record_launch(concrete, dim, 0, inputs, outputs, runtime.cpu_device)


def _launch_tiled(theirs: Callable[..., Any], *args: Any, dim: Any, **named: Any) -> None:
    del theirs  # it has blocks of one thread on the CPU
    from warp._src import context

    sides = [dim] if isinstance(dim, int) else [*dim]
    _launch(inspect.unwrap(context.launch), *args, dim=[*sides, named["block_dim"]], **named)


@functools.lru_cache(maxsize=256)
def _compiled(kernel: Any, block_dim: int) -> tuple[Kernel, int]:
    """Return a kernel, and the bytes of shared memory that its tiles need."""
    import warp

    options = kernel.module.options
    before, options["block_dim"] = options.get("block_dim", 256), block_dim
    try:
        with tempfile.TemporaryDirectory(prefix="tmaasync-warp-") as folder:
            warp.compile_aot_module(kernel.module, arch=90, use_ptx=True, module_dir=folder)
            (module,) = Path(folder).glob("*.ptx")
            (facts,) = Path(folder).glob("*.meta")
            text = module.read_text(encoding="utf-8").rstrip("\0")
            name = f"{kernel.get_mangled_name()}_cuda_kernel_forward"  # hashed by the compilation
            shared_bytes = json.loads(facts.read_text(encoding="utf-8")).get(
                f"{name}_smem_bytes", 0
            )
    finally:
        options["block_dim"] = before
    return Kernel(text.replace(name, kernel.key), kernel.key), shared_bytes


def _bytes(packed: Any) -> bytes:
    """Return the bytes of one of Warp's structs."""
    return ctypes.string_at(ctypes.addressof(packed), ctypes.sizeof(packed))


def _views(name: str, value: Any) -> Iterator[tuple[str, ArrayView]]:
    """Yield the arrays of an argument, by name."""
    array = value.numpy() if hasattr(value, "numpy") else value
    if getattr(array, "shape", ()) and hasattr(array, "__array_interface__"):
        yield name, _arrays.view(array)
