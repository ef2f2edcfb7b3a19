"""Every shipped kernel of several GPUs, as `ops` builds it."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import (
    FP8_ROWS,
    assert_clean,
    moves_between_mmas,
    scaled_gemm_with,
    scaled_tiles,
    with_a_gpu,
)

from tmaasync import _arrays
from tmaasync.ops._flash.config import Variant
from tmaasync.ops._flash.ring import RingSizes, ring_config, ring_kernel, ring_tiles
from tmaasync.ops._gemm.all_gather import (
    PUSH_ROWS,
    AllGatherScaledConfig,
    AllGatherTileConfig,
    all_gather_gemm_kernel,
    all_gather_scaled_kernel,
    all_gather_tiles,
)
from tmaasync.ops._gemm.config import ScaledTileConfig, TileConfig
from tmaasync.ops._gemm.reduce_scatter import MAX_AREA, ScaledScatterConfig, reduce_scatter_kernel
from tmaasync.ops._gemm.tiles import gemm_tiles
from tmaasync.ops._ranks import push_tile


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "config",
    [
        TileConfig(2, 256, 2),
        TileConfig(3, 192),
        TileConfig(2, 192, 2, rows=128, side_by_side=True),
        TileConfig(2, 192, rows=128, ping_pong=True),
        TileConfig(2, 112, max_stages=16),  # fills the shared memory
    ],
    ids=str,
)
def test_all_gather_gemm_compiles_and_fits(config: TileConfig) -> None:
    """The warp that pushes has the producer's 24 to 40 registers, and spills."""
    view = _arrays.view(np.zeros((128, 64), np.float16))
    own = AllGatherTileConfig.of(config)
    tiles = all_gather_tiles(view, [view, view], view, view, own, True)
    types = [tile.cuda_type for tile in (tiles.own, tiles.b, tiles.c)]
    kernel = all_gather_gemm_kernel(types, push_tile(view, PUSH_ROWS).cuda_type, True, own)

    assert_clean(kernel, 320, stack_bytes=400)
    assert kernel.compile().remarks == ()
    assert own.stages >= 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output"),
    [
        (ScaledTileConfig(2, 256, group_m=16), "bfloat16"),
        with_a_gpu(ScaledTileConfig(2, 256, column_scales=True), "float32"),
        with_a_gpu(ScaledTileConfig(3, 128, 2), "bfloat16"),
        (ScaledTileConfig(1, 64), "float32"),
    ],
    ids=str,
)
def test_all_gather_scaled_gemm_compiles_and_fits(config: ScaledTileConfig, output: str) -> None:
    """The warps that push rows and scales have the producer's 24 to 40 registers, and spill."""
    own = AllGatherScaledConfig.of(config)
    types = [tile.cuda_type for tile in scaled_tiles(own, output, False)]
    push_type = push_tile(_arrays.view(FP8_ROWS), PUSH_ROWS).cuda_type
    kernel = all_gather_scaled_kernel(types, push_type, own, b_scales_transposed=False)

    assert_clean(kernel, 400, stack_bytes=400)
    assert kernel.compile().remarks == ()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "output"),
    [
        (ScaledTileConfig(2, 256, group_m=16), "bfloat16"),
        with_a_gpu(ScaledTileConfig(2, 256, column_scales=True), "bfloat16"),
        with_a_gpu(ScaledTileConfig(3, 128, 2), "float32"),
        (ScaledTileConfig(1, 64), "float32"),
    ],
    ids=str,
)
def test_scaled_gemm_reduce_scatter_compiles_and_fits(
    config: ScaledTileConfig, output: str
) -> None:
    """The widest tile spills; the stack of all has the arguments of a wait."""
    kernel = scaled_gemm_with(ScaledScatterConfig.of(config), output, False)

    assert_clean(kernel, 100, None, 120)
    if output == "bfloat16":
        assert moves_between_mmas(kernel) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "causal"), [(128, True), with_a_gpu(64, True), (256, False)], ids=str
)
def test_ring_attention_compiles_and_fits(head_dim: int, causal: bool) -> None:
    """The warps that push and wait have the producer's 32 or 40 registers, and spill."""
    sizes = RingSizes(2, 1, 4096, 32, 8, head_dim, 2 if causal else 1)
    variant = Variant(has_right=causal, has_lse=True)
    config = ring_config(sizes, variant, 132, 232448)
    q, k = (_arrays.view(np.zeros((1, 64, heads, head_dim), np.float16)) for heads in (32, 8))
    tiles = ring_tiles([q], [k, k], [q], [k, k], config)
    kernel = ring_kernel(tiles, variant, config)

    assert_clean(kernel, 160, stack_bytes=400)
    assert kernel.compile().remarks == ()
    assert config.stages >= 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("config", "all_reduce"),
    [
        (TileConfig(2, 256, 2), False),
        (TileConfig(3, 192), True),
        with_a_gpu(TileConfig(2, 128, 2, rows=128, side_by_side=True), True),
        (TileConfig(2, 256, ping_pong=True), False),
    ],
    ids=str,
)
def test_gemm_reduce_scatter_compiles_and_fits(config: TileConfig, all_reduce: bool) -> None:
    """The ping-pong kernel spills, and the epilogue that stores into the outputs of all ranks.

    The stack of all has the arguments of a wait.
    """
    view = _arrays.view(np.zeros((128, 64), np.float16))
    types = [tile.cuda_type for tile in gemm_tiles(view, view, view, config, False, True)]
    kernel = reduce_scatter_kernel(types, True, config, all_reduce=all_reduce)

    assert config.rows * config.block_n <= MAX_AREA
    spills = 280 if all_reduce else 80 if config.ping_pong else 0
    assert_clean(kernel, spills, stack_bytes=120)
    assert moves_between_mmas(kernel) == 0
