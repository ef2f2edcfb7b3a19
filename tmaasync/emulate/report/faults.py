"""The sentences of faults, by their kind."""

from __future__ import annotations

from tmaasync.emulate.abi import FaultKind

__all__ = ["SENTENCES"]

SENTENCES = {
    FaultKind.GRID_IS_NOT_COOPERATIVE: (
        "a barrier of the grid in a launch that is not cooperative: its blocks need not be "
        "resident at once. Launch the kernel with cooperative=True"
    ),
    FaultKind.CLUSTER_ARRIVAL_TWICE: (
        "barrier.cluster.arrive twice without barrier.cluster.wait between them"
    ),
    FaultKind.MBARRIER_PLACE: "an mbarrier lies at {}; it must be a multiple of 8",
    FaultKind.MBARRIER_COUNT: "mbarrier.init counts {} arrivals; 1 to 1048575 are possible",
    FaultKind.OLD_STATE_TOKEN: (
        "a state token of phase {} is tested in phase {}; it is good in its own phase and the "
        "next. Test it earlier"
    ),
    FaultKind.WARP_APART_AT_BARRIER: (
        "threads of warp {} wait at the __syncthreads() of line {} and others at the one of line "
        "{}. All threads of a warp must reach the same one: move it out of the branch"
    ),
    FaultKind.NAMED_BARRIER_SHAPE: (
        "barrier {} of {} threads; barriers are 0 to 15 and take whole warps"
    ),
    FaultKind.NAMED_BARRIER_THREADS: "barrier {} is used for {} and for {} threads at once",
    FaultKind.LOAD_CREDITS_OTHER_CTA: (
        "a TMA load writes into one CTA and credits an mbarrier of another; both lie in the same "
        "one"
    ),
    FaultKind.MULTICAST_MASK: "a multicast names the CTAs of mask {}; the cluster has {}",
    FaultKind.PUSH_OF_OTHER_CTA: (
        "a copy between shared memories reads another CTA's; it must read its own. Let the other "
        "one push"
    ),
    FaultKind.MAP_EDIT_PLACE: (
        "a tensor map is edited at {}; it must lie at a multiple of 128. Declare it alignas(128)"
    ),
    FaultKind.SWIZZLED_TILE_PLACE: (
        "a tile with a swizzle of {} bytes lies at {}; it must lie at a multiple of {}, where the "
        "pattern begins. Declare it alignas({}) in shared memory"
    ),
    FaultKind.MAP_RANK: "the instruction is of {} dimensions, and its tensor map has {}",
    FaultKind.THREAD_COPY_OUTSIDE: (
        "a cp.async reads {} bytes at {}, which lies in none of the launch's arrays. Check "
        "indices, and copy what lies beyond an edge with cp_async_gs_zero_fill"
    ),
    FaultKind.UNAWAITED_THREAD_COPIES: (
        "the thread ends while copies that it issued with cp.async are in flight. Wait for them "
        "with cp_async_wait_all(), or let mbarrier_cp_async_arrive arrive on a barrier"
    ),
    FaultKind.CPP_EXCEPTION: (
        "the C++ library threw an exception, which device code cannot. Check indices and sizes "
        "instead"
    ),
    FaultKind.NO_SUCH_CTA: "a shared address names CTA {} of a cluster of {}",
    FaultKind.CTA_HAS_ENDED: (
        "CTA {} of the cluster has ended, and this thread still reaches into its shared memory. "
        "Let no CTA leave before its peers are done: cluster_sync() at the end of the kernel"
    ),
    FaultKind.FREE_OF_NO_BLOCK: (
        "free() or delete of {}, which malloc() and new did not return, or which is free already. "
        "Free each block once"
    ),
    FaultKind.AHEAD_OF_PREVIOUS_GRIDS: (
        "an access to {}, in an array that the kernel before wrote, ahead of "
        "wait_for_previous_grids(): with pdl=True this grid may run before that one has ended. "
        "Call it first, in every thread or in one that the others then meet"
    ),
    FaultKind.STACK_OVERFLOW: (
        "a write beyond the end of the thread's stack. Check the indices of local arrays"
    ),
    FaultKind.CHANGED_READ_ONLY_LOAD: (
        "a read of {} bytes at {} with __ldg() or ld.global.nc, which this launch has written: it "
        "may return an older value. Read them without __ldg() and .nc"
    ),
    FaultKind.EPOCH_NOT_INCREASED: (
        "Signals::post: epoch {} for signal {} of rank {}, which has epoch {} already. Epochs "
        "only increase: post larger ones. Several threads or ranks that post to one signal use "
        "post_reduce()"
    ),
    FaultKind.MMA_OPERANDS_DIFFER: (
        "threads {} and {} of a warpgroup give wgmma.mma_async different operands; all 128 give "
        "the same descriptors, shape, types and scale"
    ),
    FaultKind.UNSET_ACCUMULATORS: (
        "wgmma adds to accumulators that nothing has written, register {} of {}. Pass accumulate "
        "= false to the first wgmma of a tile, or set them to zero"
    ),
    FaultKind.MMA_OF_PARTIAL_WARPGROUP: (
        "wgmma by a warpgroup of {} threads; it takes 128. Launch a multiple of 128 threads"
    ),
    FaultKind.MMA_WITHOUT_FENCE: (
        "wgmma before any wgmma.fence: it may use registers that the thread is still writing. "
        "Call wgmma_fence() before the first wgmma, and after each change of the accumulators or "
        "of A's registers"
    ),
    FaultKind.WARPS_WAIT_FOR_OTHER_GROUPS: (
        "the warps of a warpgroup wait for different wgmma groups"
    ),
    FaultKind.MBARRIER_IS_AWAITED: (
        "{} is invalidated while {} threads wait on it. Let all of them meet after their last wait"
    ),
    FaultKind.ARRIVAL_COMPLETES: (
        "an arrival with .noComplete completes phase {} of {}, which is undefined. Leave out "
        ".noComplete"
    ),
    FaultKind.NO_ARRIVALS: (
        "{} gets 0 arrivals in phase {}; one instruction arrives 1 to 1048575 times. Arrive, or "
        "leave it out"
    ),
    FaultKind.MISSED_PHASE: (
        "{} completed phase {} while this thread was still waiting for phase {}, which its parity "
        "does not distinguish any more. Let whoever completes a phase wait for every reader of "
        "the one before, on an empty barrier say"
    ),
    FaultKind.TOO_MANY_THREAD_COPIES: (
        "{} waits for 1048575 arrivals, the most it can; cp.async.mbarrier.arrive adds one. Count "
        "the arrivals in init and use the noinc form"
    ),
    FaultKind.BEYOND_SHARED: (
        "{} of {} bytes at {}, beyond the shared memory of the CTA, which has {} bytes. Check "
        "indices, or ask for more with {} or shared_mem"
    ),
    FaultKind.BEYOND_ARRAYS: (
        "{} of {} bytes at {}, which lies in none of the launch's arrays. Check indices, and that "
        "the grid does not go beyond the end"
    ),
    FaultKind.MISALIGNED: (
        "{} of {} bytes at {}, a misaligned address: it must be a multiple of the size. Use "
        "narrower accesses, or align the data"
    ),
}
"""With a place for each of the fault's mentions, in their order."""
