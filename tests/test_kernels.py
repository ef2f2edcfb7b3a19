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
from tmaasync.ops import gemm, grouped, ragged
from tmaasync.ops._blocking import Blocking
from tmaasync.ops._epilogue import Activation, BiasSide, Epilogue
from tmaasync.ops.attention import kernel as attention
from tmaasync.ops.conv2d import conv2d_kernel, conv2d_tiles
from tmaasync.ops.conv2d.kernel import RATE
from tmaasync.ops.copy import BULK_RING, TILED_RING, Ring, copy_kernel
from tmaasync.ops.gemm.blocking import FORMS, legal_widths, may_share
from tmaasync.ops.gemm.extras import ProductEpilogue
from tmaasync.ops.scaled_gemm import ScaledBlocking, scaled_gemm_kernel, scaled_gemm_tiles
from tmaasync.ops.scaled_gemm import blocking as scaled_blockings
from tmaasync.tile.window import window_of

_OUTPUTS = ("bfloat16", "float16", "float32")


def tile_type(dtype: str, sides: tuple[int, int], box: tuple[int, int]) -> str:
    return (
        f"tmaasync::TMATensorTile<{element(dtype).cuda_type}, "
        f"tmaasync::Shape<{sides[0]}, {sides[1]}>, "
        f"tmaasync::Box<{box[0]}, {box[1]}>, tmaasync::Swizzle::k128B>"
    )


def gemm_with(
    blocking: gemm.Blocking,
    operand: str,
    output: str,
    a_transposed: bool,
    b_transposed: bool,
    epilogue: ProductEpilogue | None = None,
) -> Kernel:
    m, n, parts = blocking.block_m, blocking.block_n, blocking.cluster
    k = 128 // element(operand).itemsize
    a = tile_type(operand, *(((k, m), (k, 64)) if a_transposed else ((m, k), (m, k))))
    b = tile_type(operand, *(((n, k), (n // parts, k)) if b_transposed else ((k, n), (k, 64))))
    line_bytes = 128 if blocking.by_columns else blocking.chunk_bytes
    columns = line_bytes // element(output).itemsize
    rows = n if blocking.by_columns else 64
    sides = (n, 64) if blocking.by_columns else (64, columns)
    c = tile_type(output, sides, (rows, columns)).replace("128B", f"{line_bytes}B")
    return gemm.gemm_kernel(a, b, c, a_transposed, b_transposed, blocking, epilogue)


def assert_clean(kernel: Kernel) -> None:
    program = kernel.compile()
    entry = program.entries[kernel.name]

    assert program.warnings == ()
    assert entry.spill_bytes == 0
    assert entry.stack_bytes == 0
    assert entry.shared_bytes is not None
    assert entry.shared_bytes <= 232448


# The widest block of every form, and one of each width of a store.
BLOCKINGS = [
    gemm.Blocking(consumers, n, cluster, rows=rows)
    for (consumers, rows, widest), cluster in itertools.product(FORMS, (1, 2))
    for n in (widest, 112, 96, 64)
    if cluster == 1 or n != 64
]
FEW_COLUMNS = [gemm.Blocking(1, 16, by_columns=True), gemm.Blocking(2, 64, by_columns=True)]


@pytest.mark.parametrize(
    ("blocking", "layout"),
    [
        (blocking, layout)
        for blocking, layout in itertools.product(
            [*BLOCKINGS, *FEW_COLUMNS], ["nn", "nt", "tn", "tt"]
        )
        if blocking.block_n in legal_widths(256, b_is_k_major=layout[1] == "t")
        and (blocking.cluster == 1 or may_share(blocking.block_n, b_is_k_major=layout[1] == "t"))
    ],
    ids=str,
)
@pytest.mark.parametrize("output", _OUTPUTS)
def test_gemm_compiles_clean(blocking: gemm.Blocking, output: str, layout: str) -> None:
    operand = "float16" if output == "float16" else "bfloat16"
    a_transposed, b_transposed = (letter == "t" for letter in layout)

    assert_clean(gemm_with(blocking, operand, output, a_transposed, b_transposed))


@pytest.mark.parametrize(
    ("output", "layout"), [("bfloat16", "nt"), ("float16", "tt"), ("float32", "nn")]
)
@pytest.mark.parametrize("blocking", [gemm.Blocking(2, 256, 2), FEW_COLUMNS[1]], ids=str)
def test_batched_gemm_compiles_clean(blocking: gemm.Blocking, output: str, layout: str) -> None:
    operand = _arrays.view(np.zeros((2, 64, 64), np.float16))
    out = np.zeros((2, 64, 64), np.dtype(getattr(ml_dtypes, output, output)))
    transposed = (layout[0] == "t", layout[1] == "t")
    tiles = gemm.gemm_tiles(operand, operand, _arrays.view(out), blocking, *transposed)

    assert_clean(gemm.gemm_kernel(*(tile.cuda_type for tile in tiles), *transposed, blocking))


def grouped_with(blocking: Blocking, output: str, b_transposed: bool) -> Kernel:
    a, b = np.zeros((8, 64), np.float16), np.zeros((2, 64, 64), np.float16)
    c = np.zeros((8, 64), np.dtype(getattr(ml_dtypes, output, output)))
    kind = "bfloat16" if output == "bfloat16" else "float16"
    views = [*(_arrays.view(array, dtype=kind) for array in (a, b)), _arrays.view(c)]
    tiles = grouped.grouped_tiles(views[0], views[1], views[2], blocking, b_transposed)
    types = (tile.cuda_type for tile in tiles)
    return grouped.grouped_kernel(*types, b_transposed, blocking)


GROUPED = [
    (blocking, output, b_transposed)
    for blocking, output in zip([*BLOCKINGS, *FEW_COLUMNS], itertools.cycle(_OUTPUTS), strict=False)
    for b_transposed in (True, False)
    if blocking.block_n in legal_widths(256, b_is_k_major=b_transposed)
]


@pytest.mark.parametrize(
    ("blocking", "output", "b_transposed"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (index % 3 != 0))
        for index, case in enumerate(GROUPED)
    ],
    ids=str,
)
def test_grouped_gemm_compiles_clean(blocking: Blocking, output: str, b_transposed: bool) -> None:
    assert_clean(grouped_with(blocking, output, b_transposed))


COLUMNS, ROWS = BiasSide.COLUMNS, BiasSide.ROWS


def everything(activation: Activation, bias: BiasSide = COLUMNS) -> ProductEpilogue:
    return ProductEpilogue(bias, activation, is_scaled=True, has_addend=True)


@pytest.mark.parametrize(
    ("blocking", "output", "epilogue"),
    [
        (gemm.Blocking(2, 256, 2), "bfloat16", everything(Activation.GELU)),
        (gemm.Blocking(2, 256, 1), "float32", everything(Activation.SILU)),
        (gemm.Blocking(2, 224, 1), "float16", everything(Activation.GELU_TANH)),
        (gemm.Blocking(1, 160, 1), "float32", everything(Activation.RELU, ROWS)),
        (gemm.Blocking(2, 64, by_columns=True), "bfloat16", everything(Activation.GELU)),
        (gemm.Blocking(1, 64, by_columns=True), "float32", everything(Activation.SILU)),
        (
            gemm.Blocking(1, 8, by_columns=True),
            "float32",
            everything(Activation.RELU, BiasSide.ROWS),
        ),
        (gemm.Blocking(2, 256, 2), "float16", ProductEpilogue(ROWS)),
    ],
    ids=str,
)
def test_gemm_with_an_epilogue_compiles_clean(
    blocking: gemm.Blocking, output: str, epilogue: ProductEpilogue
) -> None:
    operand = "float16" if output == "float16" else "bfloat16"

    assert_clean(gemm_with(blocking, operand, output, False, True, epilogue))


WHOLE_EPILOGUE = everything(Activation.GELU)


@pytest.mark.parametrize(
    ("blocking", "operand", "output", "epilogue"),
    [
        (gemm.Blocking(2, 256, 2), "float8_e4m3fn", "bfloat16", None),
        (gemm.Blocking(2, 256, 2), "float8_e4m3fn", "bfloat16", WHOLE_EPILOGUE),
        (gemm.Blocking(2, 224, 1), "float8_e5m2", "float32", ProductEpilogue(is_scaled=True)),
        (gemm.Blocking(2, 64, by_columns=True), "float8_e4m3fn", "bfloat16", WHOLE_EPILOGUE),
        (gemm.Blocking(2, 256, 2), "int8", "int32", None),
        (gemm.Blocking(2, 160, 1), "uint8", "int32", None),
        (gemm.Blocking(1, 8, by_columns=True), "int8", "int32", None),
        (gemm.Blocking(2, 256, 2), "tfloat32", "float32", None),
        (gemm.Blocking(2, 32, by_columns=True), "tfloat32", "float32", None),
    ],
    ids=str,
)
def test_gemm_of_other_types_compiles_clean(
    blocking: gemm.Blocking, operand: str, output: str, epilogue: ProductEpilogue | None
) -> None:
    assert_clean(gemm_with(blocking, operand, output, False, True, epilogue))


def conv2d_with(blocking: Blocking, output: str, epilogue: Epilogue, channels: int = 64) -> Kernel:
    shapes = (1, 4, 4, channels), (8, 3, 3, channels)
    images, filters = (np.zeros(shape, np.float16) for shape in shapes)
    kind = "float16" if output == "float32" else output
    out = np.zeros((16, 64), np.dtype(getattr(ml_dtypes, output, output)))
    views = [_arrays.view(array, dtype=kind) for array in (images, filters)]
    window = window_of(2, (3, 3), 1, 1, 1)
    tiles = conv2d_tiles(views[0], views[1], _arrays.view(out), window, blocking)
    return conv2d_kernel(*(tile.cuda_type for tile in tiles), "float", epilogue, blocking)


PLAIN, BIASED = Epilogue(), Epilogue(COLUMNS, Activation.RELU)
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
@pytest.mark.parametrize("output", _OUTPUTS)
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
    for width, (cluster, shares_a), output in itertools.product(widths, sharing, _OUTPUTS):
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


def attention_with(
    blocking: attention.Blocking, variant: attention.Variant, dtype: Any = np.float16
) -> Kernel:
    rows = (90, 2 * blocking.heads_per_tile, blocking.head_dim)
    shape = rows if variant.is_packed else (3, *rows)
    views = [_arrays.view(np.zeros(shape, dtype)) for _ in range(4)]
    q, k, v, o = views
    make = attention.packed_maps if variant.is_packed else attention.attention_tiles
    types = tuple(tile.cuda_type for tile in make(q, k, v, o, blocking))
    return attention.attention_kernel(types, variant, blocking)


HEAD_DIMS = (64, 96, 128, 192, 256)
PLAIN_ATTENTION = attention.Variant()
CAUSAL = attention.Variant(has_right=True)
EVERYTHING = attention.Variant(
    is_packed=True, has_left=True, has_right=True, has_softcap=True, has_lse=True
)


def attention_blockings(variant: attention.Variant, head_dim: int) -> list[attention.Blocking]:
    return [
        attention.Blocking(head_dim, consumers, block_n)
        for consumers, block_n in attention.shapes(head_dim, variant)
    ]


@pytest.mark.parametrize(
    ("variant", "head_dim"),
    [(PLAIN_ATTENTION, 64), (PLAIN_ATTENTION, 128), (CAUSAL, 128), (EVERYTHING, 256)],
    ids=str,
)
def test_attention_compiles_clean(variant: attention.Variant, head_dim: int) -> None:
    assert_clean(attention_with(attention_blockings(variant, head_dim)[0], variant))


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("heads", [1, 4])
def test_attention_compiles_clean_whatever_is_asked_of_it(head_dim: int, heads: int) -> None:
    flags = itertools.product((False, True), repeat=5)
    for variant in itertools.starmap(attention.Variant, flags):
        for blocking in attention_blockings(variant, head_dim):
            one = replace(blocking, heads_per_tile=heads)
            assert_clean(attention_with(one, variant, ml_dtypes.bfloat16))


def test_cutting_sequences_compiles_clean() -> None:
    for variant in (CAUSAL, EVERYTHING):
        assert_clean(attention.work_kernel(variant, attention.Blocking(128, 2, 128)))


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
