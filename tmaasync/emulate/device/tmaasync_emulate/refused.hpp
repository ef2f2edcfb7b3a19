// Functions of `ptx/` for instructions that the chip lacks do not compile where they are called:
// the check of their family then calls a function that is declared with the reason, and never
// defined.
#pragma once

#include <tmaasync_emulate/calls.hpp>

namespace tmaasync_emulate {

#define TMAASYNC_EMULATE_CHECK(NAME, FAMILY, WHAT)                                        \
    [[gnu::error(WHAT " " TMAASYNC_EMULATE_WHY_NOT_##FAMILY)]] void NAME##_is_missing();  \
    TMAASYNC_EMULATE_INLINE void check_##NAME() {                                         \
        if constexpr (sizeof(TMAASYNC_EMULATE_WHY_NOT_##FAMILY) > 1) NAME##_is_missing(); \
    }
TMAASYNC_EMULATE_CHECK(small_floats, SMALL_FLOATS, "cvt of these types")
TMAASYNC_EMULATE_CHECK(stochastic, STOCHASTIC, "cvt.rs")
TMAASYNC_EMULATE_CHECK(f32x2, F32X2, "an instruction of f32x2")
TMAASYNC_EMULATE_CHECK(redux_f32, REDUX_F32, "redux.sync of floats")
TMAASYNC_EMULATE_CHECK(byte_matrices, BYTE_MATRICES, "a matrix of bytes")
TMAASYNC_EMULATE_CHECK(wide_access, WIDE_ACCESS, "an access of 256 bits")
TMAASYNC_EMULATE_CHECK(mma_kinds, MMA_KINDS, "mma.sync with a kind")
TMAASYNC_EMULATE_CHECK(tensor_copies, TENSOR_COPIES, "this tensor copy")
TMAASYNC_EMULATE_CHECK(byte_mask, BYTE_MASK, "a copy with a byte mask")
#undef TMAASYNC_EMULATE_CHECK

}  // namespace tmaasync_emulate
