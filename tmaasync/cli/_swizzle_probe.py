"""Probe of a swizzle: load a tile by TMA and look where its chunks land."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tmaasync._hardware import SWIZZLE_CHUNK_BYTES
from tmaasync.cli._chunks import Layout
from tmaasync.kernel import Kernel
from tmaasync.modes import Swizzle
from tmaasync.tile import create_tma_tile

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


Load = Callable[[npt.NDArray[Any], Swizzle], npt.NDArray[np.uint8]]
"""Loads a whole array as one tile, and returns the bytes of shared memory."""


def found_offsets(layout: Layout, load: Load) -> list[int | None]:
    """Load the tile, and look for its chunks.

    Returns:
        The byte of shared memory at which each chunk starts, row by row; None for a chunk that is
        missing or occurs more than once.
    """
    count = layout.rows * layout.columns * layout.itemsize // SWIZZLE_CHUNK_BYTES
    # Every word has a number of its own, and none is 0.
    words = np.arange(1, count * _WORDS_PER_CHUNK + 1, dtype=np.uint32)
    source = words.view(f"u{layout.itemsize}").reshape(layout.rows, layout.columns)
    seen = load(source, layout.swizzle).view(np.uint32).reshape(count, _WORDS_PER_CHUNK)
    offsets: dict[int, list[int]] = {}
    for position, chunk in enumerate(seen):
        number, rest = divmod(int(chunk[0]) - 1, _WORDS_PER_CHUNK)
        if rest == 0 and (np.diff(chunk) == 1).all():
            offsets.setdefault(number, []).append(position * SWIZZLE_CHUNK_BYTES)
    found = (offsets.get(number, []) for number in range(count))
    return [where[0] if len(where) == 1 else None for where in found]


def load_on_gpu(source: npt.NDArray[Any], swizzle: Swizzle) -> npt.NDArray[np.uint8]:
    """Load on CuPy's current device."""
    cupy = importlib.import_module("cupy")
    out = cupy.zeros(source.nbytes, np.uint8)
    _launch(cupy.asarray(source), swizzle, out)
    dumped: npt.NDArray[np.uint8] = cupy.asnumpy(out)
    return dumped


def load_on_emulator(source: npt.NDArray[Any], swizzle: Swizzle) -> npt.NDArray[np.uint8]:
    """Load on the emulator."""
    out = np.zeros(source.nbytes, np.uint8)
    _launch(source, swizzle, out)
    return out


def _launch(source: Any, swizzle: Swizzle, out: Any) -> None:
    tile = create_tma_tile(source, source.shape, swizzle=swizzle)
    Kernel(_DUMP, "dump", types={"Tile": tile})(1, _THREADS, (tile, out))
