"""Every shipped kernel, as `ops` builds it: no spills, no warning, no local memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled import assert_clean, scaled_gemm_with, with_a_gpu

from tmaasync import Kernel, _arrays
from tmaasync._elements import element
from tmaasync._source.compile import nvrtc_version
from tmaasync._tile.window import window_of
from tmaasync.ops._copy import BULK_PIPELINE, TILED_PIPELINE, CopyPipeline, copy_kernel
from tmaasync.ops._gemm.config import ScaledTileConfig, TileConfig
from tmaasync.ops._gemm.conv2d_tiles import conv2d_kernel, conv2d_tiles
from tmaasync.ops._gemm.epilogue import Activation, BiasSide, Epilogue
from tmaasync.ops._gemm.tiles import (
    combine_kernel,
    gemm_kernel,
    gemm_tiles,
    grouped_kernel,
    grouped_tiles,
    k_grouped_kernel,
    k_grouped_tiles,
)
from tmaasync.ops._ragged_tiles import RAGGED_PIPELINE, ragged_kernel, ragged_tiles


def tile_type(dtype: str, sides: tuple[int, ...], box: tuple[int, ...]) -> str:
    return (
        f"tmaasync::TMATensorTile<{element(dtype).cuda_type}, "
        f"tmaasync::Shape<{', '.join(map(str, sides))}>, "
        f"tmaasync::Box<{', '.join(map(str, box))}>, tmaasync::Swizzle::k128B>"
    )


def gemm_with(
    config: TileConfig,
    operand: str,
    output: str,
    a_transposed: bool,
    b_transposed: bool,
    epilogue: Epilogue | None = None,
) -> Kernel:
    m, n, parts = config.block_m, config.block_n, config.cluster
    k = 128 // element(operand).itemsize
    a = tile_type(operand, *(((k, m), (k, 64)) if a_transposed else ((m, k), (m, k))))
    b = tile_type(operand, *(((n, k), (n // parts, k)) if b_transposed else ((k, n), (k, 64))))
    line_bytes = 128 if config.m_major else config.store_bytes
    columns = line_bytes // element(output).itemsize
    rows = config.chunk_columns if config.m_major else 64
    sides = (rows, 64) if config.m_major else (64, columns)
    c = tile_type(output, sides, (rows, columns)).replace("128B", f"{line_bytes}B")
    return gemm_kernel((a, b, c), a_transposed, b_transposed, config, epilogue)


FEW_COLUMNS = [TileConfig(1, 16, m_major=True), TileConfig(2, 64, m_major=True)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("config", "output", "layout"),
    [
        # The widest block of every form, alone and in pairs,
        with_a_gpu(TileConfig(2, 256), "bfloat16", "nt"),
        (TileConfig(2, 256, 2), "float32", "nn"),
        with_a_gpu(TileConfig(1, 256), "float32", "tt"),
        with_a_gpu(TileConfig(1, 256, 2), "float16", "tn"),
        with_a_gpu(TileConfig(3, 192), "float16", "nn"),
        with_a_gpu(TileConfig(3, 192, 2), "bfloat16", "tt"),
        with_a_gpu(TileConfig(2, 192, rows=128), "bfloat16", "tn"),
        with_a_gpu(TileConfig(2, 192, 2, rows=128), "float32", "nt"),
        with_a_gpu(TileConfig(2, 192, rows=128, ping_pong=True), "bfloat16", "nt"),
        (TileConfig(2, 192, 2, rows=128, ping_pong=True), "float32", "tn"),
        (TileConfig(2, 160, 2, rows=128, side_by_side=True), "bfloat16", "nt"),
        # stores that are narrow,
        with_a_gpu(TileConfig(2, 112), "float32", "tt"),
        (TileConfig(1, 96, 2), "bfloat16", "nt"),
        with_a_gpu(TileConfig(3, 96), "float16", "nt"),
        # blocks whose K is split,
        with_a_gpu(TileConfig(2, 256, split_k=2), "bfloat16", "nt"),
        (TileConfig(2, 192, rows=128, split_k=4), "float32", "tn"),
        with_a_gpu(TileConfig(2, 128, 2, split_k=4), "bfloat16", "nn"),
        with_a_gpu(TileConfig(3, 192, split_k=2), "float16", "nt"),
        with_a_gpu(TileConfig(1, 64, split_k=8), "bfloat16", "nn"),
        (TileConfig(2, 16, m_major=True, split_k=8), "bfloat16", "nt"),
        # and few columns.
        with_a_gpu(FEW_COLUMNS[0], "float16", "tt"),
        with_a_gpu(FEW_COLUMNS[1], "bfloat16", "nn"),
        (FEW_COLUMNS[1], "float32", "nt"),
        with_a_gpu(TileConfig(1, 200, m_major=True, split_k=2), "bfloat16", "nt"),
        (TileConfig(2, 200, m_major=True), "float32", "tt"),
    ],
    ids=str,
)
def test_gemm_compiles_clean(config: TileConfig, output: str, layout: str) -> None:
    operand = "float16" if output == "float16" else "bfloat16"
    a_transposed, b_transposed = (letter == "t" for letter in layout)

    assert_clean(gemm_with(config, operand, output, a_transposed, b_transposed))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output", "layout"),
    [(TileConfig(2, 256, 2), "bfloat16", "nt"), (FEW_COLUMNS[1], "float32", "nn")],
    ids=str,
)
def test_batched_gemm_compiles_clean(config: TileConfig, output: str, layout: str) -> None:
    operand = _arrays.view(np.zeros((2, 64, 64), np.float16))
    out = np.zeros((2, 64, 64), np.dtype(getattr(ml_dtypes, output, output)))
    transposed = (layout[0] == "t", layout[1] == "t")
    tiles = gemm_tiles(operand, operand, _arrays.view(out), config, *transposed)

    assert_clean(gemm_kernel([tile.cuda_type for tile in tiles], *transposed, config))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "config",
    [
        TileConfig(1, 128, split_k=4, over_grid=True),
        TileConfig(2, 192, split_k=5, over_grid=True),
        TileConfig(2, 192, 2, rows=128, split_k=2, side_by_side=True, over_grid=True),
    ],
    ids=str,
)
def test_split_k_over_the_grid_compiles_clean(config: TileConfig) -> None:
    a, b = (_arrays.view(np.zeros((64, 64), np.float16)) for _ in range(2))
    partials = _arrays.view(np.zeros((2, 64, 64), np.float32))
    types = [tile.cuda_type for tile in gemm_tiles(a, b, partials, config, False, True)]

    assert_clean(gemm_kernel(types, False, True, config))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("partial", "output"), [("float", "__nv_bfloat16"), ("float", "float"), ("int", "int")]
)
def test_the_combine_kernel_of_split_k_compiles_clean(partial: str, output: str) -> None:
    program = combine_kernel(partial, output).compile()
    entry = program.entries["split_k_combine"]

    assert program.warnings == ()
    assert entry.spill_bytes == entry.stack_bytes == 0


def grouped_with(config: TileConfig, output: str, b_transposed: bool) -> Kernel:
    a, b = np.zeros((8, 64), np.float16), np.zeros((2, 64, 64), np.float16)
    c = np.zeros((8, 64), np.dtype(getattr(ml_dtypes, output, output)))
    kind = "bfloat16" if output == "bfloat16" else "float16"
    views = [*(_arrays.view(array, dtype=kind) for array in (a, b)), _arrays.view(c)]
    tiles = grouped_tiles(views[0], views[1], views[2], config, b_transposed)
    types = [tile.cuda_type for tile in tiles]
    return grouped_kernel(types, b_transposed, config)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output", "b_transposed"),
    [
        (TileConfig(2, 256, 2), "bfloat16", True),
        with_a_gpu(TileConfig(1, 256), "float32", False),
        with_a_gpu(TileConfig(3, 192), "float16", False),
        with_a_gpu(TileConfig(2, 192, 2, rows=128), "float32", True),
        (TileConfig(2, 192, rows=128, ping_pong=True), "float32", False),
        with_a_gpu(FEW_COLUMNS[0], "bfloat16", True),
        (FEW_COLUMNS[1], "float16", False),
    ],
    ids=str,
)
def test_grouped_gemm_compiles_clean(config: TileConfig, output: str, b_transposed: bool) -> None:
    assert_clean(grouped_with(config, output, b_transposed))


def k_grouped_with(config: TileConfig, output: str) -> Kernel:
    a, c = np.zeros((8, 64), np.float16), np.zeros((2, 64, 64), getattr(ml_dtypes, output, output))
    view = _arrays.view(a, dtype="bfloat16" if output == "bfloat16" else "float16")
    tiles = k_grouped_tiles(view, view, _arrays.view(c), config)
    return k_grouped_kernel([tile.cuda_type for tile in tiles], config)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output"),
    [
        with_a_gpu(TileConfig(2, 256), "bfloat16"),
        (TileConfig(3, 192), "float32"),
        with_a_gpu(TileConfig(2, 192, rows=128), "float16"),
    ],
    ids=str,
)
def test_k_grouped_gemm_compiles_clean(config: TileConfig, output: str) -> None:
    assert_clean(k_grouped_with(config, output))


COLUMNS, ROWS = BiasSide.COLUMNS, BiasSide.ROWS


def everything(activation: Activation, bias: BiasSide = COLUMNS) -> Epilogue:
    return Epilogue(bias, activation, is_scaled=True, has_addend=True)


SCALED_GELU = Epilogue(COLUMNS, Activation.GELU, is_scaled=True)
WITH_ADDEND = Epilogue(BiasSide.NONE, Activation.GELU, has_addend=True)
SCALED_GELU_TANH = Epilogue(COLUMNS, Activation.GELU_TANH, is_scaled=True)
SCALED_SILU = Epilogue(COLUMNS, Activation.SILU, is_scaled=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output", "epilogue"),
    [
        (TileConfig(2, 256), "bfloat16", everything(Activation.GELU)),
        with_a_gpu(TileConfig(2, 256), "bfloat16", SCALED_GELU),
        with_a_gpu(TileConfig(2, 192), "float32", everything(Activation.SILU)),
        (TileConfig(2, 192, 2), "float16", everything(Activation.GELU_TANH, ROWS)),
        with_a_gpu(TileConfig(2, 256), "bfloat16", replace(WITH_ADDEND, bias=COLUMNS)),
        with_a_gpu(TileConfig(2, 192, 2), "bfloat16", WITH_ADDEND),
        with_a_gpu(TileConfig(2, 160, 2), "bfloat16", replace(WITH_ADDEND, bias=ROWS)),
        with_a_gpu(TileConfig(2, 256), "bfloat16", SCALED_GELU_TANH),
        with_a_gpu(TileConfig(2, 256), "float32", replace(SCALED_GELU_TANH, bias=ROWS)),
        with_a_gpu(TileConfig(1, 224), "float32", everything(Activation.RELU, ROWS)),
        with_a_gpu(TileConfig(1, 192), "bfloat16", everything(Activation.SILU)),
        with_a_gpu(TileConfig(3, 160), "float32", everything(Activation.GELU)),
        with_a_gpu(TileConfig(3, 160), "float32", SCALED_GELU),
        (TileConfig(2, 192, 2, 16, 128, side_by_side=True), "bfloat16", SCALED_GELU),
        with_a_gpu(TileConfig(2, 160, 2, 16, 128), "float32", SCALED_GELU),
        (TileConfig(2, 192, 1, 16, 128, ping_pong=True), "bfloat16", SCALED_GELU),
        with_a_gpu(TileConfig(2, 160, 1, 16, 128, ping_pong=True), "bfloat16", SCALED_SILU),
        with_a_gpu(TileConfig(2, 112), "bfloat16", SCALED_GELU),
        with_a_gpu(TileConfig(3, 128), "bfloat16", everything(Activation.SILU, ROWS)),
        (TileConfig(2, 64, m_major=True), "bfloat16", everything(Activation.GELU)),
        with_a_gpu(TileConfig(1, 8, m_major=True), "float32", everything(Activation.RELU, ROWS)),
    ],
    ids=str,
)
def test_gemm_with_an_epilogue_compiles_clean(
    config: TileConfig, output: str, epilogue: Epilogue
) -> None:
    operand = "float16" if output == "float16" else "bfloat16"

    assert epilogue.fits(config, element(output).itemsize)
    spills = epilogue == replace(WITH_ADDEND, bias=COLUMNS) and nvrtc_version() < (13, 5)
    assert_clean(gemm_with(config, operand, output, False, True, epilogue), 8 if spills else 0)


WHOLE_EPILOGUE = everything(Activation.GELU)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "operand", "output", "epilogue"),
    [
        with_a_gpu(TileConfig(2, 256, 2), "bfloat16", "bfloat16", WHOLE_EPILOGUE),
        (TileConfig(2, 256, 2), "float8_e4m3fn", "bfloat16", WHOLE_EPILOGUE),
        (
            TileConfig(2, 192, 2, 16, 128, side_by_side=True),
            *("float8_e4m3fn", "bfloat16", Epilogue(BiasSide.NONE, is_scaled=True)),
        ),
        with_a_gpu(TileConfig(2, 64, m_major=True), "float8_e4m3fn", "bfloat16", WHOLE_EPILOGUE),
        with_a_gpu(TileConfig(2, 256, 2), "int8", "int32", None),
        (TileConfig(1, 8, m_major=True), "uint8", "int32", None),
        (TileConfig(2, 256, 2), "tfloat32", "float32", None),
        with_a_gpu(TileConfig(2, 32, m_major=True), "tfloat32", "float32", None),
        (TileConfig(2, 128, split_k=6), "int8", "int32", None),
        with_a_gpu(TileConfig(2, 256, split_k=8), "float8_e4m3fn", "bfloat16", SCALED_GELU),
    ],
    ids=str,
)
def test_gemm_of_other_types_compiles_clean(
    config: TileConfig, operand: str, output: str, epilogue: Epilogue | None
) -> None:
    assert_clean(gemm_with(config, operand, output, False, True, epilogue))


def conv2d_with(config: TileConfig, output: str, epilogue: Epilogue, channels: int = 64) -> Kernel:
    shapes = (1, 4, 4, channels), (8, 3, 3, channels)
    images, filters = (np.zeros(shape, np.float16) for shape in shapes)
    kind = "float16" if output == "float32" else output
    out = np.zeros((16, 64), np.dtype(getattr(ml_dtypes, output, output)))
    views = [_arrays.view(array, dtype=kind) for array in (images, filters)]
    window = window_of(2, (3, 3), 1, 1, 1)
    box = next(box for box in (16, 32, 64) if box >= min(64, channels))
    tiles = conv2d_tiles(views[0], views[1], _arrays.view(out), window, config, box)
    return conv2d_kernel([tile.cuda_type for tile in tiles], "float", epilogue, config)


PLAIN, BIASED = Epilogue(), Epilogue(COLUMNS, Activation.RELU)
GELU, SILU = (Epilogue(COLUMNS, one) for one in (Activation.GELU, Activation.SILU))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output", "epilogue", "channels"),
    [
        with_a_gpu(TileConfig(2, 160, rows=128), "bfloat16", BIASED, 64),
        (TileConfig(2, 128, 2, rows=128), "float32", BIASED, 16),
        with_a_gpu(TileConfig(2, 256, 2), "float16", BIASED, 64),
        with_a_gpu(TileConfig(2, 192), "bfloat16", PLAIN, 8),
        with_a_gpu(TileConfig(3, 128), "float32", BIASED, 32),
        with_a_gpu(TileConfig(1, 256, 2), "bfloat16", BIASED, 64),
        (TileConfig(2, 160, rows=128, ping_pong=True), "bfloat16", GELU, 64),
        with_a_gpu(TileConfig(2, 64, rows=128, ping_pong=True), "float32", SILU, 32),
        with_a_gpu(TileConfig(2, 160, rows=128), "float32", SILU, 64),
        with_a_gpu(TileConfig(2, 192, 2), "bfloat16", SILU, 64),
        (TileConfig(2, 256, 2), "bfloat16", GELU, 64),
    ],
    ids=str,
)
def test_conv2d_compiles_clean(
    config: TileConfig, output: str, epilogue: Epilogue, channels: int
) -> None:
    assert_clean(conv2d_with(config, output, epilogue, channels))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "scales", "output"),
    [
        with_a_gpu(ScaledTileConfig(2, 256), "blocks", "bfloat16"),
        (ScaledTileConfig(2, 256, 2), "columns", "float32"),
        (ScaledTileConfig(3, 128, 2), "blocks, transposed", "float16"),
        with_a_gpu(ScaledTileConfig(2, 128), "columns", "bfloat16"),
        with_a_gpu(ScaledTileConfig(1, 128, 2), "blocks", "float32"),
        with_a_gpu(ScaledTileConfig(2, 256, 4), "columns", "bfloat16"),
        (ScaledTileConfig(1, 32), "blocks, transposed", "float32"),
    ],
    ids=str,
)
def test_scaled_gemm_compiles_clean(config: ScaledTileConfig, scales: str, output: str) -> None:
    one = replace(config, column_scales=scales == "columns")

    assert_clean(scaled_gemm_with(one, output, transposed="transposed" in scales))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("pipeline", "rank"), [(BULK_PIPELINE, 0), (TILED_PIPELINE, 1), (TILED_PIPELINE, 5)]
)
def test_copy_compiles_clean(pipeline: CopyPipeline, rank: int) -> None:
    sides = f"{'2, ' * (rank - 1)}256"
    tile = (
        f"tmaasync::TMATensorTile<unsigned short, tmaasync::Shape<{sides}>, "
        f"tmaasync::Box<{sides}>, tmaasync::Swizzle::kNone>"
    )

    assert_clean(
        copy_kernel(tile if rank else "tmaasync::BulkTile<unsigned char, 32768>", pipeline)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("entry", "row", "pipeline"),
    [
        ("ragged_store", (128,), RAGGED_PIPELINE),
        ("ragged_load", (2, 8, 64), RAGGED_PIPELINE),
        ("ragged_load", (5, 2056), CopyPipeline(16384, 4, 2, 4)),
    ],
)
def test_ragged_compiles_clean(entry: str, row: tuple[int, ...], pipeline: CopyPipeline) -> None:
    packed, padded = (
        _arrays.view(np.zeros((*lead, *row), np.float16)) for lead in [(90,), (3, 40)]
    )
    map_, tile = ragged_tiles(packed, padded, pipeline, is_loaded=entry == "ragged_store")

    assert_clean(ragged_kernel(entry, map_.cuda_type, tile.cuda_type, pipeline))


LOST_SPEED = Path(__file__).parents[1] / "lint" / "lost_speed.cu"


def test_the_check_for_serialised_wgmma_can_fail() -> None:
    warnings = Kernel(LOST_SPEED, "serialised").compile().warnings

    assert any("wgmma.wait_group is injected" in line for line in warnings)


def test_an_ignored_setmaxnreg_is_logged_and_among_the_warnings(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path))
    warnings: Any = Kernel(LOST_SPEED, "ignored", debug=False).compile().warnings

    assert any("setmaxnreg" in line for line in warnings)
    assert "the assembler reports: Potential Performance Loss: 'setmaxnreg' ignored" in caplog.text
