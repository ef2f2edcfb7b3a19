"""K-grouped matmul: exact for each group, whatever its neighbours hold, on either back end.

Values are small integers, whose sums are exact in fp32 in any order.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.exact_matmul import Array, exact, integers

from tmaasync import ArgumentError, ArrayTypeError, ops


def wanted(a: Array, b: Array, ends: list[int]) -> Array:
    """Multiply group by group in float64; ``a`` is [T, M]."""
    starts = [0, *ends]
    found = [exact(a[start:end].T, b[start:end]) for start, end in zip(starts, ends, strict=False)]
    return np.stack(found)


# Empty ones at either end and between, one row, whole stages of 64, ends inside of stages.
GROUPS = [0, 64, 65, 65, 70, 198, 261, 261]


@pytest.mark.sampled(2)
@pytest.mark.on_the_cpu(0, 3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("m", "n"), [(72, 136), (264, 40)])
def test_groups_of_all_kinds(backend: Any, m: int, n: int, dtype: str) -> None:
    a, b = integers(300, m, seed=0), integers(300, n, seed=1)
    a[261:], b[261:] = np.nan, np.nan  # rows of no group

    out = ops.k_grouped_matmul(
        backend.array(a).T, backend.array(b), backend.array(np.array(GROUPS, np.int32)), dtype=dtype
    )

    got = np.asarray(backend.host(out)).astype(np.float64)
    exact = wanted(a, b, GROUPS)
    assert np.array_equal(got, exact.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("poisoned", range(3))
def test_neighbours_that_are_no_numbers_never_enter(backend: Any, poisoned: int) -> None:
    """Where one group holds NaN and infinities, the sums of all others are as they are."""
    ends = [37, 90, 130]
    a, b = integers(130, 72, seed=2), integers(130, 136, seed=3)
    start, end = [0, *ends][poisoned], ends[poisoned]
    exact = wanted(a, b, ends)
    a[start:end], b[start:end:2], b[start + 1 : end : 2] = np.nan, np.inf, np.nan
    c = backend.array(np.full((3, 72, 136), np.nan, np.float32))

    assert ops.k_grouped_matmul(backend.array(a).T, backend.array(b), ends, out=c) is c

    got = np.asarray(backend.host(c))
    for group in {0, 1, 2} - {poisoned}:
        assert np.array_equal(got[group], exact[group])
    assert np.isnan(got[poisoned]).all()


def test_operands_that_tma_cannot_read_are_staged(backend: Any) -> None:
    a, b = integers(61, 45, seed=4, dtype=np.float16), integers(61, 83, seed=5, dtype=np.float16)
    ends = np.array([5, 61], np.int64)

    row_major = backend.array(np.ascontiguousarray(a.T))
    out = ops.k_grouped_matmul(row_major, backend.array(b), ends)

    assert np.array_equal(np.asarray(backend.host(out)), wanted(a, b, [5, 61]).astype(np.float16))


def test_without_rows_the_output_is_zeros(backend: Any) -> None:
    a, b = (backend.array(integers(0, 8, seed=0)) for _ in range(2))
    out = backend.array(np.full((2, 8, 8), np.nan, np.float32))

    ops.k_grouped_matmul(a.T, b, [0, 0], out=out)

    assert (np.asarray(backend.host(out)) == 0).all()


def test_what_does_not_fit_is_refused(backend: Any) -> None:
    a, b = (backend.array(integers(16, 8, seed=0)) for _ in range(2))
    with pytest.raises(ArgumentError, match=r"so b must have 8 rows. For rows \[T, M\] pass a.T"):
        ops.k_grouped_matmul(a, b, [16])
    with pytest.raises(ArgumentError, match="a has 16 rows"):
        ops.k_grouped_matmul(a.T, b, [8, 17])
    with pytest.raises(ArgumentError, match=r"offsets has shape \(1, 2\)"):
        ops.k_grouped_matmul(a.T, b, np.array([[8, 16]]))
    a, b = (backend.array(np.zeros((8, 8), np.float32)) for _ in range(2))
    with pytest.raises(ArrayTypeError, match="float32"):
        ops.k_grouped_matmul(a, b, [8])
