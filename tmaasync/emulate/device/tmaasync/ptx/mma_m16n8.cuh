#pragma once

#include <tmaasync/operands/wgmma_forms.cuh>
#include <tmaasync/ptx/mma.cuh>

namespace tmaasync::ptx {

template <MmaType kA, MmaType kB, typename Register>
__device__ __forceinline__ void mma_m16n8(Register* d, const u32 (&a)[4], u32 b0, u32 b1) {
    (void)MmaForm<Register, kA, kB, 0, 0, 1, 1>{};
    constexpr int kSums = std::is_same_v<Register, u32> ? 2 : 4;
    const u32 b[] = {b0, b1};
    add_to_sums(*reinterpret_cast<Register(*)[kSums]>(d), [&](auto& after, const auto& before) {
        using namespace tmaasync_emulate::inline_ptx;
        multiply_dense<kA, kB, kEmulatedSum<Register>>(after, a, b, before);
    });
}

}  // namespace tmaasync::ptx
