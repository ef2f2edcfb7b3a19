// out = a^T @ b^T of bfloat16, from scratch but for CUDA's headers of types: a persistent kernel of
// clusters of two blocks. A warp draws tiles from a counter and sends them to both blocks with
// st.async; another loads a with M innermost, and half of b for both blocks; two warpgroups
// multiply and store by TMA.
#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

typedef __nv_bfloat16 bf16;
constexpr int BM = 128, BN = 64, BK = 32, STAGES = 3, CLUSTER = 2, CONSUMERS = 2;

struct Smem {
    alignas(1024) bf16 a[STAGES][BM * BK];  // two boxes of 64 rows of a, M innermost: 128 bytes
    alignas(1024) bf16 b[STAGES][BN * BK];  // K innermost, swizzled by 64 bytes
    alignas(1024) bf16 out[CONSUMERS][64 * BN];
    alignas(8) uint64_t full[STAGES], empty[STAGES];
    uint64_t drawn, taken;
    int tile;
};

__device__ __forceinline__ uint32_t smem_addr(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ void init_barrier(uint64_t* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(smem_addr(barrier)), "r"(count));
}
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(smem_addr(barrier)),
        "r"(bytes)
        : "memory"
    );
}
__device__ __forceinline__ void wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 P1, [%0], %1, %2;\n"
        "@P1 bra.uni DONE;\n"
        "bra.uni LAB_WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(smem_addr(barrier)),
        "r"(parity), "r"(0x989680)
        : "memory"
    );
}
__device__ __forceinline__ uint32_t mapa(const void* pointer, uint32_t rank) {
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n"
                 : "=r"(remote)
                 : "r"(smem_addr(pointer)), "r"(rank));
    return remote;
}
__device__ __forceinline__ void arrive(uint64_t* barrier, uint32_t rank) {
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];\n" ::"r"(mapa(barrier, rank))
        : "memory"
    );
}
__device__ __forceinline__ void tma_load(bf16* to, const void* map, uint64_t* full, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(smem_addr(to)),
        "l"(map), "r"(smem_addr(full)), "r"(x), "r"(y), "l"(0x14F0000000000000ull)
        : "memory"
    );
}
__device__ __forceinline__ void tma_load_multicast(
    bf16* to, const void* map, uint64_t* full, int x, int y, uint16_t ctas
) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(smem_addr(to)),
        "l"(map), "r"(smem_addr(full)), "r"(x), "r"(y), "h"(ctas)
        : "memory"
    );
}
__device__ __forceinline__ void tma_store(const void* map, const bf16* from, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\n"
        "cp.async.bulk.commit_group;\n" ::"l"(map),
        "r"(smem_addr(from)), "r"(x), "r"(y)
        : "memory"
    );
}
__device__ __forceinline__ uint64_t
descriptor(const bf16* tile, uint64_t leading, uint64_t stride, uint64_t swizzle) {
    return smem_addr(tile) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62;
}
#define ROW(i)                                                                                \
    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i][4]), "+f"(d[i][5]), \
        "+f"(d[i][6]), "+f"(d[i][7])
__device__ __forceinline__ void wgmma(float (&d)[4][8], uint64_t a, uint64_t b, bool adds) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,   %1,   %2,   %3,   %4,   %5,   %6,   %7,   "
        " %8,   %9,   %10,  %11,  %12,  %13,  %14,  %15,  "
        " %16,  %17,  %18,  %19,  %20,  %21,  %22,  %23,  "
        " %24,  %25,  %26,  %27,  %28,  %29,  %30,  %31},"
        " %32, %33, p, %35, %36, %37, %38;\n"
        "}\n"
        : ROW(0), ROW(1), ROW(2), ROW(3)
        : "l"(a), "l"(b), "r"((int)adds), "n"(1), "n"(1), "n"(1), "n"(0)
    );
}
__device__ __forceinline__ uint32_t packed(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__global__ __cluster_dims__(CLUSTER, 1, 1)
    __launch_bounds__(128 * (1 + CONSUMERS)) void dynamic_gemm(
        int m,
        int n,
        int k,
        const __grid_constant__ CUtensorMap map_a,
        const __grid_constant__ CUtensorMap map_b,
        const __grid_constant__ CUtensorMap map_out,
        int* counter
    ) {
    extern __shared__ __align__(1024) uint8_t raw[];
    Smem& smem = *reinterpret_cast<Smem*>(raw);
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const int columns = n / BN, tiles = m / (BM * CLUSTER) * columns, blocks = k / BK;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            init_barrier(&smem.full[i], 1);
            init_barrier(&smem.empty[i], CONSUMERS * CLUSTER);
        }
        init_barrier(&smem.drawn, 1);
        init_barrier(&smem.taken, CLUSTER * (CONSUMERS * 128 + 2));
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;\n" ::: "memory");

    int stage = 0, phase = 0;
    auto advance = [&] {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    };
    if (group == 0 && thread == 0) {  // loads
        for (int round = 0;; ++round) {
            wait(&smem.drawn, round & 1);
            const int tile = smem.tile;
            arrive(&smem.taken, 0);
            if (tile >= tiles) break;
            const int row = (tile / columns * CLUSTER + rank) * BM, column = tile % columns * BN;
            for (int block = 0; block < blocks; ++block, advance()) {
                wait(&smem.empty[stage], phase ^ 1);
                expect_bytes(&smem.full[stage], (BM + BN) * BK * sizeof(bf16));
                bf16* const a = smem.a[stage];
                tma_load(a, &map_a, &smem.full[stage], row, block * BK);
                tma_load(a + 64 * BK, &map_a, &smem.full[stage], row + 64, block * BK);
                const int half = rank * BN / CLUSTER;
                tma_load_multicast(
                    smem.b[stage] + half * BK, &map_b, &smem.full[stage], block * BK, column + half,
                    0b11
                );
            }
        }
    } else if (group == 0 && thread == 32) {  // draws tiles
        for (int round = 0, tile = 0; tile < tiles; ++round) {
            expect_bytes(&smem.drawn, sizeof(int));
            if (rank == 0) {
                wait(&smem.taken, (round & 1) ^ 1);
                tile = atomicAdd(counter, 1);
#pragma unroll
                for (int cta = 0; cta < CLUSTER; ++cta) {
                    asm volatile(
                        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32"
                        " [%0], %1, [%2];\n" ::"r"(mapa(&smem.tile, cta)),
                        "r"(tile), "r"(mapa(&smem.drawn, cta))
                        : "memory"
                    );
                }
            }
            wait(&smem.drawn, round & 1);
            tile = smem.tile;
            arrive(&smem.taken, 0);
        }
    } else if (group > 0) {  // multiplies
        const int consumer = group - 1, lane = thread % 32, warp = thread / 32;
        bf16* const staged = smem.out[consumer];
        float d[4][8];
        for (int round = 0;; ++round) {
            wait(&smem.drawn, round & 1);
            const int tile = smem.tile;
            arrive(&smem.taken, 0);
            if (tile >= tiles) break;
            const int row = (tile / columns * CLUSTER + rank) * BM, column = tile % columns * BN;
            for (int block = 0; block < blocks; ++block, advance()) {
                wait(&smem.full[stage], phase);
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (int step = 0; step < BK / 16; ++step) {
                    const bf16* const a = smem.a[stage] + consumer * 64 * BK + step * 16 * 64;
                    const uint64_t left = descriptor(a, 1024, 1024, 1);
                    const uint64_t right = descriptor(smem.b[stage] + step * 16, 16, 512, 2);
                    wgmma(d, left, right, block + step > 0);
                }
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(0) : "memory");
                if (thread < CLUSTER) arrive(&smem.empty[stage], thread);
            }
            if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;\n" ::: "memory");
            asm volatile("bar.sync %0, 128;\n" ::"r"(group) : "memory");
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t at =
                    smem_addr(staged + (warp * 16 + lane % 16) * BN + i * 16 + lane / 16 * 8);
                const float (&v)[8] = d[i];
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], "
                    "{%1, %2, %3, %4};\n" ::"r"(at),
                    "r"(packed(v[0], v[1])), "r"(packed(v[2], v[3])), "r"(packed(v[4], v[5])),
                    "r"(packed(v[6], v[7]))
                    : "memory"
                );
            }
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            asm volatile("bar.sync %0, 128;\n" ::"r"(group + 2) : "memory");
            if (thread == 0) tma_store(&map_out, staged, column, row + consumer * 64);
        }
        if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" ::: "memory");
}
