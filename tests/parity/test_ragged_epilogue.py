"""Threads write tiles of sequences element by element, as an epilogue does; TMA stores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, create_ragged_tensor_map, create_ragged_tma_3d_tile

POISON = 0xA5A5
ROWS, LONGEST, HEADS = 24, 60, 3

_FILL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory { typename Packed::Shared tile; };
extern "C" __device__ const int fill_shared_bytes = sizeof(SharedMemory);

// The value for row `row` of the packed array, head `head` and column `column`.
__device__ u16 value(int row, int head, int column) { return row * 397 + head * 131 + column; }

// Block (i, h): head h of sequence i.
extern "C" __global__ void fill(const __grid_constant__ Packed packed, const INDEX* cu_seqlens) {
    auto& shared = dynamic_shared<SharedMemory>();
    const auto sequence = RaggedSequence::of(cu_seqlens, blockIdx.x);
    const int head = blockIdx.y;
    for (int row = 0; row < sequence.length; row += Packed::kRows) {
        for (int x = 0; x < COLUMNS; x += WIDTH) {
            for (int i = threadIdx.x; i < Packed::kRows * WIDTH; i += blockDim.x) {
                const int r = i / WIDTH, c = i % WIDTH;
                const u16 found = value(sequence.start + row + r, head, x + c);
                *reinterpret_cast<u16*>(shared.tile.bytes + OFFSET) = found;
            }
            fence_async_view_proxy();
            __syncthreads();
            if (threadIdx.x == 0) {
                STORE;
                commit_group();
                wait_group_read<0>();
            }
            __syncthreads();
        }
    }
}
"""


def expected(cu_seqlens: Any, total_rows: int, columns: int) -> Any:
    row, head, column = np.indices((total_rows, HEADS, columns))
    wanted = ((row * 397 + head * 131 + column) % 2**16).astype(np.uint16)
    inside = np.zeros(total_rows, bool)
    inside[cu_seqlens[0] : cu_seqlens[-1]] = True
    wanted[~inside] = POISON
    return wanted


def fill(backend: Any, make: Any, text: tuple[str, str], width: int, index: type) -> None:
    """Fill random batches, with rows of poison before the first and after the last sequence."""
    rng = np.random.default_rng(width)
    columns = 2 * width
    for _ in range(4):
        lengths = rng.integers(0, LONGEST + 1, rng.integers(1, 7))
        lengths[rng.integers(0, lengths.size)] = rng.choice([0, 1, ROWS, LONGEST])
        cu_seqlens: Any = np.cumsum([rng.integers(0, 9), *lengths]).astype(index)
        packed = np.full((int(cu_seqlens[-1]) + 7, HEADS, columns), POISON, np.uint16)
        target = backend.array(packed)
        map_ = make(target)
        offset, store = text
        source = _FILL.replace("OFFSET", offset).replace("STORE", store)
        kernel = Kernel(
            source,
            "fill",
            types={"Packed": map_, "INDEX": np.dtype(index)},
            constants={"COLUMNS": columns, "WIDTH": width},
        )
        kernel((lengths.size, HEADS), 128, (map_, backend.array(cu_seqlens)))
        wanted = expected(cu_seqlens, packed.shape[0], columns)
        assert np.array_equal(backend.host(target), wanted)


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3, 4)
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize(("swizzle", "width"), [("none", 40), ("32B", 64), ("128B", 128)])
def test_elements_lie_where_tile_offset_says(
    backend: Any, swizzle: Any, width: int, index: type
) -> None:
    text = (
        "Packed::tile_offset({c, 0, r})",
        "packed.async_store(shared.tile, sequence, {x, head, row})",
    )

    def make(target: Any) -> Any:
        return create_ragged_tensor_map(
            target, (ROWS, 1, width), max_length=LONGEST, swizzle=swizzle
        )

    fill(backend, make, text, width, index)


@pytest.mark.parametrize(
    ("swizzle", "width", "chunk"), [("none", 40, None), ("64B", 64, None), ("128B", 128, 64)]
)
def test_elements_of_a_head_lie_where_tile_offset_says(
    backend: Any, swizzle: Any, width: int, chunk: int | None
) -> None:
    text = ("Packed::tile_offset(r, c)", "packed.async_store(shared.tile, sequence, row, head, x)")

    def make(target: Any) -> Any:
        return create_ragged_tma_3d_tile(
            target, ROWS, width, chunk_columns=chunk, max_length=LONGEST, swizzle=swizzle
        )

    fill(backend, make, text, width, np.int32)
