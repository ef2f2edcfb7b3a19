#pragma once

#include <tmaasync/operands/tcgen05.cuh>
#include <tmaasync_emulate/tcgen05_calls.hpp>

namespace tmaasync::ptx {

// The shape and the lanes of a copy, as the runtime has them apart.
struct Tcgen05CopyForm {
    tmaasync_emulate::Tcgen05CopyShape shape;
    tmaasync_emulate::Tcgen05Multicast multicast;
};

__device__ constexpr Tcgen05CopyForm form_of(Tcgen05Copy copy) {
    using tmaasync_emulate::Tcgen05CopyShape;
    using tmaasync_emulate::Tcgen05Multicast;
    constexpr Tcgen05CopyForm kForms[] = {
        {Tcgen05CopyShape::k128x256b, Tcgen05Multicast::kNone},
        {Tcgen05CopyShape::k128x128b, Tcgen05Multicast::kNone},
        {Tcgen05CopyShape::k4x256b, Tcgen05Multicast::kNone},
        {Tcgen05CopyShape::k64x128b, Tcgen05Multicast::kX2_02_13},
        {Tcgen05CopyShape::k64x128b, Tcgen05Multicast::kX2_01_23},
        {Tcgen05CopyShape::k32x128b, Tcgen05Multicast::kX4},
    };
    return kForms[static_cast<int>(copy)];
}

template <Tcgen05Copy kShape, int kCtas = 1, Tcgen05Format kFormat = Tcgen05Format::kBytes>
__device__ __forceinline__ void tcgen05_cp(u32 address, u64 matrix) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    constexpr Tcgen05CopyForm kForm = form_of(kShape);
    tmaasync_emulate::tcgen05_copy(
        {kCtas, address, matrix, kForm.shape, kForm.multicast,
         static_cast<tmaasync_emulate::Tcgen05Source>(kFormat)}
    );
}

template <int kCtas = 1>
__device__ __forceinline__ void tcgen05_shift_down(u32 address) {
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    tmaasync_emulate::tcgen05_shift(kCtas, address);
}

}  // namespace tmaasync::ptx
