#pragma once

#include <tmaasync/operands/copies.cuh>
#include <tmaasync/operands/target.cuh>

// The names of operations, types and caches in instructions, for the constraint "C" of inline
// assembly. It takes variables that are arrays of char, and no literals.
namespace tmaasync::ptx {

// The variables. In a struct, because their names alone mean nothing.
struct Names {
    static constexpr char kNone[] = "";
    static constexpr char kAdd[] = "add";
    static constexpr char kMin[] = "min";
    static constexpr char kMax[] = "max";
    static constexpr char kInc[] = "inc";
    static constexpr char kDec[] = "dec";
    static constexpr char kAnd[] = "and";
    static constexpr char kOr[] = "or";
    static constexpr char kXor[] = "xor";
    static constexpr char kB32[] = "b32";
    static constexpr char kU32[] = "u32";
    static constexpr char kS32[] = "s32";
    static constexpr char kB64[] = "b64";
    static constexpr char kU64[] = "u64";
    static constexpr char kS64[] = "s64";
    static constexpr char kF16[] = "f16";
    static constexpr char kF16NoFtz[] = "noftz.f16";
    static constexpr char kBf16[] = "bf16";
    static constexpr char kBf16NoFtz[] = "noftz.bf16";
    static constexpr char kF32[] = "f32";
    static constexpr char kF64[] = "f64";
    static constexpr char kCa[] = "ca";
    static constexpr char kCg[] = "cg";
    static constexpr char kCta[] = "cta";
    static constexpr char kCluster[] = "cluster";
    static constexpr char kPair[] = ".cta_group::2";
    static constexpr char kW128[] = "::128";
    static constexpr char k64B[] = ".L2::64B";
    static constexpr char k128B[] = ".L2::128B";
    static constexpr char k256B[] = ".L2::256B";
};

// The shared memory to which a TMA load without multicast goes.
__device__ constexpr const char* name_of_destination() {
    return kLoadsIntoCluster ? Names::kCluster : Names::kCta;
}

// The operation of a reduction.
__device__ constexpr const char* name_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::kAdd:
            return Names::kAdd;
        case ReduceOp::kMin:
            return Names::kMin;
        case ReduceOp::kMax:
            return Names::kMax;
        case ReduceOp::kInc:
            return Names::kInc;
        case ReduceOp::kDec:
            return Names::kDec;
        case ReduceOp::kAnd:
            return Names::kAnd;
        case ReduceOp::kOr:
            return Names::kOr;
        case ReduceOp::kXor:
            return Names::kXor;
    }
    return Names::kNone;
}

// The type in a bulk reduction. A bitwise operation names the size alone; add of 16-bit floats
// keeps subnormal numbers.
__device__ constexpr const char* name_of(ElementType type, ReduceOp op) {
    const bool is_sum = op == ReduceOp::kAdd;
    const bool is_bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr || op == ReduceOp::kXor;
    switch (type) {
        case ElementType::kU32:
            return is_bitwise ? Names::kB32 : Names::kU32;
        case ElementType::kS32:
            return is_bitwise ? Names::kB32 : Names::kS32;
        case ElementType::kU64:
            return is_bitwise ? Names::kB64 : Names::kU64;
        case ElementType::kS64:
            return is_bitwise ? Names::kB64 : Names::kS64;
        case ElementType::kF16:
            return is_sum ? Names::kF16NoFtz : Names::kF16;
        case ElementType::kBf16:
            return is_sum ? Names::kBf16NoFtz : Names::kBf16;
        case ElementType::kF32:
            return Names::kF32;
        case ElementType::kF64:
            return Names::kF64;
        default:
            return Names::kNone;
    }
}

// The CTA group of a copy, with its dot: a pair, or nothing.
template <int kCtaGroup>
__device__ constexpr const char* name_of_group() {
    static_assert(kCtaGroup == 1 || kCtaGroup == 2, "a CTA group has 1 or 2 CTAs");
    return kCtaGroup == 2 ? Names::kPair : Names::kNone;
}

// The caches of cp.async.
__device__ constexpr const char* name_of(CacheLevels levels) {
    return levels == CacheLevels::kAll ? Names::kCa : Names::kCg;
}

// The prefetch of cp.async, with its dot.
__device__ constexpr const char* name_of(L2Prefetch prefetch) {
    switch (prefetch) {
        case L2Prefetch::kNone:
            return Names::kNone;
        case L2Prefetch::k64B:
            return Names::k64B;
        case L2Prefetch::k128B:
            return Names::k128B;
        case L2Prefetch::k256B:
            return Names::k256B;
    }
    return Names::kNone;
}

}  // namespace tmaasync::ptx
