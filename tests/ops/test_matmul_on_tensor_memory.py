"""ops.matmul on emulated chips with tensor memory, with races searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import BackendError, emulate, ops

SIZES = (1, 8, 63, 64, 129, 300)


@pytest.fixture(autouse=True, params=["sm_100a", "sm_103a"])
def chip(request: pytest.FixtureRequest) -> Iterator[str]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield str(request.param)


def stored(matrix: Any, rng: np.random.Generator) -> Any:
    """Return the same matrix in one of four layouts."""
    form = rng.integers(4)
    if form == 1:
        return np.asfortranarray(matrix)
    if form == 2:
        return np.concatenate([matrix, matrix], axis=-1)[..., : matrix.shape[-1]]
    if form == 3:
        return np.repeat(matrix, 2, axis=-1)[..., ::2]
    return matrix


def check(c: Any, a: Any, b: Any) -> None:
    expected = a.astype(np.float64) @ b.astype(np.float64)
    rounding = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "float32": 2.0**-20}[c.dtype.name]
    bound = rounding * (np.abs(expected) + np.sqrt(a.shape[-1]))
    assert (np.abs(c.astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes_types_and_layouts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dtype = (np.float16, ml_dtypes.bfloat16)[seed % 2]
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    batch = (2,) if seed % 3 == 2 else ()
    a = rng.standard_normal((*batch, m, k)).astype(dtype)
    b = rng.standard_normal((k, n) if seed == 5 else (*batch, k, n)).astype(dtype)

    c = ops.matmul(stored(a, rng), stored(b, rng), dtype=(None, "float32")[seed % 2])

    check(c, a, b)


def test_an_output_whose_columns_are_contiguous() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((130, 40), (40, 72)))
    c = np.full((72, 136), np.nan, np.float16).T[:130]

    check(ops.matmul(a, b, out=c), a, b)


@pytest.mark.parametrize(
    "more", [{"activation": "relu"}, {"alpha": 2.0}, {"dtype": "float32", "precision": "tf32"}]
)
def test_what_the_kernel_does_not_do_is_refused(more: dict[str, Any]) -> None:
    a = np.ones((8, 8), np.float32 if "precision" in more else np.float16)

    with pytest.raises(
        BackendError, match="with an epilogue, or of types other than bfloat16 and float16, needs"
    ):
        ops.matmul(a, a, **more)


def test_other_operations_of_tensor_cores_are_refused() -> None:
    q = np.ones((1, 8, 1, 64), np.float16)

    with pytest.raises(BackendError, match=r"ops\.attention needs wgmma"):
        ops.attention(q, q, q)
