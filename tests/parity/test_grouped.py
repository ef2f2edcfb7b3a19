"""Shaped like a grouped GEMM: blocks rewrite their maps from group to group."""

from __future__ import annotations

from typing import Any

import numpy as np
from parity.backends import Emulate
from parity.test_tile_edits import address_of

from tmaasync import Kernel, TMATensorTileArray, create_tma_tile, emulate

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

// One matrix of `rows` by COLUMNS in, the same out.
struct Group {
    const void* source;
    void* target;
    u32 rows;
    u32 padding;
};

struct SharedMemory {
    Tile::Shared tile;
    TensorMap scratch;
    SharedMemBarrier full;
};

extern "C" __device__ const int grouped_shared_bytes = sizeof(SharedMemory);

__device__ void bind(Tile& tile, SharedMemory& shared, const void* address, u32 rows) {
    tile.edit_in_shared_mem(shared.scratch, [&](auto fields) {
        fields.replace_global_address(address);
        fields.replace_global_dim(0, rows);
    });
}

// Copies every tile of a matrix, doubled; returns the barrier's next phase.
__device__ u32 copy_group(
    const Tile& source, const Tile& target, SharedMemory& shared, u32 rows, u32 phase
) {
    for (u32 row = 0; row < rows; row += Tile::side(0), phase ^= 1) {
        const Coordinates<2> at{0, row};
        if (threadIdx.x == 0) {
            shared.full.expect_bytes(Tile::kBytes);
            source.async_copy(shared.tile, shared.full, at);
        }
        shared.full.wait(phase);
        for (int i = threadIdx.x; i < Tile::kBytes / 4; i += 32) shared.tile.data()[i] *= 2;
        fence_async_view_proxy();
        __syncwarp();
        if (threadIdx.x == 0) {
            target.async_store(shared.tile, at);
            commit_group();
            wait_group<0>();  // also before the map may be rewritten
        }
        __syncwarp();
    }
    return phase;
}

// One warp a block. Block b owns maps 2 b and 2 b + 1.
extern "C" __global__ void grouped(
    TMATensorTileArray<Tile> maps, const Group* groups, u32 count
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
    }
    __syncwarp();
    Tile& source = maps.at(2 * blockIdx.x);
    Tile& target = maps.at(2 * blockIdx.x + 1);
    u32 phase = 0;
    for (u32 index = blockIdx.x; index < count; index += gridDim.x) {
        const Group& group = groups[index];
        bind(source, shared, group.source, group.rows);
        bind(target, shared, group.target, group.rows);
        phase = copy_group(source, target, shared, group.rows, phase);
    }
}
"""

GROUP = np.dtype([("source", "<u8"), ("target", "<u8"), ("rows", "<u4"), ("padding", "<u4")])
COLUMNS, BLOCKS = 32, 5


def run(backend: Any, sizes: list[int]) -> tuple[list[Any], Any]:
    """The groups' matrices, and everything the kernel wrote, guard rows between them included."""
    rng = np.random.default_rng(len(sizes))
    sources = [rng.integers(0, 99, (rows, COLUMNS)).astype(np.float32) for rows in sizes]
    starts = np.cumsum([0, *(rows + 1 for rows in sizes)])
    target = backend.array(np.full((starts[-1], COLUMNS), -1, np.float32))
    on_backend = [backend.array(source) for source in sources]
    groups = np.zeros(len(sizes), GROUP)
    groups["source"] = [address_of(source) for source in on_backend]
    groups["target"] = address_of(target) + starts[:-1] * COLUMNS * 4
    groups["rows"] = sizes
    tile = create_tma_tile(target, (16, COLUMNS))
    maps = TMATensorTileArray([tile] * (2 * BLOCKS))
    kernel = Kernel(SOURCE, "grouped", types={"Tile": tile})
    kernel(BLOCKS, 32, (maps, backend.array(groups.view(np.uint8)), len(sizes)))
    return sources, backend.host(target)


def check(backend: Any, sizes: list[int]) -> None:
    sources, target = run(backend, sizes)

    expected = [np.vstack([source * 2, np.full((1, COLUMNS), -1)]) for source in sources]
    assert np.array_equal(target, np.vstack(expected))


def test_blocks_that_rewrite_their_maps_for_every_group(backend: Any) -> None:
    check(backend, [1, 16, 17, 40, 3, 64, 15, 31, 33, 2, 48, 5, 100, 7])


def test_many_groups_under_random_schedules() -> None:
    for seed in range(2):
        sizes = np.random.default_rng(seed).integers(1, 50, 23)
        with emulate.scheduled("random", seed=seed):
            check(Emulate(), [int(rows) for rows in sizes])
