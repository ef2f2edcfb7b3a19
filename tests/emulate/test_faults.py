"""An error that ends a kernel on the chip, or passes by luck, is a fault with a reason."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from arrays_in_memory import aligned

from tmaasync import EmulatedFault, Kernel, create_ragged_tensor_map, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

DEFECTS = {
    "none": "",
    "used before init": "full is used before mbarrier.init",
    "too many arrivals": r"full gets 2 arrivals in phase 0, which counts 1 and waits for 1\.",
    "too many bytes": r"would have 1048576 bytes to come",
    "initialised while in use": "full is initialised again while in use",
    "overwritten": "a write of 8 bytes at shared offset 4096 overwrites full, which is in use",
    "bad coordinate": "innermost coordinate is 1, or 4 bytes",
    "bad address": "shared address is 0x10; it must be a multiple of 128",
    "beyond the end": (
        r"a TMA load reaches shared bytes 4096 \(full\) to 8192; the CTA has 4224\. Ask for more "
        'with `extern "C" __device__ const int defects_shared_bytes` or shared_mem, or'
    ),
    "ends before the load": (
        r"the CTA ends while a TMA load to shared offset 0 \(tile\) is in flight. Wait on full "
        "before the end"
    ),
    "ends before the store": r"TMA still reads .* wait_group_read<0>\(\)",
    "ends with bytes expected": "CTA ends while full still expects 16 bytes",
    "no shared address": "points elsewhere",
    "lanes apart": "lanes of one warp are at .* and at ",
    "trap": r"the kernel called __trap\(\)",
    "initialised twice": "full is initialised again without mbarrier.inval",
    "used after inval": "full is used after mbarrier.inval",
    "arrives no times": "full gets 0 arrivals in phase 0; .* 1 to 1048575 times",
    "a load nobody waits for": "no thread has waited for phase 0 of full, in which a TMA load",
    "lands too much": r"full would have -1048576 bytes to come",
    "overwritten while waited for": "full was overwritten",
}
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int defects_shared_bytes = sizeof(SharedMemory);

__device__ void load(SharedMemory& shared, const Tile& tile) {
    shared.full.expect_bytes(Tile::kBytes);
    tile.async_copy(shared.tile, shared.full, {0, 0});
}

__device__ void load_at(u32 address, const Tile& tile, SharedMemory& shared, int x = 0) {
    ptx::cp_async_bulk_tensor_load<2>(address, &tile.map, {x, 0}, shared.full.address(), 0);
    shared.full.wait(0);
}

extern "C" __global__ void defects(const __grid_constant__ Tile tile, int defect) {
    auto& shared = dynamic_shared<SharedMemory>();
    u64 local = 0;
    if (defect == 13 && threadIdx.x == 0) __syncwarp();
    if (defect == 13) elect();
    if (threadIdx.x == 1 && defect == 20) {
        for (int i = 0; i < 100; ++i) __nanosleep(1);
        shared.full.word = 1;
    }
    if (threadIdx.x != 0) return;
    if (defect == 1) shared.full.arrive();
    shared.full.init(1);
    fence_barrier_init();
    if (defect == 2) shared.full.arrive_cluster(0, 2);
    if (defect == 3) shared.full.expect_tx(1 << 20);
    if (defect == 4) shared.full.expect_tx(16);
    if (defect == 4) shared.full.init(1);
    if (defect == 5) shared.full.word = 1;
    if (defect == 5) shared.full.arrive();
    if (defect == 6) load_at(0, tile, shared, 1);
    if (defect == 7) load_at(16, tile, shared);
    if (defect == 8) load_at(4096, tile, shared);
    if (defect == 9) return load(shared, tile);
    if (defect == 15) shared.full.init(1);
    if (defect == 16) shared.full.invalidate();
    if (defect == 17) shared.full.arrive_cluster(0, 0);
    if (defect == 18) {
        load(shared, tile);
        while (*(volatile float*)&shared.tile != 1.0f) __nanosleep(1);
        return;
    }
    if (defect == 19) {
        for (int i = 0; i < 257; ++i) tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    if (defect == 19 || defect == 20) shared.full.wait(0);
    load(shared, tile);
    shared.full.wait(0);
    if (defect == 10) tile.async_store(shared.tile, {0, 0});
    if (defect == 10) return commit_group();
    if (defect == 11) shared.full.expect_tx(16);
    if (defect == 12) ptx::mbarrier_arrive(ptx::shared_address(&local));
    if (defect == 14) __trap();
}
"""


def run(defect: str) -> None:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    kernel = Kernel(SOURCE, "defects", types={"Tile": tile})
    kernel(1, 32, (tile, list(DEFECTS).index(defect)))


def test_without_a_defect_the_kernel_ends() -> None:
    run("none")


# Races too, which would be reported first.
RACY = ("a load nobody waits for", "lands too much", "overwritten while waited for")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("defect", list(DEFECTS)[1:])
def test_a_defect_is_a_fault_with_its_reason(defect: str) -> None:
    with (
        scheduled(races=defect not in RACY),
        pytest.raises(EmulatedFault, match=DEFECTS[defect]) as caught,
    ):
        run(defect)

    assert caught.value.block == (0, 0, 0)
    assert str(caught.value).startswith("defects: block (0, 0, 0), thread ")


MISSED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory { SharedMemBarrier ready, seen; };
extern "C" __device__ const int missed_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void missed(const int* where, int phases, int hands_back) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.ready.init(1);
        shared.seen.init(31);
    }
    __syncthreads();
    for (int phase = 0; phase < phases; ++phase) {
        if (threadIdx.x == 0) {
            shared.ready.arrive();
            if (hands_back) shared.seen.wait(phase & 1);
        } else {
            shared.ready.wait(phase & 1);
            if (hands_back) shared.seen.arrive();
        }
    }
}
"""


@pytest.mark.parametrize("policy", get_args(Policy))
def test_a_phase_that_a_waiter_misses_is_reported(policy: Policy) -> None:
    kernel = Kernel(MISSED, "missed")
    where = np.zeros(1, np.int32)

    for seed in range(3):
        with scheduled(policy, seed=seed):
            kernel(1, 32, (where, 6, 1))
            kernel(1, 32, (where, 1, 0))
    with (
        scheduled(policy, seed=1),
        pytest.raises(
            EmulatedFault,
            match=r"completed phase 1 while this thread was still waiting for phase 0, which its "
            r"parity does not distinguish",
        ),
    ):
        kernel(1, 32, (where, 2, 0))


LEGAL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full, empty, other;
};
extern "C" __device__ const int legal_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void legal(const __grid_constant__ Tile tile) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        shared.empty.init(32);
        shared.other.init(1);
        shared.other.invalidate();
        shared.other.init(2);  // what was invalidated may be initialised again
        fence_barrier_init();
    }
    __syncthreads();
    shared.empty.arrive();  // the last phase of an empty barrier interests nobody
    for (int load = 0; load < 3; ++load) {
        if (threadIdx.x == 0) {
            shared.empty.wait(load & 1);
            shared.full.expect_bytes(Tile::kBytes);
            tile.async_copy(shared.tile, shared.full, {0, 0});
        }
        // One asks, and passes the answer on.
        if (threadIdx.x == 7) while (!shared.full.test_wait(load & 1)) {}
        __syncthreads();
        shared.empty.arrive();
    }
    if (threadIdx.x == 0) shared.other.arrive();  // half a phase
    __syncthreads();
    if (threadIdx.x == 0) shared.full.invalidate();
    __syncthreads();
    if (threadIdx.x == 0) shared.full.word = 3;  // no barrier any more
}
"""


@pytest.mark.parametrize("policy", get_args(Policy))
def test_what_the_rules_of_mbarriers_allow_is_no_fault(policy: Policy) -> None:
    tile = create_tma_tile(np.ones((32, 32), np.float32), (32, 32))
    kernel = Kernel(LEGAL, "legal", types={"Tile": tile})

    for seed in range(4):
        with scheduled(policy, seed=seed):
            kernel(2, 32, (tile,))


CLUSTER = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory { SharedMemBarrier full; };
extern "C" __device__ const int early_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void early(int stays) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.full.init(1);
    fence_barrier_init();
    cluster_sync();
    if (block_rank_in_cluster() == 1) {
        for (int i = 0; i < 100; ++i) __nanosleep(1);
        if (threadIdx.x == 0) shared.full.arrive_cluster(0);
    }
    if (stays) cluster_sync();
}
"""


def run_cluster(stays: int) -> None:
    # An array says where to run.
    source = CLUSTER.replace("int stays", "int stays, const int* where")
    Kernel(source, "early")(4, 32, (stays, np.zeros(4, np.int32)), cluster=2)


def test_a_peer_that_has_ended_cannot_be_reached() -> None:
    run_cluster(1)
    with pytest.raises(EmulatedFault, match=r"CTA 0 of the cluster has ended.*cluster_sync\(\)"):
        run_cluster(0)


@pytest.mark.parametrize(
    "write", ["memcpy(out + 7, out, 8)", "memset(out + 7, 0, 8)", "sincosf(1, (float*)out + 8, &x)"]
)
def test_a_function_of_the_c_library_writes_to_no_other_memory(write: str) -> None:
    source = f'extern "C" __global__ void outside(int* out) {{ float x; {write}; }}'
    kept = np.ones(16, np.int32)

    with pytest.raises(EmulatedFault, match=r"a write of \d bytes at 0x.* none of the launch's"):
        Kernel(source, "outside")(1, 1, (kept[:8],))

    assert kept.all()


MISALIGNED = """
template <typename T>
__device__ void move(void* to, const void* from) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
}
extern "C" __global__ void misaligned(char* out, const char* in, int bytes, int to, int from) {
    __shared__ uint4 shared[2];
    shared[0] = shared[1] = uint4{};
    const char* source = from < 0 ? reinterpret_cast<const char*>(shared) - from : in + from;
    if (bytes == 2) move<short>(out + to, source);
    if (bytes == 4) move<float>(out + to, source);
    if (bytes == 8) move<uint2>(out + to, source);
    if (bytes == 16) move<uint4>(out + to, source);
}
"""


@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_an_access_at_an_address_that_is_no_multiple_of_its_size_is_a_fault(size: int) -> None:
    out, source = aligned((2, 32), np.uint8)
    kernel = Kernel(MISALIGNED, "misaligned")
    kernel(1, 1, (out, source, size, 16, 16))
    kernel(1, 1, (out, source, size, 16 - size, -(16 - size)))

    for to, at, access in ((size // 2, 0, "a write"), (0, 1, "a read"), (0, -1, "a read")):
        said = f"{access} of {size} bytes at 0x.*, a misaligned address"
        with pytest.raises(EmulatedFault, match=said):
            kernel(1, 1, (out, source, size, to, at))


DIVERGENT = """
extern "C" __global__ void divergent(int* out, int first) {
    const bool is_first = threadIdx.x < first;
    int votes = 0;
    if (is_first) {
        __syncthreads();
        votes = __syncthreads_count(true);
    } else {
        __syncthreads();
        votes = __syncthreads_count(false);
    }
    out[threadIdx.x] = votes;
}
"""


def test_warps_may_wait_at_different_barriers_and_threads_of_one_warp_may_not() -> None:
    kernel, out = Kernel(DIVERGENT, "divergent"), np.zeros(96, np.int32)

    for first in (0, 32, 64, 96):
        kernel(1, 96, (out, np.int32(first)))
        assert (out == first).all()
    for first in (1, 40, 95):
        said = (
            rf"threads of warp {first // 32} wait at the __syncthreads\(\) of line \d+ and others"
        )
        with pytest.raises(EmulatedFault, match=said):
            kernel(1, 96, (out, np.int32(first)))


NOTHING_IN_BOUNDS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    typename Map::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int outside_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void outside(const __grid_constant__ Map map, int row) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    shared.full.expect_bytes(Map::kBytes);
    const auto at = map.load_coordinates(RaggedSequence{0, 5}, {0, row});
    map.outlying.tile.async_copy(shared.tile, shared.full, at);
    shared.full.wait(0);
}
"""


def test_a_load_without_an_element_in_bounds_touches_the_address_of_the_map() -> None:
    map_ = create_ragged_tensor_map(np.zeros((64, 32), np.float32), (8, 32), max_length=16)
    kernel = Kernel(NOTHING_IN_BOUNDS, "outside", types={"Map": map_})
    kernel(1, 1, (map_, 4))

    with pytest.raises(EmulatedFault, match="no element in bounds, so the chip touches the map's"):
        kernel(1, 1, (map_, 5))


OWN_TEXT = r"""
extern "C" __global__ void asserts(int* x) {
    assert(x[0] == 1 && "{barrier 0} {line 1} {constant 0} 0x7fffffffffff \"é\"");
}
"""


def test_the_text_of_an_assertion_stays_as_it_is() -> None:
    with pytest.raises(EmulatedFault) as caught:
        Kernel(OWN_TEXT, "asserts")(1, 1, (np.zeros(1, np.int32),))

    text = r'assert(x[0] == 1 && "{barrier 0} {line 1} {constant 0} 0x7fffffffffff \"é\"") does not'
    assert caught.value.reason.startswith(text)
