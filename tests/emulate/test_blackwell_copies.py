"""TMA copies that came with Blackwell, against NumPy: CTA pairs, rows, wide im2col, byte masks.

Compiled by nvcc and emulated; not run on a chip.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, create_tma_tile
from tmaasync.emulate import scheduled

# --- CTA pairs ------------------------------------------------------------------------------------

PAIR = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/tma_sm100.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) float bytes[8 * 32];
    SharedMemBarrier full;
};
extern "C" __device__ const int pair_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void pair(
    const __grid_constant__ Tile tile, float* out, int count_in_odd, int mask
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const unsigned rank = block_rank_in_cluster(), block = blockIdx.x;
    const bool counts = rank % 2 == count_in_odd;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        if (counts) shared.full.expect_bytes(2 * sizeof(shared.bytes));
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        const u32 even = ptx::even_cta_of_pair(shared.full.address());
        const u32 barrier = count_in_odd ? even | 1 << 24 : even;
        const u32 to = ptx::shared_address(shared.bytes);
        if (mask == 0) {
            LOAD
        } else if (rank % 4 == 0) {
            const u16 all = 0xf << rank;
            ptx::cp_async_bulk_tensor_load_multicast<2, 2>(
                to, &tile.map, {0, int(8 * block)}, barrier, all, 0
            );
        }
    }
    if (counts) shared.full.wait(0);
    cluster_sync();
    for (int i = threadIdx.x; i < 256; i += 32) out[256 * block + i] = shared.bytes[i];
}
"""
LOADS = {
    "wrapper": (
        "ptx::cp_async_bulk_tensor_load<2, 2>(to, &tile.map, {0, int(8 * block)}, barrier, 0);"
    ),
    "function": "tma_load_2sm<2>(tile.map, shared.full, shared.bytes, {0, int(8 * block)});",
    "tile": (
        "tma_load_2sm(tile, shared.full, reinterpret_cast<Tile::Shared&>(shared.bytes), "
        "{0, int(8 * block)});"
    ),
    "asm": (
        'asm volatile("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.mbarrier'
        '::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" :: "r"(to), "l"(&tile.map), '
        '"r"(barrier), "r"(0), "r"(int(8 * block)) : "memory");'
    ),
}


def pair(load: str, *, odd: bool = False, mask: bool = False, arch: str = "sm_100a") -> Any:
    data = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    out = np.zeros((8, 8, 32), np.float32)
    tile = create_tma_tile(data, (8, 32))
    source = PAIR.replace("LOAD", LOADS[load])
    kernel = Kernel(source, "pair", types={"Tile": tile}, arch=arch)
    cluster = 4 if mask else 2
    kernel(8, 32, (tile, out, int(odd), int(mask)), cluster=cluster)
    return data.reshape(8, 8, 32), out


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("load", "odd"),
    [("wrapper", False), ("wrapper", True), ("function", False), ("tile", False), ("asm", True)],
)
def test_both_ctas_of_a_pair_count_on_one_barrier(load: str, odd: bool) -> None:
    for races, seed in ((False, 0), (True, 0), (True, 1)):
        with scheduled("random", races=races, seed=seed):
            data, out = pair(load, odd=odd)
        assert (out == data).all()


@pytest.mark.parametrize("odd", [False, True])
def test_a_multicast_counts_on_the_even_or_odd_ctas(odd: bool) -> None:
    with scheduled(races=True):
        data, out = pair("wrapper", odd=odd, mask=True)
    assert (out == np.repeat(data[::4], 4, axis=0)).all()


def test_the_barrier_lies_in_the_pair() -> None:
    load = LOADS["wrapper"].replace("barrier, 0", "barrier ^ 2 << 24, 0")
    data, out = np.zeros((64, 32), np.float32), np.zeros((8, 8, 32), np.float32)
    tile = create_tma_tile(data, (8, 32))
    kernel = Kernel(PAIR.replace("LOAD", load), "pair", types={"Tile": tile}, arch="sm_100a")
    with pytest.raises(EmulatedFault, match="credits an mbarrier outside its pair"):
        kernel(8, 32, (tile, out, 0, 0), cluster=4)


# --- rows -----------------------------------------------------------------------------------------

ROWS = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/tma_sm100.cuh>
using namespace tmaasync;

struct SharedMemory {
    alignas(1024) unsigned short rows[8 * 64];
    SharedMemBarrier full;
};
extern "C" __device__ const int rows_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void rows(
    const __grid_constant__ Source source, const __grid_constant__ Target target,
    const int* from, const int* to, unsigned short* seen
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(sizeof(shared.rows));
        const u32 place = ptx::shared_address(shared.rows), barrier = shared.full.address();
        ptx::cp_async_bulk_prefetch_tensor_gather4(
            &source.map, {64, from[0], from[1], from[2], from[3]}, 0
        );
        tma_gather4(
            source.map, shared.full, shared.rows, 64, {from[0], from[1], from[2], from[3]}
        );
        asm volatile(
            "cp.async.bulk.tensor.2d.SPACE.global.tile::gather4.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" :: "r"(place + 512), "l"(&source.map),
            "r"(barrier), "r"(64), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7])
            : "memory"
        );
        shared.full.wait(0);
        for (int i = 0; i < 512; ++i) seen[i] = shared.rows[i];
        tma_scatter4(target.map, shared.rows, 64, {to[0], to[1], to[2], to[3]});
        asm volatile(
            "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"
            " [%1, {%2, %3, %4, %5, %6}], [%0];" :: "r"(place + 512), "l"(&target.map),
            "r"(64), "r"(to[4]), "r"(to[5]), "r"(to[6]), "r"(to[7]) : "memory"
        );
        commit_group();
        wait_group<0>();
    }
}
"""


def swizzled(rows: Any) -> Any:
    """Permute the units of 16 bytes of rows of 128 bytes, as TMA does."""
    units = rows.reshape(len(rows), 8, 8)
    return np.stack([unit[np.arange(8) ^ i % 8] for i, unit in enumerate(units)]).reshape(
        rows.shape
    )


def gather(space: str, tiles: list[Any]) -> Kernel:
    types = dict(zip(("Source", "Target"), tiles, strict=True))
    return Kernel(ROWS.replace("SPACE", space), "rows", types=types, arch="sm_100a")


@pytest.mark.parametrize("space", ["shared::cta", "shared::cluster"])
def test_four_rows_are_gathered_and_scattered(space: str) -> None:
    rng = np.random.default_rng(4)
    source = rng.integers(0, 60000, (40, 256), dtype=np.uint16)
    target, seen = np.zeros((24, 256), np.uint16), np.zeros((8, 64), np.uint16)
    rows = np.array([39, 0, 39, 7, -1, 40, 12, 1], np.int32)  # two outside the matrix
    places = np.array([3, 0, 23, 9, 24, 1000, 8, 2], np.int32)
    tiles = [create_tma_tile(array, (1, 64), swizzle="128B") for array in (source, target)]
    kernel = gather(space, tiles)
    with scheduled(races=True):
        kernel(1, 32, (*tiles, rows, places, seen))
    wanted = np.where((rows >= 0)[:, None] & (rows < 40)[:, None], source[rows % 40, 64:128], 0)
    assert (seen == swizzled(wanted)).all()
    expected = np.zeros_like(target)
    for row, place in zip(wanted, places, strict=True):
        if place < 24:
            expected[place, 64:128] = row
    assert (target == expected).all()


def test_the_box_of_gathered_rows_is_one_row() -> None:
    data, indices = np.zeros((40, 256), np.uint16), np.zeros(8, np.int32)
    tiles = [create_tma_tile(data, (sides, 64), swizzle="128B") for sides in (2, 1)]
    kernel = gather("shared::cta", tiles)
    with pytest.raises(EmulatedFault, match=r"this box has 2 rows\. Make the map with create_tma_"):
        kernel(1, 32, (*tiles, indices, indices, np.zeros((8, 64), np.uint16)))


# --- byte masks and fills -------------------------------------------------------------------------

MASKED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void masked(unsigned char* out, unsigned* filled, int mask) {
    __shared__ alignas(128) unsigned char bytes[256];
    __shared__ alignas(128) unsigned zeros[32];
    for (int i = threadIdx.x; i < 256; i += 32) {
        if (mask >> i % 16 & 1) bytes[i] = i;
    }
    zeros[threadIdx.x] = 7;
    fence_async_view_proxy();
    __syncwarp();
    if (threadIdx.x == 0) {
        const u32 from = ptx::shared_address(bytes);
        ptx::cp_async_bulk_store_masked(out, from, 128, mask, CachePolicy::kEvictNormal);
        asm volatile(
            "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%0], [%1], 128, %2;"
            :: "l"(out + 128), "r"(from + 128), "h"((unsigned short)mask) : "memory"
        );
        commit_group();
        wait_group<0>();
        asm volatile("st.bulk.weak.shared::cta [%0], %1, 0;"
                     :: "r"(ptx::shared_address(zeros + 2)), "l"(64ull) : "memory");
    }
    __syncwarp();
    filled[threadIdx.x] = zeros[threadIdx.x];
}
"""


@pytest.mark.parametrize("mask", [0x0001, 0x8421, 0xFFFF, 0x7F00])
def test_a_byte_mask_chooses_the_bytes_that_a_store_writes(mask: int) -> None:
    out, filled = np.full(256, 200, np.uint8), np.zeros(32, np.uint32)
    source = MASKED.replace("CachePolicy::kEvictNormal", "0")
    with scheduled(races=True):
        Kernel(source, "masked", arch="sm_120a")(1, 32, (out, filled, mask))
    chosen = (mask >> np.arange(256) % 16 & 1).astype(bool)
    assert (out == np.where(chosen, np.arange(256), 200)).all()
    assert filled.tolist() == [7] * 2 + [0] * 16 + [7] * 14


# --- compilers ------------------------------------------------------------------------------------


# --- edits of maps --------------------------------------------------------------------------------

EDIT = """
extern "C" __global__ void edit(unsigned long long map) {
    asm volatile("tensormap.replace.tile.swizzle_mode.global.b1024.b32 [%0], 4;" :: "l"(map));
}
"""


def test_a_swizzle_of_96_bytes_is_refused_with_what_to_use() -> None:
    map_ = np.zeros(192, np.uint8)
    aligned = map_.ctypes.data + -map_.ctypes.data % 64
    with pytest.raises(EmulatedFault, match=r"96 bytes.* sm_103a alone.* Use 1, 2 or 3"):
        Kernel(EDIT, "edit", arch="sm_103a")(1, 1, (np.uint64(aligned),))
