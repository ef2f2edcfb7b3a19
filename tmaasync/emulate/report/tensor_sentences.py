"""The sentences of faults of tcgen05 and tensor memory, a part of `SENTENCES`."""

from __future__ import annotations

TENSOR_SENTENCES = {
    # --- descriptors of tcgen05
    "InstructionBits": (
        "bits {} of the instruction descriptor {} must be 0 for kind::{}. Fill it by the table of "
        "the kind: the fields differ (PTX ISA, instruction descriptor)"
    ),
    "InstructionType": (
        "the instruction descriptor {} has {} as the type of {}, which kind::{} does not have. "
        "Give it the code of {}"
    ),
    "InstructionScaleType": (
        "the instruction descriptor {} has scale factors of ue4m3, which are for mxf4nvf4 with 4X. "
        "Set bit 23: ue8m0"
    ),
    "InstructionShape": (
        "the instruction descriptor {} has M {} and N {}. kind::{} with cta_group::{}{} takes {}"
    ),
    "ShapesInSteps": "M {} and N {} to 256 in steps of {}",
    "ShapesOfI8": "M 64 or 128 and N 8, 16, 24, or 32 to 256 in steps of 16",
    "ShapesOfWs": "M 32, 64 or 128 and N {}",
    "InstructionSparsity": (
        "the instruction descriptor {} has sparsity bit {}, and the instruction is {} "
        "(sparse_mismatch_between_idesc_mod). Set bit 2 for tcgen05.mma.sp alone"
    ),
    "InstructionSelector": (
        "the instruction descriptor {} has sparsity selector {}, which the emulator does not know. "
        "Clear bits 0 and 1, and give the metadata's own address"
    ),
    "SparseMetadata": (
        "the sparse metadata of row {} has selector {}, and legal ones are {}. Copy the metadata "
        "to tensor memory before the MMA, in the layout of its kind"
    ),
    "SparseMetadataOfLane": (
        "lane {} has the sparse metadata of row {}, whose selector {} is none of {}. In quad q, "
        "lanes 0 and 2 have row q, lanes 1 and 3 row q + 8, and lanes 2 and 3 the upper half of K"
    ),
    "InstructionTransposed": (
        "the instruction descriptor {} transposes A, which is in tensor memory and has K along the "
        "columns. Clear bit 15"
    ),
    "InstructionNegated": (
        "the instruction descriptor {} negates an operand, and kind::i8 has no negation. Clear "
        "bits 13 and 14"
    ),
    "InstructionDepth": (
        "the instruction descriptor {} asks for K = 96, which exists on sm_103a, dense alone. "
        "Clear bit 31"
    ),
    "InstructionScaleId": (
        "the instruction descriptor {} takes the scale factors of {} from byte {} of a word, and "
        "with {} they begin at byte {}. Set its scale factor id"
    ),
    "InstructionMaxShift": (
        "the instruction descriptor {} has a greatest shift of {} with M = 32, and the chip traps. "
        "Clear bits 30 and 31"
    ),
    "InstructionWs": (
        "tcgen05.mma.ws exists for cta_group::1 and without block scales, and this is kind::{} "
        "with cta_group::{}. Use tcgen05.mma"
    ),
    "InstructionScaleVector": (
        "tcgen05.mma of kind::{} does not have {} scale factors for the K of an instruction. "
        "mxf8f6f4 has 1X, mxf4 2X, mxf4nvf4 2X and 4X, and the other kinds none"
    ),
    "MatrixBits": (
        "bits {} of the matrix descriptor {} of {} are {}, and tcgen05 needs {}. Bits 46 to 48 are "
        "0b001 and bits 53 to 60 are 0; wgmma's descriptors differ"
    ),
    "MatrixSwizzle": (
        "the matrix descriptor {} of {} has swizzle code {}. Bits 61 to 63 are 0 for none, 1 for "
        "128 bytes with atoms of 32, 2 for 128 bytes, 4 for 64, 6 for 32"
    ),
    "MatrixSwizzleOfTf32": (
        "the matrix descriptor {} of {} has swizzle code {}, and tf32 with M or N contiguous takes "
        "code 1 alone: load the tile with a swizzle of 128 bytes and atoms of 32"
    ),
    "MatrixAtoms32": (
        "the matrix descriptor {} of {} has swizzle code 1 (128 bytes with atoms of 32), which "
        "with M or N contiguous is for tf32 alone. Use code 2: 128 bytes"
    ),
    "MatrixAbsolute": (
        "the matrix descriptor {} of {} gives the address of its second part (bit 52), which the "
        "emulator does not emulate. Clear bit 52 and give the leading byte offset"
    ),
    # --- tensor memory and tcgen05
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
    "Tcgen05ZeroColumns": (
        "tcgen05.mma.ws with a mask of zero columns, which the emulator does not emulate. Pass 0, "
        "or leave the mask out"
    ),
    "TensorOperandLane": (
        "{} begins at lane {} of tensor memory; {}. Add only columns to the address that "
        "tcgen05.alloc wrote"
    ),
    "TensorFirstLane": "it begins at lane 0 of the CTA",
    "TensorFirstOrHalf": "with M 64 it begins at lane 0 or 16",
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
    "TensorHeldByAnother": (
        "warp {} waits for ever in tcgen05.alloc: block ({}, {}, {}), which runs on the same SM, "
        "holds {} columns of tensor memory from column {} on, and does not free them. Deallocate "
        "before a wait for other blocks, allocate fewer columns, or launch no more blocks than "
        "there are SMs"
    ),
    "TensorPermitHeld": (
        "warp {} waits for ever in tcgen05.alloc: block ({}, {}, {}), which runs on the same SM, "
        "allocated {} columns of tensor memory from column {} on, and has not executed "
        "tcgen05.relinquish_alloc_permit. Relinquish after the last allocation"
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
    "MapSwizzle96": (
        "tensormap.replace sets swizzle_mode to 4, 96 bytes: ptxas takes it for sm_103a alone, and "
        "neither CUDA's encoder nor the emulator has this swizzle. Use 1, 2 or 3: 32, 64 or 128"
    ),
}
