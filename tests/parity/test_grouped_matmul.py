"""Grouped matmul: exact, and nothing beside the groups is touched, on either back end.

Values are small integers, whose sums are exact in fp32 in any order.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.backends import Emulate
from parity.exact_matmul import Array, exact, integers
from parity.tile_configs import fitted

from tmaasync import EmulatedFault, _arrays, ops
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tiles import grouped_kernel, grouped_tiles


def wanted(a: Array, b: Array, ends: list[int], out: Array) -> Array:
    """Return the output, group by group in float64, over its earlier contents."""
    result = out.copy()
    for start, end, matrix in zip([0, *ends], ends, b, strict=False):
        result[start:end] = exact(a[start:end], matrix)
    return result


def same(got: Array, expected: Array) -> bool:
    return np.array_equal(got.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def poisoned(rows: int, columns: int, dtype: str = "float32") -> Array:
    return np.full((rows, columns), np.nan, np.dtype(getattr(ml_dtypes, dtype, dtype)))


def stacked(backend: Any, b: Array, layout: str) -> Any:
    """The matrices on the back end, stored as [G, K, N], or transposed as [G, N, K]."""
    if layout == "n":
        return backend.array(b)
    return backend.array(np.ascontiguousarray(b.swapaxes(1, 2))).swapaxes(1, 2)


def run_with(
    backend: Any, a: Array, b: Array, ends: list[int], config: TileConfig, layout: str, grid: int
) -> Array:
    """Run the kernel in a tile config and a grid of our choice."""
    config = fitted(config)
    transposed = layout == "t"
    stack = stacked(backend, b, layout)
    rows, c = backend.array(a), backend.array(poisoned(len(a), b.shape[2]))
    matrices = _arrays.view(stack.swapaxes(1, 2) if transposed else stack)
    views = (_arrays.view(rows), matrices, _arrays.view(c))
    tiles = grouped_tiles(*views, config, transposed)
    kernel = grouped_kernel([tile.cuda_type for tile in tiles], transposed, config)
    operands = tiles[1::-1] if config.m_major else tiles[:2]
    numbers = (len(b), len(a), b.shape[2], a.shape[1])
    flag = backend.array(np.zeros(1, np.int32))
    arguments = (backend.array(np.array(ends, np.int32)), *numbers, flag)
    cluster = config.cluster if config.cluster > 1 else None
    kernel(grid, config.threads, (*operands, tiles.out, *arguments), cluster=cluster)
    return np.asarray(backend.host(c))


# Every tile config and layout is a build of seconds on the emulator.
@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 2, 3)
@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (TileConfig(2, 128, 2, group_m=2), "n"),
        (TileConfig(1, 64, 2), "t"),
        (TileConfig(2, 64, rows=128, ping_pong=True), "t"),
        (TileConfig(2, 64, m_major=True), "t"),
        (TileConfig(1, 16, m_major=True), "t"),
    ],
    ids=str,
)
def test_groups_of_all_kinds(backend: Any, config: TileConfig, layout: str) -> None:
    """Empty ones at either end and between, one row, whole tiles, ends inside of tiles.

    With clusters: an odd number of rows of tiles, and of tiles in a row.
    """
    sizes = [0, 1, 128, 0, 0, 131, 7, 64, 256, 29, 0]
    ends = [int(end) for end in np.cumsum(sizes)]
    a, b = integers(ends[-1] + 40, 136, seed=1), integers(len(sizes), 136, 168, seed=2)
    a[ends[-1] :] = np.nan

    c = run_with(backend, a, b, ends, config, layout, grid=2 * config.cluster)

    assert same(c, wanted(a, b, ends, poisoned(len(a), 168)))


def test_a_neighbours_nan_stays_with_the_neighbour(backend: Any) -> None:
    sizes = [5, 67, 3, 130]
    ends = [int(end) for end in np.cumsum(sizes)]
    a, b = integers(ends[-1], 72, seed=3), integers(4, 72, 64, seed=4)
    a[5:72], b[3] = np.nan, np.nan

    c = ops.grouped_matmul(backend.array(a), backend.array(b), backend.array(np.array(ends)))

    got = np.asarray(backend.host(c)).astype(np.float64)
    assert same(got[:5], wanted(a, b, ends, poisoned(205, 64, "bfloat16"))[:5])
    assert same(got[72:75], wanted(a, b, ends, poisoned(205, 64, "bfloat16"))[72:75])
    assert np.isnan(got[5:72]).all()
    assert np.isnan(got[75:]).all()


@pytest.mark.parametrize(("rows", "output"), [(3, "bfloat16"), (100, "float32")])
def test_few_rows_and_many_with_offsets_anywhere(backend: Any, rows: int, output: str) -> None:
    ends = [rows, rows, 2 * rows + 1, 3 * rows]
    a, b = integers(3 * rows + 2, 64, seed=5), integers(4, 64, 72, seed=6)
    before = np.full((len(a), 72), -7, np.dtype(getattr(ml_dtypes, output, output)))
    stack = stacked(backend, b, "t")

    for offsets in (ends, np.array(ends, np.int64), backend.array(np.array(ends, np.int32))):
        out = backend.array(before)
        for _ in range(2):  # the second time by the plan of the first
            returned = ops.grouped_matmul(backend.array(a), stack, offsets, out=out)
        assert returned is out
        assert same(np.asarray(backend.host(out)), wanted(a, b, ends, before))


def test_what_tma_cannot_reach_is_copied(backend: Any) -> None:
    """Rows whose K is not contiguous, matrices of 15 columns, an output within a larger array."""
    ends = [9, 70]
    a, b = integers(75, 33, seed=7), integers(2, 33, 15, seed=8)
    whole = np.full((75, 24), -7, ml_dtypes.bfloat16)
    on_backend = backend.array(whole)

    ops.grouped_matmul(
        backend.array(np.ascontiguousarray(a.T)).T, backend.array(b), ends, out=on_backend[:, :15]
    )

    got = np.asarray(backend.host(on_backend))
    assert same(got[:, :15], wanted(a, b, ends, whole[:, :15]))
    assert (got[:, 15:] == -7).all()


@pytest.mark.parametrize("shape", [(0, 2, 8, 8), (4, 0, 8, 8), (4, 2, 8, 0)])
def test_nothing_to_multiply(backend: Any, shape: tuple[int, ...]) -> None:
    rows, groups, k, n = shape
    a, b = backend.array(integers(rows, k, seed=9)), backend.array(integers(groups, k, n, seed=10))
    out = backend.array(np.full((rows, n), 5, ml_dtypes.bfloat16))

    ops.grouped_matmul(a, b, [rows] * groups, out=out)

    assert (backend.host(out) == 5).all()


@pytest.mark.gpu
@pytest.mark.parametrize("number", [0, 1])
def test_random_groups(backend: Any, number: int) -> None:
    drawn = np.random.default_rng(number)
    sizes = drawn.integers(0, drawn.choice([3, 30, 300]), drawn.integers(1, 9))
    ends = [int(end) for end in np.cumsum(sizes)]
    k, n = (int(side) * 8 for side in drawn.integers(1, 30, 2))
    a, b = integers(ends[-1] + 3, k, seed=number), integers(len(ends), k, n, seed=number + 1)
    before = poisoned(len(a), n)
    out = backend.array(before)
    offsets = backend.array(np.array(ends, np.int32))

    ops.grouped_matmul(backend.array(a), stacked(backend, b, "nt"[number % 2]), offsets, out=out)

    assert same(np.asarray(backend.host(out)), wanted(a, b, ends, before))


def test_a_debug_build_names_the_offset_that_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tile config that no other test has: it is compiled while the variable is set."""
    a, b = integers(20, 64, seed=11), integers(3, 64, 64, seed=12)
    monkeypatch.setenv("TMAASYNC_DEBUG", "1")
    config = TileConfig(1, 16, group_m=3, m_major=True)

    with pytest.raises(EmulatedFault, match=r"offsets\[group\] is 4; it must be at least 9"):
        run_with(Emulate(), a, b, [9, 4, 20], config, "t", grid=1)
