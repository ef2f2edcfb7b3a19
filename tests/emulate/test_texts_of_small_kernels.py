"""Reports of small kernels, each of which makes one mistake of its own."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tmaasync import EmulatedFault, EmulatedRace, Kernel, TMATensorTileArray, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.errors import TMAError

INDEXED = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void indexed(const TMATensorTileArray<Tile> tiles, int at) {
    prefetch_tma_descriptor(tiles[at].map);  //@
}
"""


def test_an_index_beyond_the_tiles_names_itself_and_their_count() -> None:
    array = np.zeros((16, 64), np.float32)
    tiles = TMATensorTileArray([create_tma_tile(array, (8, 16)) for _ in range(3)])
    kernel = Kernel(INDEXED, "indexed", types={"Tile": tiles[0]})

    with pytest.raises(EmulatedFault, match=r"index is 3; it must be below 3\.") as caught:
        kernel(1, 1, (tiles, 3))

    line = next(n for n, text in enumerate(INDEXED.splitlines(), 1) if text.endswith("//@"))
    assert caught.value.source == f"kernel.cu:{line}"


OVERLAPPING = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory { Tile::Shared tile; };
extern "C" __device__ const int overlapping_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void overlapping(const __grid_constant__ Tile tile) {
    auto& s = dynamic_shared<SharedMemory>();
    for (int i = threadIdx.x; i < 128; i += blockDim.x) s.tile.data()[i] = 1;
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        tile.async_store(s.tile, {0, 0});
        commit_group();
        wait_group<0>();
    }
}
"""


def test_a_store_whose_rows_share_bytes_overlaps_itself() -> None:
    flat = np.zeros(256, np.float32)
    rows = np.lib.stride_tricks.as_strided(flat, (8, 16), (32, 4))
    tile = create_tma_tile(rows, (8, 16))

    with (
        scheduled(races=True),
        pytest.raises(EmulatedRace, match="one store writes the same bytes twice: its tile ove"),
    ):
        Kernel(OVERLAPPING, "overlapping", types={"Tile": tile})(1, 32, (tile,))


MULTIPLY = """
#include <tmaasync/tmaasync.cuh>
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
using Operand = WgmmaOperand<Tile, Major::kK>;

struct SharedMemory { alignas(1024) Tile::Shared a, b; };
extern "C" __device__ const int multiply_shared_bytes = sizeof(SharedMemory);

__device__ void fill(Tile::Shared& tile, int begin, int end) {
    for (int i = begin + threadIdx.x % 128; i < end; i += 128) tile.data()[i] = bfloat16(1.0f);
    fence_async_view_proxy();
}

extern "C" __global__ void __launch_bounds__(256, 1) multiply(
    const __grid_constant__ Tile tile, float* out
) {
    auto& s = dynamic_shared<SharedMemory>();
    float sums[1][1][32];
    if (threadIdx.x >= 128) {
        for (int i = 0; i < 4; ++i) __nanosleep(1);
        return fill(s.a, 16 * 64, 64 * 64);
    }
    fill(s.b, 0, 64 * 64);
    fill(s.a, 0, 16 * 64);
    NamedBarrier<128>{1}.sync();
    wgmma<Operand, Operand>(sums, s.a, s.b, false);
    out[threadIdx.x] = sums[0][0][0];
}
"""


def test_wgmma_before_the_first_write_lacks_a_barrier_and_no_wait() -> None:
    array = np.zeros((64, 64), ml_dtypes.bfloat16)
    tile = create_tma_tile(array, (64, 64), swizzle="128B")
    kernel = Kernel(MULTIPLY, "multiply", types={"Tile": tile})

    with (
        scheduled(races=True),
        pytest.raises(EmulatedRace, match="wgmma is issued before the write, which is the first"),
    ):
        kernel(1, 256, (tile, np.zeros(128, np.float32)))


SMALL = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory { Tile::Shared tile; SharedMemBarrier full[2], empty[2]; };
extern "C" __device__ const int small_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void small(const __grid_constant__ Tile image, float* out) {
    auto& s = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; ++i) s.full[i].init(ARRIVALS), s.empty[i].init(1);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        s.empty[0].wait(PRODUCER);
        s.full[0].expect_bytes(Tile::kBytes);
        image.async_copy(s.tile, s.full[0], {0, 0});
    }
    s.full[0].wait(0);
    if (threadIdx.x < FLOATS) out[threadIdx.x] = s.tile.data()[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"FLOATS": 17},
            r"\(tile past the end of its 64 bytes of data\), .* \[rule: unwritten-shared\](\n|$)",
        ),
        ({"PRODUCER": 0}, r"warp 0 has not released .*: a producer's first wait names parity 1"),
        ({"ARRIVALS": 2}, r"only warp 0 filled .*, with 1 of the 2 arrivals that init\(\) counts"),
    ],
)
def test_a_small_pipeline_s_mistake_is_named(changes: dict[str, int], said: str) -> None:
    text = SMALL
    for name, value in {"ARRIVALS": 1, "PRODUCER": 1, "FLOATS": 16, **changes}.items():
        text = text.replace(name, str(value))
    image, out = np.ones((8, 8), np.float32), np.zeros(32, np.float32)
    tile = create_tma_tile(image, (4, 4))

    with pytest.raises(TMAError, match=said), scheduled(races=True):
        Kernel(text, "small", types={"Tile": tile})(1, 32, (tile, out))
