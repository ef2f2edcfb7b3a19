"""Block-scaled FP8 operands of several ranks, whose sums are exact in every order."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
BLOCK = 128


def drawn_rows(rng: np.random.Generator, rows: int, k: int, kind: Any = E4M3) -> tuple[Any, Any]:
    """Return whole numbers [rows, K], and a power of two per row and 128 of them."""
    return (
        rng.integers(-4, 5, (rows, k)).astype(kind),
        2.0 ** rng.integers(-2, 3, (rows, -(-k // BLOCK))).astype(np.float32),
    )


def drawn_columns(
    rng: np.random.Generator, k: int, n: int, columns: int = BLOCK, kind: Any = E4M3
) -> tuple[Any, Any]:
    """Return a matrix [K, N] with K contiguous, and its scales for 1 or 128 ``columns``."""
    matrix, scales = drawn_rows(rng, n, k, kind)
    return matrix.T, np.ascontiguousarray(scales[::columns].T)


def spread_rows(matrix: Any, scales: Any) -> Any:
    """Return the rows times their scales in float64."""
    return matrix.astype(np.float64) * np.repeat(scales, BLOCK, 1)[:, : matrix.shape[1]]


def spread_columns(matrix: Any, scales: Any) -> Any:
    """Return the columns times their scales in float64."""
    k, n = matrix.shape
    wide = scales if scales.shape[1] == n else np.repeat(scales, BLOCK, 1)[:, :n]
    return matrix.astype(np.float64) * np.repeat(wide, BLOCK, 0)[:k]


def multiplied(a: list[Any], b: list[Any], scale_a: list[Any], scale_b: list[Any]) -> list[Any]:
    """Return what an all-gather and a matmul give to each rank, in float64."""
    whole = np.concatenate([spread_rows(*pair) for pair in zip(a, scale_a, strict=True)])
    return [whole @ spread_columns(*pair) for pair in zip(b, scale_b, strict=True)]


def terms(a: list[Any], b: list[Any], scale_a: list[Any], scale_b: list[Any]) -> list[Any]:
    """Return what each rank adds to the sum of a matmul and a reduce-scatter, in float64."""
    each = zip(a, b, scale_a, scale_b, strict=True)
    return [spread_rows(x, s) @ spread_columns(y, t) for x, y, s, t in each]


def drawn_shards(
    rng: np.random.Generator,
    rows: Any,
    k: int,
    widths: Any,
    columns: int = BLOCK,
    kind: Any = None,
) -> tuple[list[Any], ...]:
    """Return a, b, scale_a and scale_b of all ranks for `ops.all_gather_scaled_matmul`.

    The type of b is ``kind``, or depends on K.
    """
    a = [drawn_rows(rng, int(count), k) for count in rows]
    kind = kind or (E5M2 if k % 3 else E4M3)
    b = [drawn_columns(rng, k, int(n), columns, kind) for n in widths]
    (left, of_a), (right, of_b) = zip(*a, strict=True), zip(*b, strict=True)
    return list(left), list(right), list(of_a), list(of_b)


def drawn_parts(
    rng: np.random.Generator, m: int, depths: Any, n: int, columns: int = BLOCK, kind: Any = None
) -> tuple[list[Any], ...]:
    """Return a, b, scale_a and scale_b of all ranks for `ops.scaled_matmul_reduce_scatter`.

    The type of a is ``kind``, or depends on N.
    """
    a = [drawn_rows(rng, m, int(k), kind or (E5M2 if n % 3 else E4M3)) for k in depths]
    b = [drawn_columns(rng, int(k), n, columns) for k in depths]
    (left, of_a), (right, of_b) = zip(*a, strict=True), zip(*b, strict=True)
    return list(left), list(right), list(of_a), list(of_b)
