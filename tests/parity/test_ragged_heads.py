"""One head of sequences of unequal length, on either back end: plain, grouped, and in chunks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from emulate import tma_oracle as oracle

from tmaasync import Kernel, RaggedTMA3DTile, Swizzle, create_ragged_tma_3d_tile

pytestmark = pytest.mark.slow

POISON = 0xA5
HEADS, ROWS, LONGEST = 3, 8, 21
SEQUENCES = ((2, 13), (17, 21), (38, 0), (40, 1), (41, 8))
TOTAL_ROWS = 51

_MOVE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct SharedMemory {
    typename Tile::Shared tile;
    SharedMemBarrier full;
};

extern "C" __device__ const int move_shared_bytes = sizeof(SharedMemory);

// A block moves one head of one sequence; `seen` gets its first tile as it lay in shared memory.
extern "C" __global__ void move(
    const __grid_constant__ Tile source,
    const __grid_constant__ Tile target,
    const int* sequences,
    unsigned char* seen,
    int column
) {
    auto& shared = dynamic_shared<SharedMemory>();
    shared.full.init(1);
    fence_barrier_init();
    const int head = blockIdx.y;
    const RaggedSequence sequence{sequences[2 * blockIdx.x], sequences[2 * blockIdx.x + 1]};
    seen += (blockIdx.x * gridDim.y + head) * Tile::kBytes;
    u32 phase = 0;
    for (int row = 0; row == 0 || row < sequence.length; row += Tile::kRows, phase ^= 1) {
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.tile, shared.full, sequence, row, head, column);
        shared.full.wait(phase);
        if (row == 0) {
            for (int i = 0; i < Tile::kBytes; ++i) seen[i] = shared.tile.bytes[i];
        }
        STORE
        commit_group();
        wait_group<0>();
    }
}
"""
_WHOLE = "target.async_store(shared.tile, sequence, row, head, column);"
_BY_CHUNK = """
        for (int chunk = 0; chunk < Tile::kBoxes; ++chunk) {
            target.async_store_chunk(shared.tile, chunk, sequence, row, head);
        }
"""

# Dimensions between head and columns, swizzle, columns of a chunk.
FORMS = [
    ((), Swizzle.NONE, None),
    ((), Swizzle.B128, None),
    ((2,), Swizzle.B64, None),
    ((), Swizzle.NONE, 8),
    ((), Swizzle.B128, 64),
    ((2,), Swizzle.NONE, 32),
]


def tile_over(array: Any, form: Any) -> RaggedTMA3DTile:
    _, swizzle, chunk = form
    return create_ragged_tma_3d_tile(
        array, ROWS, chunk_columns=chunk, max_length=LONGEST, swizzle=swizzle
    )


def random_bits(groups: tuple[int, ...]) -> Any:
    shape = (TOTAL_ROWS, HEADS, *groups, 128)
    values = np.random.default_rng(0).integers(0, 1 << 16, shape).astype(np.uint16)
    inside = np.zeros(TOTAL_ROWS, bool)
    for start, length in SEQUENCES:
        inside[start : start + length] = True
    values[~inside] = 0xFFFF  # NaN, to float16
    return values


def in_chunks(tile: RaggedTMA3DTile, rows: Any, form: Any) -> Any:
    """Rows of one head as [chunks][rows][groups][chunk], each box swizzled: bytes."""
    _, swizzle, chunk = form
    width = chunk or (128 if swizzle is Swizzle.NONE else swizzle.span_bytes // 2)
    parts = [rows[..., start : start + width] for start in range(0, rows.shape[-1], width)]
    raw = np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts]).view(np.uint8)
    image = np.empty_like(raw)
    for start in range(0, raw.size, tile.spec.box_bytes):
        box = raw[start : start + tile.spec.box_bytes]
        places = [oracle.in_shared(tile.spec, byte, start) for byte in range(box.size)]
        image[places] = box
    return image


def move_heads(backend: Any, form: Any) -> tuple[RaggedTMA3DTile, Any, Any]:
    """A tile, the array to which every head of every sequence was moved, and the tiles seen."""
    groups, _, chunk = form
    values = random_bits(groups)
    source, target = (backend.array(array) for array in (values, np.full_like(values, POISON)))
    tiles = [tile_over(array, form) for array in (source, target)]
    store = _BY_CHUNK if chunk is None else _WHOLE
    kernel = Kernel(_MOVE.replace("STORE", store), "move", types={"Tile": tiles[0]})
    size = len(SEQUENCES) * HEADS * tiles[0].tile_bytes
    seen = backend.array(np.zeros(size, np.uint8))
    sequences = backend.array(np.array(SEQUENCES, np.int32))

    kernel((len(SEQUENCES), HEADS), 1, (*tiles, sequences, seen, 0))

    return tiles[1], backend.host(target), backend.host(seen).reshape(-1, tiles[0].tile_bytes)


@pytest.mark.on_the_cpu(2, 4)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_head_moves_and_nothing_else_does(backend: Any, form: Any) -> None:
    values = random_bits(form[0])

    tile, target, seen = move_heads(backend, form)

    expected = np.full_like(values, POISON)
    for start, length in SEQUENCES:
        expected[start : start + length] = values[start : start + length]
    assert np.array_equal(target, expected)
    sequences_and_heads = itertools.product(SEQUENCES, range(HEADS))
    for image, ((start, length), head) in zip(seen, sequences_and_heads, strict=True):
        rows = np.zeros((ROWS, *values.shape[2:]), np.uint16)
        rows[: min(ROWS, length)] = values[start : start + min(ROWS, length), head]
        assert np.array_equal(image, in_chunks(tile, rows, form))


@pytest.mark.parametrize("columns", [64, 96])
def test_one_instruction_moves_the_chunks_from_a_column_on(backend: Any, columns: int) -> None:
    values = random_bits(())
    source, target = (backend.array(array) for array in (values, np.full_like(values, POISON)))
    tiles = [
        create_ragged_tma_3d_tile(array, ROWS, columns, chunk_columns=32, max_length=LONGEST)
        for array in (source, target)
    ]
    kernel = Kernel(_MOVE.replace("STORE", _WHOLE), "move", types={"Tile": tiles[0]})
    seen = backend.array(np.zeros(len(SEQUENCES) * HEADS * tiles[0].tile_bytes, np.uint8))
    sequences = backend.array(np.array(SEQUENCES, np.int32))

    kernel((len(SEQUENCES), HEADS), 1, (*tiles, sequences, seen, 64))

    expected = np.full_like(values, POISON)
    for start, length in SEQUENCES:
        expected[start : start + length, :, 64:] = values[start : start + length, :, 64:]
    assert tiles[0].boxes_per_tile == 1
    assert np.array_equal(backend.host(target), expected)
