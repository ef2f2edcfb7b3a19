"""GEMMs whose K is split, run again and again: the same bits, whatever order CTAs end in."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ops
from tmaasync.ops._gemm.config import SKINNY_LIMIT, Occupancy, TileConfig
from tmaasync.ops._gemm.cost_model import default_config
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._operation import tile_configs

cupy = pytest.importorskip("cupy")

RUNS = 1000


def normal(shape: tuple[int, int], seed: int) -> Any:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return cupy.asarray(drawn.astype(np.float16))


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (TileConfig(2, 256, split_k=2), (1000, 1032, 4104)),
        (TileConfig(2, 192, split_k=3), (700, 800, 16400)),
        (TileConfig(2, 128, split_k=6), (500, 512, 16384)),
        (TileConfig(2, 128, 2, split_k=4), (500, 520, 8200)),
        (TileConfig(1, 64, split_k=8), (300, 200, 16400)),
        (TileConfig(1, 64, split_k=5, m_major=True), (64, 1000, 16384)),
        (TileConfig(2, 32, split_k=8, m_major=True), (24, 1000, 8200)),
        (TileConfig(1, 128, group_m=4, split_k=15, over_grid=True), (250, 270, 16400)),
        (TileConfig(2, 192, split_k=5, over_grid=True), (700, 800, 16400)),
        (TileConfig(2, 64, 2, split_k=3, side_by_side=True, over_grid=True), (500, 520, 8200)),
    ],
    ids=str,
)
def test_a_thousand_runs_give_the_same_bits(
    config: TileConfig, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = normal((m, k), 1), normal((n, k), 2).T
    out = cupy.full((m, n), cupy.nan, cupy.float32)
    differing = cupy.zeros((), cupy.int64)

    with tile_configs(lambda _: config):
        first = ops.matmul(a, b, out=out).copy()
        for _ in range(RUNS):
            out.fill(cupy.nan)
            ops.matmul(a, b, out=out)
            differing += cupy.count_nonzero(out.view(cupy.int32) != first.view(cupy.int32))

    wanted = cupy.asnumpy(a).astype(np.float64) @ cupy.asnumpy(b).astype(np.float64)
    error = np.linalg.norm(cupy.asnumpy(first) - wanted) / np.linalg.norm(wanted)
    assert error < 2e-5
    assert int(differing) == 0


def is_split(m: int, n: int, k: int, operands: str) -> bool:
    is_skinny = m <= SKINNY_LIMIT  # then the kernel swaps AB
    sides = (n, m) if is_skinny else (m, n)
    problem = Problem(*sides, k, 1, operands, "float32", "nt", is_skinny, True)
    return default_config(problem, Occupancy.estimated(132)).split_k > 1


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float32"])
@pytest.mark.parametrize("rows", [24, 200])
def test_other_types_are_split_too(kind: str, rows: int) -> None:
    m, n, k = rows, 264, 16384
    rng = np.random.default_rng(3)
    a, b = (
        rng.integers(-2, 3, shape).astype(getattr(ml_dtypes, kind, kind))
        for shape in ((m, k), (n, k))
    )
    options: dict[str, Any] = {}
    stored = a, b
    if kind == "float8_e4m3fn":
        stored = a.view(np.uint8), b.view(np.uint8)
        options = {"a_dtype": kind, "b_dtype": kind, "dtype": "float32"}
    if kind == "float32":
        options = {"precision": "tf32"}
    left, right = map(cupy.asarray, stored)

    c = ops.matmul(left, right.T, **options)

    assert is_split(m, n, k, kind)
    assert np.array_equal(cupy.asnumpy(c), a.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.parametrize("gives_out", [False, True])
@pytest.mark.parametrize("options", [{}, {"precision": "tf32"}], ids=["float16", "tf32"])
def test_calls_over_the_grid_again_return_the_output(
    gives_out: bool, options: dict[str, Any]
) -> None:
    kind = np.float32 if options else np.float16
    config = TileConfig(1, 64, split_k=3, over_grid=True)
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-2, 3, shape).astype(kind) for shape in ((200, 1024), (264, 1024)))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    left, right = cupy.asarray(a), cupy.asarray(b).T
    out = cupy.empty((200, 264), kind) if gives_out else None

    with tile_configs(lambda _: config):
        for _ in range(4):
            result = ops.matmul(left, right, out=out, **options)

            assert (result is out) == gives_out
            assert np.array_equal(cupy.asnumpy(result), wanted)
            result.fill(0)
