"""Kernels of each kind here also compile for the chip, without a warning or a spill."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from parity import (
    barrier_sequences,
    test_block_copy,
    test_clusters,
    test_gather,
    test_grouped,
    test_im2col,
    test_tile_edits,
    test_tiles,
)
from parity.backends import Emulate

from tmaasync import Kernel, create_split_tma, create_tma_tile, create_tma_tile_im2col

pytestmark = pytest.mark.chips("sm_90a")

FOLDABLE = np.zeros((32, 2, 128), np.float16)


def tile_of(rank: int) -> str:
    return create_tma_tile(np.zeros((2,) * (rank - 1) + (64,)), (2,) * (rank - 1) + (16,)).cuda_type


def patches_of(case: test_im2col.Case) -> str:
    return create_tma_tile_im2col(
        case.images(),
        case.tile,
        filter_shape=case.taps,
        lower_corner=case.lower,
        upper_corner=case.upper,
        swizzle=case.swizzle,
        dtype=case.dtype,
        **case.options,
    ).cuda_type


def tiles_of(case: test_tiles.Case) -> str:
    return case.make_tile(case.window(case.memory())).cuda_type


REDUCIBLE = (test_tiles.CASES[5], test_tiles.CASES[11])
KERNELS: dict[str, Callable[[], Kernel]] = {
    **{
        f"tiles {case}": lambda case=case: test_tiles.kernel_for(  # type: ignore[misc]
            tiles_of(case), stores="box_shape" not in case.options, reduces=case in REDUCIBLE
        )
        for case in (test_tiles.CASES[number] for number in (0, 5, 11, 20))
    },
    "split": lambda: test_tiles.kernel_for(
        create_split_tma(FOLDABLE, (16, 1, 128), fold_chunks=16, row_major=True).cuda_type
    ),
    **{
        f"patches {case}": lambda case=case: test_im2col.kernel_for(patches_of(case))  # type: ignore[misc]
        for case in (test_im2col.CASES[number] for number in (3, 5))
    },
    "edits": lambda: test_tile_edits.kernel_for(tile_of(5)),
    "relay": lambda: test_clusters.kernel_for(tile_of(2), 16, True),
    **{
        f"block copy {case}": lambda case=case: test_block_copy.kernel_of(Emulate(), case)  # type: ignore[misc]
        for case in (test_block_copy.CASES[number] for number in (1, 3, 6))
    },
    "gather": lambda: Kernel(test_gather.SOURCE, "gather", types={"Tile": GATHERED}),
    "grouped": lambda: Kernel(test_grouped.SOURCE, "grouped", types={"Tile": tile_of(2)}),
    "sequence": barrier_sequences._kernel,
}
GATHERED = (
    "tmaasync::TMATensorTile<float, tmaasync::Shape<8, 64>, tmaasync::Box<1, 32>, "
    "tmaasync::Swizzle::k128B>"
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
def test_a_parity_kernel_compiles_for_the_chip(name: str) -> None:
    program: Any = KERNELS[name]().compile()

    assert program.warnings == ()
    assert all(entry.spill_bytes == 0 for entry in program.entries.values())
