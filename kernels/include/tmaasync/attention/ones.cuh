#pragma once

#include <tmaasync/wgmma.cuh>

namespace tmaasync {

// An operand B of ones in shared memory, eight columns wide and as deep as one instruction, by
// which the tensor cores add up the rows of A in registers: row_sum then has the rounding of A's
// elements, as A B has for another B. Half of it is the side data of a stage: put it next to the
// stages of a ring, which are aligned to more bytes than its barriers fill.
template <typename Element, bool kIsUsed = true>
struct alignas(16) HalfOfOnes {
    using Ones =
        WgmmaBuffer<Element, Swizzle::kNone, Major::kK, 8, 32 / static_cast<int>(sizeof(Element))>;

    static constexpr int kElements = 128 / static_cast<int>(sizeof(Element));

    Element elements[kElements];

    // Called by one thread; then the CTA synchronises.
    template <int kHalves>
    __device__ __forceinline__ static void init(HalfOfOnes (&halves)[kHalves]) {
        static_assert(kHalves >= 2, "two halves are a whole");
        for (int half = 0; half < 2; ++half) {
            for (Element& element : halves[half].elements) element = Element(1.f);
        }
        fence_async_view_proxy();
    }

    // Issue row_sum of A as one wgmma group. A thread gets its two rows, each twice.
    template <int kHalves, int kSteps>
    __device__ __forceinline__ static void issue_row_sum(
        const HalfOfOnes (&halves)[kHalves], float (&row_sum)[4], u32 (&a)[kSteps][4]
    ) {
        wgmma_fence_operands(row_sum);
        wgmma_fence_operands(a);
        wgmma_fence();
        const u64 ones = Ones::descriptor(ptx::shared_address(halves), 0);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const auto& one_step = reinterpret_cast<const u32(&)[1][4]>(a[step]);
            wgmma_tile_rs<Ones>(row_sum, one_step, ones, step > 0);
        }
        wgmma_commit_group();
    }
};

template <typename Element>
struct HalfOfOnes<Element, false> {
    template <int kHalves>
    __device__ __forceinline__ static void init(HalfOfOnes (&)[kHalves]) {}
};

}  // namespace tmaasync
