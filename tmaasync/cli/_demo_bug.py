"""The demo's first screen: a short kernel with a bug, what the CPU reports of it, and the fix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tmaasync.errors import EmulatedDeadlock
from tmaasync.kernel import Kernel
from tmaasync.tile import create_tma_tile

# With its line numbers it fits into 80 columns.
SOURCE = """\
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void corner(
    const __grid_constant__ Tile image, float* out) {
    __shared__ Tile::Shared tile;                    // 4 x 8 floats
    __shared__ tmaasync::SharedMemBarrier arrived;   // an mbarrier
    arrived.init(1), tmaasync::fence_barrier_init();
    arrived.expect_bytes(64);                        // the bug: 64 of 128
    image.async_copy(tile, arrived, {4, 3});         // TMA loads the tile
    arrived.wait(0);                                 // waits for ever
    for (int i = 0; i < 32; ++i) out[i] = tile.data()[i];
}
"""
BUG, FIX, LINE = "expect_bytes(64)", "expect_bytes(Tile::kBytes)", 7


@dataclass(frozen=True, slots=True, kw_only=True)
class BugReport:
    """The source, the error as a user sees it, and the output of the corrected kernel."""

    source: str
    message: str
    output: str


def run() -> BugReport:
    """Run the kernel with its bug and without it, on the CPU."""
    message = ""
    try:
        _corner(SOURCE)
    except EmulatedDeadlock as error:
        message = f"tmaasync.errors.{type(error).__name__}: {error}"
    output = _corner(SOURCE.replace(BUG, FIX))
    return BugReport(source=SOURCE, message=message, output=str(output.astype(int)))


def _corner(source: str) -> np.ndarray:
    image = np.arange(40, dtype=np.float32).reshape(5, 8)
    out = np.zeros((4, 8), np.float32)
    tile = create_tma_tile(image, (4, 8))
    Kernel(source, "corner", types={"Tile": tile})(1, 1, (tile, out))
    return out
