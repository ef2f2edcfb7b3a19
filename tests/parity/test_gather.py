"""Rows gathered by number, four at a time and a whole tile at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.tile_oracle import loaded

from tmaasync import Kernel, L2Promotion, Swizzle, create_tma_tile_gather4

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int gather_shared_bytes = sizeof(SharedMemory);

// The rows in the order given, from `column` on: by the whole tile, or its groups of four from the
// last to the first.
extern "C" __global__ void gather(
    const __grid_constant__ Tile tile, const i32* rows, int column, bool whole, unsigned char* image
) {
    constexpr int kRows = Tile::side(0);
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init();
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0 && whole) {
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy_gather4_tile(shared.tile, shared.full, column, rows);
    } else if (threadIdx.x == 0) {
        for (int first = kRows - 4; first >= 0; first -= 4) {
            const i32* four = rows + first;
            shared.full.expect_tx(Tile::kGather4Bytes);
            tile.async_copy_gather4(
                shared.tile, shared.full, column, {four[0], four[1], four[2], four[3]}, first
            );
        }
        shared.full.arrive();
    }
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) image[i] = shared.tile.bytes[i];
}
"""


FORMS = [
    ("float16", (8, 128), Swizzle.B128),
    ("float16", (4, 100), Swizzle.B128),
    ("float32", (16, 96), Swizzle.NONE),
]
CALLS = [(whole, column) for whole in (True, False) for column in (0, 64)]


def inputs(form: Any) -> tuple[Any, Any]:
    """A matrix, and rows of it of which two do not exist."""
    dtype, sides, _ = form
    rng = np.random.default_rng(3)
    array = rng.integers(1, 100, (50, 136)).astype(dtype)
    rows = rng.integers(0, 50, sides[0]).astype(np.int32)
    rows[[1, 2]] = -1, 50
    return array, rows


def gather(backend: Any, form: Any) -> tuple[Any, list[Any]]:
    """The tile, and its bytes in shared memory after each of `CALLS`."""
    array, rows = inputs(form)
    _, sides, swizzle = form
    tile = create_tma_tile_gather4(
        backend.array(array), sides, swizzle=swizzle, l2_promotion=L2Promotion.B128
    )
    kernel = Kernel(SOURCE, "gather", types={"Tile": tile})
    got = []
    for whole, column in CALLS:
        image = backend.array(np.full(tile.tile_bytes, 0xCC, np.uint8))
        kernel(1, 32, (tile, backend.array(rows), column, whole, image))
        got.append(backend.host(image))
    return tile, got


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_rows_in_any_order(backend: Any, form: Any) -> None:
    array, rows = inputs(form)
    picked = np.where((rows >= 0)[:, None] & (rows < 50)[:, None], array[rows % 50], 0)
    _, sides, swizzle = form

    tile, got = gather(backend, form)

    chunk = (sides[0], tile.box_shape[1])
    for image, (whole, column) in zip(got, CALLS, strict=True):
        wanted = loaded(
            picked.astype(array.dtype), (0, column), sides, chunk, span_bits=int(swizzle)
        )
        assert np.array_equal(image, wanted), (whole, column)
