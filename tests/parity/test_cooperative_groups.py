"""Cooperative groups: ranks, shuffles, votes, partitions, reductions, scans on both back ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate

from tmaasync import EmulatedFault, EmulatedRace, Kernel
from tmaasync.emulate import scheduled

LANES = """
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;

struct Pair { double first; int second; };

__device__ int summed(const cg::thread_group& group, int* scratch, int value) {
    for (int half = group.size() / 2; half > 0; half /= 2) {
        scratch[group.thread_rank()] = value;
        group.sync();
        if (group.thread_rank() < half) value += scratch[group.thread_rank() + half];
        group.sync();
    }
    return value;
}

extern "C" __global__ void lanes(const int* in, int* out, double* firsts, int* totals, int waits) {
    __shared__ int values[64], scratch[64];
    const auto block = cg::this_thread_block();
    cg::memcpy_async(block, values, in, sizeof(int) * block.size());
    if (waits) cg::wait(block); else cg::wait_prior<1>(block);
    const int rank = block.thread_rank();
    const int value = values[rank ^ 1];

    int* next = out + rank;
    const auto put = [&](int result) { *next = result; next += 64; };

    const auto tile = cg::tiled_partition<8>(block);
    put(tile.shfl(value, 3));
    put(tile.shfl_up(value, 2));
    put(tile.shfl_down(value, 2));
    put(tile.shfl_xor(value, 5));
    put(tile.ballot(value > 0));
    put(tile.any(value > 90) + 2 * tile.all(value > -90));
    put(tile.match_any(value & 1));
    put(tile.meta_group_rank() + 100 * tile.meta_group_size());
    put(cg::reduce(tile, value, cg::less<int>()));
    put(cg::reduce(tile, value, cg::bit_xor<int>()));
    put(cg::inclusive_scan(tile, value));
    put(cg::exclusive_scan(tile, value, cg::plus<int>()));
    const Pair pair = tile.shfl(Pair{value * 0.5, value}, 7);
    firsts[rank] = pair.first + pair.second;

    const auto pairs = cg::tiled_partition<2>(tile);
    put(pairs.shfl(value, 0) + 1000 * pairs.meta_group_rank());

    const auto warp = cg::tiled_partition<32>(block);
    const auto parity = cg::binary_partition(warp, value & 1);
    put(cg::reduce(parity, value, cg::plus<int>()));
    put(parity.thread_rank() + 100 * parity.size());
    const auto equal = cg::labeled_partition(warp, rank % 3);
    put(equal.shfl(rank, 0) + 100 * equal.meta_group_size());
    put(cg::inclusive_scan(equal, value));
    put(equal.ballot(equal.thread_rank() == 1));

    put(summed(cg::tiled_partition(block, 16), scratch + rank / 16 * 16, value));
    block.sync();
    put(summed(block, scratch, value));

    cg::invoke_one(warp, [&] { totals[1 + rank / 32] = rank; });
    put(cg::invoke_one_broadcast(warp, [&] { return rank + 7; }));
    cuda::atomic_ref<int, cuda::thread_scope_device> total(totals[0]);
    cg::reduce_update_async(warp, total, value, cg::plus<int>());
}
"""


@functools.cache
def _kernel() -> Kernel:
    return Kernel(LANES, "lanes")


def _lanes(backend: Any, *, waits: bool) -> tuple[Any, Any, Any, Any]:
    host = np.random.default_rng(3).integers(-99, 99, 64, np.int32)
    out = backend.array(np.full((21, 64), -12345, np.int32))
    firsts = backend.array(np.zeros(64))
    totals = backend.array(np.zeros(3, np.int32))
    _kernel()(1, 64, (backend.array(host), out, firsts, totals, waits))
    return host, backend.host(out), backend.host(firsts), backend.host(totals)


def _expected(host: Any) -> list[Any]:
    ranks = np.arange(64)
    value = host[ranks ^ 1]
    eights, warps = value.reshape(8, 8), value.reshape(2, 32)
    own = ranks % 8

    def spread(of_tile: Any) -> Any:
        return np.repeat(of_tile, 8)

    def of_peers(key: Any, result: Any) -> Any:
        """Of each thread, the result for the values of its warp with the same key, and its rank."""
        whole = np.empty(64, np.int64)
        for warp in range(2):
            for label in np.unique(key):
                chosen = np.flatnonzero((key == label) & (ranks // 32 == warp))
                for rank, thread in enumerate(chosen):
                    whole[thread] = result(chosen, rank)
        return whole

    bits = 1 << np.arange(8)
    odd = value & 1
    return [
        spread(eights[:, 3]),
        np.where(own < 2, value, np.roll(value, 2)),
        np.where(own > 5, value, np.roll(value, -2)),
        value[ranks ^ 5],
        spread(((eights > 0) * bits).sum(1)),
        spread((eights > 90).any(1) + 2 * (eights > -90).all(1)),
        np.array([((eights[t // 8] & 1) == odd[t]) @ bits for t in ranks]),
        ranks // 8 + 800,
        spread(eights.min(1)),
        spread(np.bitwise_xor.reduce(eights, 1)),
        eights.cumsum(1).ravel(),
        (eights.cumsum(1) - eights).ravel(),
        value[ranks & ~1] + 1000 * (own // 2),
        of_peers(odd, lambda chosen, _: value[chosen].sum()),
        of_peers(odd, lambda chosen, rank: rank + 100 * len(chosen)),
        of_peers(ranks % 3, lambda chosen, _: chosen[0] + 300),
        of_peers(ranks % 3, lambda chosen, rank: value[chosen][: rank + 1].sum()),
        np.full(64, 2),
        value.reshape(4, 16).sum(1),
        np.array([value.sum()]),
        np.repeat([7, 39], 32),
        warps.sum(),
    ]


def test_lanes_of_tiles_and_partitions(backend: Any) -> None:
    with scheduled(races=True):
        host, out, firsts, totals = _lanes(backend, waits=True)

    *expected, sixteens, whole, ones, total = _expected(host)
    for number, (row, wanted) in enumerate(zip(out, expected, strict=False)):
        np.testing.assert_array_equal(row, wanted, err_msg=str(number))
    assert out[18, ::16].tolist() == sixteens.tolist()  # the first thread of each group has it
    assert out[19, 0] == whole[0]
    np.testing.assert_array_equal(out[20], ones)
    np.testing.assert_array_equal(firsts, np.repeat(1.5 * host[np.arange(64) ^ 1][7::8], 8))
    assert totals.tolist() == [total, 0, 32]


@pytest.mark.sampled(1)
def test_a_wait_that_leaves_the_copy_pending_is_no_wait() -> None:
    with scheduled(races=True), pytest.raises(EmulatedFault, match=r"cp\.async to these bytes"):
        _lanes(Emulate(), waits=False)


GRIDS = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

extern "C" __global__ void grids(int* out) {
    __shared__ int mine;
    const auto cluster = cg::this_cluster();
    const auto grid = cg::this_grid();
    const auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) mine = grid.block_rank();
    cluster.sync();
    const int next = (cluster.block_rank() + 1) % cluster.num_blocks();
    const int theirs = *cluster.map_shared_rank(&mine, next);
    auto token = cluster.barrier_arrive();
    int* row = out + grid.thread_rank() * 12;
    row[0] = theirs;
    row[1] = cluster.query_shared_rank(cluster.map_shared_rank(&mine, next));
    row[2] = cluster.thread_rank();
    row[3] = cluster.num_threads();
    row[4] = cluster.block_index().x + 10 * cluster.block_index().y;
    row[5] = cluster.dim_blocks().x + 10 * cluster.dim_blocks().y;
    row[6] = grid.cluster_rank();
    row[7] = grid.num_clusters();
    row[8] = grid.size();
    row[9] = block.group_index().x + 10 * block.group_index().y;
    row[10] = block.thread_index().x + 100 * block.thread_index().y;
    row[11] = grid.thread_index().x + 1000 * grid.thread_index().y;
    cluster.barrier_wait(cuda_move(token));
}
""".replace("cuda_move", "static_cast<cg::cluster_group::arrival_token&&>")


def test_ranks_in_clusters_and_grids(backend: Any) -> None:
    out = backend.array(np.full((8 * 32, 12), -1, np.int32))

    with scheduled(races=True):
        Kernel(GRIDS, "grids")((4, 2), (16, 2), (out,), cluster=(2, 2))

    rows = backend.host(out)
    block, thread = np.divmod(np.arange(8 * 32), 32)
    y, x = np.divmod(block, 4)
    rank = x % 2 + 2 * (y % 2)
    after = (rank + 1) % 4
    expected = [
        (x // 2 * 2 + after % 2) + 4 * (y // 2 * 2 + after // 2),
        after,
        rank * 32 + thread,
        np.full_like(rank, 128),
        x % 2 + 10 * (y % 2),
        np.full_like(rank, 22),
        x // 2 + 2 * (y // 2),
        np.full_like(rank, 2),
        np.full_like(rank, 256),
        x + 10 * y,
        thread % 16 + 100 * (thread // 16),
        x * 16 + thread % 16 + 1000 * (y * 2 + thread // 16),
    ]
    for column, wanted in enumerate(expected):
        np.testing.assert_array_equal(rows[:, column], wanted, err_msg=str(column))


def test_a_barrier_of_the_grid_needs_a_cooperative_launch() -> None:
    source = """
    #include <cooperative_groups.h>
    extern "C" __global__ void meet(int* valid) {
        const auto grid = cooperative_groups::this_grid();
        if (grid.thread_rank() == 0) *valid = grid.is_valid();
        grid.sync();
    }
    """
    valid = np.ones(1, np.int32)

    with pytest.raises(EmulatedFault, match="Launch the kernel with cooperative=True"):
        Kernel(source, "meet")(1, 32, (valid,))
    assert valid[0] == 0


def test_a_tile_does_not_wait_for_the_rest_of_its_block() -> None:
    source = """
    #include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void swap(int* out) {
        __shared__ int values[64];
        const auto tile = cg::tiled_partition<32>(cg::this_thread_block());
        values[threadIdx.x] = threadIdx.x;
        tile.sync();
        out[threadIdx.x] = values[threadIdx.x ^ 63];
    }
    """

    with scheduled(races=True), pytest.raises(EmulatedRace, match=r"kernel\.cu:9: ordinary read"):
        Kernel(source, "swap")(1, 64, (np.zeros(64, np.int32),))


COALESCED = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;

// One addition to the counter for all lanes that come here.
__device__ int next_place(int* counter) {
    const auto active = cg::coalesced_threads();
    int first = 0;
    if (active.thread_rank() == 0) first = atomicAdd(counter, active.size());
    return active.shfl(first, 0) + active.thread_rank();
}

extern "C" __global__ void coalesced(const int* in, int* out, int* kept, int* counters, int size) {
    const int i = threadIdx.x, value = in[i];
    int row = 0;
    const auto put = [&](int result) { out[64 * row++ + i] = result; };
    if (value % 3 == 0) kept[next_place(&counters[0])] = value;
    if (value > 0) {
        const auto active = cg::coalesced_threads();
        put(active.size());
        put(active.thread_rank());
        put(active.meta_group_rank() + 10 * active.meta_group_size());
        put(active.shfl(value, 1));
        put(active.shfl_down(value, 2));
        put(active.shfl_up(value, 1));
        put(active.ballot(value > 20));
        put(active.any(value > 20) + 2 * active.all(value > 20));
        put(active.match_any(value & 3));
        put(cg::reduce(active, value, cg::plus<int>()));
        put(cg::reduce(active, value, cg::greater<int>()));
        put(cg::inclusive_scan(active, value));
        put(cg::exclusive_scan(active, value));
        const auto odd = cg::binary_partition(active, value & 1);
        put(odd.thread_rank() + 100 * odd.size() + 10000 * odd.shfl(value, 0));
        active.sync();
    }
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const cuda::atomic_ref<int, cuda::thread_scope_device> at(counters[1 + i / 32]);
    out[64 * 14 + i] = cg::exclusive_scan_update(warp, at, value);
    out[64 * 15 + i] = cg::inclusive_scan_update(warp, at, value, cg::plus<int>());
}
"""


def of_coalesced(own: Any) -> list[Any]:
    """Return the rows that the active lanes of a warp put, by their values."""
    ranks, count = np.arange(len(own)), len(own)
    bits = 1 << ranks
    down = own[np.minimum(ranks + 2, count - 1)]
    down[ranks + 2 >= count] = own[ranks + 2 >= count]
    same = ((own[:, None] & 3) == (own & 3)) @ bits
    odd = own & 1
    of_kind = np.array([np.flatnonzero(odd == kind) for kind in odd], object)
    return [
        count, ranks, 10, own[1], down, own[np.maximum(ranks - 1, 0)], (own > 20) @ bits,
        (own > 20).any() + 2 * (own > 20).all(), same, own.sum(), own.max(), np.cumsum(own),
        np.cumsum(own) - own,
        [
            list(kind).index(i) + 100 * len(kind) + 10000 * own[kind[0]]
            for i, kind in enumerate(of_kind)
        ],
    ]  # fmt: skip


def test_coalesced_threads_and_scans_that_update(backend: Any) -> None:
    values = np.random.default_rng(8).integers(-50, 50, 64).astype(np.int32)
    out = backend.array(np.full((16, 64), -999, np.int32))
    kept = backend.array(np.full(64, -999, np.int32))
    counters = backend.array(np.array([0, 1000, 2000], np.int32))

    with scheduled(races=True):
        Kernel(COALESCED, "coalesced")(1, 64, (backend.array(values), out, kept, counters, 64))

    multiples = sorted(values[values % 3 == 0].tolist())
    assert sorted(backend.host(kept)[: len(multiples)].tolist()) == multiples
    sums = values.reshape(2, 32).sum(1)
    assert backend.host(counters).tolist() == [
        len(multiples),
        1000 + 2 * sums[0],
        2000 + 2 * sums[1],
    ]
    expected = np.full((16, 64), -999)
    for warp in range(2):
        lanes = np.arange(32 * warp, 32 * warp + 32)
        active = lanes[values[lanes] > 0]
        for row, each in enumerate(of_coalesced(values[active].astype(int))):
            expected[row, active] = each
        start, every = 1000 * (warp + 1), values[lanes]
        expected[14, lanes] = start + np.cumsum(every) - every
        expected[15, lanes] = start + sums[warp] + np.cumsum(every)
    got = backend.host(out)
    for row in range(16):
        np.testing.assert_array_equal(got[row], expected[row], err_msg=str(row))
