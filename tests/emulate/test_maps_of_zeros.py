"""Tensor maps that a kernel builds from 128 zero bytes, as Triton's make_tensor_descriptor does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned

from tmaasync import EmulatedFault, Kernel

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) float tile[8 * 32];
    TensorMap map;
    SharedMemBarrier full;
};
extern "C" __device__ const int build_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void build(float* array, TensorMap* maps, float* out, int rows, int column) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int thread = threadIdx.x;
    TensorMap* const map = maps + blockIdx.x;
    ((u32*)&shared.map)[thread] = 0;
    if (thread == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncwarp();
    const u32 scratch = ptx::shared_address(&shared.map);
    if (thread == 0) {
        ADDRESS ptx::tensormap_replace_global_address(scratch, array);
        ptx::tensormap_replace_rank(scratch, 1);
        ptx::tensormap_replace_global_dim<0>(scratch, 64);
        ptx::tensormap_replace_global_dim<1>(scratch, rows);
        ptx::tensormap_replace_global_stride<0>(scratch, 64 * 4);
        ptx::tensormap_replace_box_dim<0>(scratch, 32);
        ptx::tensormap_replace_box_dim<1>(scratch, 8);
        ptx::tensormap_replace_element_stride<0>(scratch, 1);
        ptx::tensormap_replace_element_stride<1>(scratch, 1);
        ptx::tensormap_replace_elemtype<7>(scratch);
        ptx::tensormap_replace_interleave_layout<0>(scratch);
        ptx::tensormap_replace_swizzle_mode<SWIZZLE>(scratch);
        ptx::tensormap_replace_fill_mode<0>(scratch);
    }
    __syncwarp();
    ptx::tensormap_cp_fenceproxy(map, scratch);
    __syncwarp();
    if (thread == 0) {
        ptx::fence_proxy_tensormap_acquire_gpu(map);
        shared.full.expect_bytes(8 * 32 * 4);
        const ptx::Coordinates<2> at{column, 8 * (int)blockIdx.x};
        const u32 full = ptx::shared_address(&shared.full);
        ptx::cp_async_bulk_tensor_load<2>(ptx::shared_address(shared.tile), map, at, full, 0);
    }
    shared.full.wait(0);
    for (int i = thread; i < 8 * 32; i += 32) {
        out[blockIdx.x * 256 + i] = shared.tile[SWIZZLE == 3 ? i ^ (i / 32 % 8 * 4) : i];
    }
}
"""


def build(array: Any, rows: int, swizzle: int, *, has_address: bool = True) -> Any:
    source = SOURCE.replace("SWIZZLE", str(swizzle))
    source = source.replace("ADDRESS", "" if has_address else "if (false)")
    maps, out = aligned(256, np.uint8), np.full((2, 8, 32), -1, np.float32)
    Kernel(source, "build")(2, 32, (array, maps, out, rows, 32))
    return out.reshape(16, 32)


@pytest.mark.parametrize("swizzle", [0, 3])
@pytest.mark.parametrize("rows", [16, 11])
def test_a_map_of_zeros_with_every_field_replaced_works(swizzle: int, rows: int) -> None:
    array = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)
    expected = array[:, 32:].copy()
    expected[rows:] = 0  # rows beyond the tensor's end
    assert (build(array, rows, swizzle) == expected).all()


def test_a_map_of_zeros_without_an_address_is_none() -> None:
    with pytest.raises(EmulatedFault, match="no tensor map of sm_90"):
        build(np.zeros((16, 64), np.float32), 16, 0, has_address=False)
