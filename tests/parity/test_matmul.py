"""Matmul: exact where the sums are, close elsewhere, on either back end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_matmul import exact, integers
from parity.tile_configs import fitted, tile_configs

from tmaasync import _arrays, emulate, ops
from tmaasync.ops._gemm.config import Orientation, TileConfig
from tmaasync.ops._gemm.tiles import gemm_kernel, gemm_tiles

# Error of one rounding to the output type, relative to the Frobenius norm, with room.
TOLERANCE = {"bfloat16": 4e-3, "float16": 5e-4, "float32": 2e-5}


def normal(rows: int, columns: int, dtype: str, seed: int) -> Any:
    drawn = np.random.default_rng(seed).standard_normal((rows, columns))
    return drawn.astype(getattr(ml_dtypes, dtype, dtype))


def multiply(
    backend: Any, a: Any, b: Any, config: TileConfig, layout: str, clusters: int | None = None
) -> Any:
    """Run the kernel in a tile config of our choice; ``t``: an operand is stored transposed.

    On ``clusters`` clusters; by default each has one tile.
    """
    config = fitted(config)
    (m, k), n = a.shape, b.shape[1]
    transposed = (layout[0] == "t", layout[1] == "t")
    stored = [
        backend.array(np.ascontiguousarray(matrix.T if is_transposed else matrix))
        for matrix, is_transposed in zip((a, b), transposed, strict=True)
    ]
    c = backend.array(np.full((m, -(-n // 8) * 8), np.nan, np.float32))[:, :n]
    views = [_arrays.view(array) for array in (*stored, c)]
    tiles = gemm_tiles(views[0], views[1], views[2], config, *transposed)
    kernel = gemm_kernel([tile.cuda_type for tile in tiles], *transposed, config)
    cluster = config.cluster if config.cluster > 1 else None
    grid = (clusters or config.clusters(m, n)) * config.cluster
    kernel(grid, 128 * (1 + config.consumers), (*tiles, m, n, k, 1), cluster=cluster)
    return backend.host(c)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 3, 5, 6)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("cluster", [1, 2])
def test_every_layout_with_and_without_a_cluster(backend: Any, cluster: int, layout: str) -> None:
    a, b = integers(200, 136, seed=1), integers(136, 144, seed=2)

    c = multiply(backend, a, b, TileConfig(1, 128, cluster), layout)

    assert np.array_equal(c, exact(a, b))


def test_tiles_whose_columns_fill_no_line(backend: Any) -> None:
    a, b = integers(70, 72, seed=3), integers(72, 170, seed=4)

    c = multiply(backend, a, b, TileConfig(1, 160), "nt")

    assert np.array_equal(c, exact(a, b))


# Tiles of 128 x 48: 18 of them, or 9 pairs, so that clusters have odd and even numbers, and one.
@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 1, 5)
@pytest.mark.parametrize(("cluster", "clusters"), [(1, 4), (1, 17), (2, 2)])
@pytest.mark.parametrize("k", [64, 1160])  # fewer and more blocks of K than there are stages
def test_consumers_ping_pong(backend: Any, k: int, cluster: int, clusters: int) -> None:
    a, b = integers(700, k, seed=5), integers(k, 100, seed=6)
    config = TileConfig(2, 48, cluster, rows=128, ping_pong=True)

    with emulate.scheduled("adversarial", seed=3, races=True):
        c = multiply(backend, a, b, config, "nt", clusters)

    assert np.array_equal(c, exact(a, b))


# Three tiles in a row: the second CTA of the last pair has none, but loads its part for the first.
@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_pairs_lie_side_by_side(backend: Any, layout: str) -> None:
    a, b = integers(296, 200, seed=7), integers(200, 136, seed=8)
    config = TileConfig(2, 64, 2, side_by_side=True)

    with emulate.scheduled("adversarial", seed=4, races=True):
        c = multiply(backend, a, b, config, layout, clusters=2)

    assert np.array_equal(c, exact(a, b))


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 3)
@pytest.mark.parametrize("shape", [(1, 1, 8), (65, 33, 64), (256, 256, 256)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_matmul_of_any_shape(backend: Any, shape: tuple[int, int, int], dtype: str) -> None:
    m, n, k = shape
    a, b = normal(m, k, dtype, 1), normal(k, n, dtype, 2)

    c = backend.host(ops.matmul(backend.array(a), backend.array(b))).astype(np.float64)

    wanted = exact(a, b)
    assert np.linalg.norm(c - wanted) < TOLERANCE[dtype] * np.linalg.norm(wanted)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32"])
def test_the_output_may_have_another_type(backend: Any, out: str) -> None:
    a, b = normal(100, 72, "float16", 5), normal(72, 96, "float16", 6)

    c = backend.host(ops.matmul(backend.array(a), backend.array(b), dtype=out))

    wanted = exact(a, b)
    error = np.linalg.norm(c.astype(np.float64) - wanted)
    assert error < TOLERANCE[out] * np.linalg.norm(wanted)


# On the CPU, where each is a build, C in one of both orders of memory.
@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 5, 7)
@pytest.mark.parametrize(
    ("rows", "layout", "dtype", "output"),
    [
        (1, "nt", "bfloat16", "bfloat16"),
        (9, "nn", "float16", "float32"),
        (33, "tn", "bfloat16", "float32"),
        (64, "tt", "float16", "float16"),
    ],
)
@pytest.mark.parametrize("order", "CF")
def test_few_rows_or_few_columns(
    backend: Any, rows: int, layout: str, dtype: str, output: str, order: str
) -> None:
    """The kernel swaps AB; the result is as exact."""
    a, b = (
        drawn.astype(getattr(ml_dtypes, dtype, dtype))
        for drawn in (integers(rows, 152, seed=21), integers(152, 200, seed=22))
    )
    given = [
        backend.array(np.ascontiguousarray(matrix.T)).T if letter == "t" else backend.array(matrix)
        for matrix, letter in zip((a, b), layout, strict=True)
    ]
    c = backend.array(np.full((rows, 200), np.nan, getattr(ml_dtypes, output, output)))

    if order == "C":
        ops.matmul(*given, out=c)
    else:  # the transposes, into an array whose columns are contiguous
        ops.matmul(given[1].T, given[0].T, out=c.T)

    wanted = exact(a, b).astype(c.dtype)
    assert np.array_equal(backend.host(c), wanted)


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 3, 11)
@pytest.mark.parametrize(
    ("rows", "layout", "output"),
    [
        (65, "nt", "float32"),
        (72, "nn", "bfloat16"),
        (100, "nt", "bfloat16"),
        (136, "nt", "float16"),
        (200, "nn", "float32"),
        (250, "nt", "bfloat16"),
        (250, "tn", "float32"),
    ],
)
@pytest.mark.parametrize("order", "CF")
def test_rows_or_columns_that_fill_no_tile(
    backend: Any, rows: int, layout: str, output: str, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With swap AB of all of them: GEMMs that the rule chooses are too large for the emulator."""
    monkeypatch.setattr(Orientation, "gains_by_swap_ab", lambda few, _: few.in_rows() is not None)
    columns = 4104
    a, b = integers(rows, 72, seed=25), integers(72, columns, seed=26)
    if output == "float16":
        a, b = a.astype(np.float16), b.astype(np.float16)
    given = [
        backend.array(np.ascontiguousarray(matrix.T)).T if letter == "t" else backend.array(matrix)
        for matrix, letter in zip((a, b), layout, strict=True)
    ]
    c = backend.array(np.full((rows, columns), np.nan, getattr(ml_dtypes, output, output)))

    with tile_configs(lambda usual: usual):  # which remembers no call
        if order == "C":
            ops.matmul(*given, out=c)
        else:
            ops.matmul(given[1].T, given[0].T, out=c.T)

    wanted = exact(a, b).astype(c.dtype)
    assert np.array_equal(backend.host(c), wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows", [5, 70])
def test_what_comes_after_the_rows_of_an_output_stays(backend: Any, rows: int) -> None:
    a, b = integers(rows, 64, seed=23), integers(64, 33, seed=24)
    whole = backend.array(np.full((rows, 40), -7, ml_dtypes.bfloat16))

    for _ in range(2):  # the second time by the plan of the first
        ops.matmul(backend.array(a), backend.array(b), out=whole[:, :33])

    wanted = exact(a, b).astype(ml_dtypes.bfloat16)
    assert np.array_equal(backend.host(whole)[:, :33], wanted)
    assert (backend.host(whole)[:, 33:] == -7).all()
