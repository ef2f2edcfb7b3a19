"""ops.matmul of every type against float64, on either back end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.exact_matmul import exact
from parity.tensor_core_sums import accumulated

from tmaasync import ops
from tmaasync._elements import element

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def normal(shape: tuple[int, int], name: str, seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(element(name).dtype)


def placed(backend: Any, values: Any) -> Any:
    """On the device; what CuPy has no type for as bytes."""
    is_known = values.dtype not in [element(name).dtype for name in FLOAT8]
    return backend.array(values if is_known else values.view(np.uint8))


def multiplied(backend: Any, a: Any, b: Any, *, b_rows: bool = False, **options: Any) -> Any:
    """Return their matmul; b is stored as [N, K], or if ``b_rows`` as [K, N]."""
    stored = placed(backend, np.ascontiguousarray(b if b_rows else b.T))
    if element(a.dtype).name in FLOAT8:
        options |= {"a_dtype": element(a.dtype).name, "b_dtype": element(b.dtype).name}
    got = ops.matmul(placed(backend, a), stored if b_rows else stored.T, **options)
    return backend.host(got)


def assert_close(got: Any, a: Any, b: Any, tolerance: float) -> None:
    """Every sum, relative to the sizes of what it adds up."""
    sizes = exact(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    error = np.abs(got.astype(np.float64) - exact(a, b))
    assert (error <= tolerance * sizes + 1e-30).all(), float((error / sizes).max())


@pytest.mark.chips("sm_90a")
def test_float8_accumulation_of_one_sign_come_out_too_small(backend: Any) -> None:
    a, b = (abs(normal(shape, "float8_e4m3fn", 1)) for shape in ((128, 1024), (1024, 64)))

    got = multiplied(backend, a, b, dtype="float32")

    off = float(np.mean(got / exact(a, b) - 1))
    assert off == pytest.approx(-0.0151, abs=3e-4)  # an H200's
    assert np.array_equal(got, accumulated(a, np.ascontiguousarray(b.T)))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(("name", "depth"), [("float8_e4m3fn", 77), ("int8", 64)])
def test_what_is_not_contiguous_along_k_is_copied(backend: Any, name: str, depth: int) -> None:
    rng = np.random.default_rng(6)
    a, b = (
        rng.integers(-4, 5, shape).astype(element(name).dtype)
        for shape in ((70, depth), (depth, 80))
    )
    options: dict[str, Any] = {}
    if name in FLOAT8:
        options = {"a_dtype": name, "b_dtype": name, "dtype": "float32"}

    for a_stored in (placed(backend, a), placed(backend, np.ascontiguousarray(a.T)).T):
        got = ops.matmul(a_stored, placed(backend, b), **options)
        assert np.array_equal(backend.host(got), exact(a, b))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_scales_that_fit_in_float32_together(backend: Any, scale: float) -> None:
    """Two of the three factors do not."""
    a, b = np.eye(16, dtype="float16"), normal((16, 8), "float16", 7)
    scales = [backend.array(np.array([each], np.float32)) for each in (scale, 1 / scale)]
    options = {"alpha": scale, "scale_a": scales[0], "scale_b": scales[1], "dtype": "float32"}

    got = multiplied(backend, a, b, **options)

    np.testing.assert_allclose(got, exact(a, b) * scale, rtol=1e-6)


def test_bytes_are_read_as_float8_if_that_is_said(backend: Any) -> None:
    a, b = normal((5, 16), "float8_e5m2", 10), normal((16, 8), "float8_e5m2", 11)
    given = [backend.array(each.view(np.uint8)) for each in (a, np.ascontiguousarray(b.T))]
    out = backend.array(np.zeros((5, 8), np.float32))

    for _ in range(2):  # the second time by the plan of the first
        out[...] = 0
        ops.matmul(given[0], given[1].T, a_dtype="float8_e5m2", b_dtype="float8_e5m2", out=out)
        assert_close(backend.host(out), a, b, 2**-10)
    as_integers = ops.matmul(given[0], given[1].T)

    assert np.array_equal(backend.host(as_integers), exact(a.view(np.uint8), b.view(np.uint8)))
