#pragma once

#include <tmaasync/operands/copies.cuh>

// The names of operations, types and caches in instructions, for the constraint "C" of inline
// assembly. It takes variables that are arrays of char, and no literals.
namespace tmaasync::ptx {

namespace names {

inline constexpr char kNone[] = "";
inline constexpr char kAdd[] = "add", kMin[] = "min", kMax[] = "max", kInc[] = "inc";
inline constexpr char kDec[] = "dec", kAnd[] = "and", kOr[] = "or", kXor[] = "xor";
inline constexpr char kB32[] = "b32", kU32[] = "u32", kS32[] = "s32";
inline constexpr char kB64[] = "b64", kU64[] = "u64", kS64[] = "s64";
inline constexpr char kF16[] = "f16", kF16NoFtz[] = "noftz.f16";
inline constexpr char kBf16[] = "bf16", kBf16NoFtz[] = "noftz.bf16";
inline constexpr char kF32[] = "f32", kF64[] = "f64";
inline constexpr char kCa[] = "ca", kCg[] = "cg";
inline constexpr char k64B[] = ".L2::64B", k128B[] = ".L2::128B", k256B[] = ".L2::256B";

}  // namespace names

__device__ constexpr const char* name_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::kAdd:
            return names::kAdd;
        case ReduceOp::kMin:
            return names::kMin;
        case ReduceOp::kMax:
            return names::kMax;
        case ReduceOp::kInc:
            return names::kInc;
        case ReduceOp::kDec:
            return names::kDec;
        case ReduceOp::kAnd:
            return names::kAnd;
        case ReduceOp::kOr:
            return names::kOr;
        case ReduceOp::kXor:
            return names::kXor;
    }
    return names::kNone;
}

// The type in a bulk reduction. A bitwise operation names the size alone; add of 16-bit floats
// keeps subnormal numbers.
__device__ constexpr const char* name_of(ElementType type, ReduceOp op) {
    const bool is_sum = op == ReduceOp::kAdd;
    const bool is_bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
    switch (type) {
        case ElementType::kU32:
            return is_bitwise ? names::kB32 : names::kU32;
        case ElementType::kS32:
            return is_bitwise ? names::kB32 : names::kS32;
        case ElementType::kU64:
            return is_bitwise ? names::kB64 : names::kU64;
        case ElementType::kS64:
            return is_bitwise ? names::kB64 : names::kS64;
        case ElementType::kF16:
            return is_sum ? names::kF16NoFtz : names::kF16;
        case ElementType::kBf16:
            return is_sum ? names::kBf16NoFtz : names::kBf16;
        case ElementType::kF32:
            return names::kF32;
        case ElementType::kF64:
            return names::kF64;
        default:
            return names::kNone;
    }
}

__device__ constexpr const char* name_of(CacheLevels levels) {
    return levels == CacheLevels::kAll ? names::kCa : names::kCg;
}

__device__ constexpr const char* name_of(L2Prefetch prefetch) {
    switch (prefetch) {
        case L2Prefetch::kNone:
            return names::kNone;
        case L2Prefetch::k64B:
            return names::k64B;
        case L2Prefetch::k128B:
            return names::k128B;
        case L2Prefetch::k256B:
            return names::k256B;
    }
    return names::kNone;
}

}  // namespace tmaasync::ptx
