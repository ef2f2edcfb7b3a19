"""The sentences of faults, and their parts, in the order of the runtime's ``FaultKind``.

A ``{}`` stands for each of the fault's facts, in their order.
"""

from __future__ import annotations

from tmaasync.emulate.report.header_sentences import HEADER_SENTENCES
from tmaasync.emulate.report.stage_sentences import STAGE_SENTENCES
from tmaasync.emulate.report.tensor_sentences import TENSOR_SENTENCES

SENTENCES = {
    # --- parts of sentences
    "None": "",
    "Thread": "thread {}{}{}",
    "ThreadOfRole": "{} (thread {}){}{}",
    "OfCta": " of CTA {} of the cluster",
    "To": " to {}",
    "Reads": "reads",
    "Writes": "writes",
    "Mbarrier": "an mbarrier",
    "TensorMap": "a tensor map",
    "MmaOperand": "an operand of {}",
    "PushSource": "a copy out of shared memory",
    "Copy": "a {}",
    "BulkLoad": "a bulk load",
    "BulkStore": "a bulk store",
    "BulkReduction": "a bulk reduction",
    "BulkPrefetch": "a bulk prefetch",
    "Push": "a copy between shared memories",
    # --- mbarriers and other barriers
    "MbarrierPlace": "an mbarrier lies at {}; it must be a multiple of 8",
    "MbarrierCount": "mbarrier.init counts {} arrivals; 1 to 1048575 are possible",
    "MbarrierUninitialised": (
        "{} is used before mbarrier.init. Initialise it, fence, and let the CTA synchronise first"
    ),
    "MbarrierInvalidated": (
        "{} is used after mbarrier.inval. Initialise it anew, or invalidate it later"
    ),
    "MbarrierOverwritten": (
        "{} was overwritten: something else wrote into its 8 bytes. emulate.scheduled(races=True) "
        "reports that write"
    ),
    "MbarrierInitAgain": "{} is initialised again {}. Initialise it once, by one thread",
    "WhileInUse": "while in use",
    "WithoutInval": "without mbarrier.inval",
    "MbarrierIsAwaited": (
        "{} is invalidated while {} threads wait on it. Let all of them synchronise after their "
        "last wait"
    ),
    "OldStateToken": (
        "a state token of phase {} is tested in phase {}; it is good in its own phase and the "
        "next. Test it earlier"
    ),
    "Parity": (
        "{} for parity {}; a phase has parity 0 or 1. Pass the phase of a PipelineState, or the "
        "number of the phase modulo 2"
    ),
    "MissedPhase": (
        "{} completed phase {} while this thread was still waiting for phase {}, which its parity "
        "does not distinguish any more. Let those that arrive on it first wait for those that wait "
        "on it: a producer on the empty barrier of the stage, a consumer on the full one{}"
    ),
    "CountsTooFew": (
        ". init() counts {}, and {} threads arrive on it: let it count all that arrive in a phase"
    ),
    "ArrivalCompletes": (
        "an arrival with .noComplete completes phase {} of {}, which is undefined. Leave out "
        ".noComplete"
    ),
    "NoArrivals": (
        "{} gets 0 arrivals in phase {}; one instruction arrives 1 to 1048575 times. Arrive, or "
        "leave it out"
    ),
    "TooManyBytes": (
        "{} would have {} bytes to come; its count holds 1048575 either way. Expect as many bytes "
        "per phase as its copies deliver"
    ),
    "TooManyArrivals": (
        "{} gets {} in phase {}, which counts {} and waits for {}{}{}. Wait for the empty barrier "
        "before a stage is filled again, and let no more threads arrive than init() counts"
    ),
    "OneArrival": "1 arrival",
    "Arrivals": "{} arrivals",
    "NoMore": "no more",
    "ArrivedFirst": "; {} arrived first",
    "UntilLanded": (
        "; the phase lasts until {} bytes have landed, and until then no consumer releases the "
        "stage: a consumer's first wait names parity 0, a producer's 1"
    ),
    "UntilExpected": "; the phase lasts until {} bytes that landed are expected",
    "WarpApartAtBarrier": (
        "threads of warp {} wait at the __syncthreads() of line {} and others at the one of line "
        "{}. All threads of a warp must reach the same one: move it out of the branch"
    ),
    "NamedBarrierShape": "barrier {} of {} threads; barriers are 0 to 15 and take whole warps",
    "NamedBarrierThreads": "barrier {} is used for {} and for {} threads at once",
    "ClusterArrivalTwice": "barrier.cluster.arrive twice without barrier.cluster.wait between them",
    "GridArrivalTwice": (
        "a block arrives at the barrier of the grid twice without a wait between them. Call "
        "barrier_wait() before the next barrier_arrive()"
    ),
    "GridIsNotCooperative": (
        "a barrier of the grid in a launch that is not cooperative: its blocks need not be "
        "resident at once. Launch the kernel with cooperative=True"
    ),
    "AheadOfPreviousGrids": (
        "an access to {}, in memory that the kernel before wrote{}, ahead of "
        "wait_for_previous_grids(): with pdl=True this grid may run before that one has ended. "
        "Call it first, in every thread or in one with which the others then synchronise"
    ),
    # --- warps
    "ShuffleSource": (
        "shfl.sync: lane {} of warp {} reads from lane {}{}: what it gets is undefined. Let every "
        "lane that is read from take part, and name it in the mask"
    ),
    "IsMasked": ", which is not in the mask {}",
    "HasEnded": ", which has ended",
    "WasNotLaunched": ", which the block does not have",
    "MatrixOfPart": "{} in a warp some lanes of which have ended or never were",
    "MatrixRow": "{} is given the shared address {}; it must be a multiple of 16",
    "MasksDiffer": (
        "{} of warp {} execute {} with the mask {}, and {}, which it names, with the mask {}: the "
        "result is undefined. Pass one mask in all lanes that it names"
    ),
    "MaskOfOthers": (
        "lane {} of warp {} executes {} with the mask {}, which does not name it: the result is "
        "undefined. Name every lane that executes it, and no other"
    ),
    "LanesApart": (
        "the lanes of one warp are at {} ({}{}) and at {} (lane {}); all lanes of the mask {} "
        "execute the same one"
    ),
    "ElectOfPart": (
        "elect.sync is executed by {} of warp {}, and {} have ended; it takes the whole warp. "
        "Elect before lanes leave, or choose the thread by its index"
    ),
    "LanesMissing": (
        "{} of warp {} execute {} with the mask {}, and {}, which it names, do not: lane {} waits "
        "in {}{}{}. Let all lanes that the mask names execute it, and pass one mask"
    ),
    "WithMask": " with the mask {}",
    # --- memory and crashes
    "NoSuchCta": "a shared address names CTA {} of a cluster of {}",
    "CtaHasEnded": (
        "CTA {} of the cluster has ended, and this thread still reaches into its shared memory. "
        "Let no CTA leave before its peers are done: cluster_sync() at the end of the kernel"
    ),
    "ReachesBeyondShared": (
        "{} reaches {} to {}; the CTA has {}. Ask for more with {} or shared_mem, or correct the "
        "address"
    ),
    "BeyondShared": (
        "{} of {} bytes at {}, beyond the shared memory of the CTA, which has {} bytes. Check "
        "indices, or ask for more with {} or shared_mem"
    ),
    "BeyondArrays": (
        "{} of {} bytes at {}, which lies in none of the launch's arrays. Check indices, and that "
        "the grid does not go beyond the end"
    ),
    "OtherArray": (
        "{} of {} bytes by a subscript leads to {}, and lands in another array: {}. Check the "
        "index and its bound"
    ),
    "Misaligned": (
        "{} of {} bytes at {}, a misaligned address: it must be a multiple of the size. Use "
        "narrower accesses, or align the data"
    ),
    "StackOverflow": (
        "a write beyond the end of the thread's stack. Check the indices of local arrays"
    ),
    "ChangedReadOnlyLoad": (
        "a read of {} bytes at {} with __ldg() or ld.global.nc, which this launch has written: it "
        "may return an older value. Read them without __ldg() and .nc"
    ),
    "FreeOfNoBlock": (
        "free() or delete of {}, which malloc() and new did not return, or which is free already. "
        "Free each block once"
    ),
    "WriteOverMbarrier": (
        "a write of {} bytes at shared offset {} overwrites {}{}, which is in use. Check the "
        "index, or call invalidate() first"
    ),
    "ReadOverMbarrier": (
        "a read of {} bytes at {}{} reaches {}, an mbarrier in use. Check the index and the size"
    ),
    "SourceOverMbarrier": (
        "a {} takes {} bytes at {}, which are of the mbarrier {}. Give the copy as many bytes as "
        "its source has"
    ),
    "UnwrittenRead": "a read of {} bytes at {}{}, which nothing has written. {}",
    "UnwrittenSource": "a {} takes {} bytes at {}, which nothing has written. {}",
    "UnwrittenOperand": "{} reads {} at {}, which nothing has written. {}",
    "Initialise": "Load or initialise it, and let the readers wait for that{}{}",
    "InitialiseOperand": (
        "Load or initialise it, and let the threads wait for that before the instruction{}{}"
    ),
    "WriteSource": (
        "Write the whole tile, by threads that each call fence_async_view_proxy() after it and "
        "then synchronise with the one that issues the copy: __syncthreads(){}{}"
    ),
    "InFlight": "A {} to these bytes is in flight, issued by {}, {} bytes to {}: {}",
    "WaitForPhase": "wait for its phase of {} first{}",
    "PeerWaits": (
        "a thread of that CTA waits for its phase of {}, and then cluster_sync() lets the others "
        "go on"
    ),
    "GaveUp": (
        ". The mbarrier.try_wait of {} returned false, as it may at any time: repeat it until it "
        "returns true"
    ),
    "PassedAtFirst": (
        ". The wait of {} names parity 1, for which a new barrier does not wait: a consumer's "
        "first wait names parity 0, a producer's 1"
    ),
    **STAGE_SENTENCES,
    "WaitForArrival": "wait for the phase of {} that it arrives on",
    "CommitAndWait": (
        "that thread calls cp_async_commit() and cp_async_wait<{}>(), and then all threads "
        "synchronise: __syncthreads()"
    ),
    "WaitForGroup": (
        "that thread waits with cp_async_wait<{}>(), and then all threads synchronise: "
        "__syncthreads()"
    ),
    "Division": (
        "an integer division by zero, or of the smallest integer by -1. Check the divisor first"
    ),
    "Unreachable": (
        "an illegal instruction: what the compiler took for unreachable was reached. Return a "
        "value at the end of every function that has one"
    ),
    "Aborted": "the C library called abort(). Check what the kernel passes to it",
    "BelowStack": (
        "address {} is below the thread's stack of 128 KiB. Keep large arrays in shared or global "
        "memory, and recursion shallow"
    ),
    "NoMemory": (
        "address {} is no memory. Check indices and pointers, and that every array of a tile lives "
        "on"
    ),
    "CppException": (
        "the C++ library threw an exception, which device code cannot. Check indices and sizes "
        "instead"
    ),
    # --- copies
    "OfLoad": "a {} to {}: {}",
    "OfStore": "a {} from {}: {}",
    "LoadCreditsOtherCta": (
        "a TMA load writes into one CTA and credits an mbarrier of another; both lie in the same "
        "one"
    ),
    "LoadCreditsOtherPair": (
        "a TMA load of .cta_group::2 writes into one CTA and credits an mbarrier outside its pair, "
        "of the ranks 2 n and 2 n + 1; both lie in one pair. Pass the barrier's address in the "
        "CTA's pair: clear or set bit 24 of its own"
    ),
    "MulticastMask": "a multicast names the CTAs of mask {}; the cluster has {}",
    "PushOfOtherCta": (
        "a copy between shared memories reads another CTA's; it must read its own. Let the other "
        "one push"
    ),
    "SwizzledTilePlace": (
        "a tile with a swizzle of {} bytes lies at {}; it must lie at a multiple of {}, where the "
        "pattern begins. Declare it alignas({}) in shared memory"
    ),
    "CopyOverMbarrier": (
        "a {} of {} bytes to {} overwrites {}, which is in use. Give the tile as many bytes as its "
        "box has"
    ),
    "UnreadStores": (
        "the thread ends while TMA still reads its stores from shared memory, one of them from {}. "
        "{}"
    ),
    "AwaitStores": "Call wait_group_read<0>() first",
    "CommitStores": "Commit them with commit_group() and call wait_group_read<0>() first",
    "ThreadCopySize": "cp.async of {} bytes reads {}; it can read no more than it writes",
    "ThreadCopyPlace": (
        "cp.async of {} bytes from {} to shared address {}; both must be multiples of {}. Copy "
        "fewer bytes at once"
    ),
    "ThreadCopyOutside": (
        "a cp.async reads {} bytes at {}, which lies in none of the launch's arrays. Check "
        "indices, and copy what lies beyond an edge with cp_async_gs_zero_fill"
    ),
    "UnawaitedThreadCopies": (
        "the thread ends while copies that it issued with cp.async are in flight. Wait for them "
        "with cp_async_wait_all(), or let mbarrier_cp_async_arrive arrive on a barrier"
    ),
    "TooManyThreadCopies": (
        "{} waits for 1048575 arrivals, the most it can; cp.async.mbarrier.arrive adds one. Count "
        "the arrivals in init and use the noinc form"
    ),
    # --- tensor maps
    "MapRank": "the instruction is of {} dimensions, and its tensor map has {}",
    "MapOfOtherChip": (
        "the tensor map has a packed type, a swizzle of larger atoms or wide im2col, which exist "
        'on sm_100a and sm_103a. Make a tile without them, or pass arch="sm_100a" to Kernel'
    ),
    "RowsMap": (
        "gather4 and scatter4 take a tiled map of two dimensions whose box has one row, without "
        "interleave; this box has {} rows. Make the map with create_tma_tile_gather4()"
    ),
    "MapEditPlace": (
        "a tensor map is edited at {}; it must lie at a multiple of 128. Declare it alignas(128)"
    ),
    "MapInShared": (
        "the tensor map lies in shared memory, where TMA cannot read it. Copy it to global memory, "
        "with tensormap_cp_fence_release()"
    ),
    "MapInLocal": (
        "the tensor map lies in local memory, where TMA cannot read it: it is a copy in a "
        "variable, or an argument passed by value. Use the const __grid_constant__ parameter "
        "itself, by reference"
    ),
    "MapFieldRange": (
        "tensormap.replace sets {} to {}; it must be from {} to {}. Check what the kernel computes"
    ),
    "MapFieldGranule": (
        "tensormap.replace sets {} to {}; it must be a multiple of 16. Round the tensor's address "
        "or pitch to 16 bytes"
    ),
    "MapPlace": (
        "the tensor map lies at {}; it must lie at a multiple of 64. Pass it as a const "
        "__grid_constant__ parameter, or declare its memory alignas(64)"
    ),
    "NoMap": (
        "the 128 bytes are no tensor map of sm_90: {}. Pass the address of a map that the host "
        "encoded; a map in global memory that the kernel edits needs its fences"
    ),
    "ItsRank": "its rank is {}",
    "ItsInterleave": "its interleave is 3",
    "ItsType": "its element type is {}",
    "ItsBits": "bits are set that no map sets",
    "ItsPattern": "its swizzle repeats after {} bytes",
    "MapAddress": (
        "the map's address is {}; it must be a multiple of {}. Start the tensor at a multiple of it"
    ),
    "MapBox": (
        "the innermost side of the map's box takes {} bytes; it must be a multiple of 16. Widen "
        "the box to {} bytes"
    ),
    # --- the TMA engine
    "MapKind": "{} copy was given {} map. Use the instruction of the map's kind",
    "Tiled": "a tiled",
    "Im2col": "an im2col",
    "Im2colW": "an im2col::w",
    "Im2colW128": "an im2col::w::128",
    "SharedAlignment": (
        "the shared address is {}; it must be a multiple of {}. Align the buffer with alignas({})"
    ),
    "InnerCoordinate": (
        "the innermost coordinate is {}, or {} bytes of {}; it must be a multiple of 16 bytes. "
        "Step by multiples of {} elements"
    ),
    "NegativeCoordinate": (
        "a store or reduction starts at ({}), coordinate {} below 0; it must start inside the "
        "tensor or beyond its end. Shift the map's address, or skip the elements before it"
    ),
    "CopyOutside": (
        "a copy at ({}) {} {} bytes at {}, outside every array of the launch; the map starts at "
        "{}. Check its shape and strides, and that the array lives on"
    ),
    "LoadOutside": (
        "a load at ({}) has no element in bounds, so the chip touches the map's address {}, which "
        "lies in none of the launch's arrays. Load this box through a map at an address with "
        "memory, as RaggedTensorMap does, or skip it"
    ),
    "NoReduction": (
        "the chip has no reduction {} for {}. Reduce in the kernel and store, or use another type"
    ),
    "Im2colOffset": (
        "im2col offset {} is {}; at rank {} it must be below {}. Use a smaller filter or dilation"
    ),
    "Im2colInterleave": (
        "an im2col map is interleaved; which bytes the chip moves then is not established. Use "
        "Interleave.NONE"
    ),
    "WideOffset": "{} is {}; it must be 0 to {}. Use a smaller filter or dilation",
    "Halo": "wHalo",
    "WidthOffset": "wOffset",
    "LoadOnlyType": (
        "the map's type, 16U4_ALIGN16B, is for loads only. Store through a map of 16U4_ALIGN8B, "
        "whose tile has no gaps"
    ),
    "BulkAddress": (
        "a bulk copy's global address is {}; it must be a multiple of 16. Start the copy at one"
    ),
    "BulkOutside": (
        "a bulk copy {} {} bytes at {}, outside every array of the launch. Check its address and "
        "size"
    ),
    "BulkSize": (
        "{} moves {} bytes; it must be a multiple of 16. Round the size, and let the buffers be "
        "that long"
    ),
    # --- wgmma, setmaxnreg and signals
    "MmaOperandsDiffer": (
        "threads {} and {} of a warpgroup give wgmma.mma_async different operands; all 128 give "
        "the same descriptors, shape, types and scale"
    ),
    "UnsetAccumulators": (
        "wgmma adds to accumulators that nothing has written, register {} of {}. Pass accumulate = "
        "false to the first wgmma of a tile, or set them to zero"
    ),
    "MmaOfPartialWarpgroup": (
        "wgmma by a warpgroup of {} threads; it takes 128. Launch a multiple of 128 threads"
    ),
    "MmaWithoutFence": (
        "wgmma before any wgmma.fence: it may use registers that the thread is still writing. Call "
        "wgmma_fence() before the first wgmma, and after each change of the accumulators or of A's "
        "registers"
    ),
    "WarpsWaitForOtherGroups": "the warps of a warpgroup wait for different wgmma groups",
    "OperandSwizzle": (
        "{} reads {} at {} with {}, and the TMA load of {} wrote it with {}. Give the tensor "
        "map and the descriptor the same swizzle"
    ),
    "Swizzle": "a swizzle of {} bytes",
    "NoSwizzle": "no swizzle",
    "OperandPattern": (
        "{} reads {} at {}, and its swizzle begins at multiples of {} bytes. Declare the tile "
        "alignas({}), and start operands at whole groups of 8 rows"
    ),
    "UnawaitedMmas": (
        "the thread ends with {} wgmma instructions that it has not waited for. Call "
        "wgmma_wait_group<0>() first"
    ),
    "UncommittedMmas": (
        "the thread ends with {} wgmma instructions that it has not committed. Call "
        "wgmma_commit_group() after them, and wgmma_wait_group<0>() before the accumulators are "
        "read"
    ),
    "PartialWarpgroup": (
        "{} is executed by warp {} of a block of {} threads, which ends within its warpgroup. A "
        "warpgroup is four warps: launch a multiple of 128 threads"
    ),
    "MmaCallsDiffer": (
        "{} is executed {} times by thread {} of warp {} and {} times by thread {} of warp {}, "
        "which belong to one warpgroup. All 128 threads execute the instructions of wgmma together"
    ),
    "RegistersOfPart": (
        "{} was executed by {} of the warpgroup and not by {}. setmaxnreg is the whole "
        "warpgroup's: call it before its warps part"
    ),
    "RegistersDiffer": (
        "the warps of one warpgroup change their registers differently: {} by warp {}, {} by warp "
        "{}. All four warps execute the same"
    ),
    "RegisterDirection": (
        "{} by {}, whose threads have {} registers: a claim only raises that and a release only "
        "lowers it. Take the numbers of tmaasync.RegisterSplit"
    ),
    "RegisterShortage": "{} wait for ever in {}: {}. {}",
    "Claim": "claim_registers<{}> (setmaxnreg.inc)",
    "Release": "release_registers<{}> (setmaxnreg.dec)",
    "LaunchedWith": "the CTA was launched with {} registers ({} a thread by __launch_bounds__)",
    "Hold": "{} hold {}",
    "AreFree": "and of the {} more that this takes {} are free",
    "NothingReleased": (
        "Nothing was released by {}: let all warps of every producer warpgroup call "
        "release_registers<N>() before they load, with the N of tmaasync.RegisterSplit"
    ),
    "ClaimLess": (
        "Claim at most {}, or let the producers keep less: tmaasync.RegisterSplit computes both"
    ),
    "EpochNotIncreased": (
        "Signals::post: epoch {} for signal {} of rank {}, which has epoch {} already. Epochs only "
        "increase: post larger ones. Several threads or ranks that post to one signal use "
        "post_reduce()"
    ),
    "PostedDifferently": (
        "Signals::{}: signal {} of rank {} was changed by {} before. post() sets a signal and "
        "overwrites what post_reduce() adds: use one of them for all changes of a signal"
    ),
    **TENSOR_SENTENCES,
    # --- the end of a CTA
    "EndsInPush": (
        "the CTA ends while TMA still copies its {} to another CTA. Let the receiver signal that "
        "the bytes have landed: cluster_sync() at the end, after its wait"
    ),
    "EndsInThreadCopies": (
        "the CTA ends while copies of cp.async are in flight that arrive on {}. Wait on it before "
        "the end"
    ),
    "EndsInFlight": "the CTA ends while a {} to {}{} is in flight. Wait on {} before the end{}",
    "EndsAfterEarlyPhase": "the CTA ends while a {} to {}{} is in flight: {}",
    "EndsWithBytes": (
        "the CTA ends while {} {}. Expect as many bytes per phase as its copies deliver"
    ),
    "StillExpects": "still expects {} bytes",
    "HasMore": "has {} bytes more than it expects",
    "UnawaitedLoad": (
        "the CTA ends, and no thread has waited for phase {} of {}, in which a TMA load{} landed. "
        "Wait for every load, or do not issue it"
    ),
    "EndsBeforePeer": (
        "CTA {} of the cluster has ended, and nothing kept it from doing so before {}. Let no CTA "
        "leave before its peers are done: cluster_sync() at the end of the kernel"
    ),
    "PeerCopied": "TMA had copied its shared memory to another CTA",
    "PeerReached": "CTA {} had reached into its shared memory",
    **HEADER_SENTENCES,
}
