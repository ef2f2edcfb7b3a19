"""Run Warp kernels on the CPU emulator: Warp compiles them to PTX, without a GPU.

Warp itself packs the arguments; the first parameter has the sides of the launch. Reports name the
lines of the PTX, because Warp writes no line table. Written for Warp 1.19.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._kinds import shown
from tmaasync._tested_versions import check_version
from tmaasync._tile.pointer import PackedArgument
from tmaasync.errors import ArgumentError
from tmaasync.kernel import Kernel

__all__ = ["launch"]


def launch(
    kernel: Any,
    dim: int | Sequence[int],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    *,
    block_dim: int = 256,
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
