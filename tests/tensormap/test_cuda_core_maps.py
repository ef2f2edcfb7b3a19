"""cuda.core's TensorMapDescriptor is a kernel's argument like a tile's bytes."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tmaasync import Kernel, LaunchError, TMATensorTile, create_tma_tile
from tmaasync.kernel import cuda_core
from tmaasync.kernel.cuda_core import map_address, map_bytes

core = pytest.importorskip("cuda.core")

COPY = """
#include <tmaasync/tmaasync.cuh>
extern "C" __global__ void first(const __grid_constant__ Tile image, float* out) {
    __shared__ Tile::Shared tile;
    __shared__ tmaasync::SharedMemBarrier full;
    full.init(1), tmaasync::fence_barrier_init();
    full.expect_bytes(Tile::kBytes);
    image.async_copy(tile, full, {0, 0});
    full.wait(0);
    for (int i = 0; i < 32; ++i) out[i] = tile.data()[i];
}
"""


def descriptor_of(tile: TMATensorTile) -> object:
    """Return a descriptor with the tile's bytes, which cuda.core makes with a driver alone."""
    kind = core.TensorMapDescriptor
    made = kind.__new__(kind)
    ctypes.memmove(map_address(made), tile.descriptor, len(tile.descriptor))
    return made


def test_a_descriptor_stands_for_its_map() -> None:
    image, out = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((4, 8), np.float32)
    tile = create_tma_tile(image, (4, 8))
    given = descriptor_of(tile)
    assert map_bytes(given) == tile.descriptor

    kernel = Kernel(COPY, "first", types={"Tile": tile})
    kernel(1, 1, (given, out))

    assert (out == image[:4]).all()
    with pytest.raises(LaunchError, match=r"args\[1\] is .*TensorMapDescriptor"):
        kernel(1, 1, (given, given))


def test_an_unknown_version_of_cuda_core_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given = descriptor_of(create_tma_tile(np.zeros((8, 8), np.float32), (4, 8)))
    cuda_core._require_known_version.cache_clear()
    monkeypatch.setattr(core, "__version__", "9.0.0")

    with pytest.raises(LaunchError, match=r"of cuda.core 9.0.0; .* Pass a tile"):
        map_bytes(given)
