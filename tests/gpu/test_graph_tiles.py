"""Tiles and arrays of captured graphs, moved between replays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync import GraphTiles, Kernel, TMATensorTileArray, create_tma_tile, ops

cupy = pytest.importorskip("cupy")
driver = pytest.importorskip("cuda.bindings.driver")

ROUNDING = 5e-4  # of one rounding to float16, relative to the Frobenius norm, with room
POISON = 123.0

# Copies one tile a block, and adds a number, so that a copy of an older replay shows.
ADD = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    typename Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int add_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void add(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, const float* addend
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const int row = blockIdx.y * 32, column = blockIdx.x * 32;
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        wait_for_previous_grids();
        shared.full.expect_bytes(Tile::kBytes);
        source.async_copy(shared.tile, shared.full, {column, row});
    }
    __syncthreads();
    shared.full.wait(0);
    float* values = reinterpret_cast<float*>(shared.tile.bytes);
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) values[i] += *addend;
    fence_async_view_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
        target.async_store(shared.tile, {column, row});
        commit_group();
        wait_group<0>();
    }
}
"""

# The same from a table of tiles in memory.
PICK = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    typename Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int pick_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void pick(TMATensorTileArray<Tile> tiles, float* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        shared.full.expect_bytes(Tile::kBytes);
        tiles[blockIdx.x].async_copy(shared.tile, shared.full, {0, 0});
    }
    __syncthreads();
    shared.full.wait(0);
    const float* values = reinterpret_cast<const float*>(shared.tile.bytes);
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) out[blockIdx.x * 1024 + i] = values[i];
}
"""


def draw(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tile(array: Any) -> Any:
    return create_tma_tile(array, (32, 32))


class Guarded:
    """An array between rows of poison, of which none may change."""

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32) -> None:
        rows, columns = shape
        self._whole = cupy.full((rows + 16, columns), POISON, dtype)
        self.array = self._whole[8:-8]
        self.array.fill(np.nan)

    def check_surroundings(self) -> None:
        assert (self._whole[:8] == POISON).all()
        assert (self._whole[-8:] == POISON).all()


class Captured:
    """Launches captured on a stream of CuPy's."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        with self.stream:
            run()
            self.stream.synchronize()
            self.stream.begin_capture()
            run()
            self.graph = self.stream.end_capture()
        self.tiles = GraphTiles(self.graph)

    def replay(self) -> None:
        cupy.cuda.Device().synchronize()
        self.graph.launch(self.stream)
        self.stream.synchronize()


def added(shape: tuple[int, int] = (128, 96), *, pdl: bool = False) -> tuple[Captured, Any, Any]:
    """Twice `ADD` in one graph, the second on the result of the first; source and target tiles."""
    source, between, target = (tile(cupy.zeros(shape, np.float32)) for _ in range(3))
    ones = cupy.ones(1, np.float32)
    kernel = Kernel(ADD, "add", types={"Tile": source})
    grid = (shape[1] // 32, shape[0] // 32)

    def run() -> None:
        kernel(grid, 128, (source, between, ones), pdl=pdl)
        kernel(grid, 128, (between, target, ones), pdl=pdl)

    captured = Captured(run)
    captured.kept = (source, between, target, ones)  # type: ignore[attr-defined]
    return captured, source, target


@pytest.mark.parametrize("pdl", [False, True], ids=["in order", "dependent launch"])
def test_a_moved_tile_reads_and_writes_the_new_array_alone(pdl: bool) -> None:
    captured, source, target = added(pdl=pdl)
    target.array.fill(np.nan)
    out, values = Guarded((128, 96)), draw((128, 96), 1)

    captured.tiles.rebind(source, cupy.asarray(values))
    captured.tiles.rebind(target, out.array)
    captured.replay()

    assert np.array_equal(cupy.asnumpy(out.array), values + np.float32(1) + np.float32(1))
    out.check_surroundings()
    assert bool(cupy.isnan(target.array).all())
    assert not source.array.any()


def test_replays_under_way_keep_what_they_were_launched_with() -> None:
    captured, source, target = added()
    arrays = [cupy.full((128, 96), float(i), np.float32) for i in range(20)]
    outs = [cupy.full((128, 96), np.nan, np.float32) for _ in arrays]
    cupy.cuda.Device().synchronize()

    for array, out in zip(arrays, outs, strict=True):
        captured.tiles.rebind(source, array)
        captured.tiles.rebind(target, out)
        captured.graph.launch(captured.stream)
    captured.stream.synchronize()

    assert [float(out.min()) for out in outs] == [i + 2.0 for i in range(20)]
    assert [float(out.max()) for out in outs] == [i + 2.0 for i in range(20)]


def test_a_table_of_tiles_is_written_between_replays() -> None:
    arrays = [cupy.asarray(draw((32, 32), i)) for i in range(8)]
    tiles = TMATensorTileArray([tile(array) for array in arrays])
    out = cupy.zeros((8, 32, 32), np.float32)
    kernel = Kernel(PICK, "pick", types={"Tile": tiles[0]})
    captured = Captured(lambda: kernel(8, 128, (tiles, out)))

    for seed in range(100, 140):
        new = cupy.asarray(draw((32, 32), seed))
        arrays[seed % 8] = new
        tiles[seed % 8] = tile(new)
        captured.replay()
        assert np.array_equal(cupy.asnumpy(out), np.stack([cupy.asnumpy(it) for it in arrays]))


# --- operations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k"), [(512, 384, 256), (3000, 2048, 512), (8, 1024, 512), (4096, 4096, 128)]
)
def test_operands_of_a_matmul_move(m: int, n: int, k: int) -> None:
    """Of blocks in clusters too, and of launches that start early."""
    shapes = (m, k), (k, n), (m, n)
    a, b, out = (cupy.asarray(draw(shape, i, np.float16)) for i, shape in enumerate(shapes))
    captured = Captured(lambda: ops.matmul(a, b, out=out))
    before = cupy.asnumpy(out)
    values = [draw(shape, 10 + i, np.float16) for i, shape in enumerate(shapes[:2])]
    new = Guarded((m, n), np.float16)

    captured.tiles.rebind(a, cupy.asarray(values[0]))
    captured.tiles.rebind(b, cupy.asarray(values[1]))
    captured.tiles.rebind(out, new.array)
    captured.replay()

    wanted = values[0].astype(np.float64) @ values[1].astype(np.float64)
    got = cupy.asnumpy(new.array).astype(np.float64)
    assert np.linalg.norm(got - wanted) <= ROUNDING * np.linalg.norm(wanted)
    new.check_surroundings()
    assert np.array_equal(cupy.asnumpy(out), before)


# --- torch ------------------------------------------------------------------------------------


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def test_a_graph_of_torchs_moves(torch: Any) -> None:
    """With a kernel of torch's own, which holds its tensors' addresses one after the other."""
    a, b = (torch.from_numpy(draw((512, 512), i, np.float16)).cuda() for i in range(2))
    twice, out = torch.empty_like(a), torch.empty_like(a)

    def run() -> None:
        torch.mul(a, 2, out=twice)
        ops.matmul(twice, b, out=out)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        run()
    graph.instantiate()
    graph_tiles = GraphTiles(graph)
    values = draw((512, 512), 9, np.float16)
    new_out = torch.full_like(out, torch.nan)
    out.fill_(torch.nan)
    twice.fill_(torch.nan)

    graph_tiles.rebind(a, torch.from_numpy(values).cuda())
    graph_tiles.rebind(twice, torch.zeros_like(twice))
    graph_tiles.rebind(out, new_out)
    torch.cuda.synchronize()
    graph.replay()
    torch.cuda.synchronize()

    wanted = 2 * values.astype(np.float64) @ b.cpu().numpy().astype(np.float64)
    got = new_out.cpu().numpy().astype(np.float64)
    assert np.linalg.norm(got - wanted) <= ROUNDING * np.linalg.norm(wanted)
    assert bool(out.isnan().all())
    assert bool(twice.isnan().all())
