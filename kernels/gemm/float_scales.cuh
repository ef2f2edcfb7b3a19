#pragma once

// The float32 scales of the FP8 GEMMs, one per 128 elements of K. scaled_gemm.cu explains tiles and
// constants.
#include <tmaasync/tmaasync.cuh>

namespace tmaasync::kernels::gemm {

constexpr int kScaleBlock = 128;
constexpr bool kScalesEveryColumn = B_SCALE_COLUMNS == 1;
constexpr int kScalesPerLoad = 4;  // 16 bytes, the minimum of a TMA load

// The scales of one stage.
struct StageScales {
    static constexpr int kBytes = AScaleTile::kBytes + BScaleTile::kBytes;

    typename AScaleTile::Shared a;
    typename BScaleTile::Shared b;
};

// The start of the load of B's scales; for 128 columns, rounded down to a multiple of 16 bytes.
__device__ __forceinline__ Coordinates<2> b_scales_at(int n, int block) {
    const int column = n / B_SCALE_COLUMNS;
    if constexpr (kScalesEveryColumn) {
        return {column, block};
    } else if constexpr (B_SCALES_ARE_K_MAJOR) {
        return {block / kScalesPerLoad * kScalesPerLoad, column};
    } else {
        return {column / kScalesPerLoad * kScalesPerLoad, block};
    }
}

// The scale of B of 128 columns from `column` on in a tile that starts at column n.
__device__ __forceinline__ float b_scale(const StageScales& scales, int n, int column, int block) {
    const int slice = column / kScaleBlock;
    if constexpr (B_SCALES_ARE_K_MAJOR) {
        return scales.b.data()[slice * kScalesPerLoad + block % kScalesPerLoad];
    } else {
        return scales.b.data()[n / kScaleBlock % kScalesPerLoad + slice];
    }
}

}  // namespace tmaasync::kernels::gemm
