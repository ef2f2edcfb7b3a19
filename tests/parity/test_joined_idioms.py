"""One GEMM of several idioms of public Hopper kernels, which rarely stand together in a test.

FlashAttention-3, DeepGEMM and ThunderKittens have them: shared addresses from the low bits of
generic pointers, wgmma descriptors of them, raw mbarriers, bulk copies with multicast, setmaxnreg,
named barriers, a cluster, member templates without ``template``, and deduced class templates.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import Kernel, emulate

pytestmark = pytest.mark.chips("sm_90a")

STAGES, STEPS = 3, 7  # stages of the pipeline, and steps of 64 along K
CTAS, ROWS, COLUMNS, DEPTH = 2, 64, 64, 64 * STEPS
_SUMS = ", ".join(f"%{i}" for i in range(32))
_OUTPUTS = ", ".join(f'"+f"(d[{i}])' for i in range(32))
SOURCE = f"""
#include <cuda_bf16.h>
using u32 = unsigned;
using u64 = unsigned long long;
constexpr int kStages = {STAGES}, kSteps = {STEPS}, kTileBytes = 8192;

// The low bits are an address of .shared::cta; one of .shared::cluster has the rank above them.
__device__ u32 low(const void* pointer) {{ return (u32)((u64)pointer & 0xFFFFFF); }}
__device__ u32 own(const void* pointer) {{ return (u32)__cvta_generic_to_shared(pointer); }}

template <int kAlign = 1024> struct Arena {{
    char* next;
    __device__ Arena(char* begin) : next(begin) {{}}
    template <typename T> __device__ T* take(int count) {{
        char* const begin = next;
        next += (count * sizeof(T) + kAlign - 1) / kAlign * kAlign;
        return (T*)begin;
    }}
}};
struct Plan {{
    template <int kFirst> __device__ u64* barrier(u64* all, int step) const {{
        return all + kFirst + step % kStages;
    }}
}};

__device__ void wait(const u64* barrier, int parity) {{
    asm volatile("{{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; "
                 "@!p bra AGAIN; }}" :: "r"(low(barrier)), "r"(parity) : "memory");
}}
__device__ void release(const u64* barrier, int rank) {{
    asm volatile("{{ .reg .b32 peer; mapa.shared::cluster.u32 peer, %0, %1; "
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [peer]; }}"
                 :: "r"(own(barrier)), "r"(rank) : "memory");
}}
__device__ u64 descriptor(const void* tile) {{
    return ((u64)tile & 0x3FFFF) >> 4 | 8ull << 16 | 16ull << 32;
}}
__device__ void multiply(float (&d)[32], const char* a, const char* b) {{
    asm volatile("{{ .reg .pred p; setp.ne.b32 p, %34, 0; "
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{_SUMS}}}, "
                 "%32, %33, p, 1, 1, 0, 0; }}"
                 : {_OUTPUTS} : "l"(descriptor(a)), "l"(descriptor(b)), "r"(1));
}}

template <typename P>
__device__ void load(P plan, u64* bars, char* a, char* b, const char* from_a, const char* from_b,
                     int rank) {{
    for (int step = 0; step < kSteps; ++step) {{
        u64* const full = plan.barrier<0>(bars, step);
        wait(plan.barrier<kStages>(bars, step), (step / kStages & 1) ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(low(full)), "r"(2 * kTileBytes) : "memory");
        const int at = step % kStages * kTileBytes, half = rank * kTileBytes / 2;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];"
                     :: "r"(own(a + at)), "l"(from_a + step * kTileBytes), "r"(kTileBytes),
                        "r"(own(full)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1], %2, [%3], %4;"
                     :: "r"(own(b + at + half)), "l"(from_b + step * kTileBytes + half),
                        "r"(kTileBytes / 2), "r"(own(full)), "h"((unsigned short)3) : "memory");
    }}
}}
template <typename P>
__device__ void consume(P plan, u64* bars, const char* a, const char* b, float* out) {{
    float d[32] = {{}};
    for (int step = 0; step < kSteps; ++step) {{
        wait(plan.barrier<0>(bars, step), step / kStages & 1);
        const int at = step % kStages * kTileBytes;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; ++k) multiply(d, a + at + k * 2048, b + at + k * 2048);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (threadIdx.x < {CTAS}) release(plan.barrier<kStages>(bars, step), threadIdx.x);
    }}
    for (int i = 0; i < 32; ++i) {{
        const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8;
        out[row * {COLUMNS} + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = d[i];
    }}
}}

extern "C" __global__ void __launch_bounds__((((2) * (128))), 1) __cluster_dims__({CTAS}, 1, 1)
joined(const char* a, const char* b, float* out) {{
    extern __shared__ __align__(1024) char raw[];
    Arena arena(&raw[0]);
    char* const own_a = arena.take<char>(kStages * kTileBytes);
    char* const own_b = arena.take<char>(kStages * kTileBytes);
    u64* const bars = arena.take<u64>(2 * kStages);
    const int rank = blockIdx.x % {CTAS};
    if (threadIdx.x == 0) {{
        for (int i = 0; i < 2 * kStages; ++i) {{
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                         :: "r"(low(bars + i)), "r"(i < kStages ? 1 : {CTAS}));
        }}
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }}
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (threadIdx.x >= 128) {{
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 128) {{
            load(Plan(), bars, own_a, own_b, a + blockIdx.x * kSteps * kTileBytes, b, rank);
        }}
    }} else {{
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(Plan(), bars, own_a, own_b, out + blockIdx.x * {ROWS * COLUMNS});
    }}
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}}
"""
SHARED_BYTES = 2 * STAGES * 8192 + 1024


def tiled(matrix: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the core matrices of 8 x 8 in the order of wgmma without a swizzle, by steps of 16."""
    rows, depth = matrix.shape
    parts = matrix.reshape(rows // 64, 8, 8, depth // 16, 2, 8)
    return np.ascontiguousarray(parts.transpose(0, 3, 1, 4, 2, 5)).view(np.uint8).reshape(-1)


def operands() -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    rng = np.random.default_rng(11)
    a, b = (
        rng.standard_normal((rows, DEPTH)).astype(ml_dtypes.bfloat16) for rows in (128, COLUMNS)
    )
    return a, b, a.astype(np.float64) @ b.astype(np.float64).T


def launch(text: str, **schedule: Any) -> npt.NDArray[np.float32]:
    a, b, _ = operands()
    out = np.full((CTAS * ROWS, COLUMNS), np.nan, np.float32)
    with emulate.scheduled(races=True, **schedule):
        Kernel(text, "joined")(CTAS, 256, (tiled(a), tiled(b), out), shared_mem=SHARED_BYTES)
    return out


@pytest.mark.parametrize("seed", range(4))
def test_the_joined_idioms_equal_float64(seed: int) -> None:
    np.testing.assert_allclose(launch(SOURCE, seed=seed), operands()[2], rtol=1e-4, atol=1e-3)
