#pragma once

#include <tmaasync/ptx/tcgen05_cp.cuh>
#include <tmaasync/tcgen05.cuh>

// Block scales of tcgen05.mma (sm_100a and sm_103a): MXFP8, MXFP4 and NVFP4. PTX ISA, "Block
// scaling for tcgen05.mma".
namespace tmaasync {

// The type of a scale factor of this many elements along K.
template <int kBlock>
struct ScaleOfBlock {
    static_assert(kBlock == 32, "a scale factor is of 32 elements, or of 16 packed float4_e2m1");
    using Type = scale_ue8m0;
};
template <>
struct ScaleOfBlock<16> {
    using Type = scale_ue4m3;
};

// How operands of A and B with a scale factor for every kBlock elements are multiplied. A step, one
// instruction, is 32 bytes deep; float4_e2m1 is packed, two in a byte.
template <typename A, typename B, int kBlock>
struct ScaledKind {
    using Scale = typename ScaleOfBlock<kBlock>::Type;
    static constexpr bool kIsPacked = kSameType<A, float4_e2m1>;
    static constexpr Tcgen05Kind kKind = kBlock == 16 ? Tcgen05Kind::kMXF4NVF4
                                         : kIsPacked  ? Tcgen05Kind::kMXF4
                                                      : Tcgen05Kind::kMXF8F6F4;
    // Scale factors of a step.
    static constexpr int kFactors = (kIsPacked ? 64 : 32) / kBlock;
    static_assert(
        kIsPacked == kSameType<B, float4_e2m1>,
        "float4_e2m1 is packed, and multiplied by itself alone: use float4_e2m1_unpacked"
    );
};

// Columns of tensor memory for the scale factors of kRows rows of A, or columns of B, kFactors
// along K. A shared atom has 4 factors of 128 rows in 512 bytes (the layout of cuBLAS and CUTLASS);
// in tensor memory it has 4 columns. Atoms lie one after another along K, in shared memory then
// along the rows, in tensor memory the rows come first.
template <int kRows, int kFactors>
struct TmemScales {
    static_assert(kFactors % 4 == 0, "an atom has 4 scale factors along K");
    static constexpr int kRowAtoms = (kRows + 127) / 128;
    static constexpr int kAtoms = kFactors / 4;
    static constexpr int kColumns = 4 * kRowAtoms * kAtoms;
    static constexpr int kAtomBytes = 512;

    u32 address;

    // Copy the scale factors from shared memory, next to another tile of their stage: see
    // tcgen05_descriptor_near(). With kCtas = 2 both CTAs of the pair copy their own.
    // tcgen05_scaled_mma() of the same thread comes after it without a wait; columns that earlier
    // mma read may be written when these have completed.
    template <int kCtas, typename Shared, typename Near>
    __device__ __forceinline__ void copy_from(const Shared& shared, const Near& near) const {
        static_assert(
            Shared::kBytes == kRowAtoms * kAtoms * kAtomBytes, "as many atoms as columns"
        );
        constexpr u32 kEightRows = 128;
        const u64 start = tcgen05_descriptor_near<Swizzle::kNone, 16, kEightRows>(near, shared);
#pragma unroll
        for (int atom = 0; atom < kRowAtoms * kAtoms; ++atom) {
            const int row = atom / kAtoms, along_k = atom % kAtoms;
            ptx::tcgen05_cp<ptx::Tcgen05Copy::k32x128bWarpx4, kCtas>(
                address + 4 * (along_k * kRowAtoms + row),
                increase_descriptor_offset(start, atom * kAtomBytes)
            );
        }
    }

    // The scale factors from this row of the first atom on, a multiple of 32.
    __device__ __forceinline__ TmemScales from_row(u32 row) const { return {address + row / 32}; }

    // The columns with the scale factors of a step that has kOfStep of them.
    template <int kOfStep>
    __device__ __forceinline__ u32 address_of(int step) const {
        return address + 4 * kRowAtoms * (step * kOfStep / 4);
    }
};

// tcgen05_mma() with scale factors in tensor memory. A and B are the element types; the operands'
// own may be bytes.
template <
    typename OperandA,
    typename OperandB,
    typename A,
    typename B,
    int kBlock,
    int kCtas = 1,
    int kN,
    typename ScalesA,
    typename ScalesB,
    typename SharedA,
    typename SharedB>
__device__ __forceinline__ void tcgen05_scaled_mma(
    const TmemTile<float, kN>& accumulators,
    const SharedA& a,
    const SharedB& b,
    const ScalesA& scales_a,
    const ScalesB& scales_b,
    bool accumulate
) {
    using Kind = ScaledKind<A, B, kBlock>;
    constexpr int kRows = kCtas * OperandA::kExtent, kFactors = Kind::kFactors;
    static_assert(OperandA::kMajor == Major::kK && OperandB::kMajor == Major::kK);
    static_assert(sizeof(typename OperandA::Element) == 1 && OperandA::kDepth == OperandB::kDepth);
    static_assert(OperandA::kExtent == 128, "accumulators have 128 rows");
    static_assert(kN == kCtas * OperandB::kExtent, "as many accumulators as B has columns");
    static_assert(ScalesA::kAtoms * 4 == OperandA::kSteps * kFactors, "the factors of all steps");
    const u64 start_a = OperandA::descriptor(a), start_b = OperandB::descriptor_near(a, b);
#pragma unroll
    for (int step = 0; step < OperandA::kSteps; ++step) {
        const u32 id = step * kFactors % 4;
        const u32 instruction = tcgen05_scaled_instruction_descriptor<
            A, B, typename Kind::Scale, kRows, kN, kCtas, Kind::kIsPacked>(id, id);
        ptx::tcgen05_mma_block_scale<Kind::kKind, kCtas, kBlock>(
            accumulators.address, start_a + OperandA::step_offset(step),
            start_b + OperandB::step_offset(step), instruction,
            scales_a.template address_of<kFactors>(step),
            scales_b.template address_of<kFactors>(step), accumulate || step > 0
        );
    }
}

}  // namespace tmaasync
