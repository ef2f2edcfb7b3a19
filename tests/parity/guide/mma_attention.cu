// o = softmax(q @ k^T * scale) @ v of halves with 64 columns, and the log-sum-exp of each row, as
// GPUs before Hopper compute it: the primitives interface of pipelines copies, mma.sync multiplies.
// A warp has 16 queries.
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>

#include <cstdint>

#define COLUMNS 64
#define QUERIES 64
#define KEYS 32
#define MINUS_INFINITY __int_as_float(0xff800000)

struct Params {
    int queries, keys, is_causal;
    float scale_log2;  // the scale times log2(e)
};

__device__ __forceinline__ void mma(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32\n"
        "    {%0, %1, %2, %3},\n"
        "    {%4, %5, %6, %7},\n"
        "    {%8, %9},\n"
        "    {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)
    );
}
template <bool kTransposes>
__device__ __forceinline__ void load_matrices(uint32_t* r, const half* row) {
    const uint32_t at = __cvta_generic_to_shared(row);
    if constexpr (kTransposes) {
        asm volatile("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    } else {
        asm volatile("ldmatrix.sync.aligned.x4.m8n8.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    }
}
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t packed(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
__device__ __forceinline__ int place(int row, int column) {
    return row * COLUMNS + (column / 8 ^ row % 8) * 8 + column % 8;
}
template <int kRows>
__device__ void copy_tile(half* to, const half* from, int first, int rows) {
    for (int i = threadIdx.x; i < kRows * COLUMNS / 8; i += blockDim.x) {
        const int row = i / (COLUMNS / 8), column = i % (COLUMNS / 8) * 8;
        const bool is_inside = first + row < rows;
        const half* const source = from + size_t(is_inside ? first + row : 0) * COLUMNS + column;
        __pipeline_memcpy_async(to + place(row, column), source, 16, is_inside ? 0 : 16);
    }
}

extern "C" __global__ void __launch_bounds__(128) mma_attention(
    const half* __restrict__ queries,
    const half* __restrict__ keys,
    const half* __restrict__ values,
    half* __restrict__ o_of_heads,
    float* __restrict__ lse,
    const __grid_constant__ Params p
) {
    __shared__ __align__(16) half tile_q[QUERIES * COLUMNS];
    __shared__ __align__(16) half tile_k[2][KEYS * COLUMNS], tile_v[2][KEYS * COLUMNS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first = blockIdx.x * QUERIES, row0 = first + warp * 16 + lane / 4;
    const half* const k = keys + size_t(blockIdx.y) * p.keys * COLUMNS;
    const half* const v = values + size_t(blockIdx.y) * p.keys * COLUMNS;
    const size_t rows_before = size_t(blockIdx.y) * p.queries;

    copy_tile<QUERIES>(tile_q, queries + rows_before * COLUMNS, first, p.queries);
    copy_tile<KEYS>(tile_k[0], k, 0, p.keys);
    __pipeline_commit();
    copy_tile<KEYS>(tile_v[0], v, 0, p.keys);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    uint32_t q[COLUMNS / 16][4];
#pragma unroll
    for (int i = 0; i < COLUMNS / 16; ++i) {
        load_matrices<false>(q[i], tile_q + place(warp * 16 + lane % 16, i * 16 + lane / 16 * 8));
    }

    float o[COLUMNS / 8][4] = {}, row_sum[2] = {0.f, 0.f};
    float row_max[2] = {MINUS_INFINITY, MINUS_INFINITY};
    const int shift = p.keys - p.queries;  // the last query sees the last key
    const int end = p.is_causal ? min(p.keys, first + QUERIES + shift) : p.keys;
    for (int key0 = 0, at = 0; key0 < end; key0 += KEYS, at ^= 1) {
        const bool is_last = key0 + KEYS >= end;
        if (!is_last) copy_tile<KEYS>(tile_k[at ^ 1], k, key0 + KEYS, p.keys);
        __pipeline_commit();

        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int i = 0; i < COLUMNS / 16; ++i) {
#pragma unroll
            for (int j = 0; j < KEYS / 16; ++j) {
                const int row = j * 16 + lane % 8 + lane / 16 * 8;
                uint32_t b[4];
                load_matrices<false>(b, tile_k[at] + place(row, i * 16 + lane / 8 % 2 * 8));
                mma(s[2 * j], q[i], b[0], b[1]);
                mma(s[2 * j + 1], q[i], b[2], b[3]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float new_max = row_max[half];
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& score = s[i / 2][half * 2 + i % 2];
                const int key = key0 + i / 2 * 8 + lane % 4 * 2 + i % 2;
                const bool is_masked = p.is_causal && key > row0 + half * 8 + shift;
                if (key >= p.keys || is_masked) score = MINUS_INFINITY;
                new_max = fmaxf(new_max, score);
            }
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffff, new_max, 1));
            new_max = fmaxf(new_max, __shfl_xor_sync(0xffffffff, new_max, 2));
            const float max_log2 = new_max == MINUS_INFINITY ? 0.f : new_max * p.scale_log2;
            const float rescale = exp2_approx(row_max[half] * p.scale_log2 - max_log2);
            row_max[half] = new_max;
            row_sum[half] *= rescale;
#pragma unroll
            for (int i = 0; i < COLUMNS / 4; ++i) o[i / 2][half * 2 + i % 2] *= rescale;
#pragma unroll
            for (int i = 0; i < KEYS / 4; ++i) {
                float& score = s[i / 2][half * 2 + i % 2];
                score = exp2_approx(fmaf(score, p.scale_log2, -max_log2));
                row_sum[half] += score;
            }
        }

        __pipeline_wait_prior(1);  // for V
        __syncthreads();           // of V
#pragma unroll
        for (int i = 0; i < KEYS / 16; ++i) {
            const float (&low)[4] = s[2 * i], (&high)[4] = s[2 * i + 1];
            const uint32_t a[4] = {
                packed(low[0], low[1]), packed(low[2], low[3]), packed(high[0], high[1]),
                packed(high[2], high[3])
            };
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; ++j) {
                uint32_t b[4];
                const int at_v = place(i * 16 + lane % 16, j * 16 + lane / 16 * 8);
                load_matrices<true>(b, tile_v[at] + at_v);
                mma(o[2 * j], a, b[0], b[1]);
                mma(o[2 * j + 1], a, b[2], b[3]);
            }
        }
        if (!is_last) copy_tile<KEYS>(tile_v[at ^ 1], v, key0 + KEYS, p.keys);
        __pipeline_commit();
        __pipeline_wait_prior(1);  // for K
        __syncthreads();           // of K
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        const int row = row0 + half * 8;
        if (row >= p.queries) continue;
        const float log2_sum = row_max[half] * p.scale_log2 + __log2f(sum);
        if (lane % 4 == 0) lse[rows_before + row] = log2_sum * 0.69314718f;
        half2* const to = reinterpret_cast<half2*>(o_of_heads + (rows_before + row) * COLUMNS);
#pragma unroll
        for (int i = 0; i < COLUMNS / 8; ++i) {
            const float* const two = o[i] + half * 2;
            to[i * 4 + lane % 4] =
                __floats2half2_rn(__fdividef(two[0], sum), __fdividef(two[1], sum));
        }
    }
}
