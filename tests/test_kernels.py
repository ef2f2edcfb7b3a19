"""Every shipped kernel, as `ops` builds it: no spills, no warning, no local memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import Kernel, _arrays
from tmaasync._elements import element
from tmaasync.ops import gemm, ragged
from tmaasync.ops._blocking import Blocking
from tmaasync.ops.conv2d import Epilogue, conv2d_kernel, conv2d_tiles
from tmaasync.ops.conv2d.kernel import RATE
from tmaasync.ops.copy import BULK_RING, TILED_RING, Ring, copy_kernel
from tmaasync.ops.gemm import blocking as blockings
from tmaasync.ops.scaled_gemm import ScaledBlocking, scaled_gemm_kernel, scaled_gemm_tiles
from tmaasync.ops.scaled_gemm import blocking as scaled_blockings
from tmaasync.tile.window import window_of

_TYPES = {"bfloat16": "tmaasync::bfloat16", "float16": "tmaasync::float16", "float32": "float"}


def tile_type(dtype: str, sides: tuple[int, int], box: tuple[int, int]) -> str:
    return (
        f"tmaasync::TMATensorTile<{_TYPES[dtype]}, tmaasync::Shape<{sides[0]}, {sides[1]}>, "
        f"tmaasync::Box<{box[0]}, {box[1]}>, tmaasync::Swizzle::k128B>"
    )


def gemm_with(
    blocking: gemm.Blocking, operand: str, output: str, a_transposed: bool, b_transposed: bool
) -> Kernel:
    m, n, parts = blocking.block_m, blocking.block_n, blocking.cluster
    a = tile_type(operand, *(((64, m), (64, 64)) if a_transposed else ((m, 64), (m, 64))))
    b = tile_type(operand, *(((n, 64), (n // parts, 64)) if b_transposed else ((64, n), (64, 64))))
    columns = 128 // element(output).itemsize
    c = tile_type(output, (64, columns), (64, columns))
    if blocking.chunk_bytes == 64:
        c = tile_type(output, (64, columns // 2), (64, columns // 2)).replace("128B", "64B")
    if blocking.by_columns:
        c = tile_type(output, (n, 64), (n, columns))
    return gemm.gemm_kernel(a, b, c, a_transposed, b_transposed, blocking)


def assert_clean(kernel: Kernel) -> None:
    program = kernel.compile()
    entry = program.entries[kernel.name]

    assert program.warnings == ()
    assert entry.spill_bytes == 0
    assert entry.stack_bytes == 0
    assert entry.shared_bytes is not None
    assert entry.shared_bytes <= 232448


BLOCKINGS = [
    gemm.Blocking(consumers, n, cluster)
    for (consumers, n), cluster in itertools.product(blockings.RATE, (1, 2))
    if cluster == 1 or n % blockings.SHARED_COLUMNS == 0
]
FEW_COLUMNS = [gemm.Blocking(1, 16, by_columns=True), gemm.Blocking(2, 64, by_columns=True)]


@pytest.mark.parametrize(
    ("blocking", "layout"),
    [
        (blocking, layout)
        for blocking, layout in itertools.product(
            [*BLOCKINGS, *FEW_COLUMNS], ["nn", "nt", "tn", "tt"]
        )
        if layout[1] == "t" or blocking.block_n % blockings.LINE_COLUMNS == 0
    ],
    ids=str,
)
@pytest.mark.parametrize("output", list(_TYPES))
def test_gemm_compiles_clean(blocking: gemm.Blocking, output: str, layout: str) -> None:
    operand = "float16" if output == "float16" else "bfloat16"
    a_transposed, b_transposed = (letter == "t" for letter in layout)

    assert_clean(gemm_with(blocking, operand, output, a_transposed, b_transposed))


def conv2d_with(blocking: Blocking, output: str, epilogue: Epilogue, channels: int = 64) -> Kernel:
    shapes = (1, 4, 4, channels), (8, 3, 3, channels)
    images, filters = (np.zeros(shape, np.float16) for shape in shapes)
    kind = "float16" if output == "float32" else output
    out = np.zeros((16, 64), np.dtype(getattr(ml_dtypes, output, output)))
    views = [_arrays.view(array, dtype=kind) for array in (images, filters)]
    window = window_of(2, (3, 3), 1, 1, 1)
    tiles = conv2d_tiles(views[0], views[1], _arrays.view(out), window, blocking)
    return conv2d_kernel(*(tile.cuda_type for tile in tiles), "float", epilogue, blocking)


PLAIN, BIASED = Epilogue(), Epilogue(has_bias=True, relu=True)
CONV2D_BLOCKINGS = [
    Blocking(consumers, n, 1 + index % 2, rows=rows)
    for index, (consumers, rows, n) in enumerate(RATE)
]


@pytest.mark.parametrize("blocking", CONV2D_BLOCKINGS, ids=str)
def test_conv2d_compiles_clean(blocking: Blocking) -> None:
    assert_clean(conv2d_with(blocking, "bfloat16", BIASED))


@pytest.mark.parametrize("channels", [8, 32])
def test_conv2d_of_few_channels_compiles_clean(channels: int) -> None:
    assert_clean(conv2d_with(CONV2D_BLOCKINGS[1], "bfloat16", PLAIN, channels))


@pytest.mark.slow
@pytest.mark.parametrize("output", list(_TYPES))
@pytest.mark.parametrize("blocking", CONV2D_BLOCKINGS, ids=str)
def test_conv2d_compiles_clean_whatever_is_asked_of_it(blocking: Blocking, output: str) -> None:
    for cluster, epilogue, channels in itertools.product((1, 2), (PLAIN, BIASED), (16, 32, 64)):
        one = replace(blocking, cluster=cluster)
        assert_clean(conv2d_with(one, output, epilogue, channels))


def scaled_gemm_with(blocking: ScaledBlocking, output: str, transposed: bool) -> Kernel:
    operand = np.zeros((8, 128), ml_dtypes.float8_e4m3fn)
    scales, out = (
        np.zeros((4, 8), np.float32),
        np.zeros((8, 64), getattr(ml_dtypes, output, output)),
    )
    views = [_arrays.view(array) for array in (operand, operand, scales, scales, out)]
    tiles = scaled_gemm_tiles(
        (views[0], views[1], views[2], views[3]),
        views[4],
        blocking,
        b_scales_transposed=transposed,
    )
    return scaled_gemm_kernel(tiles.cuda_types, transposed, blocking)


SCALES = ("blocks", "columns", "blocks, transposed")


SCALED_BLOCKINGS = [
    *(ScaledBlocking(*shape) for shape in scaled_blockings.RATE),
    ScaledBlocking(2, 64, 4, shares_a=True),
    ScaledBlocking(1, 32, 2, shares_a=True),
]


def assert_scaled_gemm_clean(blocking: ScaledBlocking, scales: str, output: str) -> None:
    one = replace(blocking, column_scales=scales == "columns")

    assert_clean(scaled_gemm_with(one, output, transposed="transposed" in scales))


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("cluster", [1, 2])
def test_the_widest_scaled_gemm_compiles_clean(cluster: int, scales: str) -> None:
    assert_scaled_gemm_clean(ScaledBlocking(2, 256, cluster), scales, "bfloat16")


@pytest.mark.parametrize("blocking", SCALED_BLOCKINGS, ids=str)
def test_scaled_gemm_compiles_clean(blocking: ScaledBlocking) -> None:
    assert_scaled_gemm_clean(blocking, "columns", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("consumers", [1, 2, 3])
@pytest.mark.parametrize("scales", SCALES)
def test_scaled_gemm_compiles_clean_whatever_is_asked_of_it(consumers: int, scales: str) -> None:
    widths, sharing = (32, 64, 128, 256), ((1, False), (2, False), (2, True), (4, True))
    for width, (cluster, shares_a), output in itertools.product(widths, sharing, _TYPES):
        if consumers == 3 and (width == 256 or shares_a):
            continue
        one = ScaledBlocking(consumers, width, cluster, shares_a=shares_a)
        assert_scaled_gemm_clean(one, scales, output)


@pytest.mark.parametrize("ring", [BULK_RING, TILED_RING], ids=str)
@pytest.mark.parametrize(
    "tile",
    [
        "tmaasync::BulkTile<unsigned char, 32768>",
        *(
            f"tmaasync::TMATensorTile<unsigned short, tmaasync::Shape<{'2, ' * (rank - 1)}256>, "
            f"tmaasync::Box<{'2, ' * (rank - 1)}256>, tmaasync::Swizzle::kNone>"
            for rank in (1, 2, 3, 4, 5)
        ),
    ],
)
def test_copy_compiles_clean(ring: Ring, tile: str) -> None:
    assert_clean(copy_kernel(tile, ring))


@pytest.mark.parametrize("ring", [ragged.RAGGED_RING, Ring(16384, 4, 2, 4)], ids=str)
@pytest.mark.parametrize("row", [(128,), (16, 128), (2, 8, 64), (5, 2056)])
@pytest.mark.parametrize("entry", ["ragged_store", "ragged_load"])
def test_ragged_compiles_clean(entry: str, row: tuple[int, ...], ring: Ring) -> None:
    packed, padded = (
        _arrays.view(np.zeros((*lead, *row), np.float16)) for lead in [(90,), (3, 40)]
    )
    map_, tile = ragged.ragged_tiles(packed, padded, ring)

    assert_clean(ragged.ragged_kernel(entry, map_.cuda_type, tile.cuda_type, ring))


SERIALISED = """
#include <tmaasync/wgmma.cuh>
using namespace tmaasync;
extern "C" __global__ void serialised(float* p, u64 a, u64 b) {
    float sums[64];
    for (int i = 0; i < 64; ++i) sums[i] = p[i];
    ptx::wgmma_fence();
    for (int k = 0; k < static_cast<int>(p[0]); ++k) {
        wgmma_ss_atom<bfloat16>(sums, a + k, b, true);
        sums[3] += 1;
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    for (int i = 0; i < 64; ++i) p[i * 128 + threadIdx.x] = sums[i];
}
"""


def test_the_check_for_serialised_wgmma_can_fail() -> None:
    warnings = Kernel(SERIALISED, "serialised").compile().warnings

    assert any("wgmma.wait_group is injected" in line for line in warnings)


def test_the_check_for_ignored_setmaxnreg_can_fail() -> None:
    ignored = """
#include <tmaasync/warp.cuh>
extern "C" __global__ void ignored(float* p) {
    if (threadIdx.x < 128) {
        tmaasync::release_registers<24>();
    } else {
        tmaasync::claim_registers<240>();
        p[threadIdx.x] = 1;
    }
}
"""
    warnings: Any = Kernel(ignored, "ignored").compile().warnings

    assert any("setmaxnreg" in line for line in warnings)
