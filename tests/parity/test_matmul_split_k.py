"""GEMMs whose K is split over the CTAs of a cluster, or over the grid, on either back end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_matmul import exact, integers
from parity.tile_configs import tile_configs

from tmaasync import emulate, ops
from tmaasync.ops._gemm.config import TileConfig

ROW_BYTES = 16  # lines of an output that TMA writes are multiples of


def multiply(
    backend: Any,
    a: Any,
    b: Any,
    config: TileConfig,
    layout: str = "nt",
    output: str = "float32",
    **epilogue: Any,
) -> Any:
    """Return the result of this tile config, checked among NaNs; ``t``: stored transposed."""
    stored = [
        backend.array(np.ascontiguousarray(matrix.swapaxes(-1, -2))).swapaxes(-1, -2)
        if letter == "t"
        else backend.array(matrix)
        for matrix, letter in zip((a, b), layout, strict=True)
    ]
    kind = np.dtype(getattr(ml_dtypes, output, output))
    n = b.shape[-1]
    pitch = -(-n * kind.itemsize // ROW_BYTES) * ROW_BYTES // kind.itemsize
    lines = (*a.shape[:-2], a.shape[-2] + 2, pitch + 2 * ROW_BYTES)
    whole = backend.array(np.full(lines, np.nan, kind))
    inside = (..., slice(1, -1), slice(ROW_BYTES, ROW_BYTES + n))
    with tile_configs(lambda _: config):
        ops.matmul(*stored, out=whole[inside], **epilogue)
    got = backend.host(whole).astype(np.float64)
    result = got[inside].copy()
    got[inside] = np.nan
    assert np.isnan(got).all()
    return result


# Blocks of K are 64 deep: 328 are six, for four CTAs; 136 are three, for eight, three or two.
SPLITS = [
    pytest.param(TileConfig(1, 128, 2, split_k=4), "tn", (140, 70, 328), id="pairs of 4"),
    pytest.param(TileConfig(1, 16, split_k=8, m_major=True), "nt", (11, 100, 136), id="few rows"),
    pytest.param(
        TileConfig(1, 96, split_k=2, m_major=True), *("nt", (90, 4104, 136)), id="90 rows"
    ),
    # Over the grid: six blocks for five CTAs; pairs of either kind; more splits than are loaded at
    # once, and columns that are no multiple of four.
    pytest.param(TileConfig(1, 48, split_k=5, over_grid=True), "nt", (65, 50, 328), id="grid"),
    pytest.param(
        TileConfig(2, 64, 2, split_k=2, side_by_side=True, over_grid=True),
        *("tn", (140, 70, 328)),
        id="pairs along N, grid",
    ),
    pytest.param(
        TileConfig(1, 64, 2, split_k=15, over_grid=True),
        *("nt", (100, 33, 968)),
        id="pairs, grid of 15",
    ),
]


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 1, 4, 5)
@pytest.mark.parametrize(("config", "layout", "shape"), SPLITS)
@pytest.mark.chips("sm_90a", "sm_120a")  # whose kernels store M-major, too
def test_every_split_adds_up_the_whole_k(
    backend: Any, config: TileConfig, layout: str, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = integers(m, k, seed=1), integers(k, n, seed=2)

    with emulate.scheduled("adversarial", seed=1, races=True):
        result = multiply(backend, a, b, config, layout)

    assert np.array_equal(result, exact(a, b))


THREE = TileConfig(1, 128, split_k=3)  # of which two store 64 columns each
FEW_ROWS = TileConfig(2, 32, split_k=2, m_major=True)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(("config", "rows"), [(THREE, 70), (FEW_ROWS, 27)], ids=["3", "few rows"])
def test_a_batch_is_split_before_its_epilogue(backend: Any, config: TileConfig, rows: int) -> None:
    a, b = integers(2, rows, 136, seed=3), integers(2, 136, 90, seed=4)
    bias = np.random.default_rng(5).integers(-9, 10, 90).astype(np.float32)
    epilogue = {"alpha": 0.5, "bias": backend.array(bias), "activation": "relu"}

    with emulate.scheduled("random", seed=2, races=True):
        result = multiply(backend, a, b, config, "nt", "bfloat16", **epilogue)

    wanted = np.maximum(0.5 * exact(a, b) + bias, 0).astype(ml_dtypes.bfloat16)
    assert np.array_equal(result, wanted.astype(np.float64))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(
    ("output", "columns"), [("bfloat16", 91), ("float16", 30), ("float32", 29)], ids=str
)
def test_partial_outputs_are_rounded_once_and_stored_inside_the_output(
    backend: Any, output: str, columns: int
) -> None:
    config = TileConfig(1, 32, split_k=4, over_grid=True)
    a, b = integers(70, 264, seed=6), integers(264, columns, seed=7)

    with emulate.scheduled("random", seed=3, races=True):
        result = multiply(backend, a, b, config, output=output)

    wanted = exact(a, b).astype(np.dtype(getattr(ml_dtypes, output, output)))
    assert np.array_equal(result, wanted.astype(np.float64))


@pytest.mark.slow
def test_integers_are_added_up_as_integers(backend: Any) -> None:
    config = TileConfig(1, 32, split_k=3, over_grid=True)
    rng = np.random.default_rng(8)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((70, 400), (48, 400)))

    with tile_configs(lambda _: config):
        result = ops.matmul(backend.array(a), backend.array(b).T)

    wanted = a.astype(np.int32) @ b.astype(np.int32).T
    assert np.array_equal(backend.host(result), wanted)


@pytest.mark.slow
def test_a_column_major_output_is_split_over_the_grid_too(backend: Any) -> None:
    config = TileConfig(1, 64, split_k=3, over_grid=True)
    a, b = integers(72, 200, seed=9), integers(200, 80, seed=10)
    out = backend.array(np.full((80, 72), np.nan, np.float32))

    with tile_configs(lambda _: config):
        ops.matmul(backend.array(a), backend.array(b), out=out.T)

    assert np.array_equal(backend.host(out).T, exact(a, b))
