#pragma once

#include <tmaasync/operands/tcgen05.cuh>

// PTX ISA: "tcgen05.mma" and "tcgen05.mma.ws" (sm_100a, sm_103a; i8 sm_100a alone). One thread
// issues each; with kCtas = 2 one of the pair. D is an address in tensor memory. A is a matrix
// descriptor of shared memory, of type u64, or an address in tensor memory, of type u32; a
// Tcgen05Sparse of either makes the instruction sparse. B is a descriptor, `instruction` the
// instruction descriptor. Without `accumulates`, D's old words are not read.
namespace tmaasync::ptx {

// kShiftsA takes A one row further down: A in tensor memory, M 128 or 256.
template <
    Tcgen05Kind kKind,
    int kCtas = 1,
    int kScaleInputD = 0,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
    bool kShiftsA = false,
    typename A>
__device__ __forceinline__ void tcgen05_mma(u32 d, A a, u64 b, u32 instruction, bool accumulates) {
    static_assert(!is_block_scaled(kKind), "this kind has scale factors");
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    constexpr bool kHasScale = kKind == Tcgen05Kind::kF16 || kKind == Tcgen05Kind::kTF32;
    static_assert(kScaleInputD == 0 || kHasScale, "scale-input-d is of f16 and tf32");
    using From = Tcgen05SourceOfA<A>;
    static_assert(!kShiftsA || From::kIsTensorMemory, "ashift shifts A in tensor memory");
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b%5 a;\n\t.reg .b32 e;\n\tsetp.ne.b32 p, %4, 0;\n\t"
        "cvt.u%5.u64 a, %1;\n\tmov.b32 e, %10;\n\t"
        "tcgen05.mma%11.cta_group::%6.kind::%7%13%14 [%0], %8, %2, %12%3, p%9;\n\t}" ::"r"(d),
        "l"(From::bits(a)), "l"(b), "r"(instruction), "r"(u32{accumulates}), "n"(From::kBits),
        "n"(kCtas), "C"(name_of(kKind)), "C"(From::kOperand),
        "C"(Tcgen05ScaleOfD<kScaleInputD>::letters), "r"(From::metadata(a)), "C"(From::kSparse),
        "C"(From::kMetadata), "C"(kShiftsA ? Tcgen05Names::kShift : Tcgen05Names::kNone),
        "C"(name_of(kCollector))
        : "memory"
    );
}

// The same but for the lanes whose bit is set in `disabled`, whose words of D stay.
template <Tcgen05Kind kKind, typename A>
__device__ __forceinline__ void tcgen05_mma(
    u32 d, A a, u64 b, u32 instruction, bool accumulates, const u32 (&disabled)[4]
) {
    static_assert(!is_block_scaled(kKind), "this kind writes all lanes");
    using From = Tcgen05SourceOfA<A>;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b%5 a;\n\t.reg .b32 e;\n\tsetp.ne.b32 p, %4, 0;\n\t"
        "cvt.u%5.u64 a, %1;\n\tmov.b32 e, %12;\n\t"
        "tcgen05.mma%13.cta_group::1.kind::%6 [%0], %7, %2, %14%3, {%8, %9, %10, %11}, p;\n\t}" ::
            "r"(d),
        "l"(From::bits(a)), "l"(b), "r"(instruction), "r"(u32{accumulates}), "n"(From::kBits),
        "C"(name_of(kKind)), "C"(From::kOperand), "r"(disabled[0]), "r"(disabled[1]),
        "r"(disabled[2]), "r"(disabled[3]), "r"(From::metadata(a)), "C"(From::kSparse),
        "C"(From::kMetadata)
        : "memory"
    );
}

// The same of a pair of CTAs, the even CTA's lanes first.
template <Tcgen05Kind kKind, typename A>
__device__ __forceinline__ void tcgen05_mma(
    u32 d, A a, u64 b, u32 instruction, bool accumulates, const u32 (&disabled)[8]
) {
    static_assert(!is_block_scaled(kKind), "this kind writes all lanes");
    using From = Tcgen05SourceOfA<A>;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b%5 a;\n\t.reg .b32 e;\n\tsetp.ne.b32 p, %4, 0;\n\t"
        "cvt.u%5.u64 a, %1;\n\tmov.b32 e, %16;\n\t"
        "tcgen05.mma%17.cta_group::2.kind::%6 [%0], %7, %2, %18%3, "
        "{%8, %9, %10, %11, %12, %13, %14, %15}, p;\n\t}" ::"r"(d),
        "l"(From::bits(a)), "l"(b), "r"(instruction), "r"(u32{accumulates}), "n"(From::kBits),
        "C"(name_of(kKind)), "C"(From::kOperand), "r"(disabled[0]), "r"(disabled[1]),
        "r"(disabled[2]), "r"(disabled[3]), "r"(disabled[4]), "r"(disabled[5]), "r"(disabled[6]),
        "r"(disabled[7]), "r"(From::metadata(a)), "C"(From::kSparse), "C"(From::kMetadata)
        : "memory"
    );
}

// With scale factors in tensor memory. mxf4nvf4 has one for 16 elements, or with kBlock = 32
// for 32.
template <
    Tcgen05Kind kKind,
    int kCtas = 1,
    int kBlock = kKind == Tcgen05Kind::kMXF4NVF4 ? 16 : 32,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
    typename A>
__device__ __forceinline__ void tcgen05_mma_block_scale(
    u32 d, A a, u64 b, u32 instruction, u32 a_scales, u32 b_scales, bool accumulates
) {
    static_assert(is_block_scaled(kKind), "this kind has no scale factors");
    static_assert(kCtas == 1 || kCtas == 2, "cta_group is 1 or 2");
    static_assert(
        kBlock == 32 || (kBlock == 16 && kKind == Tcgen05Kind::kMXF4NVF4),
        "a scale factor is of 32 elements, or of 16 of mxf4nvf4"
    );
    using From = Tcgen05SourceOfA<A>;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b%7 a;\n\t.reg .b32 e;\n\tsetp.ne.b32 p, %6, 0;\n\t"
        "cvt.u%7.u64 a, %1;\n\tmov.b32 e, %12;\n\t"
        "tcgen05.mma%13.cta_group::%8.kind::%9.block_scale%10%15 "
        "[%0], %11, %2, %14%3, [%4], [%5], p;\n\t}" ::"r"(d),
        "l"(From::bits(a)), "l"(b), "r"(instruction), "r"(a_scales), "r"(b_scales),
        "r"(u32{accumulates}), "n"(From::kBits), "n"(kCtas), "C"(name_of(kKind)),
        "C"(name_of_block(kBlock)), "C"(From::kOperand), "r"(From::metadata(a)), "C"(From::kSparse),
        "C"(From::kMetadata), "C"(name_of(kCollector))
        : "memory"
    );
}

// Weight stationary: D of 32, 64 or 128 rows, in the other half or quarters of the lanes too. The
// collector is one of four buffers of B.
template <
    Tcgen05Kind kKind,
    Tcgen05Collector kCollector = Tcgen05Collector::kDiscard,
    int kBuffer = 0,
    typename A>
__device__ __forceinline__ void tcgen05_mma_ws(
    u32 d, A a, u64 b, u32 instruction, bool accumulates
) {
    static_assert(!is_block_scaled(kKind), "tcgen05.mma.ws has no scale factors");
    static_assert(kBuffer >= 0 && kBuffer < 4, "the buffers of B are 0 to 3");
    using From = Tcgen05SourceOfA<A>;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b%5 a;\n\t.reg .b32 e;\n\tsetp.ne.b32 p, %4, 0;\n\t"
        "cvt.u%5.u64 a, %1;\n\tmov.b32 e, %8;\n\t"
        "tcgen05.mma.ws%9.cta_group::1.kind::%6.collector::b%11%12 "
        "[%0], %7, %2, %10%3, p;\n\t}" ::"r"(d),
        "l"(From::bits(a)), "l"(b), "r"(instruction), "r"(u32{accumulates}), "n"(From::kBits),
        "C"(name_of(kKind)), "C"(From::kOperand), "r"(From::metadata(a)), "C"(From::kSparse),
        "C"(From::kMetadata), "n"(kBuffer), "C"(name_of_b(kCollector))
        : "memory"
    );
}

}  // namespace tmaasync::ptx
