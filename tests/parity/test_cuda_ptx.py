"""cuda::ptx over a cluster, edits of tensor maps, and the pipelines of cuda::pipeline."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, TMAError, create_tma_tile
from tmaasync.emulate import scheduled

EXCHANGE = """
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

constexpr int kInts = 8 * 32;
constexpr uint32_t kBytes = kInts * sizeof(int);

// One block loads for both; each adds its tile to a total, and sends it to the other block.
extern "C" __global__ void exchange(const __grid_constant__ CUtensorMap map, int* total, int* out) {
    __shared__ alignas(128) int tile[kInts], sent[kInts];
    __shared__ uint64_t loaded, received, done;
    const auto cluster = cg::this_cluster();
    const uint32_t rank = ptx::get_sreg_cluster_ctarank(), other = rank ^ 1;

    if (threadIdx.x == 0) {
        ptx::mbarrier_init(&loaded, 1);
        ptx::mbarrier_init(&received, 1);
        ptx::mbarrier_init(&done, 2);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    ptx::barrier_cluster_arrive(ptx::sem_release);
    ptx::barrier_cluster_wait(ptx::sem_acquire);

    if (threadIdx.x == 0) {
        for (uint64_t* barrier : {&loaded, &received}) {
            ptx::mbarrier_arrive_expect_tx(
                ptx::sem_release, ptx::scope_cta, ptx::space_shared, barrier, kBytes
            );
        }
        if (rank == 0) {
            const int32_t at[2] = {32, 8};
            ptx::cp_async_bulk_tensor(
                ptx::space_cluster, ptx::space_global, tile, &map, at, &loaded, uint16_t(3)
            );
        }
    }
    while (!ptx::mbarrier_try_wait_parity(&loaded, 0)) {}

    for (int i = threadIdx.x; i < kInts; i += blockDim.x) tile[i] += rank;
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();

    if (threadIdx.x == 0) {
        ptx::cp_reduce_async_bulk(
            ptx::space_global, ptx::space_shared, ptx::op_add, total, tile, kBytes
        );
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk(
            ptx::space_cluster, ptx::space_shared, cluster.map_shared_rank(sent, other), tile,
            kBytes, cluster.map_shared_rank(&received, other)
        );
        ptx::cp_async_bulk_wait_group(ptx::n32_t<0>());
        ptx::mbarrier_arrive(
            ptx::sem_release, ptx::scope_cluster, ptx::space_cluster,
            cluster.map_shared_rank(&done, 0)
        );
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &received, 0)) {}
    for (int i = threadIdx.x; i < kInts; i += blockDim.x) out[rank * kInts + i] = sent[i];
    if (rank == 0) {
        while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &done, 0)) {}
    }
    cluster.sync();
}
"""


def test_a_multicast_a_reduction_and_a_copy_between_blocks(backend: Any) -> None:
    host = np.random.default_rng(0).integers(-99, 99, (32, 64), np.int32)
    total = backend.array(np.full((8, 32), 5, np.int32))
    out = backend.array(np.zeros((2, 8, 32), np.int32))
    tile = create_tma_tile(backend.array(host), (8, 32))

    with scheduled(races=True):
        Kernel(EXCHANGE, "exchange")(2, 64, (tile, total, out), cluster=2)

    box = host[8:16, 32:]
    np.testing.assert_array_equal(backend.host(out), [box + 1, box])
    np.testing.assert_array_equal(backend.host(total), 2 * box + 6)


EDITED = """
#include <cuda.h>
#include <cuda/ptx>
namespace ptx = cuda::ptx;

// Loads from another array, with fewer rows, than the map that it is given.
extern "C" __global__ void edited(
    const __grid_constant__ CUtensorMap given, uint64_t* memory, const int* other, int* out
) {
    __shared__ alignas(128) CUtensorMap map;
    __shared__ alignas(128) int tile[8 * 32];
    __shared__ uint64_t bar;
    void* const kept = reinterpret_cast<void*>(reinterpret_cast<uint64_t>(memory) + 127 & ~127ull);

    if (threadIdx.x == 0) {
        map = given;
        ptx::tensormap_replace_global_address(ptx::space_shared, &map, other);
        ptx::tensormap_replace_global_dim(ptx::space_shared, &map, ptx::n32_t<1>(), 5u);
        ptx::mbarrier_init(&bar, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
    }
    __syncwarp();
    ptx::tensormap_cp_fenceproxy(
        ptx::sem_release, ptx::scope_gpu, kept, &map, ptx::n32_t<128>()
    );
    __syncwarp();
    if (threadIdx.x == 0) {
        ptx::fence_proxy_tensormap_generic(
            ptx::sem_acquire, ptx::scope_gpu, kept, ptx::n32_t<128>()
        );
        const auto state = ptx::mbarrier_arrive_expect_tx(
            ptx::sem_release, ptx::scope_cta, ptx::space_shared, &bar, sizeof(tile)
        );
        const int32_t at[2] = {0, 0};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, kept, at, &bar);
        while (!ptx::mbarrier_try_wait(&bar, state)) {}
    }
    __syncwarp();
    for (int i = threadIdx.x; i < 8 * 32; i += 32) out[i] = tile[i];
}
"""


def test_an_edited_map(backend: Any) -> None:
    first, host = np.random.default_rng(1).integers(1, 99, (2, 16, 32), np.int32)
    arrays = [
        backend.array(array)
        for array in (np.zeros(32, np.uint64), host, np.zeros((8, 32), np.int32))
    ]
    tile = create_tma_tile(backend.array(first), (8, 32))

    with scheduled(races=True):
        Kernel(EDITED, "edited")(1, 32, (tile, *arrays))

    out = backend.host(arrays[2])
    np.testing.assert_array_equal(out[:5], host[:5])
    assert not out[5:].any()


PIPELINES = """
#include <cooperative_groups.h>
#include <cuda/barrier>
#include <cuda/pipeline>
namespace cg = cooperative_groups;

struct CountPhases {
    int* phases;
    __device__ void operator()() { ++*phases; }
};

extern "C" __global__ void pipelines(const int* in, int* out, int batches, int* phases) {
    __shared__ alignas(16) int stage[2][64];
    __shared__ alignas(16) int own[2][4 * 64];
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    const auto block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);

    // A warp produces, the other consumes.
    const bool produces = warp.meta_group_rank() == 0;
    {
        auto pipe = cuda::make_pipeline(
            block, &state,
            produces ? cuda::pipeline_role::producer : cuda::pipeline_role::consumer
        );
        for (int batch = 0; batch < batches; ++batch) {
            int* const values = stage[batch % 2];
            if (produces) {
                pipe.producer_acquire();
                const cuda::aligned_size_t<16> bytes(sizeof(stage[0]));
                cuda::memcpy_async(warp, values, in + 64 * batch, bytes, pipe);
                pipe.producer_commit();
            } else {
                pipe.consumer_wait();
                const int rank = warp.thread_rank();
                out[32 * batch + rank] = values[rank] + values[63 - rank];
                pipe.consumer_release();
            }
        }
    }

    // Each thread has a pipeline of its own.
    auto mine = cuda::make_pipeline();
    for (int half = 0; half < 2; ++half) {
        mine.producer_acquire();
        const int4* const from = reinterpret_cast<const int4*>(in) + threadIdx.x * (1 - half);
        int4* const to = reinterpret_cast<int4*>(own[half]) + threadIdx.x;
        cuda::memcpy_async(to, from, sizeof(int4), mine);
        mine.producer_commit();
    }
    cuda::pipeline_consumer_wait_prior<1>(mine);
    int sum = own[0][4 * threadIdx.x];
    mine.consumer_release();
    mine.consumer_wait();
    sum += own[1][4 * threadIdx.x + 3];
    mine.consumer_release();
    out[32 * batches + threadIdx.x] = sum;

    // Copies that arrive on a barrier: by the block, and by each thread.
    __shared__ alignas(16) int whole[64], turned[64];
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    if (threadIdx.x == 0) init(&bar, 64);
    block.sync();
    cuda::memcpy_async(block, whole, in, cuda::aligned_size_t<16>(sizeof(whole)), bar);
    cuda::memcpy_async(&turned[63 - threadIdx.x], in + threadIdx.x, sizeof(int), bar);
    bar.arrive_and_wait();
    out[32 * batches + 64 + threadIdx.x] = whole[threadIdx.x] - 2 * turned[threadIdx.x];

    // A barrier that calls a function at the end of each phase.
    using Counting = cuda::barrier<cuda::thread_scope_block, CountPhases>;
    __shared__ alignas(Counting) unsigned char memory[sizeof(Counting)];
    auto* const counting = reinterpret_cast<Counting*>(memory);
    if (threadIdx.x == 0) init(counting, 64, CountPhases{phases});
    block.sync();
    for (int phase = 0; phase < 3; ++phase) counting->arrive_and_wait();
    if (threadIdx.x == 63) phases[1] = phases[0];
}
"""


def test_pipelines_and_a_completion_function(backend: Any) -> None:
    host = np.random.default_rng(2).integers(-99, 99, (5, 64), np.int32)
    out = backend.array(np.zeros(5 * 32 + 128, np.int32))
    phases = backend.array(np.zeros(2, np.int32))

    with scheduled(races=True):
        Kernel(PIPELINES, "pipelines")(1, 64, (backend.array(host), out, 5, phases))

    result = backend.host(out)
    np.testing.assert_array_equal(
        result[:160].reshape(5, 32), host[:, :32] + host[:, :31:-1], strict=True
    )
    np.testing.assert_array_equal(result[224:], host[0] - 2 * host[0, ::-1])
    np.testing.assert_array_equal(result[160:224], host.ravel()[:256:4] + host[0, 3])
    assert backend.host(phases).tolist() == [3, 3]


SENT = """
#include <cooperative_groups.h>
#include <cuda/ptx>
namespace cg = cooperative_groups;
namespace ptx = cuda::ptx;

// Each block stores to the other and adds to what that has counted, which waits for the bytes.
extern "C" __global__ void sent(int* out) {
    __shared__ alignas(16) unsigned words[8];
    __shared__ unsigned long long long_word, count;
    __shared__ uint64_t arrived;
    const auto cluster = cg::this_cluster();
    const unsigned rank = ptx::get_sreg_cluster_ctarank(), other = rank ^ 1;

    if (threadIdx.x == 0) {
        words[4] = 100 + rank;
        words[5] = 7;
        count = 1ull << 33;
        ptx::mbarrier_init(&arrived, 1);
        ptx::fence_mbarrier_init(ptx::sem_release, ptx::scope_cluster);
        ptx::mbarrier_arrive_expect_tx(
            ptx::sem_release, ptx::scope_cta, ptx::space_shared, &arrived,
            4 * 4 + 8 + 2 * 4 + 8 + 4
        );
    }
    cluster.sync();
    if (threadIdx.x == 0) {
        unsigned* const to = cluster.map_shared_rank(words, other);
        uint64_t* const barrier = cluster.map_shared_rank(&arrived, other);
        const unsigned four[4] = {rank, rank + 1, rank + 2, rank + 3};
        ptx::st_async(to, four, barrier);
        ptx::st_async(cluster.map_shared_rank(&long_word, other), 5ull << 40, barrier);
        ptx::red_async(ptx::op_add, to + 4, 20u, barrier);
        ptx::red_async(ptx::op_max, to + 5, 9u + rank, barrier);
        ptx::red_async(ptx::op_add, cluster.map_shared_rank(&count, other), 3ull, barrier);
        ptx::st_async(to + 6, 55 + rank, barrier);
    }
    while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &arrived, 0)) {}
    if (threadIdx.x < 7) out[rank * 16 + threadIdx.x] = words[threadIdx.x];
    if (threadIdx.x == 7) out[rank * 16 + 7] = long_word >> 40;
    if (threadIdx.x == 8) out[rank * 16 + 8] = count - (1ull << 33);
    cluster.sync();
}
"""
NO_WAIT = (
    "while (!ptx::mbarrier_try_wait_parity(ptx::sem_acquire, ptx::scope_cluster, &arrived, 0)) {}"
)


def test_st_async_and_red_async_reach_the_other_block(backend: Any) -> None:
    out = backend.array(np.zeros((2, 16), np.int32))

    with scheduled(races=True):
        Kernel(SENT, "sent")(2, 32, (out,), cluster=2)

    expected = np.array(
        [[*range(other, other + 4), 121 - other, 9 + other, 55 + other, 5, 3] for other in (1, 0)]
    )
    np.testing.assert_array_equal(backend.host(out)[:, :9], expected)


def test_what_st_async_stores_is_there_after_a_wait_only() -> None:
    assert NO_WAIT in SENT
    with scheduled(races=True), pytest.raises(TMAError, match=r"a race on words\[4\]"):
        Kernel(SENT.replace(NO_WAIT, ""), "sent")(2, 32, (np.zeros(32, np.int32),), cluster=2)


def test_st_async_publishes_nothing_that_its_thread_stored_before() -> None:
    source = SENT.replace(
        "ptx::st_async(to, four, barrier);", "to[7] = 1;\n ptx::st_async(to, four, barrier);"
    )
    source = source.replace("threadIdx.x < 7", "threadIdx.x < 8")
    with scheduled(races=True), pytest.raises(TMAError, match=r"a race on words\[7\]"):
        Kernel(source, "sent")(2, 32, (np.zeros(32, np.int32),), cluster=2)


BITS = """
#include <cuda/ptx>
namespace ptx = cuda::ptx;

extern "C" __global__ void bits(
    const unsigned* in, unsigned* out, const uint4* wide, uint4* copied
) {
    const unsigned lane = ptx::get_sreg_laneid(), a = in[lane], b = in[lane ^ 1];
    int row = 0;
    const auto put = [&](unsigned word) { out[32 * row++ + lane] = word; };
    put(ptx::bfind(a));
    put(ptx::bfind(int64_t(a) - 0x80000000));
    put(ptx::bfind_shiftamt(uint64_t(a)));
    put(ptx::bmsk_clamp(lane, b & 63));
    put(ptx::bmsk_wrap(lane + 40, b));
    put(ptx::shl(a, lane));
    put(ptx::shr(int(a), lane + 16));
    put(ptx::shr(short(a), 3u));
    put(ptx::shr(a, 33u));
    put(ptx::prmt(a, b, lane * 0x1357));
    put(ptx::prmt_f4e(a, b, lane));
    put(ptx::prmt_b4e(a, b, lane));
    put(ptx::prmt_rc8(a, b, lane));
    put(ptx::prmt_ecl(a, b, lane));
    put(ptx::prmt_ecr(a, b, lane));
    put(ptx::prmt_rc16(a, b, lane));
    bool is_inside;
    put(ptx::shfl_sync_down(a, is_inside, 3u, 31u, 0xffffffff) + is_inside);
    put(ptx::shfl_sync_bfly(a, 5u, 31u, 0xffffffff));
    put(ptx::shfl_sync_idx(int(a), 3u, 0x181fu, ~0u));
    put(ptx::ld_nc_L1_no_allocate_L2_128B(ptx::space_global, in + lane));
    copied[lane] = ptx::ld_L1_evict_last(ptx::space_global, wide + lane);
    ptx::st_L1_no_allocate(ptx::space_global, out + 32 * row++ + lane, a);
    put(ptx::get_sreg_nwarpid() + ptx::get_sreg_lanemask_lt());
    put(ptx::get_sreg_smid() < ptx::get_sreg_nsmid());
    if (lane == 5) ptx::exit();
    put(lane);
}
"""


def picked(both: int, digits: list[int]) -> int:
    return sum((both >> 8 * digit & 255) << 8 * i for i, digit in enumerate(digits))


def bits_of(a: Any, lane: int, word: int) -> list[int]:
    """Return what a lane puts."""
    b = int(a[lane ^ 1])
    shifted = word - 2**31
    both = b << 32 | word
    pick = functools.partial(picked, both)
    first, selector = lane & 3, lane * 0x1357
    digits = [selector >> 4 * i & 15 for i in range(4)]
    signs = [
        (both >> 8 * (d & 7) & 255) if d < 8 else 255 * (both >> 8 * (d & 7) + 7 & 1)
        for d in digits
    ]
    short = (word & 0xFFFF ^ 0x8000) - 0x8000
    whole = (word ^ 2**31) - 2**31
    return [
        word.bit_length() - 1,
        (shifted if shifted >= 0 else ~shifted).bit_length() - 1,
        64 - word.bit_length() if word else -1,
        (1 << min(lane + min(b & 63, 32), 32)) - (1 << lane) if b & 63 else 0,
        (1 << min((lane + 40) % 32 + b % 32, 32)) - (1 << (lane + 40) % 32),
        word << lane, whole >> min(lane + 16, 31), short >> 3, 0,
        sum(byte << 8 * i for i, byte in enumerate(signs)),
        pick([first + i & 7 for i in range(4)]), pick([first - i & 7 for i in range(4)]),
        pick([first] * 4), pick([max(i, first) for i in range(4)]),
        pick([min(i, first) for i in range(4)]),
        pick([first % 2 * 2 + i % 2 for i in range(4)]),
        int(a[lane + 3]) + 1 if lane < 29 else word,
        int(a[lane ^ 5]), int(a[lane // 8 * 8 + 3]),
        word, word, 64 + (1 << lane) - 1, 1, 0 if lane == 5 else lane,
    ]  # fmt: skip


@pytest.mark.chips("sm_90a", "sm_100a")  # on which an SM has 64 warps
def test_bits_shuffles_and_loads_with_hints(backend: Any) -> None:
    rng = np.random.default_rng(12)
    a = rng.integers(0, 2**32, 32, np.uint32)
    a[:4] = 0, 2**32 - 1, 2**31, 1
    wide = rng.integers(0, 2**32, (32, 4), np.uint32)
    out = backend.array(np.zeros((24, 32), np.uint32))
    copied = backend.array(np.zeros_like(wide))
    arguments = (backend.array(a), out, backend.array(wide), copied)

    Kernel(BITS, "bits")(1, 32, arguments)

    rows = [bits_of(a, lane, word) for lane, word in enumerate(a.tolist())]
    expected = (np.array(rows, object) & 0xFFFFFFFF).astype(np.uint32).T
    for row, (got, wanted) in enumerate(zip(backend.host(out), expected, strict=True)):
        np.testing.assert_array_equal(got, wanted, err_msg=str(row))
    np.testing.assert_array_equal(backend.host(copied), wide)
