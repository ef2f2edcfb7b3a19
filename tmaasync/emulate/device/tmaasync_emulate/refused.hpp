// Functions of `ptx/` for instructions that the chip lacks do not compile where they are called:
// the check of their family is then declared with the reason, and never defined.
#pragma once

namespace tmaasync_emulate {

#if defined(TMAASYNC_EMULATE_WITHOUT_SMALL_FLOATS)
[[gnu::error(
    "cvt of these types " TMAASYNC_EMULATE_WITHOUT_SMALL_FLOATS
)]] void check_small_floats();
#else
inline void check_small_floats() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_STOCHASTIC)
[[gnu::error("cvt.rs " TMAASYNC_EMULATE_WITHOUT_STOCHASTIC)]] void check_stochastic();
#else
inline void check_stochastic() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_F32X2)
[[gnu::error("an instruction of f32x2 " TMAASYNC_EMULATE_WITHOUT_F32X2)]] void check_f32x2();
#else
inline void check_f32x2() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_REDUX_F32)
[[gnu::error("redux.sync of floats " TMAASYNC_EMULATE_WITHOUT_REDUX_F32)]] void check_redux_f32();
#else
inline void check_redux_f32() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_BYTE_MATRICES)
[[gnu::error(
    "a matrix of bytes " TMAASYNC_EMULATE_WITHOUT_BYTE_MATRICES
)]] void check_byte_matrices();
#else
inline void check_byte_matrices() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_WIDE_ACCESS)
[[gnu::error(
    "an access of 256 bits " TMAASYNC_EMULATE_WITHOUT_WIDE_ACCESS
)]] void check_wide_access();
#else
inline void check_wide_access() {}
#endif

#if defined(TMAASYNC_EMULATE_WITHOUT_MMA_KINDS)
[[gnu::error("mma.sync with a kind " TMAASYNC_EMULATE_WITHOUT_MMA_KINDS)]] void check_mma_kinds();
#else
inline void check_mma_kinds() {}
#endif

}  // namespace tmaasync_emulate
