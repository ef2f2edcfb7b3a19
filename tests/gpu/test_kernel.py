"""Launching: arguments, streams, clusters, dependent launches, capture, stale tiles."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import Kernel, _driver, create_tma_tile
from tmaasync.errors import TMAError

cupy = pytest.importorskip("cupy")

SCALARS = """
struct Pair { int x; float y; };
extern "C" __global__ void scalars(
    double* out, int i, long long l, float f, double d, unsigned char c, Pair pair, bool b
) {
    double values[] = {double(i), double(l), f, d, double(c), double(pair.x), pair.y, double(b)};
    for (int k = 0; k < 8; ++k) out[k] = values[k];
}
"""

RANK = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
extern "C" __global__ void rank(unsigned* ranks) {
    if (threadIdx.x == 0) ranks[blockIdx.x] = block_rank_in_cluster() + 100 * blocks_in_cluster();
}
"""

COPY_ONE_TILE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory {
    typename Tile::Shared tile;
    SharedMemBarrier full;
};
extern "C" __device__ const int copy_one_tile_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void copy_one_tile(const __grid_constant__ Tile tile, unsigned char* out) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
        wait_for_previous_grids();
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {});
    }
    __syncthreads();
    shared.full.wait(0);
    for (int i = threadIdx.x; i < Tile::kBytes; i += blockDim.x) out[i] = shared.tile.bytes[i];
}
"""


def test_numbers_arrive_as_what_the_kernel_declares() -> None:
    out = cupy.full(8, np.nan)
    pair = np.array((7, 0.5), np.dtype([("x", "<i4"), ("y", "<f4")]))

    Kernel(SCALARS, "scalars")(1, 1, (out, -3, 1 << 40, 2, 0.1, 255, pair, True))

    assert cupy.asnumpy(out).tolist() == [-3, float(1 << 40), 2, 0.1, 255, 7, 0.5, 1]


def test_the_parameters_read_from_ptx_are_those_the_driver_knows() -> None:
    kernel = Kernel(SCALARS, "scalars")
    entry = kernel.compile().entries["scalars"]
    module = cupy.RawModule(path=str(kernel.compile().path))

    sizes = _driver.parameter_sizes(module.get_function("scalars").kernel.ptr)

    assert sizes == tuple(parameter.size_bytes for parameter in entry.parameters)


@pytest.mark.parametrize("cluster", [1, 2, 4, 8, 16])
def test_a_cluster_has_the_size_the_launch_says(cluster: int) -> None:
    ranks = cupy.full(32, 12345, np.uint32)

    Kernel(RANK, "rank")(32, 32, (ranks,), cluster=cluster)

    assert cupy.asnumpy(ranks).tolist() == [100 * cluster + block % cluster for block in range(32)]


def test_a_dependent_launch_sees_the_results_of_the_kernel_before() -> None:
    source = cupy.zeros((1 << 22,), np.float32)
    tile = create_tma_tile(source, (256,))
    out = cupy.full(1024, 0xCC, np.uint8)
    kernel = Kernel(COPY_ONE_TILE, "copy_one_tile", types={"Tile": tile})
    for value in range(1, 50):
        source.fill(value)
        kernel(1, 128, (tile, out), pdl=True)
        assert (cupy.asnumpy(out).view(np.float32) == value).all()


def test_a_declared_cluster_needs_no_argument_and_takes_no_other() -> None:
    declared = Kernel(RANK.replace("void rank", "void __cluster_dims__(2, 1, 1) rank"), "rank")
    for cluster in (None, 2):
        ranks = cupy.zeros(4, cupy.uint32)
        declared(4, 32, (ranks,), cluster=cluster)
        assert ranks.tolist() == [200, 201, 200, 201]
    with pytest.raises(TMAError):
        declared(4, 32, (cupy.zeros(4, cupy.uint32),), cluster=4)
    with pytest.raises(TMAError):
        declared(3, 32, (cupy.zeros(4, cupy.uint32),))
