"""Shared addresses from generic pointers: by their low bits, and of pointers to other memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, emulate

# CUDA kernels take the shared address from the low bits of a generic pointer: 18 bits for a wgmma
# descriptor, 24 bits for everything else.
LOW_BITS = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void low_bits(unsigned* out, unsigned long long mask) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ __align__(16) unsigned fixed[4];
    const unsigned rank = cg::this_cluster().block_rank();
    const auto low = [&](const void* pointer) {
        return (unsigned)((unsigned long long)pointer & mask);
    };
    unsigned* mine = out + 8 * blockIdx.x;
    if (threadIdx.x == 0) {
        fixed[2] = 100 + rank;
        ((unsigned*)dynamic)[5] = 200 + rank;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(mine[0]) : "r"(low(&fixed[2])));
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(mine[1]) : "r"(low(dynamic + 20)));
        mine[2] = low(dynamic) - ((unsigned)__cvta_generic_to_shared(dynamic) & mask);
        mine[3] = low(fixed) - ((unsigned)__cvta_generic_to_shared(fixed) & mask);
    }
    cg::this_cluster().sync();
    if (threadIdx.x == 0) {
        const unsigned peer = rank ^ (cg::this_cluster().num_blocks() > 1);
        unsigned* other = cg::this_cluster().map_shared_rank(fixed, peer);
        mine[4] = other[2];
        mine[5] = low(other) - low(fixed);
        mine[6] = ((unsigned long long)other >> 24 & 15) - peer;
        mine[7] = ((unsigned long long)dynamic >> 24 & 15) - rank;
    }
    cg::this_cluster().sync();
}
"""


@pytest.mark.parametrize(("mask", "ctas"), [(0x3FFFF, 1), (0xFFFFFF, 8)])
def test_the_low_bits_of_a_generic_pointer_are_the_shared_address(mask: int, ctas: int) -> None:
    out = np.full((16, 8), 999, np.uint32)
    Kernel(LOW_BITS, "low_bits")(16, 32, (out, mask), shared_mem=4096, cluster=ctas)
    rank = np.arange(16) % ctas
    peer = rank ^ (ctas > 1)
    zero = np.zeros(16)
    expected = np.stack([100 + rank, 200 + rank, zero, zero, 100 + peer, zero, zero, zero], axis=1)
    assert (out == expected).all()


# A lies in dynamic shared memory, B in a static variable; core matrices of 8 x 16 bytes follow each
# other without a swizzle.
DESCRIPTORS = """
#include <cooperative_groups.h>
#include <cuda_bf16.h>
namespace cg = cooperative_groups;
using u64 = unsigned long long;
__device__ u64 descriptor(const void* pointer, u64 mask) {
    return ((u64)pointer & mask) >> 4 | 8ull << 16 | 16ull << 32;
}
__global__ void descriptors(float* out, u64 mask) {
    extern __shared__ __align__(1024) unsigned char dynamic[];
    __shared__ __align__(128) __nv_bfloat16 fixed[8 * 16];
    auto* tile = reinterpret_cast<__nv_bfloat16*>(dynamic + 1024);
    const float value = 1 + cg::this_cluster().block_rank();
    for (int i = threadIdx.x; i < 512; i += 128) reinterpret_cast<float*>(dynamic)[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < 64 * 16; i += 128) tile[i] = __float2bfloat16(value);
    fixed[threadIdx.x] = __float2bfloat16(2);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float d[4];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3}, %4, %5, 0, 1, 1, 0, 0;"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "l"(descriptor(tile, mask)), "l"(descriptor(fixed, mask))
    );
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 4; ++i) out[(blockIdx.x * 128 + threadIdx.x) * 4 + i] = d[i];
}
"""


@pytest.mark.parametrize("ctas", [1, 2])
def test_the_low_bits_of_a_generic_pointer_make_a_descriptor_of_wgmma(ctas: int) -> None:
    out = np.zeros((4, 512), np.float32)
    kernel = Kernel(DESCRIPTORS, "descriptors")
    kernel(4, 128, (out, 0x3FFFF), shared_mem=4096, cluster=ctas)
    values = 1 + np.arange(4) % ctas
    assert (out == 16 * 2 * values[:, None]).all()


CONVERTED = """
#include <cooperative_groups.h>
#include <cuda/barrier>
using u32 = unsigned;
using u64 = unsigned long long;
__device__ u32 converted(const void* pointer) {
    return (u32)__cvta_generic_to_shared(pointer);
}
__device__ u32 converted_by_ptx(const void* pointer) {
    u64 shared;
    asm volatile("cvta.to.shared.u64 %0, %1;" : "=l"(shared) : "l"(pointer));
    return (u32)shared;
}
__global__ void convert(float* out, int use) {
    __shared__ __align__(128) float x[128];
    x[threadIdx.x] = threadIdx.x;
    __syncthreads();
    const float local = 1;
    const float* pointers[] = {nullptr, out, &local, (const float*)7};
    for (const float* pointer : pointers) {
        const u32 address = converted(pointer), same = converted_by_ptx(pointer);
        if (use >= 0 && address != same) out[0] = 1;
        switch (use) { USES }
    }
    out[threadIdx.x] = x[31 - threadIdx.x];
}
"""
USES = {
    "a load": 'asm volatile("ld.shared.f32 %0, [%1];" : "=f"(out[1]) : "r"(address));',
    "a store": 'asm volatile("st.shared.f32 [%0], %1;" :: "r"(address), "f"(1.f));',
    "a cluster load": (
        'asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(out[1]) : "r"(address));'
    ),
    "an atomic": 'asm volatile("red.shared.add.u32 [%0], %1;" :: "r"(address), "r"(1));',
    "a barrier": 'asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(address));',
    "ldmatrix": (
        'u32 d; asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" '
        ': "=r"(d) : "r"(address)); out[1] = d;'
    ),
    "its generic pointer": "*(float*)__cvta_shared_to_generic(address) = 1;",
    "mapa": (
        'u32 d; asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(d) : "r"(address)); '
        'asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(d), "f"(1.f));'
    ),
    "mapa of the pointer": (
        "*cooperative_groups::this_cluster().map_shared_rank((float*)pointer, 0) = 1;"
    ),
    "a barrier of libcu++": (
        "cuda::device::barrier_expect_tx(*(cuda::barrier<cuda::thread_scope_block>*)pointer, 16);"
    ),
}


def convert(use: str | None) -> Any:
    cases = [f"case {i}: {{ {body} break; }}" for i, body in enumerate(USES.values())]
    out = np.full(32, -1, np.float32)
    number = -1 if use is None else list(USES).index(use)
    kernel = Kernel(CONVERTED.replace("USES", " ".join(cases)), "convert")
    kernel(1, 32, (out, number))
    return out


def test_the_shared_address_of_another_pointer_may_be_taken_and_dropped() -> None:
    assert convert(None).tolist() == [31 - i for i in range(32)]


@pytest.mark.parametrize("use", USES)
def test_a_use_of_the_shared_address_of_another_pointer_is_a_fault(use: str) -> None:
    for races in (False, True):
        with emulate.scheduled(races=races), pytest.raises(EmulatedFault, match="points elsewhere"):
            convert(use)
