"""An allocation of tensor memory that ends with its scope, and tiles of it."""

from __future__ import annotations

import numpy as np
import pytest
from planted import FAULT, RACE, Defect, defects, without
from planted_choices import choices

from tmaasync import CompileError, Kernel, emulate

SOURCE = """
#include <tmaasync/tmem.cuh>
using namespace tmaasync;

extern "C" __global__ void doubled(float* x) {
    __shared__ u32 slot;
    TmemAllocation<64> memory(slot);
    const auto tile = memory.tile<float, 32, FIRST>();
    float row[16];
    for (int i = 0; i < 16; ++i) row[i] = x[threadIdx.x * 16 + i];
    tile.store(row, 8);
    tmem_wait_stores();
    tile.load(row, 8);
    tmem_wait_loads();
    for (int i = 0; i < 16; ++i) x[threadIdx.x * 16 + i] = 2 * row[i];
}
"""
DEFECTS = defects(
    "doubled",
    ("no wait for the stores", without("tmem_wait_stores();"), RACE,
     r"(?s)tensor memory.*tcgen05\.wait::st"),
    ("nothing is stored", without("tile.store(row, 8);"), FAULT, "nothing has written"),
)  # fmt: skip
TEXTS = choices(SOURCE, DEFECTS)


def run(defect: Defect | None, first: int = 32) -> None:
    x = np.random.default_rng(0).standard_normal((128, 16)).astype(np.float32)
    wanted = 2 * x
    text = TEXTS.text_with(defect)
    kernel = Kernel(text, "doubled", constants={"FIRST": first}, arch="sm_100a")
    TEXTS.choose(kernel, defect)
    with emulate.scheduled("random", seed=1, races=True):
        kernel(1, 128, (x,))
    np.testing.assert_array_equal(x, wanted)


def test_a_tile_holds_the_rows_of_four_warps() -> None:
    run(None)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported(defect: Defect) -> None:
    with pytest.raises(defect.reported, match=defect.says):
        run(defect)


def test_a_tile_ends_within_its_allocation() -> None:
    with pytest.raises(CompileError) as caught:
        run(None, 48)

    assert "the tile ends within the allocation" in caught.value.log
