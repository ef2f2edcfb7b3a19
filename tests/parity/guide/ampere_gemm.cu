// out = a @ b^T of halves as GPUs before Hopper compute it: cp.async fills a ring of stages,
// ldmatrix and mma.sync multiply. Rows of a stage are permuted by an XOR against bank conflicts.
#include <cuda_fp16.h>

#include <cstdint>

namespace ampere {

template <int kRows_, int kColumns_, int kDepth_, int kStages_>
struct Config {
    static constexpr int kRows = kRows_, kColumns = kColumns_, kDepth = kDepth_;
    static constexpr int kStages = kStages_;
    static constexpr int kChunks = kDepth / 8;  // of 16 bytes in a row
    static_assert(kChunks == 8, "the permutation takes eight chunks");
};

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    uint32_t address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}
__device__ __forceinline__ void copy_chunk(half* to, const half* from, bool is_inside) {
    asm volatile(
        "cp.async.cg.shared.global.L2::128B [%0], [%1], %2, %3;\n" ::"r"(shared_address(to)),
        "l"(from), "n"(16), "r"(is_inside ? 16 : 0)
    );
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const half* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
__device__ __forceinline__ void multiply_add(
    float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1
) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)
    );
}

}  // namespace ampere

template <class C>
__global__ void __launch_bounds__(128, 2) ampere_gemm(
    const half* __restrict__ a,
    const half* __restrict__ b,
    half* __restrict__ out,
    int m,
    int n,
    int k
) {
    using namespace ampere;
    extern __shared__ __align__(128) half stages[];
    half* const stages_b = stages + C::kStages * C::kRows * C::kDepth;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row0 = blockIdx.y * C::kRows, column0 = blockIdx.x * C::kColumns;
    auto place = [](int row, int chunk) { return row * C::kDepth + (chunk ^ row % 8) * 8; };
    auto load = [&](half* to, const half* from, int first, int rows, int block_rows, int k0) {
        for (int i = threadIdx.x; i < block_rows * C::kChunks; i += blockDim.x) {
            const int row = i / C::kChunks, chunk = i % C::kChunks;
            const bool is_inside = first + row < rows && k0 + chunk * 8 < k;
            const half* const source = from + size_t(first + row) * k + k0 + chunk * 8;
            copy_chunk(to + place(row, chunk), is_inside ? source : from, is_inside);
        }
    };
    auto load_stage = [&](int block) {
        const int stage = block % C::kStages, k0 = block * C::kDepth;
        if (k0 < k) {
            load(stages + stage * C::kRows * C::kDepth, a, row0, m, C::kRows, k0);
            load(stages_b + stage * C::kColumns * C::kDepth, b, column0, n, C::kColumns, k0);
        }
        asm volatile("cp.async.commit_group;\n" ::);
    };

    // Four warps, two by two.
    constexpr int kTilesM = C::kRows / 32, kTilesN = C::kColumns / 32;  // of 16 rows, 16 columns
    float sums[kTilesM][kTilesN][2][4] = {};
    for (int i = 0; i < C::kStages - 1; ++i) load_stage(i);
    for (int block = 0; block * C::kDepth < k; ++block) {
        asm volatile("cp.async.wait_group %0;\n" ::"n"(C::kStages - 2));
        __syncthreads();
        load_stage(block + C::kStages - 1);
        const half* const at_a = stages + block % C::kStages * C::kRows * C::kDepth;
        const half* const at_b = stages_b + block % C::kStages * C::kColumns * C::kDepth;
#pragma unroll
        for (int step = 0; step < C::kDepth / 16; ++step) {
            uint32_t right[kTilesN][4];
#pragma unroll
            for (int j = 0; j < kTilesN; ++j) {
                const int row = (warp % 2 * kTilesN + j) * 16 + lane % 8 + lane / 16 * 8;
                load_matrices(right[j], at_b + place(row, step * 2 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < kTilesM; ++i) {
                const int row = (warp / 2 * kTilesM + i) * 16 + lane % 16;
                uint32_t left[4];
                load_matrices(left, at_a + place(row, step * 2 + lane / 16));
#pragma unroll
                for (int j = 0; j < kTilesN; ++j) {
                    multiply_add(sums[i][j][0], left, right[j][0], right[j][1]);
                    multiply_add(sums[i][j][1], left, right[j][2], right[j][3]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_all;\n" ::: "memory");

    for (int i = 0; i < kTilesM; ++i) {
        for (int j = 0; j < kTilesN * 4; ++j) {
            const int row = row0 + (warp / 2 * kTilesM + i) * 16 + lane / 4 + j % 2 * 8;
            const int column =
                column0 + (warp % 2 * kTilesN + j / 4) * 16 + j / 2 % 2 * 8 + lane % 4 * 2;
            const float* const two = &sums[i][j / 4][j / 2 % 2][j % 2 * 2];
            if (row >= m || column >= n) continue;
            *reinterpret_cast<half2*>(out + size_t(row) * n + column) =
                __floats2half2_rn(two[0], two[1]);
        }
    }
}
