"""Rows that fill no tile: the last 64 are loaded in place of rows outside of A, and stored once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_matmul import exact, integers
from parity.tile_configs import tile_configs

from tmaasync import emulate, ops
from tmaasync.ops._gemm.config import TileConfig

pytestmark = pytest.mark.slow

# One consumer and several; 64 rows wholly outside; two row blocks of a consumer; pairs of which a
# CTA has no rows; parts of K.
CASES = [
    pytest.param(TileConfig(1, 64), 67, id="one consumer"),
    pytest.param(TileConfig(2, 64), 100, id="less than a tile"),
    pytest.param(TileConfig(2, 64), 130, id="the second consumer outside"),
    pytest.param(TileConfig(3, 32), 250, id="two consumers outside"),
    pytest.param(TileConfig(2, 64, rows=128), 300, id="two row blocks"),
    pytest.param(TileConfig(2, 64, rows=128, ping_pong=True), 190, id="ping-pong"),
    pytest.param(TileConfig(1, 64, 2), 193, id="a CTA of a pair with one row"),
    pytest.param(TileConfig(2, 64, 2), 128, id="a CTA of a pair outside"),
    pytest.param(TileConfig(2, 64, 2, rows=128, side_by_side=True), 300, id="pairs along N"),
    pytest.param(TileConfig(1, 64, 2, side_by_side=True), 70, id="boxes of 32 rows"),
]
SPLIT = [
    pytest.param(TileConfig(2, 64, split_k=2), 190, id="over a cluster"),
    pytest.param(TileConfig(2, 64, split_k=3, over_grid=True), 130, id="over the grid"),
]
COLUMNS, DEPTH, ROWS_AFTER = 136, 200, 3
E4M3 = ml_dtypes.float8_e4m3fn


def placed(backend: Any, values: Any) -> Any:
    """On the device; float8, which CuPy has no type for, as bytes."""
    return backend.array(values.view(np.uint8) if values.dtype == E4M3 else values)


def along_k(backend: Any, b: Any) -> Any:
    """Return B on the device, with K contiguous."""
    return placed(backend, np.ascontiguousarray(b.swapaxes(-1, -2))).swapaxes(-1, -2)


def multiply(
    backend: Any, a: Any, b: Any, config: TileConfig, dtype: str = "float32", **options: Any
) -> Any:
    """Return the output as float64; the rows after it in memory must stay."""
    *batch, m, _ = a.shape
    wide = backend.array(
        np.full((*batch, m + ROWS_AFTER, b.shape[-1]), -7, getattr(ml_dtypes, dtype, dtype))
    )
    races = emulate.scheduled("adversarial", seed=6, races=True)
    with tile_configs(lambda _: config), races:
        ops.matmul(placed(backend, a), along_k(backend, b), out=wide[..., :m, :], **options)
    got = backend.host(wide).astype(np.float64)
    assert (got[..., m:, :] == -7).all()
    return got[..., :m, :]


# On the CPU, where each type is a build, a tile config has one of them; configs whose properties
# others join are left out.
@pytest.mark.on_the_cpu(2, 4, 9, 10, 18, 19, 23)
@pytest.mark.parametrize(("config", "rows"), [*CASES, *SPLIT])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_row_is_computed(backend: Any, config: TileConfig, rows: int, dtype: str) -> None:
    a, b = integers(rows, DEPTH, seed=1), integers(COLUMNS, DEPTH, seed=2).T

    c = multiply(backend, a, b, config, dtype)

    assert np.array_equal(c, exact(a, b).astype(getattr(ml_dtypes, dtype, dtype)))


@pytest.mark.on_the_cpu(0, 4, 9)
@pytest.mark.parametrize("rows", range(65, 129, 7))
def test_every_number_of_rows(backend: Any, rows: int) -> None:
    a, b = integers(rows, 72, seed=3), integers(40, 72, seed=4).T

    c = multiply(backend, a, b, TileConfig(2, 48))

    assert np.array_equal(c, exact(a, b))


def test_the_matrices_of_a_batch_do_not_mix(backend: Any) -> None:
    a = integers(3, 70, DEPTH, seed=5)
    b = integers(3, COLUMNS, DEPTH, seed=6).swapaxes(-1, -2)

    c = multiply(backend, a, b, TileConfig(2, 64))

    assert np.array_equal(c, exact(a, b))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("dtype", [np.int8, E4M3])
def test_operands_of_8_bits(backend: Any, dtype: Any) -> None:
    a, b = integers(150, DEPTH, seed=7), integers(COLUMNS, DEPTH, seed=8).T
    output = "int32" if dtype is np.int8 else "float32"
    named = {} if dtype is np.int8 else {"a_dtype": E4M3, "b_dtype": E4M3}

    c = multiply(backend, a.astype(dtype), b.astype(dtype), TileConfig(2, 64), output, **named)

    assert np.array_equal(c, exact(a, b))


@pytest.mark.on_the_cpu(2)
@pytest.mark.parametrize(
    "config", [TileConfig(2, 64), TileConfig(2, 64, rows=128), TileConfig(2, 64, split_k=2)]
)
def test_a_bias_of_columns(backend: Any, config: TileConfig) -> None:
    a, b = integers(150, DEPTH, seed=9), integers(COLUMNS, DEPTH, seed=10).T
    bias = integers(COLUMNS, seed=11).astype(np.float32)

    c = multiply(backend, a, b, config, bias=backend.array(bias))

    assert np.array_equal(c, exact(a, b) + bias)


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("config", [TileConfig(2, 64), TileConfig(2, 64, rows=128)])
def test_a_bias_of_rows(backend: Any, config: TileConfig) -> None:
    """Column-major outputs swap AB: the kernel's rows are columns here."""
    a, b = integers(COLUMNS, DEPTH, seed=12), integers(300, DEPTH, seed=13).T
    bias = integers(300, seed=14).astype(np.float32)
    out = backend.array(np.full((300, COLUMNS), np.nan, np.float32)).T

    with tile_configs(lambda _: config), emulate.scheduled("adversarial", seed=6, races=True):
        ops.matmul(backend.array(a), along_k(backend, b), out=out, bias=backend.array(bias))

    assert np.array_equal(backend.host(out), exact(a, b) + bias)


@pytest.mark.on_the_cpu(0, 7)
@pytest.mark.parametrize("config", [TileConfig(2, 64), TileConfig(2, 64, rows=128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_in_place", [False, True])
def test_an_addend(backend: Any, config: TileConfig, dtype: str, is_in_place: bool) -> None:
    a, b = integers(300, DEPTH, seed=15), integers(COLUMNS, DEPTH, seed=16).T
    added = integers(300, COLUMNS, seed=17).astype(getattr(ml_dtypes, dtype, dtype))
    c = backend.array(added)
    out = c if is_in_place else backend.array(np.zeros_like(added))

    with tile_configs(lambda _: config), emulate.scheduled("adversarial", seed=6, races=True):
        ops.matmul(backend.array(a), along_k(backend, b), out=out, c=c)

    assert np.array_equal(backend.host(out), (exact(a, b) + added).astype(added.dtype))
