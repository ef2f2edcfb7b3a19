"""Launching: arguments, streams, clusters, dependent launches, capture, stale tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import (
    Kernel,
    LaunchError,
    Pointer,
    StaleTileError,
    Swizzle,
    _driver,
    create_tma_tile,
    ops,
)
from tmaasync.errors import ArgumentError, TensorMapError, TMAError

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


def shared_image(tile: Any) -> Any:
    """What one load brings to shared memory, byte for byte."""
    out = cupy.full(tile.tile_bytes, 0xCC, np.uint8)
    Kernel(COPY_ONE_TILE, "copy_one_tile", types={"Tile": tile})(1, 128, (tile, out))
    return cupy.asnumpy(out)


def test_numbers_arrive_as_what_the_kernel_declares() -> None:
    out = cupy.full(8, np.nan)
    pair = np.array((7, 0.5), np.dtype([("x", "<i4"), ("y", "<f4")]))

    Kernel(SCALARS, "scalars")(1, 1, (out, -3, 1 << 40, 2, 0.1, 255, pair, True))

    assert cupy.asnumpy(out).tolist() == [-3, float(1 << 40), 2, 0.1, 255, 7, 0.5, 1]


@pytest.mark.parametrize(
    ("index", "value"),
    [(0, 1.5), (1, 1.5), (1, 1 << 40), (1, np.int64(1)), (3, np.float64(1)), (5, 256), (6, b"123")],
)
def test_an_argument_of_the_wrong_kind_or_size_is_named(index: int, value: object) -> None:
    pair = np.array((7, 0.5), np.dtype([("x", "<i4"), ("y", "<f4")]))
    arguments: list[object] = [cupy.zeros(8), 1, 2, 3.0, 4.0, 5, pair, True]
    arguments[index] = value

    with pytest.raises(LaunchError, match=rf"args\[{index}\] is "):
        Kernel(SCALARS, "scalars")(1, 1, arguments)


def test_too_few_arguments_are_counted() -> None:
    with pytest.raises(LaunchError, match="args has 1 item; scalars takes 8: an 8-byte"):
        Kernel(SCALARS, "scalars")(1, 1, (cupy.zeros(8),))


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


def test_a_grid_that_is_no_multiple_of_the_cluster_is_refused_with_one_that_is() -> None:
    with pytest.raises(LaunchError, match=r"multiple of cluster \(4, 1, 1\). Use \(12, 1, 1\)"):
        Kernel(RANK, "rank")(10, 32, (cupy.zeros(10, np.uint32),), cluster=4)


@pytest.mark.parametrize("block", [2048, (32, 64), 0, (1, 2, 3, 4)])
def test_a_block_that_no_device_has_is_refused(block: Any) -> None:
    with pytest.raises(LaunchError, match="block is"):
        Kernel(RANK, "rank")(1, block, (cupy.zeros(1, np.uint32),))


def test_more_shared_memory_than_a_block_has_is_refused() -> None:
    with pytest.raises(
        LaunchError, match=r"shared_mem is 300000 bytes; a thread block on .* has at most"
    ):
        Kernel(RANK, "rank")(1, 32, (cupy.zeros(1, np.uint32),), shared_mem=300000)


@pytest.mark.parametrize("swizzle", [Swizzle.NONE, Swizzle.B32, Swizzle.B64, Swizzle.B128])
def test_a_tile_lands_where_the_swizzle_map_says(swizzle: Swizzle) -> None:
    array = np.arange(64 * 256, dtype=np.uint16).reshape(64, 256)
    tile = create_tma_tile(cupy.asarray(array), (64, 128), swizzle=swizzle)

    image = shared_image(tile).view(np.uint16)

    width = tile.box_shape[1]
    wanted = np.empty_like(image)
    for row in range(64):
        for column in range(128):
            chunk, within = divmod(column, width)
            offset = chunk * 64 * width * 2 + row * width * 2 + within * 2
            mask = (1 << int(swizzle)) - 1
            offset ^= (offset >> 7 & mask) << 4
            wanted[offset // 2] = array[row, column]
    assert (image == wanted).all()


def test_element_strides_skip_rows() -> None:
    array = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    tile = create_tma_tile(cupy.asarray(array), (8, 32), element_strides=(3, 1))

    image = shared_image(tile).view(np.float32).reshape(8, 32)

    assert (image == array[:24:3]).all()


def test_a_prepared_launch_runs_again_and_again() -> None:
    source = cupy.zeros(1024, np.uint8)
    tile = create_tma_tile(source, (256,))
    out = cupy.full(256, 0xCC, np.uint8)
    prepared = Kernel(COPY_ONE_TILE, "copy_one_tile", types={"Tile": tile}).prepare(
        1, 128, (tile, out)
    )

    for value in (3, 5, 7):
        source.fill(value)
        prepared()
        assert (cupy.asnumpy(out) == value).all()


def test_a_dependent_launch_sees_the_results_of_the_kernel_before() -> None:
    source = cupy.zeros((1 << 22,), np.float32)
    tile = create_tma_tile(source, (256,))
    out = cupy.full(1024, 0xCC, np.uint8)
    kernel = Kernel(COPY_ONE_TILE, "copy_one_tile", types={"Tile": tile})
    for value in range(1, 50):
        source.fill(value)
        kernel(1, 128, (tile, out), pdl=True)
        assert (cupy.asnumpy(out).view(np.float32) == value).all()


def test_a_launch_is_captured_and_replayed() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    source = cupy.arange(4096, dtype=np.float32).reshape(64, 64)
    target = cupy.zeros_like(source)
    with stream:
        ops.copy(source, target)
        target.fill(0)
        stream.begin_capture()
        ops.copy(source, target)
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()

    assert (target == source).all()


def test_a_tile_keeps_its_array_alive() -> None:
    pool = cupy.get_default_memory_pool()
    array = cupy.full((64, 64), 7, np.uint8)
    tile = create_tma_tile(array, (16, 64))
    del array
    for _ in range(10):
        cupy.full((64, 64), 9, np.uint8)
    pool.free_all_blocks()

    assert (shared_image(tile) == 7).all()


def test_a_tile_of_a_reallocated_torch_tensor_is_stale() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(64, 64, device="cuda", dtype=torch.uint8)
    tile = create_tma_tile(tensor, (16, 64))
    tensor.resize_(1 << 12, 1 << 12)

    with pytest.raises(StaleTileError, match=r"args\[0\].*rebind"):
        shared_image(tile)


def test_a_tile_serves_another_array_after_rebind() -> None:
    first, second = (cupy.full((64, 64), value, np.uint8) for value in (1, 2))

    tile = create_tma_tile(first, (16, 64)).rebind(second)

    assert tile.array is second
    assert (shared_image(tile) == 2).all()
    with pytest.raises(TensorMapError, match=r"array.shape is \(32, 64\)"):
        tile.rebind(cupy.zeros((32, 64), np.uint8))


def test_a_launch_goes_to_the_given_stream() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    source, target = cupy.ones((1 << 20,), np.float32), cupy.zeros((1 << 20,), np.float32)
    cupy.cuda.Device().synchronize()

    for choice in (stream, stream.ptr):
        target.fill(0)
        cupy.cuda.Device().synchronize()
        ops.copy(source, target, stream=choice)
        stream.synchronize()
        assert (cupy.asnumpy(target) == 1).all()


def test_a_kernel_name_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(ArgumentError, match=r"name is 'missing'.*It has: rank"):
        Kernel(RANK, "missing")(1, 32, (cupy.zeros(1, np.uint32),))


def test_arrays_of_host_and_device_do_not_mix() -> None:
    with pytest.raises(LaunchError, match=r"host memory.*one device"):
        Kernel(SCALARS, "scalars")(1, 1, (cupy.zeros(8), np.zeros(4), 1, 1, 1, 1, 1, 1))


def test_arguments_of_another_type_are_refused_before_the_launch() -> None:
    source, out = cupy.zeros((64, 64), np.float32), cupy.zeros(1024, np.uint8)
    tile = create_tma_tile(source, (8, 32))
    kernel = Kernel(COPY_ONE_TILE, "copy_one_tile", types={"Tile": tile})

    kernel(1, 128, (tile, out))
    with pytest.raises(LaunchError, match=r"args\[0\] is .*k128B.* built with Tile = .*kNone"):
        kernel(1, 128, (create_tma_tile(source, (8, 32), swizzle="128B"), out))
    with pytest.raises(
        LaunchError, match=r"args\[1\] is an array of float32; .*unsigned char\* out"
    ):
        kernel(1, 128, (tile, out.view(np.float32)))
    kernel(1, 128, (tile, Pointer(out.view(np.float32))))
    with pytest.raises(LaunchError, match=r"args\[1\] is an array of shape .* not contiguous"):
        kernel(1, 128, (tile, cupy.zeros(2048, np.uint8)[::2]))


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
