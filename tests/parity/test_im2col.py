"""Tiles of patch matrices: every rank, stride, dilation and corner, away from the origin."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from parity.tile_oracle import loaded

from tmaasync import Kernel, OOBFill, Swizzle, create_tma_tile_im2col
from tmaasync._elements import element

NAN_FILL = 0x7FF7  # per 16 bits, whatever the type (measured on an H200)

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int patches_shared_bytes = sizeof(SharedMemory);

// One tile a block; `places` are {k, m}. All CTAs of a cluster take the tile of the first.
enum Way { kCoordinates, kSteps, kWalk };

__device__ void load(SharedMemory& shared, const Tile& tile, Coordinates<2> at, Way way) {
    const i32 k = at.values[0], m = at.values[1];
    if (way == kSteps) {
        c2d_im2col(shared.tile, shared.full, tile, m / Tile::side(0), k / Tile::side(1));
        return;
    }
    if constexpr (Tile::kBoxes == 1) {
        if (way == kWalk) {
            auto column = tile.column({0, m});
            for (i32 passed = 0; passed < k; passed += Tile::kChannels) tile.step(column);
            tile.async_copy_column(shared.tile, shared.full, column);
            return;
        }
    }
    tile.async_copy(shared.tile, shared.full, at);
}

// The steps to a position follow from its number; kSteps only reaches whole tiles.
__device__ Way way_of(u32 index, Coordinates<2> at) {
    const Way way = static_cast<Way>(index % 3);
    const bool is_whole = at.values[0] % Tile::side(1) == 0 && at.values[1] % Tile::side(0) == 0;
    return way == kSteps && !is_whole ? kCoordinates : way;
}

extern "C" __global__ void patches(
    const __grid_constant__ Tile tile, const i32* places, unsigned char* images
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const u32 ctas = blocks_in_cluster(), rank = block_rank_in_cluster();
    const u32 index = blockIdx.x - rank;
    const Coordinates<2> at{places[2 * index], places[2 * index + 1]};
    if (threadIdx.x == 0) {
        tile.prefetch_descriptor();
        shared.full.init();
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
    }
    cluster_sync();
    tile.prefetch(at);
    if (ctas == 1 && index % 4 == 0) {
        if (threadIdx.x == 3) tile.async_copy(shared.tile, shared.full, at);
    } else if (ctas == 1) {
        if (threadIdx.x == 3) load(shared, tile, at, way_of(index, at));
    } else if (rank == ctas - 1 && threadIdx.x == 0) {
        tile.async_multicast_load(shared.tile, shared.full, at, (1 << ctas) - 1);
    }
    shared.full.wait(0);
    unsigned char* image = images + static_cast<u64>(blockIdx.x) * Tile::kBytes;
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) image[i] = shared.tile.bytes[i];
    cluster_sync();
}
"""


@dataclass(frozen=True)
class Case:
    """Images and the filter that runs over them; everything outermost first."""

    dtype: str
    shape: tuple[int, ...]
    tile: tuple[int, int]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.dtype}-{'x'.join(map(str, self.shape))}-{'x'.join(map(str, self.taps))}"

    def images(self) -> np.ndarray[Any, Any]:
        kind = np.dtype(f"u{element(self.dtype).itemsize}")
        rng = np.random.default_rng(sum(self.shape))
        raw = rng.integers(0, 256, (*self.shape[:-1], self.shape[-1] * kind.itemsize), np.uint8)
        return raw.view(kind)

    @property
    def fill(self) -> int:
        return NAN_FILL if self.options.get("oob_fill") is OOBFill.NAN else 0


CASES = [
    # 1, 2 and 3 spatial dimensions with padding "same", then everything uneven.
    Case("float16", (2, 19, 64), (32, 64), (3,), (1,), (1,), (-1,), (-1,), Swizzle.B128),
    Case("float32", (2, 7, 9, 32), (48, 32), (3, 3), (1, 1), (1, 1), (-1, -1), (-1, -1)),
    Case("uint8", (2, 4, 5, 6, 32), (64, 32), (2, 2, 2), (1, 1, 1), (1, 1, 1), (0, 0, 0),
         (-1, -1, -1), Swizzle.B32),
    # Several chunks; the last tap ends inside a tile; channels that no chunk divides.
    Case("bfloat16", (3, 8, 11, 40), (64, 128), (3, 5), (2, 1), (1, 2), (-1, -2), (0, -7),
         Swizzle.B128),
    # Strides and dilations that skip the borders, corners that crop, boxes that wrap many rows.
    Case("int32", (4, 13, 3, 24), (128, 16), (3, 1), (3, 2), (2, 1), (1, 0), (-4, 0), Swizzle.B64),
    Case("float32", (2, 5, 6, 7, 12), (64, 16), (3, 2, 3), (2, 1, 3), (1, 2, 1), (-2, -1, -1),
         (-1, -1, -1), Swizzle.B64, {"oob_fill": OOBFill.NAN}),
    # Boxes smaller than the tile along both sides.
    Case("float16", (2, 9, 6, 48), (96, 96), (2, 3), (1, 1), (1, 1), (-1, 0), (0, -1),
         Swizzle.NONE, {"box_shape": (32, 48)}),
    # One tap, which is the images themselves, strided.
    Case("uint64", (1, 17, 15, 6), (40, 2), (1, 1), (4, 8), (1, 1), (0, 0), (0, 0)),
]  # fmt: skip


def patch_matrix(case: Case, images: np.ndarray[Any, Any], channels: int) -> np.ndarray[Any, Any]:
    """Rows per output pixel, columns per tap and (padded) channel, from the definition."""
    extents = images.shape[1:-1]
    filler = np.frombuffer(np.full(4, case.fill, np.uint16).tobytes(), images.dtype)[0]
    positions = [
        range(low, extent + up, step)
        for low, extent, up, step in zip(case.lower, extents, case.upper, case.stride, strict=True)
    ]
    taps = list(itertools.product(*map(range, case.taps)))
    rows = []
    for image, start in itertools.product(range(images.shape[0]), itertools.product(*positions)):
        row = np.full((len(taps), channels), filler, images.dtype)
        for number, tap in enumerate(taps):
            at = [low + t * d for low, t, d in zip(start, tap, case.dilation, strict=True)]
            if all(0 <= place < extent for place, extent in zip(at, extents, strict=True)):
                row[number, : images.shape[-1]] = images[(image, *at)]
        rows.append(row.reshape(-1))
    return np.array(rows)


@functools.cache
def kernel_for(cuda_type: str) -> Kernel:
    return Kernel(SOURCE, "patches", types={"Tile": cuda_type})


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 5)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_tile_of_a_patch_matrix(backend: Any, case: Case) -> None:
    images = case.images()
    tile = create_tma_tile_im2col(
        backend.array(images),
        case.tile,
        filter_shape=case.taps,
        stride=case.stride,
        dilation=case.dilation,
        lower_corner=case.lower,
        upper_corner=case.upper,
        swizzle=case.swizzle,
        dtype=case.dtype,
        **case.options,
    )
    matrix = patch_matrix(case, images, tile.channels)
    assert tile.matrix_shape == matrix.shape
    grid = itertools.product(*(range(count + 1) for count in tile.tiles_per_side))
    places = [(m * case.tile[0], k * case.tile[1]) for m, k in grid]
    places.append((5, tile.box_shape[1]))  # no multiple of the tile

    for ctas in (1, 2):
        got = run(backend, tile, places, ctas)

        for number, place in enumerate(places):
            wanted = loaded(
                matrix,
                place,
                case.tile,
                tile.box_shape,
                span_bits=int(case.swizzle),
                fill=case.fill,
            )
            for copy in range(ctas):
                assert np.array_equal(got[number * ctas + copy], wanted), (place, copy)


def run(backend: Any, tile: Any, places: list[tuple[int, int]], ctas: int) -> Any:
    """What every CTA got; all of a cluster take one tile, which its last loads for them."""
    blocks = len(places) * ctas
    innermost_first = np.array([place[::-1] for place in places for _ in range(ctas)], np.int32)
    images = backend.array(np.full((blocks, tile.tile_bytes), 0xCC, np.uint8))
    kernel_for(tile.cuda_type)(
        blocks,
        32,
        (tile, backend.array(innermost_first), images),
        cluster=ctas if ctas > 1 else None,
    )
    return backend.host(images)
