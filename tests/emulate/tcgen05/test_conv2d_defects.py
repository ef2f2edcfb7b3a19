"""The convolution on tensor memory: right in every order, and its defects are reported."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.tcgen05.gemms import shipped_text
from emulate.tcgen05.planted_gemms import PlantedGemm, Problem
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, defects, without

from tmaasync.tile import create_tma_tile, create_tma_tile_im2col

SOURCE = shipped_text("conv2d_tensor_memory.cu")
IMAGES = "images.async_copy_column<CTAS>(stage->a, stage.full(), column, chunk);"
FILTERS = "tma_load_2sm(filters.map, stage.full(), box, at);"
DEFECTS = defects(
    "conv2d_tensor_memory",
    ("each CTA counts its own patches", Edit(IMAGES, IMAGES.replace("<CTAS>", "<1>")),
     FAULT + DEADLOCK + RACE, r"ring\.full"),
    ("each CTA counts its own filters",
     Edit(FILTERS, "filters.async_copy_box(stage->b, stage.full(), at, chunk);"),
     FAULT + DEADLOCK + RACE, r"ring\.full"),
    ("the last chunk of patches is not loaded",
     Edit(IMAGES, f"if (chunk == 0) {IMAGES}"), DEADLOCK, r"ring\.full\[0\]"),
    ("all chunks of filters in one place", Edit("chunk * BTile::kBoxBytes", "0 * chunk"),
     RACE + FAULT, r"ring\.stages"),
    ("both CTAs multiply", without("!leads_pair<CTAS>() ||"), FAULT + RACE + DEADLOCK,
     r"ring\.full\[0\]"),
)  # fmt: skip
COUNT, SIZE, CHANNELS, FILTER_COUNT, TAPS = 3, 16, 32, 128, 3  # 256 pixels of an image are a tile
COLUMNS = TAPS * TAPS * CHANNELS  # four blocks and a half, of two chunks each
GEMM = PlantedGemm(
    SOURCE, DEFECTS, {"FOLDED": False, "FILTER_OFFSET": 0, "BIAS": 0, "ACTIVATION": 0}, threads=256
)


@pytest.fixture(scope="module")
def one() -> Problem:
    """Small integers, which every order adds up exactly."""
    rng = np.random.default_rng(0)
    images = rng.integers(-4, 5, (COUNT, SIZE, SIZE, CHANNELS)).astype(np.float16)
    filters = rng.integers(-4, 5, (FILTER_COUNT, TAPS, TAPS, CHANNELS)).astype(np.float16)
    out = np.zeros((COUNT * SIZE * SIZE, FILTER_COUNT), np.float32)
    padded = np.pad(images.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (TAPS, TAPS), axis=(1, 2))
    exact = np.einsum("npqcrs,krsc->npqk", windows, filters.astype(np.float64))
    tiles = {
        "Images": create_tma_tile_im2col(
            *(images, (128, 64)), filter_shape=(TAPS, TAPS), padding=1,
            swizzle="64B", box_shape=(128, 32),
        ),
        "BTile": create_tma_tile(
            filters, (64, 1, 1, 64), swizzle="64B", box_shape=(64, 1, 1, 32)
        ),
        "CTile": create_tma_tile(out, (128, 32), swizzle="128B"),
    }  # fmt: skip
    arguments = (*tiles.values(), 0, len(out), FILTER_COUNT, COLUMNS)
    types = {"Images": tiles["Images"], "ATile": "Images::Matrix", "Bias": "float"}
    return Problem(arguments, types | tiles, out, exact.reshape(out.shape))


@pytest.mark.slow
def test_the_kernel_is_right_in_every_order(one: Problem) -> None:
    GEMM.check_right(one, 2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported_in_every_order(one: Problem, defect: Defect) -> None:
    GEMM.check_reported(one, defect)
