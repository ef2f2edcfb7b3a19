"""Probe of a swizzle: load a tile by TMA and look where its chunks land."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync._hardware import SWIZZLE_CHUNK_BYTES
from tmaasync.cli._chunks import Layout
from tmaasync.kernel import Kernel
from tmaasync.tile import create_tma_tile

__all__ = ["found_offsets"]

_THREADS = 128
_WORDS_PER_CHUNK = SWIZZLE_CHUNK_BYTES // 4

_DUMP = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    typename Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int dump_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void dump(const __grid_constant__ Tile tile, unsigned char* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
    }
    __syncthreads();
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) out[i] = shared.tile.bytes[i];
}
"""


def found_offsets(layout: Layout, *, on_gpu: bool) -> list[int | None]:
    """Load the tile, and look for its chunks.

    Returns:
        Of every chunk, row by row, the byte of shared memory at which it starts; None where it is
        nowhere, or in several places.
    """
    count = layout.rows * layout.columns * layout.itemsize // SWIZZLE_CHUNK_BYTES
    # Every word has a number of its own, and none is 0.
    words = np.arange(1, count * _WORDS_PER_CHUNK + 1, dtype=np.uint32)
    source = words.view(f"u{layout.itemsize}").reshape(layout.rows, layout.columns)
    seen = _dump(layout, source, on_gpu=on_gpu).view(np.uint32).reshape(count, _WORDS_PER_CHUNK)
    places: dict[int, list[int]] = {}
    for place, chunk in enumerate(seen):
        number, rest = divmod(int(chunk[0]) - 1, _WORDS_PER_CHUNK)
        if rest == 0 and (np.diff(chunk) == 1).all():
            places.setdefault(number, []).append(place * SWIZZLE_CHUNK_BYTES)
    found = (places.get(number, []) for number in range(count))
    return [where[0] if len(where) == 1 else None for where in found]


def _dump(layout: Layout, source: npt.NDArray[Any], *, on_gpu: bool) -> npt.NDArray[np.uint8]:
    """Shared memory as it lies after one load of the whole array."""
    library: Any = importlib.import_module("cupy") if on_gpu else np
    array = library.asarray(source)
    tile = create_tma_tile(array, array.shape, swizzle=layout.swizzle)
    out = library.zeros(source.nbytes, np.uint8)
    Kernel(_DUMP, "dump", types={"Tile": tile})(1, _THREADS, (tile, out))
    bytes_: npt.NDArray[np.uint8] = library.asnumpy(out) if on_gpu else out
    return bytes_
