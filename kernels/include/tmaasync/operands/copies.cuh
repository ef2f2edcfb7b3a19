#pragma once

#include <tmaasync/operands/integers.cuh>

// The operands of copies and reductions, in addition to addresses. No instruction is here: the
// header serves the GPU and the emulator.
namespace tmaasync::ptx {

// The 128 opaque bytes of a CUtensorMap. As a kernel parameter it must be a
// `const __grid_constant__`: otherwise the compiler copies it to local memory.
struct alignas(128) TensorMap {
    u64 words[16];
};
static_assert(sizeof(TensorMap) == 128, "CUtensorMap is 128 bytes");

// The start of a box in its tensor, innermost coordinate first.
template <int kRank>
struct Coordinates {
    i32 values[kRank];

    // The origin.
    __device__ constexpr Coordinates() : values{} {}

    template <typename... I>
    __device__ constexpr Coordinates(I... coordinates) : values{static_cast<i32>(coordinates)...} {
        static_assert(sizeof...(I) == kRank, "one coordinate per dimension, innermost first");
    }
};

// The element type of a tensor map, or of a reduction without a map, by the PTX ISA's numbers,
// which differ from cuda.h's.
enum class ElementType : int {
    kU8,
    kU16,
    kU32,
    kS32,
    kU64,
    kS64,
    kF16,
    kF32,
    kF32Ftz,
    kF64,
    kBf16,
    kTf32,
    kTf32Ftz,
};

// The operation of a reduction. Through a map its arithmetic is of the map's element type, not of
// the kernel's.
enum class ReduceOp { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

// True if a bulk reduction without a map exists: ptxas assembles it for sm_90.
__device__ constexpr bool reduces_in_global(ReduceOp op, ElementType type) {
    const bool is_word = type == ElementType::kU32 || type == ElementType::kS32;
    const bool is_long = type == ElementType::kU64 || type == ElementType::kS64;
    const bool is_half = type == ElementType::kF16 || type == ElementType::kBf16;
    if (op == ReduceOp::kAdd) {
        const bool is_float = type == ElementType::kF32 || type == ElementType::kF64;
        return is_word || type == ElementType::kU64 || is_half || is_float;
    }
    if (op == ReduceOp::kMin || op == ReduceOp::kMax) return is_word || is_long || is_half;
    if (op == ReduceOp::kInc || op == ReduceOp::kDec) return type == ElementType::kU32;
    return is_word || is_long;
}

// True if a bulk reduction into the shared memory of a CTA of the cluster exists: of integers of 32
// bits, and add of u64.
__device__ constexpr bool reduces_in_shared(ReduceOp op, ElementType type) {
    if (type == ElementType::kU64) return op == ReduceOp::kAdd;
    return (type == ElementType::kU32 || type == ElementType::kS32) && reduces_in_global(op, type);
}

// The caches that keep the data of cp.async: all (.ca), or not L1 (.cg).
enum class CacheLevels { kAll, kL2 };

// The bytes around the data of cp.async to prefetch into L2: a hint.
enum class L2Prefetch { kNone, k64B, k128B, k256B };

}  // namespace tmaasync::ptx
