"""Calls of the device headers that break one rule each, and the line that a debug build says."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tmaasync import (
    BulkTile,
    Kernel,
    Swizzle,
    TMATensorTileArray,
    create_ragged_tensor_map,
    create_ragged_tma_3d_tile,
    create_split_tma,
    create_tma_tile,
    create_tma_tile_gather4,
    create_tma_tile_im2col,
    plan_copy,
)

_TO_TILE = "shared.bytes.tile, shared.full"
_ALL = "{0, 0}"
_EDIT = "tiles.at(0).edit_in_gmem([&](auto map) { map.%s; });"
_SIGNALS = (
    "Signals own{}; own.pads[0] = reinterpret_cast<tmaasync::u32*>(tiles.tiles); own.ranks = 1; "
    "own.count = two; own.%s;"
)
_OF_PLACE = "PipelineState<2> place{%s}; place.step(); shared.sink = place.index;"
_CHUNKS = "shared.bytes.folded, shared.full"
_ASKEW = "auto& askew = *reinterpret_cast<%s*>(shared.bytes.tile.bytes + 16 * two); "
_COORDINATES = "shared.sink = %s.load_coordinates(%s).values[0];"

CASES = {
    "a rule of one's own": (
        'tmaasync::check(tiles.count > 2, "tiles.count", tiles.count, "it must be above", 2);',
        "tiles.count is 2; it must be above 2",
    ),
    "a mask beyond the cluster": (
        f"tile.async_multicast_load({_TO_TILE}, {_ALL}, 5);",
        "cta_mask is 5; it must name CTAs of the cluster and no others, of which there are 2",
    ),
    "an empty mask": (
        f"patches.async_multicast_load(shared.bytes.patches, shared.full, {_ALL}, 0);",
        "cta_mask is 0; it must name CTAs of the cluster and no others, of which there are 2",
    ),
    "a part that is not": (
        f"tile.template async_multicast_load_partitioned<2>({_TO_TILE}, {_ALL}, 3, 2);",
        "part is 2; it must be below 2",
    ),
    "a rank beyond the cluster": (
        "shared.full.arrive_cluster(2);",
        "cta_rank is 2; it must be below 2",
    ),
    "a load off its unit": (
        f"tile.async_copy({_TO_TILE}, {{1, 0}});",
        "at[0] is 1; copies start at 16 bytes, so it must be a multiple of 4",
    ),
    "a prefetch off its unit": (
        "tile.prefetch({-2, 0});",
        "at[0] is -2; copies start at 16 bytes, so it must be a multiple of 4",
    ),
    "a store before the array": (
        "tile.async_store(shared.bytes.tile, {0, -1});",
        "at[1] is -1; stores start inside the array or after it, at least at 0",
    ),
    "a reduction before the array": (
        "tile.template async_reduce<ReduceOp::kAdd>(shared.bytes.tile, {-4, 0});",
        "at[0] is -4; stores start inside the array or after it, at least at 0",
    ),
    "a buffer off its alignment": (
        _ASKEW % "Tile::Shared" + f"tile.async_copy(askew, shared.full, {_ALL});",
        "shared is 0x20; it must be a multiple of 1024",
    ),
    "a gathered group beyond the tile": (
        "rows.async_copy_gather4(shared.bytes.rows, shared.full, 0, {0, 1, 2, 3}, 6);",
        "first is 6; it must be at most 4",
    ),
    "a chunk cut": (
        f"folded.async_copy({_CHUNKS}, {{32, 0, 0}});",
        "at[0] is 32; it must be a multiple of 64",
    ),
    "a channel cut": ("patches.prefetch({8, 0});", "at[0] is 8; it must be a multiple of 32"),
    "an element after the array": (
        "bulk.async_copy(shared.bytes.bulk, shared.full, 4096);",
        "element is 4096; it must be below 4096",
    ),
    "an element off its unit": (
        "bulk.async_store(shared.bytes.bulk, 8);",
        "global + element is 0x",
    ),
    "more bytes than a barrier counts": (
        "shared.full.expect_bytes(1 << 20);",
        "bytes is 1048576; it must be at most 1048575",
    ),
    "a barrier without arrivals": (
        "shared.empty.init(two - 2);",
        "count is 0; it must be at least 1",
    ),
    "a phase that is no parity": ("shared.full.wait(2);", "phase is 2; it must be at most 1"),
    "a stage that is not": (_OF_PLACE % "2, 0, 0", "index is 2; it must be below 2"),
    "a named barrier that is not": (
        "NamedBarrier<32>{16}.arrive();",
        "id is 16; it must be below 16",
    ),
    "a tile that is not": ("tiles[2].prefetch_descriptor();", "index is 2; it must be below 2"),
    "a signal that is not": (
        _SIGNALS % "post(0, two, 1)",
        "signal is 2; it must be below 2",
    ),
    "an address off its unit": (
        _EDIT % "replace_global_address(reinterpret_cast<void*>(0x1004ull))",
        "address is 0x1004; it must be a multiple of 16",
    ),
    "a dimension that is not": (
        _EDIT % "replace_global_dim(two, 8)",
        "dim is 2; it must be below 2",
    ),
    "an empty extent": (_EDIT % "replace_global_dim(0, 0)", "extent is 0; it must be at least 1"),
    "a stride off its unit": (
        _EDIT % "replace_global_stride(0, 1022)",
        "stride_bytes is 1022; it must be a multiple of 16",
    ),
    "a stride too long": (
        _EDIT % "replace_global_stride(0, 1ull << 40)",
        "stride_bytes is 1099511627776; it must be below 1099511627776",
    ),
    "a stride of elements": (
        _EDIT % "replace_global_stride(1, 16)",
        "dim is 1; it must be below 1",
    ),
    "a box too large": (_EDIT % "replace_box_side(0, 257)", "side is 257; it must be at most 256"),
    "an element stride too long": (
        _EDIT % "replace_element_stride(0, 9)",
        "stride is 9; it must be at most 8",
    ),
    "too many dimensions": (_EDIT % "replace_rank(6)", "rank is 6; it must be at most 5"),
    "a scratch map off its alignment": (
        _ASKEW % "TensorMap"
        + "tiles.at(0).replace_tensormap_global_address_in_shared_mem(askew, nullptr);",
        "scratch is 0x20; it must be a multiple of 128",
    ),
    "a sequence too long": (
        _COORDINATES % ("ragged", "RaggedSequence{0, 17}, {0, 0}"),
        "sequence.length is 17; it must be at most 16",
    ),
    "decreasing cumulative lengths": (
        _COORDINATES % ("ragged", "RaggedSequence{9, -1}, {0, 0}"),
        "sequence.length is -1; it must be at least 0",
    ),
    "a sequence before the array": (
        _COORDINATES % ("ragged", "RaggedSequence{-1, 5}, {0, 0}"),
        "sequence.start is -1; it must be at least 0",
    ),
    "a sequence beyond the array": (
        _COORDINATES % ("ragged", "RaggedSequence{60, 5}, {0, 0}"),
        "sequence.start + length is 65; it must be at most 64",
    ),
    "a row before the sequence": (
        _COORDINATES % ("ragged", "RaggedSequence{0, 5}, {0, -1}"),
        "row is -1; it must be at least 0",
    ),
    "a sequence without a number": (
        "shared.sink = RaggedSequence::of(static_cast<const i32*>(nullptr), -1).start;",
        "index is -1; it must be at least 0",
    ),
    "a head's sequence beyond the array": (
        _COORDINATES % ("heads", "RaggedSequence{60, 5}, 0, 0"),
        "sequence.start + length is 65; it must be at most 64",
    ),
    "a head that is not": (
        _COORDINATES % ("heads", "RaggedSequence{0, 5}, 0, 3"),
        "head is 3; it must be below 3",
    ),
    "a bulk copy beyond the array": (
        "whole.load(shared.bytes.whole, shared.full, {0, 57});",
        "at is 57; it must be at most 56",
    ),
    "a loop off its access": ("looped.load(shared.bytes.looped, {1, 0});", "global is 0x"),
    "a column that starts no chunk": (
        _COORDINATES % ("heads", "RaggedSequence{0, 5}, 0, 0, 32"),
        "column is 32; it must be a multiple of 64",
    ),
}
"""By name: the statement of one thread, and the message after its source location."""

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    union {
        Tile::Shared tile;
        Rows::Shared rows;
        Folded::Shared folded;
        Patches::Shared patches;
        Bulk::Shared bulk;
        Whole::Shared whole;
        Looped::Shared looped;
    } bytes;
    SharedMemBarrier full, empty;
    int sink;
};

extern "C" __device__ const int checked_shared_bytes = sizeof(SharedMemory);

// Thread 5 of the second of two CTAs breaks a rule; in a release build one that may be broken.
extern "C" __global__ void checked(
    const __grid_constant__ Tile tile,
    const __grid_constant__ Rows rows,
    const __grid_constant__ Folded folded,
    const __grid_constant__ Patches patches,
    const __grid_constant__ Bulk bulk,
    const __grid_constant__ Whole whole,
    const __grid_constant__ Looped looped,
    const __grid_constant__ Ragged ragged,
    const __grid_constant__ Heads heads,
    TMATensorTileArray<Tile> tiles,
    int broken,
    int two
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
    }
    cluster_sync();
    if (block_rank_in_cluster() == 1 && threadIdx.x == 5) {
        switch (broken) {
BREAKS
        }
    }
    cluster_sync();
}
"""


@functools.cache
def _arguments(backend: Any) -> dict[str, Any]:
    array = backend.array(np.zeros((64, 32), np.float32))
    halves = backend.array(np.zeros((64, 3, 128), np.float16))
    tile = create_tma_tile(array, (32, 32), swizzle=Swizzle.B128, box_shape=(16, 32))
    images = backend.array(np.zeros((2, 8, 8, 32), np.float32))
    return {
        "Tile": tile,
        "Rows": create_tma_tile_gather4(array, (8, 32)),
        "Folded": create_split_tma(halves, (8, 1, 128), swizzle=Swizzle.B128, fold_chunks=2),
        "Patches": create_tma_tile_im2col(
            images, (16, 32), filter_shape=(3, 3), swizzle=Swizzle.B128
        ),
        "Bulk": BulkTile(backend.array(np.zeros(4096, np.uint8)), 1024),
        "Whole": plan_copy(array, "shared", tile_shape=(8, 32)),
        "Looped": plan_copy(array, "shared", tile_shape=(8, 8), prefer="sync"),
        "Ragged": create_ragged_tensor_map(array, (8, 32), max_length=16),
        "Heads": create_ragged_tma_3d_tile(halves, 8, chunk_columns=64, max_length=16),
        "tiles": TMATensorTileArray([tile] * 2),
    }


def types(backend: Any) -> dict[str, Any]:
    """The types that the source leaves to the host."""
    return {name: value for name, value in _arguments(backend).items() if name != "tiles"}


def kernel_for(types: dict[str, Any], debug: bool) -> Kernel:
    """The kernel with all cases in it."""
    breaks = "\n".join(
        f"            case {number}: {{ {code} break; }}"
        for number, (code, _) in enumerate(CASES.values())
    )
    source = SOURCE.replace("BREAKS", breaks)
    return Kernel(source, "checked", types=types, debug=debug)


def break_rule(backend: Any, name: str, *, debug: bool) -> None:
    """Launch a kernel that does what the case says."""
    arguments = (*_arguments(backend).values(), list(CASES).index(name), 2)
    kernel_for(types(backend), debug)(2, 32, arguments, cluster=2)
