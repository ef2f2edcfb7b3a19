// out = a @ b^T of bfloat16, in CUDA C++ and inline PTX alone: a persistent kernel of one producer
// warpgroup, which loads with TMA, and two consumer warpgroups, which multiply with wgmma and store
// with TMA. No header of any library is included.
using u8 = unsigned char;
using u32 = unsigned int;
using u64 = unsigned long long;

struct alignas(64) CUtensorMap {
    u64 opaque[16];
};

constexpr int BM = 128, BN = 128, BK = 64;  // CTA tile
constexpr int STAGES = 3;
constexpr int GROUP = 128;  // threads of a warpgroup
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2;
constexpr int OUT_BYTES = 64 * BN * 2;  // of a consumer warpgroup

struct Shared {
    alignas(1024) u8 a[STAGES][A_BYTES];
    alignas(1024) u8 b[STAGES][B_BYTES];
    alignas(128) u8 out[2][OUT_BYTES];
    u64 full[STAGES];
    u64 empty[STAGES];
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(Shared);

// --- shared memory and barriers ------------------------------------------------------------------

__device__ static inline u32 smem_u32(const void* pointer) {
    u32 address;
    asm("{\n"
        ".reg .u64 wide;\n"
        "cvta.to.shared.u64 wide, %1;\n"
        "cvt.u32.u64 %0, wide;\n"
        "}"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

__device__ static inline void barrier_init(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(smem_u32(barrier)), "r"(count));
}

__device__ static inline void barrier_expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;\n" ::"r"(
                     smem_u32(barrier)
                 ),
                 "r"(bytes)
                 : "memory");
}

__device__ static inline void barrier_arrive(u64* barrier) {
    asm volatile(
        "{\n"
        ".reg .b64 state;\n"
        "mbarrier.arrive.shared::cta.b64 state, [%0];\n"
        "}\n" ::"r"(smem_u32(barrier))
        : "memory"
    );
}

__device__ static inline void barrier_wait(u64* barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
        "@P1 bra.uni DONE;\n"
        "bra.uni LAB_WAIT;\n"
        "DONE:\n"
        "}\n" ::"r"(smem_u32(barrier)),
        "r"(parity)
        : "memory"
    );
}

__device__ static inline u32 elect_one() {
    u32 is_elected = 0;
    asm volatile(
        "{\n\t"
        ".reg .b32 %%rx;\n\t"
        ".reg .pred %%px;\n\t"
        "elect.sync %%rx|%%px, %1;\n\t"
        "@%%px mov.s32 %0, 1;\n\t"
        "}\n"
        : "+r"(is_elected)
        : "r"(0xFFFFFFFF)
    );
    return is_elected;
}

__device__ static inline void group_sync(int group) {
    asm volatile("bar.sync %0, 128;\n" ::"r"(group + 1) : "memory");
}

// --- TMA -----------------------------------------------------------------------------------------

__device__ static inline void tma_load(
    void* target, const CUtensorMap* map, u64* barrier, int column, int row
) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];"
        :
        : "r"(smem_u32(target)), "l"(map), "r"(smem_u32(barrier)), "r"(column), "r"(row)
        : "memory"
    );
}

__device__ static inline void tma_store(
    const CUtensorMap* map, const void* source, int column, int row
) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 :
                 : "l"(map), "r"(smem_u32(source)), "r"(column), "r"(row)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// --- wgmma ---------------------------------------------------------------------------------------

// K contiguous, rows of 128 bytes, swizzled by 128 bytes: groups of 8 rows are 1024 bytes apart.
__device__ static inline u64 make_descriptor(const void* tile) {
    const u64 address = smem_u32(tile);
    u64 descriptor = (address & 0x3FFFF) >> 4;
    descriptor |= u64(1) << 16;
    descriptor |= u64(1024 >> 4) << 32;
    descriptor |= u64(1) << 62;
    return descriptor;
}

#define ROW8(d, i)                                                                            \
    "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i][4]), "+f"(d[i][5]), \
        "+f"(d[i][6]), "+f"(d[i][7])

__device__ static inline void wgmma_m64n128k16(float (&d)[8][8], u64 a, u64 b, int accumulates) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,   %1,   %2,   %3,   %4,   %5,   %6,   %7,   "
        " %8,   %9,   %10,  %11,  %12,  %13,  %14,  %15,  "
        " %16,  %17,  %18,  %19,  %20,  %21,  %22,  %23,  "
        " %24,  %25,  %26,  %27,  %28,  %29,  %30,  %31,  "
        " %32,  %33,  %34,  %35,  %36,  %37,  %38,  %39,  "
        " %40,  %41,  %42,  %43,  %44,  %45,  %46,  %47,  "
        " %48,  %49,  %50,  %51,  %52,  %53,  %54,  %55,  "
        " %56,  %57,  %58,  %59,  %60,  %61,  %62,  %63}, "
        "%64, %65, p, %67, %68, %69, %70;\n"
        "}\n"
        : ROW8(d, 0), ROW8(d, 1), ROW8(d, 2), ROW8(d, 3), ROW8(d, 4), ROW8(d, 5), ROW8(d, 6),
          ROW8(d, 7)
        : "l"(a), "l"(b), "r"(accumulates), "n"(1), "n"(1), "n"(0), "n"(0)
    );
}

__device__ static inline void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ static inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int N>
__device__ static inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}

// --- the epilogue --------------------------------------------------------------------------------

__device__ static inline u32 pack_bf16(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// A warp's 16 rows of the output tile, 16 columns at once.
__device__ static inline void stage_accumulators(const float (&d)[8][8], u8* out) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = warp * 16 + lane % 8 + lane / 8 % 2 * 8;
    for (int i = 0; i < 8; ++i) {
        const int column = i * 16 + lane / 16 * 8;
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(
                smem_u32(out + (row * BN + column) * 2)
            ),
            "r"(pack_bf16(d[i][0], d[i][1])), "r"(pack_bf16(d[i][2], d[i][3])),
            "r"(pack_bf16(d[i][4], d[i][5])), "r"(pack_bf16(d[i][6], d[i][7]))
        );
    }
}

// --- the kernel ----------------------------------------------------------------------------------

struct Position {
    int stage = 0;
    u32 phase = 0;

    __device__ void next() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__(3 * GROUP) gemm(
    const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b,
    const __grid_constant__ CUtensorMap map_out,
    int m,
    int n,
    int k
) {
    extern __shared__ __align__(1024) u8 raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const int group = threadIdx.x / GROUP;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(&shared.full[stage], 1);
            barrier_init(&shared.empty[stage], 2);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    const int columns = n / BN, tiles = m / BM * columns, blocks = k / BK;
    Position at;
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(40));
        if (threadIdx.x >= 32 || !elect_one()) return;
        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            for (int block = 0; block < blocks; ++block, at.next()) {
                barrier_wait(&shared.empty[at.stage], at.phase ^ 1);
                barrier_expect(&shared.full[at.stage], A_BYTES + B_BYTES);
                tma_load(
                    shared.a[at.stage], &map_a, &shared.full[at.stage], block * BK,
                    tile / columns * BM
                );
                tma_load(
                    shared.b[at.stage], &map_b, &shared.full[at.stage], block * BK,
                    tile % columns * BN
                );
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(232));
    const int consumer = group - 1;
    const bool is_first = threadIdx.x % GROUP == 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float d[8][8];
        for (int block = 0; block < blocks; ++block, at.next()) {
            barrier_wait(&shared.full[at.stage], at.phase);
            const u64 a = make_descriptor(shared.a[at.stage] + consumer * 64 * BK * 2);
            const u64 b = make_descriptor(shared.b[at.stage]);
            wgmma_fence();
            for (int step = 0; step < BK / 16; ++step) {
                wgmma_m64n128k16(d, a + step * 2, b + step * 2, block + step != 0);
            }
            wgmma_commit();
            wgmma_wait<0>();
            if (is_first) barrier_arrive(&shared.empty[at.stage]);
        }
        if (is_first) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        group_sync(consumer);
        stage_accumulators(d, shared.out[consumer]);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        group_sync(consumer);
        if (is_first) {
            tma_store(
                &map_out, shared.out[consumer], tile % columns * BN,
                tile / columns * BM + consumer * 64
            );
        }
    }
    if (is_first) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
