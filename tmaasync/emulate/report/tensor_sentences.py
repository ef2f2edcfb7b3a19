"""The sentences of faults in tensor memory, a part of `SENTENCES`."""

from __future__ import annotations

__all__ = ["TENSOR_SENTENCES"]

TENSOR_SENTENCES = {
    "Tcgen05LanesDiffer": (
        "the lanes of warp {} give {} different operands: lane {} gives the {} {}, and lane 0 {}. "
        "All lanes of the warp give the same"
    ),
    "TensorAddress": "address",
    "TensorColumnCount": "number of columns",
    "TensorSharedOffset": "shared offset",
    "TensorWarp": "warp",
    "Tcgen05NoPair": (
        "{} with cta_group::2 in a cluster of {} CTAs. A pair is two CTAs of a cluster whose ranks "
        "differ in the last bit: launch clusters of an even size"
    ),
    "Tcgen05PairEnded": (
        "{} with cta_group::2 after CTA {}, the other one of the pair, has ended. Let both CTAs "
        "call cluster_sync() after their last instruction of the pair"
    ),
    "Tcgen05PairUnknown": (
        "{} with cta_group::2, and nothing shows that CTA {}, the other one of the pair, has "
        "started. Call cluster_sync() before it"
    ),
    "Tcgen05MixedGroups": (
        "{} has cta_group::{}, and an earlier instruction of tcgen05 has cta_group::{}{}. All of a "
        "kernel have the same"
    ),
    "Tcgen05ByLanes": (
        "{} is issued by lanes {} and {} of warp {}: the tensor core executes it once for each "
        "lane. Let one thread issue it, such as the one that elect.sync elects"
    ),
    "Tcgen05InFlight": (
        "the CTA ends while this operation of tcgen05 may be in flight. Commit it, and wait on "
        "the mbarrier of the commit"
    ),
    "TensorSize": (
        "{} of {} columns; a power of two from 32 to 512 is possible. Ask for {} (guardrail "
        "allocation_granularity_invalid)"
    ),
    "TensorAllocPlace": (
        "tcgen05.alloc writes an address of 32 bits to {}; it must lie at a multiple of 4. Declare "
        "it as uint32_t"
    ),
    "TensorAllocTarget": "the address that tcgen05.alloc writes",
    "AllocAfterRelinquish": (
        "tcgen05.alloc after tcgen05.relinquish_alloc_permit{}, by which the CTA gave up its right "
        "to allocate. Allocate first (guardrail phase_invalid_during_alloc)"
    ),
    "TensorPairDiffers": (
        "the CTAs of a pair call tcgen05.alloc with a different {}: {} and {}. Both give the same: "
        "declare the shared variable alike, and let the same warp call it"
    ),
    "TensorTwoWarps": (
        "warps {} and {} call tcgen05.alloc with cta_group::2 at once. Let one warp of each CTA "
        "call it"
    ),
    "TensorPairMissing": (
        "tcgen05.alloc with cta_group::2 waits for ever for CTA {}, the other one of the pair: its "
        "warp {} does not call it. One warp of each CTA of the pair calls it"
    ),
    "TensorNeverFree": (
        "warp {} waits for ever in tcgen05.alloc: {} of 512 columns of tensor memory are free{}. "
        "Deallocate columns first, or allocate fewer: blocks lie at multiples of their size"
    ),
    "TensorHeld": "; {} columns from column {} on are allocated, by warp {}",
    "DeallocOfNone": (
        "tcgen05.dealloc of address {}, which tcgen05.alloc did not return{}. Pass the word that "
        "tcgen05.alloc wrote to shared memory, not its address (guardrail "
        "col_being_dealloced_not_returned_by_alloc)"
    ),
    "DeallocOfPart": (
        "tcgen05.dealloc of {} columns from column {} on, an allocation of {}. Pass the number of "
        "columns that was allocated (guardrail unallocated_columns_being_dealloced)"
    ),
    "TensorLeak": (
        "the CTA ends while {} columns of tensor memory, from column {} on, are allocated here. "
        "Let a warp call tcgen05.dealloc with the same address and number of columns before the "
        "end, after all accesses"
    ),
    "TensorOutside": (
        "{} reaches lanes {} to {} and columns {} to {} of tensor memory, which has 128 lanes and "
        "512 columns. Check the address and the shape (guardrail access_out_of_physical_bounds)"
    ),
    "TensorUnallocated": (
        "{} uses columns {} to {} of tensor memory, and column {} is not allocated{}. Allocate as "
        "many as it needs, and pass the word that tcgen05.alloc wrote to shared memory, plus an "
        "offset (guardrail unallocated_columns_access)"
    ),
    "TensorLaneAlignment": (
        "{} begins at lane {} of tensor memory; {}. Correct bits 16 to 22 of the address "
        "(guardrail invalid_datapath_alignment)"
    ),
    "TensorHalfLanes": "shapes of 16 lanes begin at a multiple of 16",
    "TensorWholeLanes": "shapes of 32 lanes begin at a multiple of 32",
    "TensorLaneOwner": (
        "{} by warp {} names lane {} of tensor memory, and this warp reaches lanes {} to {} alone. "
        "Add {} * 32 to the lane of the address, or let another warp do it (guardrail "
        "current_warp_owner_invalid)"
    ),
    "UnwrittenTensor": (
        "{} reads {} of lane {} from column {} of tensor memory on, which nothing has written. "
        "Write it first: by tcgen05.mma, whose first one of a tile has enable-input-d false, by "
        "tcgen05.st or by tcgen05.cp"
    ),
}
