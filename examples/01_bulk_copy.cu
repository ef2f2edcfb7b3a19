// New here: a bulk copy (cp.async.bulk). One instruction moves contiguous bytes between
// global and shared memory while the thread that issued it goes on; an mbarrier counts
// the bytes that land.
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// Block i copies piece i. One thread is enough: the hardware copies.
extern "C" __global__ void bulk_copy(
    const __grid_constant__ Piece source, const __grid_constant__ Piece target
) {
    __shared__ Piece::Shared piece;
    __shared__ SharedMemBarrier full;
    const long long start = static_cast<long long>(blockIdx.x) * Piece::kBytes;

    full.init(1);  // one arrival ends a phase
    fence_barrier_init();

    full.expect_bytes(source.bytes_at(start));  // the arrival; the last piece is shorter
    source.async_copy(piece, full, start);
    full.wait(0);  // phase 0 completes with the arrival and the last byte

    target.async_store(piece, start);
    commit_group();
    wait_group_read<0>();  // shared memory must stay alive until the store has read it
}
