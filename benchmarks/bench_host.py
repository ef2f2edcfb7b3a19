"""Host cost of making a tile, and of launching. Writes section "host" of the results.

Every candidate of a group does the same work; microseconds per call, the device drained between.
"""

from __future__ import annotations

import ctypes
from typing import Any

import cupy
import numpy as np
import torch
from cuda.bindings import driver
from race import host_race, record

import tmaasync.torch
from tmaasync import Kernel, Swizzle, create_tma_tile, ops

_TILES = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void two_tiles(
    const __grid_constant__ Tile a, const __grid_constant__ Tile b, int w, int x, float y, float z
) {
    if (w < 0) a.prefetch_descriptor(), b.prefetch_descriptor();
}
"""


_CALLS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void pointers(float* out, const float* a, const float* b, int n) {
    if (n < 0) out[0] = a[0] + b[0];
}
extern "C" __global__ void mixed(
    const __grid_constant__ Tile tile, float* out, const float* in, int n
) {
    if (n < 0) tile.prefetch_descriptor(), out[0] = in[0];
}
"""


def tiles() -> dict[str, Any]:
    """Make a tensor map of a 2-D array: cached, at a new address, and rebound."""
    array = cupy.empty((4096, 4096), cupy.float16)
    rows = cupy.empty((512, 4096), cupy.float16)
    views = [rows[index:] for index in range(256)]
    fresh = iter(range(10**9))
    candidates = {
        "tmaasync cached": lambda: create_tma_tile(array, (128, 64), swizzle=Swizzle.B128),
        "tmaasync new address": lambda: create_tma_tile(
            views[next(fresh) % 256], (64, 64 + 8 * (next(fresh) // 256 % 8))
        ),
    }
    tile = create_tma_tile(array, (128, 64), swizzle=Swizzle.B128)
    candidates["tmaasync rebind"] = lambda: tile.rebind(array)
    candidates |= _cuda_core(array) | _triton()
    reference = "cuda.core as_tensor_map" if "cuda.core as_tensor_map" in candidates else None
    return host_race(candidates, reference=reference or "tmaasync cached")


def _cuda_core(array: Any) -> dict[str, Any]:
    try:
        from cuda.core import Device  # noqa: PLC0415
        from cuda.core.utils import StridedMemoryView  # noqa: PLC0415
    except ImportError:
        return {}
    Device(0).set_current()
    view = StridedMemoryView.from_any_interface(array, stream_ptr=-1)

    def from_array() -> object:
        seen = StridedMemoryView.from_any_interface(array, stream_ptr=-1)
        return seen.as_tensor_map(box_dim=(128, 64))

    return {
        "cuda.core as_tensor_map": lambda: view.as_tensor_map(box_dim=(128, 64)),
        "cuda.core from array": from_array,
    }


def _triton() -> dict[str, Any]:
    try:
        from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: PLC0415
    except ImportError:
        return {}
    tensor = torch.empty((4096, 4096), dtype=torch.bfloat16, device="cuda")
    return {"triton from_tensor": lambda: TensorDescriptor.from_tensor(tensor, [128, 64])}


def launches() -> dict[str, Any]:
    """Launch a kernel with two tiles and four scalars."""
    array = cupy.empty((4096, 4096), cupy.float16)
    tile = create_tma_tile(array, (128, 64), swizzle=Swizzle.B128)
    kernel = Kernel(_TILES, "two_tiles", types={"Tile": tile})
    arguments = (tile, tile, 1, 2, 3.0, 4.0)
    prepared = kernel.prepare(1, 32, arguments)
    module = cupy.RawModule(path=str(kernel.compile().path))
    raw = module.get_function("two_tiles")
    blob = np.frombuffer(tile.descriptor, np.dtype([("words", "<u8", (16,))]))
    raw_arguments = (blob, blob, *map(np.int32, (1, 2)), *map(np.float32, (3, 4)))
    return host_race(
        {
            "tmaasync prepared": prepared,
            "cuda.bindings cuLaunchKernelEx": _bindings(raw.kernel.ptr, tile.descriptor),
            "tmaasync call": lambda: kernel(1, 32, arguments),
            "cupy RawKernel": lambda: raw((1,), (32,), raw_arguments),
        },
        reference="cuda.bindings cuLaunchKernelEx",
    )


def calls() -> dict[str, Any]:
    """Call kernels with three arrays and an int, and with a tile, two arrays and an int."""
    arrays = [cupy.empty((4096, 4096), cupy.float32) for _ in range(3)]
    tensors = [torch.empty((4096, 4096), device="cuda") for _ in range(3)]
    tile, torch_tile = (create_tma_tile(one[0], (64, 32)) for one in (arrays, tensors))
    types = {"Tile": tile}
    pointers, mixed = (Kernel(_CALLS, name, types=types) for name in ("pointers", "mixed"))
    raw = cupy.RawModule(path=str(pointers.compile().path)).get_function("pointers")
    out, a, b = arrays
    o, p, q = tensors
    n = np.int32(1)
    return host_race(
        {
            "cupy RawKernel, 3 arrays": lambda: raw((8,), (128,), (out, a, b, n)),
            "tmaasync call, 3 CuPy arrays": lambda: pointers(8, 128, (out, a, b, 1)),
            "tmaasync call, 3 torch tensors": lambda: pointers(8, 128, (o, p, q, 1)),
            "tmaasync call, CuPy tile, 2 arrays": lambda: mixed(8, 128, (tile, out, a, 1)),
            "tmaasync call, torch tile, 2 tensors": lambda: mixed(8, 128, (torch_tile, o, p, 1)),
            "tmaasync prepare and launch, 3 arrays": lambda: pointers.prepare(
                8, 128, (out, a, b, 1)
            )(),
            "tmaasync prepared, 3 arrays": pointers.prepare(8, 128, (out, a, b, 1)),
        },
        reference="cupy RawKernel, 3 arrays",
    )


def _bindings(function: int, descriptor: bytes) -> Any:
    """Return the leanest launch that cuda.bindings allows: everything prepared before it."""
    values = [
        *(ctypes.create_string_buffer(descriptor, 128) for _ in range(2)),
        *(ctypes.c_int(value) for value in (1, 2)),
        *(ctypes.c_float(value) for value in (3, 4)),
    ]
    pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 32, 1, 1
    config.hStream = driver.CUstream(cupy.cuda.get_current_stream().ptr)
    handle, address = driver.CUfunction(function), ctypes.addressof(pointers)

    def launch(_: object = (values, pointers)) -> None:
        (result,) = driver.cuLaunchKernelEx(config, handle, address, 0)
        if result:
            raise SystemExit(result)

    return launch


def operations() -> dict[str, Any]:
    """Make whole public calls on matrices so small that the host bounds them."""
    a, b = (torch.randn(256, 256, device="cuda").bfloat16() for _ in range(2))
    out = torch.empty_like(a)
    padded = torch.zeros(16, 16, 256, device="cuda").bfloat16()
    cu_seqlens = torch.arange(0, 17 * 8, 8, device="cuda", dtype=torch.int32)
    packed, lengths = a[:128], [8] * 16
    scales = [torch.ones((), device="cuda") for _ in range(2)]  # one tensor twice is slower
    low, low_b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).T
    return host_race(
        {
            "ops.matmul": lambda: ops.matmul(a, b, out=out),
            "torch.matmul": lambda: torch.matmul(a, b, out=out),
            "ops.matmul new output": lambda: ops.matmul(a, b),
            "torch.matmul new output": lambda: torch.matmul(a, b),
            "ops.matmul with scales": lambda: ops.matmul(
                low, low_b, scale_a=scales[0], scale_b=scales[1], out=out
            ),
            "torch._scaled_mm": lambda: torch._scaled_mm(
                low, low_b, *scales, out_dtype=torch.bfloat16, out=out
            ),
            "ops.copy": lambda: ops.copy(a, out),
            "torch copy_": lambda: out.copy_(a),
            "ops.ragged_store cu_seqlens": lambda: ops.ragged_store(
                padded, out=packed, cu_seqlens=cu_seqlens
            ),
            "ops.ragged_store list of lengths": lambda: ops.ragged_store(padded, lengths, packed),
            "ops.ragged_load cu_seqlens": lambda: ops.ragged_load(
                packed, out=padded, cu_seqlens=cu_seqlens
            ),
        },
        reference="torch.matmul",
    )


def torch_operators() -> dict[str, Any]:
    """Make the same calls directly, through torch's dispatcher, and from compiled code."""
    a, b = (torch.randn(256, 256, device="cuda").bfloat16() for _ in range(2))
    q, k, v = (torch.randn(1, 64, 4, 64, device="cuda").bfloat16() for _ in range(3))
    weight = torch.nn.Parameter(b)
    operators = torch.ops.tmaasync
    compiled = torch.compile(lambda a, b: operators.matmul(a, b), fullgraph=True)
    compiled_torch = torch.compile(lambda a, b: torch.matmul(a, b), fullgraph=True)

    def with_parameter(multiply: Any) -> Any:
        with torch.no_grad():
            return multiply(a, weight)

    tracked, grad = a.clone().requires_grad_(), torch.ones_like(a)

    def both_ways(multiply: Any) -> None:
        tracked.grad = weight.grad = None
        multiply(tracked, weight).backward(grad)

    return host_race(
        {
            "torch.matmul": lambda: torch.matmul(a, b),
            "ops.matmul": lambda: ops.matmul(a, b),
            "torch.ops.tmaasync.matmul": lambda: operators.matmul(a, b),
            "tmaasync.torch.matmul": lambda: tmaasync.torch.matmul(a, b),
            "compiled torch.ops.tmaasync.matmul": lambda: compiled(a, b),
            "compiled torch.matmul": lambda: compiled_torch(a, b),
            "ops.matmul of a Parameter": lambda: with_parameter(ops.matmul),
            "torch.matmul of a Parameter": lambda: with_parameter(torch.matmul),
            "tmaasync.torch.matmul, for a backward": lambda: tmaasync.torch.matmul(a, weight),
            "torch.matmul, for a backward": lambda: torch.matmul(a, weight),
            "tmaasync.torch.matmul and its backward": lambda: both_ways(tmaasync.torch.matmul),
            "torch.matmul and its backward": lambda: both_ways(torch.matmul),
            "ops.attention": lambda: ops.attention(q, k, v),
            "torch.ops.tmaasync.attention": lambda: operators.attention(q, k, v),
        },
        reference="torch.matmul",
    )


def main() -> None:
    groups = {
        "launches": launches,
        "calls": calls,
        "operations": operations,
        "torch": torch_operators,
        "tiles": tiles,
    }
    rows = [{"group": name, **measure()} for name, measure in groups.items()]
    for row in rows:
        print(row["group"])
        for name, microseconds in row["us"].items():
            print(f"  {name:34s} {microseconds:8.2f} us")
    print(record("host", rows))


if __name__ == "__main__":
    main()
