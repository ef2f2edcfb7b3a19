// The combine kernel of split-K over the grid (cuBLAS's splitKreduce_kernel): adds up the partial
// outputs of gemm.cu in the order of K, so that results are deterministic, and rounds once.
//
//   Partial   float or int: an accumulator
//   Output    element of C
//
// `partials` is [splits, m, n]; its row stride is n rounded up to quads of four columns. The row
// stride of C is `pitch` elements, a multiple of 16 bytes. Any number of CTAs, of at most 1024
// threads, covers C.
#include <tmaasync/structured/count_tiles.cuh>
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

constexpr int kColumns = 4;

struct alignas(16) Quad {
    Partial values[kColumns];
};

struct alignas(kColumns * sizeof(Output)) OutputQuad {
    Output values[kColumns];
};

template <typename T>
__device__ __forceinline__ T rounded(Partial value) {
    if constexpr (kSameType<T, bfloat16>) {
        return __float2bfloat16_rn(value);
    } else if constexpr (kSameType<T, float16>) {
        return __float2half_rn(value);
    } else {
        static_assert(kSameType<T, Partial>, "32-bit accumulators are stored as they are");
        return value;
    }
}

// Round four columns of a row from `column` on, and store the columns that exist.
__device__ __forceinline__ void store(Output* row, int column, int n, const Quad& sum) {
    OutputQuad result;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) result.values[i] = rounded<Output>(sum.values[i]);
    if (column + kColumns <= n) {
        *reinterpret_cast<OutputQuad*>(row + column) = result;
        return;
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
        if (column + i < n) row[column + i] = result.values[i];
    }
}

__device__ __forceinline__ void add(Quad& sum, const Quad& more) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sum.values[i] += more.values[i];
}

// Add kCount splits, with all of their loads in flight at once.
template <int kCount>
__device__ __forceinline__ void add_splits(Quad& sum, const Quad* first, i64 step) {
    Quad loaded[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) loaded[i] = first[i * step];
#pragma unroll
    for (int i = 0; i < kCount; ++i) add(sum, loaded[i]);
}

__device__ __forceinline__ Quad sum_of(const Quad* partials, i64 step, int splits) {
    Quad sum = {};
    int split = 0;
    for (; split + 8 <= splits; split += 8) add_splits<8>(sum, partials + split * step, step);
    if (splits & 4) add_splits<4>(sum, partials + split * step, step), split += 4;
    if (splits & 2) add_splits<2>(sum, partials + split * step, step), split += 2;
    if (splits & 1) add_splits<1>(sum, partials + split * step, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(1024, 1) split_k_combine(
    const Partial* partials, Output* c, int m, int n, int splits, i64 pitch
) {
    launch_dependent_grids();
    const int quads_per_row = count_tiles(n, kColumns);
    const i64 quads = i64{m} * quads_per_row;
    const i64 threads = gridDim.x * blockDim.x;
    i64 quad = blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous_grids();
    for (; quad < quads; quad += threads) {
        const Quad sum = sum_of(reinterpret_cast<const Quad*>(partials) + quad, quads, splits);
        const auto row = quad / quads_per_row;
        const int column = static_cast<int>(quad - row * quads_per_row) * kColumns;
        store(c + row * pitch, column, n, sum);
    }
}
