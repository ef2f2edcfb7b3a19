// out = a @ b^T of e4m3 with scales: one for each row of a, and one for 16 rows of b, for every 128
// elements along K. All sizes but M are template arguments. A thread loads by TMA; a warpgroup
// multiplies a block of K at a time, and adds what it scaled in float32.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cuda/barrier>
#include <cuda/std/utility>

using Barrier = cuda::barrier<cuda::thread_scope_block>;

template <typename T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
    return (a + b - 1) / b;
}

template <uint32_t kBlockM, uint32_t kBlockN>
struct Scheduler {
    uint32_t blocks_m, blocks_n;
    int iteration = -1;

    __device__ __forceinline__ explicit Scheduler(uint32_t m, uint32_t n)
        : blocks_m(ceil_div(m, kBlockM)), blocks_n(ceil_div(n, kBlockN)) {}

    __device__ __forceinline__ bool next(uint32_t& m_block, uint32_t& n_block) {
        const auto block = (++iteration) * gridDim.x + blockIdx.x;
        m_block = block % blocks_m;
        n_block = block / blocks_m;
        return block < blocks_m * blocks_n;
    }
};

union SmemDescriptor {
    uint64_t word;
    struct {
        uint16_t start : 14, : 2;
        uint16_t leading : 14, : 2;
        uint16_t stride : 14, : 2;
        uint8_t : 1, base_offset : 3, : 4;
        uint8_t : 6, layout : 2;
    } fields;

    template <typename T>
    __device__ explicit SmemDescriptor(const T* pointer) : word(0) {
        fields.start = static_cast<uint32_t>(__cvta_generic_to_shared(pointer)) >> 4;
        fields.stride = 1024 >> 4;
        fields.layout = 1;
    }
};

struct Wgmma {
    static constexpr int kAccumulators = 8;

    __device__ static void issue(
        uint64_t a,
        uint64_t b,
        float& d0,
        float& d1,
        float& d2,
        float& d3,
        float& d4,
        float& d5,
        float& d6,
        float& d7,
        bool adds
    ) {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "setp.ne.b32 p, %10, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3"
            "{%0, %1, %2, %3, %4, %5, %6, %7},"
            " %8,"
            " %9,"
            " p   , 1,    1;\n"
            "}\n"
            : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3), "+f"(d4), "+f"(d5), "+f"(d6), "+f"(d7)
            : "l"(a), "l"(b), "r"(int32_t(adds))
        );
    }
    template <size_t... kIndices>
    __device__ static void issue(
        uint64_t a, uint64_t b, float* d, bool adds, cuda::std::index_sequence<kIndices...>
    ) {
        issue(a, b, d[kIndices]..., adds);
    }
};

__device__ __forceinline__ void keep_in_register(float& value) {
    asm volatile("" : "+f"(value)::"memory");
}
__device__ __forceinline__ float load_shared(const float* pointer) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "l"(__cvta_generic_to_shared(pointer)));
    return value;
}
__device__ __forceinline__ void load_tile(
    const CUtensorMap* map, Barrier* full, void* to, int column, int row
) {
    const auto barrier = __cvta_generic_to_shared(cuda::device::barrier_native_handle(*full));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%3, %4}], [%2];\n" ::"r"(uint32_t(__cvta_generic_to_shared(to))),
        "l"(map), "r"(uint32_t(barrier)), "r"(column), "r"(row)
        : "memory"
    );
}

template <
    uint32_t kN,
    uint32_t kK,
    uint32_t kBlockM,
    uint32_t kBlockN,
    uint32_t kBlockK,
    uint32_t kStages>
__global__ void __launch_bounds__(256, 1) float8_gemm(
    __nv_bfloat16* out,
    const float* scales_a,
    const float* scales_b,
    uint32_t m,
    const __grid_constant__ CUtensorMap map_a,
    const __grid_constant__ CUtensorMap map_b
) {
#if defined(__CUDA_ARCH__) and __CUDA_ARCH__ >= 900
    static_assert(kBlockM == 64 and kBlockN == 16 and kBlockK == 128, "one wgmma is a block");
    constexpr uint32_t kBytesA = kBlockM * kBlockK, kBytesB = kBlockN * kBlockK;
    constexpr uint32_t kBlocksK = ceil_div(kK, kBlockK);

    extern __shared__ __align__(1024) uint8_t buffer[];
    __nv_fp8_e4m3 *tiles_a[kStages], *tiles_b[kStages];
    Barrier *full[kStages], *empty[kStages];
    float* const scales = reinterpret_cast<float*>(buffer + kStages * (kBytesA + kBytesB));
    Barrier* const barriers = reinterpret_cast<Barrier*>(scales + ceil_div(kBlocksK, 2u) * 2);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
        tiles_a[i] = reinterpret_cast<__nv_fp8_e4m3*>(buffer + i * kBytesA);
        tiles_b[i] = reinterpret_cast<__nv_fp8_e4m3*>(buffer + kStages * kBytesA + i * kBytesB);
        full[i] = barriers + i;
        empty[i] = barriers + kStages + i;
    }

    const uint32_t warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (threadIdx.x == 128) {
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map_a) : "memory");
        for (int i = 0; i < kStages; ++i) {
            init(full[i], 1);
            init(empty[i], 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    uint32_t m_block, n_block, stage = 0, phase = 0;
    auto advance = [&] { stage = stage + 1 == kStages ? (phase ^= 1, 0) : stage + 1; };
    Scheduler<kBlockM, kBlockN> scheduler(m, kN);
    if (threadIdx.x >= 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(40));
        if (threadIdx.x > 128) return;
        while (scheduler.next(m_block, n_block)) {
            for (int i = 0; i < kBlocksK; ++i, advance()) {
                empty[stage]->wait_parity(phase ^ 1);
                load_tile(&map_a, full[stage], tiles_a[stage], i * kBlockK, m_block * kBlockM);
                load_tile(&map_b, full[stage], tiles_b[stage], i * kBlockK, n_block * kBlockN);
                (void)cuda::device::barrier_arrive_tx(*full[stage], 1, kBytesA + kBytesB);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(232));
        while (scheduler.next(m_block, n_block)) {
            for (uint32_t i = threadIdx.x; i < kBlocksK; i += 128) {
                scales[i] = __ldg(scales_b + n_block * kBlocksK + i);
            }
            asm volatile("bar.sync 1, 128;" ::: "memory");
            const uint32_t row = m_block * kBlockM + warp * 16 + lane / 4;
            float sums[Wgmma::kAccumulators], total[Wgmma::kAccumulators] = {0};
            for (int i = 0; i < kBlocksK; ++i, advance()) {
                const float scale_b = load_shared(scales + i);
                float scale_a[2];
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint32_t at = row + j * 8;
                    scale_a[j] = at < m ? __ldg(scales_a + at * kBlocksK + i) : 0.f;
                }
                full[stage]->wait_parity(phase);
#pragma unroll
                for (float& sum : sums) keep_in_register(sum);
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (int step = 0; step < kBlockK / 32; ++step) {
                    const SmemDescriptor a(tiles_a[stage] + step * 32);
                    const SmemDescriptor b(tiles_b[stage] + step * 32);
                    Wgmma::issue(a.word, b.word, sums, step, cuda::std::make_index_sequence<8>{});
                }
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (float& sum : sums) keep_in_register(sum);
                asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(0) : "memory");
                if (lane == 0) (void)empty[stage]->arrive();
#pragma unroll
                for (int j = 0; j < Wgmma::kAccumulators; ++j) {
                    total[j] += sums[j] * (scale_b * scale_a[j / 2 % 2]);
                }
            }
            asm volatile("bar.sync 2, 128;" ::: "memory");
#pragma unroll
            for (int j = 0; j < Wgmma::kAccumulators; j += 2) {
                const uint32_t at = row + j / 2 % 2 * 8;
                const uint32_t column = n_block * kBlockN + j / 4 * 8 + lane % 4 * 2;
                if (at >= m) continue;
                *reinterpret_cast<__nv_bfloat162*>(out + at * kN + column) =
                    __float22bfloat162_rn({total[j], total[j + 1]});
            }
        }
    }
#else
    if (blockIdx.x == 0 and threadIdx.x == 0) asm("trap;");
#endif
}
