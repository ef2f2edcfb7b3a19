"""The sentences of faults in device headers and of cluster requests, the last of `SENTENCES`."""

from __future__ import annotations

HEADER_SENTENCES = {
    "Called": "the kernel called {}",
    "CalledExit": "the kernel called {}. Return from it instead",
    "Assertion": "{}({}) does not hold",
    "LocalArray": "a local array of this function was written beyond its end. Check its indices",
    "Argument": "{} is {}; {} {}",
    "MapaRank": "mapa names CTA {} of a cluster of {}. Pass a rank below blocks_in_cluster()",
    "PointerOutsideShared": (
        "a pointer was taken for an address in the CTA's shared memory and points elsewhere. "
        "Declare the object in shared memory"
    ),
    "SharedOfOtherCta": (
        "an instruction on the thread block's own shared memory, .shared::cta, is given an address "
        "in CTA {}'s. Pass an address in its own"
    ),
    "RequestAfterFailure": (
        "another try_cancel follows one whose failure is known: {} has seen it. End the loop when "
        "is_canceled is false"
    ),
    "CtaidOfFailure": (
        "get_first_ctaid reads a response without a cluster: is_canceled is false. Ask is_canceled "
        "first, and leave the loop"
    ),
    "StBulkSize": "the size of st.bulk is no multiple of 8 bytes. Fill whole words of 8 bytes",
    "Alignment": (
        "a load or store whose address is no multiple of its size. Move fewer bytes at once, or "
        "align the address"
    ),
    "GenericAddress": (
        "an instruction for shared memory is given a generic address. Convert the pointer with "
        "__cvta_generic_to_shared or cvta.to.shared first"
    ),
    "GenericOutsideShared": (
        "a generic address that an instruction takes for one in shared memory points elsewhere"
    ),
    "RegisterCount": "setmaxnreg takes multiples of 8 from 24 to 256",
    "PartialReduction": (
        "bar.red of a barrier other than 0, or of a part of the block, does not run on the CPU. "
        "Take barrier 0 and all threads"
    ),
    "ScatteredAccumulators": (
        "the registers of wgmma are no consecutive elements of one array, in order, which the CPU "
        "needs. Declare them as one array"
    ),
    "OperandText": 'an operand "C" of inline PTX has an unknown text',
    "WmmaPitch": (
        "the leading dimension of a wmma load or store is a multiple of 16 bytes. Pad the rows to "
        "8 halves or 4 floats"
    ),
    "TileSize": "tiled_partition: on the emulator a tile has 1, 2, 4, 8, 16 or 32 threads",
    "TileParent": "tiled_partition: the parent is a block or a part of a warp",
    "BinaryPartition": (
        "binary_partition: lanes of the parent have ended, or the block lacks their threads. "
        "Launch whole warps, and let all lanes take part, or partition coalesced_threads()"
    ),
    "MemcpySize": (
        "memcpy_async is given a size that is no multiple of the alignment it promises: of the "
        "element type, or of aligned_size_t. Pass a multiple, or promise less"
    ),
    "PipelineSize": (
        "__pipeline_memcpy_async copies 4, 8 or 16 bytes, of which it fills no more with zeros"
    ),
}
