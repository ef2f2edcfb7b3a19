#pragma once

#include <tmaasync/element_bits.cuh>
#include <tmaasync/operand_buffer.cuh>
#include <tmaasync/operands/tcgen05.cuh>
#include <tmaasync/same_type.cuh>
#include <tmaasync/types.cuh>

// The two descriptors of tcgen05.mma, from types and shapes at compile time: PTX ISA, "Instruction
// descriptor" and "Shared memory descriptor". tmaasync.tcgen05 computes the same on the host.
namespace tmaasync {

// Scale factors: of 32 elements along K, and of 16.
struct scale_ue8m0 {
    unsigned char bits;
};
struct scale_ue4m3 {
    unsigned char bits;
};

// --- the instruction descriptor ------------------------------------------------------------------

using ptx::Tcgen05Kind;

// The code of a type of A or B, and the kind without scale factors that multiplies it.
template <Tcgen05Kind kItsKind, int kItsCode>
struct Tcgen05Code {
    static constexpr Tcgen05Kind kKind = kItsKind;
    static constexpr u32 kCode = kItsCode;
};
template <typename T>
struct Tcgen05TypeOf;
template <>
struct Tcgen05TypeOf<float16> : Tcgen05Code<Tcgen05Kind::kF16, 0> {};
template <>
struct Tcgen05TypeOf<bfloat16> : Tcgen05Code<Tcgen05Kind::kF16, 1> {};
template <>
struct Tcgen05TypeOf<tfloat32> : Tcgen05Code<Tcgen05Kind::kTF32, 2> {};
template <>
struct Tcgen05TypeOf<float> : Tcgen05Code<Tcgen05Kind::kTF32, 2> {};
template <>
struct Tcgen05TypeOf<float8_e4m3> : Tcgen05Code<Tcgen05Kind::kF8F6F4, 0> {};
template <>
struct Tcgen05TypeOf<float8_e5m2> : Tcgen05Code<Tcgen05Kind::kF8F6F4, 1> {};
template <>
struct Tcgen05TypeOf<float6_e2m3> : Tcgen05Code<Tcgen05Kind::kF8F6F4, 3> {};
template <>
struct Tcgen05TypeOf<float6_e3m2> : Tcgen05Code<Tcgen05Kind::kF8F6F4, 4> {};
template <>
struct Tcgen05TypeOf<float4_e2m1> : Tcgen05Code<Tcgen05Kind::kF8F6F4, 5> {};
template <>
struct Tcgen05TypeOf<float4_e2m1_unpacked> : Tcgen05TypeOf<float4_e2m1> {};
template <>
struct Tcgen05TypeOf<unsigned char> : Tcgen05Code<Tcgen05Kind::kI8, 0> {};
template <>
struct Tcgen05TypeOf<signed char> : Tcgen05Code<Tcgen05Kind::kI8, 1> {};

// The parts of a descriptor that types and shape do not determine.
struct Tcgen05Modifiers {
    Major major_a = Major::kK;
    Major major_b = Major::kK;
    bool negates_a = false;
    bool negates_b = false;
    bool is_sparse = false;
    bool saturates = false;  // integers
};

__device__ constexpr u32 tcgen05_descriptor_bits(
    u32 code_a, u32 code_b, int m, int n, const Tcgen05Modifiers& modifiers
) {
    return static_cast<u32>(modifiers.is_sparse) << 2 | static_cast<u32>(modifiers.saturates) << 3 |
           code_a << 7 | code_b << 10 | static_cast<u32>(modifiers.negates_a) << 13 |
           static_cast<u32>(modifiers.negates_b) << 14 |
           static_cast<u32>(modifiers.major_a == Major::kMN) << 15 |
           static_cast<u32>(modifiers.major_b == Major::kMN) << 16 |
           static_cast<u32>(n >> 3) << 17 | static_cast<u32>(m >> 4) << 24;
}

// The descriptor of kM rows and kN columns; with kCtas = 2, of both CTAs. D is float, float16 or
// int.
template <typename A, typename B, typename D, int kM, int kN, int kCtas = 1>
__device__ constexpr u32 tcgen05_instruction_descriptor(Tcgen05Modifiers modifiers = {}) {
    constexpr Tcgen05Kind kKind = Tcgen05TypeOf<A>::kKind;
    constexpr bool kIsInteger = kKind == Tcgen05Kind::kI8;
    constexpr bool kHasHalf = kKind == Tcgen05Kind::kF16 || kKind == Tcgen05Kind::kF8F6F4;
    static_assert(Tcgen05TypeOf<B>::kKind == kKind, "A and B are of one kind: see MmaForm");
    static_assert(
        kIsInteger ? kSameType<D, int> : kSameType<D, float> || (kHasHalf && kSameType<D, float16>),
        "D is int for integers, float for tf32, and float or float16 for other floats"
    );
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    static_assert(
        kM == 64 * kCtas || kM == 128 * kCtas || (kM == 32 && kCtas == 1),
        "M is 64 or 128, of a pair of CTAs 128 or 256; 32 of tcgen05.mma.ws alone"
    );
    constexpr int kStep = kCtas * (kIsInteger ? 16 : 8);
    static_assert(
        (kN % kStep == 0 && kN <= 256 && kN >= kStep) ||
            (kIsInteger && kCtas == 1 && (kN == 8 || kN == 24)),
        "N is 8 to 256 in steps of 8, of a pair of CTAs in steps of 16; twice that for integers"
    );
    constexpr u32 kD = kIsInteger ? 2 : kSameType<D, float>;
    return tcgen05_descriptor_bits(
               Tcgen05TypeOf<A>::kCode, Tcgen05TypeOf<B>::kCode, kM, kN, modifiers
           ) |
           kD << 4;
}

// The same with scale factors, for the kinds mxf8f6f4, and (`kIsPacked`) mxf4 and mxf4nvf4. The ids
// are the first byte of the scale factors in their word of tensor memory.
template <
    typename A,
    typename B,
    typename Scale,
    int kM,
    int kN,
    int kCtas = 1,
    bool kIsPacked = false>
__device__ constexpr u32 tcgen05_scaled_instruction_descriptor(
    u32 id_a, u32 id_b, Tcgen05Modifiers modifiers = {}
) {
    constexpr Tcgen05Kind kSmall = Tcgen05Kind::kF8F6F4;
    constexpr bool kIsE8M0 = kSameType<Scale, scale_ue8m0>;
    constexpr bool kIsFloat4 = kSameType<A, float4_e2m1> && kSameType<B, float4_e2m1>;
    static_assert(
        Tcgen05TypeOf<A>::kKind == kSmall && Tcgen05TypeOf<B>::kKind == kSmall,
        "scale factors are for elements of 8 bits or fewer"
    );
    static_assert(kIsE8M0 || kSameType<Scale, scale_ue4m3>, "scale_ue8m0 or scale_ue4m3");
    static_assert(kIsFloat4 || !kIsPacked, "only float4_e2m1 is packed");
    static_assert(kIsE8M0 || kIsPacked, "scale_ue4m3 is for packed float4_e2m1 (mxf4nvf4)");
    static_assert(kM == 128 || (kM == 256 && kCtas == 2), "M is 128, of a pair of CTAs also 256");
    static_assert(
        kN % (8 * kCtas) == 0 && kN >= 8 * kCtas && kN <= 256,
        "N is 8 to 256 in steps of 8, of a pair of CTAs in steps of 16"
    );
    constexpr u32 kA = kIsPacked ? 1 : Tcgen05TypeOf<A>::kCode;
    constexpr u32 kB = kIsPacked ? 1 : Tcgen05TypeOf<B>::kCode;
    return tcgen05_descriptor_bits(kA, kB, kM, kN, modifiers) | id_b << 4 |
           static_cast<u32>(kIsE8M0) << 23 | id_a << 29;
}

// --- the matrix descriptor -----------------------------------------------------------------------

// The 64 bits by which tcgen05 reads an operand tile from shared memory. `leading_bytes` separates
// swizzle atoms along the leading side, `stride_bytes` groups of 8 rows.
template <Swizzle kSwizzle>
__device__ __forceinline__ constexpr u64 initialize_tcgen05_descriptor(
    u32 shared, u32 leading_bytes, u32 stride_bytes
) {
    static_assert(kSwizzle <= Swizzle::k128BAtom32B, "tcgen05 reads no operand with this swizzle");
    constexpr u64 kLayout = kSwizzle == Swizzle::kNone ? 0
                            : kSwizzle == Swizzle::k128BAtom32B
                                ? 1
                                : 8 - 2 * static_cast<int>(kSwizzle);
    constexpr u64 kVersion = 1;
    return kLayout << 61 | kVersion << 46 | static_cast<u64>(stride_bytes >> 4) << 32 |
           static_cast<u64>(leading_bytes >> 4) << 16 | (shared & 0x3ffff) >> 4;
}

// The same of a tile next to `near`, whose descriptor the thread computes too: of two members of
// one stage the distance is a constant, which saves instructions.
template <Swizzle kSwizzle, u32 kLeadingBytes, u32 kStrideBytes, typename Near, typename Shared>
__device__ __forceinline__ u64 tcgen05_descriptor_near(const Near& near, const Shared& shared) {
    constexpr u64 kRest = initialize_tcgen05_descriptor<kSwizzle>(0, kLeadingBytes, kStrideBytes);
    const u32 first = operand_address(near);
    const int distance = static_cast<int>(operand_address(shared) - first);
    return kRest + (((first & 0x3ffff) >> 4) + (distance >> 4));
}

// An operand of tcgen05 in shared memory. Packed elements of 4 bits count as bytes of two.
template <typename T, Swizzle kSwizzle, Major kOperandMajor, int kRows, int kColumns>
struct Tcgen05Buffer : OperandBuffer<T, kSwizzle, kOperandMajor, kRows, kColumns> {
    using Base = OperandBuffer<T, kSwizzle, kOperandMajor, kRows, kColumns>;

    static_assert(
        kOperandMajor == Major::kK || (sizeof(T) == 4) == (kSwizzle == Swizzle::k128BAtom32B),
        "with M or N contiguous, tf32 takes k128BAtom32B and the other types do not"
    );

    // Descriptor of the part that starts at this row of M or N, a multiple of 8: see is_readable().
    template <typename Shared>
    __device__ __forceinline__ static u64 descriptor(const Shared& shared, u32 first = 0) {
        return initialize_tcgen05_descriptor<kSwizzle>(
            Base::start_address(shared, first), Base::kLeadingBytes, Base::kStrideBytes
        );
    }

    // Descriptor of the whole operand, next to another tile: see tcgen05_descriptor_near().
    template <typename Near, typename Shared>
    __device__ __forceinline__ static u64 descriptor_near(const Near& near, const Shared& shared) {
        return tcgen05_descriptor_near<kSwizzle, Base::kLeadingBytes, Base::kStrideBytes>(
            near, shared
        );
    }
};

// The operand that a tile loads.
template <typename Tile, Major kOperandMajor>
struct Tcgen05Operand : TileOperand<Tcgen05Buffer, Tile, kOperandMajor> {};

}  // namespace tmaasync
