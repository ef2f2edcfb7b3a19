"""Maps that kernels pick from an array of tiles, and rewrite: in shared and in global memory."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate
from parity.tile_oracle import loaded

from tmaasync import EmulatedFault, Kernel, Swizzle, TMATensorTileArray, create_tma_tile

NAN_FILL = 0x7FF7  # per 16 bits, whatever the type (measured on an H200)

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    TensorMap scratch;
    SharedMemBarrier full;
};

extern "C" __device__ const int edits_shared_bytes = sizeof(SharedMemory);

enum Field : u32 {
    kAddress, kDimStrides, kDim, kFill, kSwizzle, kBox, kElementStride, kType, kRest
};

// The fields that a block sets.
struct Edit {
    const void* address;
    u64 strides_bytes[4];
    u32 shape[5];
    u32 side;
    i32 at[5];
    Field field;
};

template <typename Fields>
__device__ void set_extents(Fields fields, const Edit& edit) {
    constexpr int kRank = Tile::kRank;
    u32 shape[kRank];
    u64 strides_bytes[kRank > 1 ? kRank - 1 : 1];
    for (int dim = 0; dim < kRank; ++dim) {
        shape[dim] = edit.shape[dim];
        if (dim < kRank - 1) strides_bytes[dim] = edit.strides_bytes[dim];
    }
    fields.replace_global_address(edit.address);
    fields.replace_global_dim_strides(shape, strides_bytes);
}

template <typename Fields>
__device__ void apply(Fields fields, const Edit& edit) {
    switch (edit.field) {
        case kAddress: return fields.replace_global_address(edit.address);
        case kDimStrides: return set_extents(fields, edit);
        case kDim: return fields.replace_global_dim(0, edit.shape[0]);
        case kFill: return fields.template replace_oob_fill<OobFill::kNan>();
        case kSwizzle: return fields.template replace_swizzle<Swizzle::k64B>();
        case kBox: return fields.replace_box_side(0, edit.side);
        case kElementStride: return fields.replace_element_stride(0, edit.side);
        case kType: return fields.template replace_element_type<ElementType::kTf32>();
        case kRest:
            fields.replace_rank(Tile::kRank);
            return fields.template replace_interleave<Interleave::kNone>();
    }
}

__device__ void load(const Tile& tile, SharedMemory& shared, const Edit& edit, u32 bytes) {
    Coordinates<Tile::kRank> at;
    for (int dim = 0; dim < Tile::kRank; ++dim) at.values[dim] = edit.at[dim];
    shared.full.expect_bytes(bytes);
    tile.async_copy(shared.tile, shared.full, at);
}

// One cluster. CTA b edits map b of `tiles` and loads with it; then it loads with map b + 1, which
// its neighbour edited.
extern "C" __global__ void edits(
    TMATensorTileArray<Tile> tiles,
    const Edit* edits,
    bool in_shared,
    u32 bytes,
    unsigned char* images
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 rank = block_rank_in_cluster(), next = (rank + 1) % blocks_in_cluster();
    const Edit& edit = edits[rank];
    Tile& own = tiles.at(rank);
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
    }
    __syncthreads();
    if (in_shared) {
        own.edit_in_shared_mem(shared.scratch, [&](auto fields) { apply(fields, edit); });
    } else if (threadIdx.x == 0) {
        own.edit_in_gmem([&](auto fields) { apply(fields, edit); });
    }
    __syncwarp();
    if (threadIdx.x == 0) load(own, shared, edit, bytes);
    shared.full.wait(0);
    cluster_sync();
    if (threadIdx.x == 0) load(tiles[next], shared, edits[next], bytes);
    shared.full.wait(1);
    unsigned char* image = images + static_cast<u64>(blockIdx.x) * Tile::kBytes;
    for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) image[i] = shared.tile.bytes[i];
}
"""

ADDRESS, DIM_STRIDES, DIM, FILL, SWIZZLE, BOX, ELEMENT_STRIDE, TYPE, REST = range(9)
EDIT = np.dtype(
    [
        ("address", "<u8"),
        ("strides_bytes", "<u8", (4,)),
        ("shape", "<u4", (5,)),
        ("side", "<u4"),
        ("at", "<i4", (5,)),
        ("field", "<u4"),
    ]
)


@functools.cache
def kernel_for(cuda_type: str) -> Kernel:
    return Kernel(SOURCE, "edits", types={"Tile": cuda_type})


def address_of(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def edit(at: tuple[int, ...], **fields: Any) -> Any:
    """One block's orders; ``at`` innermost first, as the kernel has it."""
    made = np.zeros((), EDIT)
    made["at"][: len(at)] = at
    for name, value in fields.items():
        if name in ("shape", "strides_bytes"):
            made[name][: len(value)] = value
        else:
            made[name] = value
    return made


def run(
    backend: Any, tiles: Any, orders: list[Any], field: int, in_shared: bool, size: int = 0
) -> Any:
    """The images that each CTA got through the map that its neighbour edited."""
    tile = tiles[0]
    blocks, size = len(orders), size or tile.tile_bytes
    images = backend.array(np.full((blocks, tile.tile_bytes), 0xCC, np.uint8))
    data = np.array(orders)
    data["field"] = field
    arguments = (tiles, backend.array(data.view(np.uint8)), in_shared, size, images)
    kernel_for(tile.cuda_type)(blocks, 32, arguments, cluster=blocks)
    return np.roll(backend.host(images)[:, :size], 1, axis=0)


BOTH = pytest.mark.parametrize("in_shared", [True, False], ids=["shared", "global"])


@BOTH
def test_an_address(backend: Any, in_shared: bool) -> None:
    hosts = [np.random.default_rng(n).random((24, 40), np.float32) for n in range(4)]
    arrays = [backend.array(host) for host in hosts]
    first = create_tma_tile(arrays[0], (16, 32), swizzle=Swizzle.B128)
    tiles = TMATensorTileArray([first] * 4)
    orders = [edit((32, 16), address=address_of(array)) for array in arrays]

    got = run(backend, tiles, orders, ADDRESS, in_shared)

    for image, host in zip(got, hosts, strict=True):
        assert np.array_equal(image, loaded(host, (16, 32), (16, 32), (16, 32), span_bits=3))
    assert [int.from_bytes(map_[:8], "little") for map_ in tiles.descriptors] == [
        address_of(array) for array in arrays
    ]


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(1, 4, 9)
@BOTH
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_extents_and_strides_of_every_rank(backend: Any, in_shared: bool, rank: int) -> None:
    shapes = [(3, 4, 3, 5, 24), (2, 2, 5, 9, 16), (1, 3, 2, 7, 40)]
    hosts = [np.random.default_rng(sum(s)).random(s[5 - rank :], np.float32) for s in shapes]
    arrays = [backend.array(host) for host in hosts]
    sides = (1, 2, 2, 4, 16)[5 - rank :]
    tiles = TMATensorTileArray([create_tma_tile(arrays[0], sides)] * 3)
    at = (16, 4, 1, 1, 0)[:rank]
    orders = [
        edit(at, address=address_of(array), shape=host.shape, strides_bytes=host.strides[:-1])
        for array, host in zip(arrays, hosts, strict=True)
    ]

    got = run(backend, tiles, orders, DIM_STRIDES, in_shared)

    for image, host in zip(got, hosts, strict=True):
        assert np.array_equal(image, loaded(host, at[::-1], sides, sides))


@BOTH
def test_one_extent(backend: Any, in_shared: bool) -> None:
    host = np.random.default_rng(1).random((24, 32), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(backend.array(host), (16, 32))] * 3)

    got = run(backend, tiles, [edit((0, 8), shape=(rows,)) for rows in (9, 17, 24)], DIM, in_shared)

    for image, rows in zip(got, (9, 17, 24), strict=True):
        assert np.array_equal(image, loaded(host[:rows], (8, 0), (16, 32), (16, 32)))


# Upstream does not offer this: the box after the edit.
@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 4, 7)
@BOTH
@pytest.mark.parametrize(
    ("field", "side", "rows", "oracle"),
    [
        (FILL, 0, 16, {"fill": NAN_FILL}),
        (SWIZZLE, 0, 16, {"span_bits": 2}),
        (BOX, 6, 6, {}),
        (ELEMENT_STRIDE, 2, 8, {"strides": (2, 1)}),
        (REST, 0, 16, {}),
    ],
    ids=["fill", "swizzle", "box", "element stride", "rank and interleave"],
)
def test_every_other_field(
    backend: Any, in_shared: bool, field: int, side: int, rows: int, oracle: dict[str, Any]
) -> None:
    host = np.random.default_rng(2).random((25, 16), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(backend.array(host), (16, 16))] * 2)

    got = run(backend, tiles, [edit((0, 12), side=side)] * 2, field, in_shared, rows * 64)

    wanted = loaded(host, (12, 0), (rows, 16), (rows, 16), **oracle)
    for image in got:
        assert np.array_equal(image, wanted)


@BOTH
def test_an_element_type(backend: Any, in_shared: bool) -> None:
    host = np.linspace(1, 2, 16 * 16, dtype=np.float32).reshape(16, 16)
    tiles = TMATensorTileArray([create_tma_tile(backend.array(host), (16, 16))] * 2)

    got = run(backend, tiles, [edit((0, 0))] * 2, TYPE, in_shared)

    values = got[0].view(np.float32)
    assert (values.view(np.uint32) % 2**13 == 0).all()  # TF32 has 10 bits of mantissa
    assert np.abs(values - host.reshape(-1)).max() <= 2.0**-11


INDEX = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void index(tmaasync::TMATensorTileArray<Tile> tiles, int at) {
    tiles[at].prefetch_descriptor();
}
"""


def test_an_index_beyond_the_last_tile_is_a_fault() -> None:
    tile = create_tma_tile(np.zeros((8, 32), np.float32), (8, 32))
    kernel = Kernel(INDEX, "index", types={"Tile": tile})
    tiles = TMATensorTileArray([tile] * 2)
    kernel(1, 1, (tiles, 1))

    with pytest.raises(EmulatedFault, match="index is 2; it must be below 2"):
        kernel(1, 1, (tiles, 2))


def test_a_misaligned_address_is_a_fault() -> None:
    array = np.zeros((24, 40), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(array, (16, 32))])

    with pytest.raises(EmulatedFault, match=r"global_address to .*; it must be a multiple"):
        run(Emulate(), tiles, [edit((0, 0), address=address_of(array) + 4)], ADDRESS, True)
