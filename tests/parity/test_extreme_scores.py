"""Attention of scores, values and scales far larger than a model's, against float64."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.attention_backward_oracle import Expected as Gradient
from parity.attention_backward_oracle import assert_gradient, differentiate
from parity.attention_oracle import Array, Expected, Mask, assert_close, attend, dtype_of
from parity.backends import Emulate
from parity.tile_configs import tile_configs

from tmaasync import ArgumentError, emulate, ops
from tmaasync.ops._flash.config import TileConfig

# `make test` has the plain attention of test_attention.py.
pytestmark = pytest.mark.slow

HEAD_DIM, KEYS = 64, 300
PLAIN = TileConfig(HEAD_DIM, 1, 64)
FLOAT8 = "float8_e4m3fn"
LARGEST = float(np.finfo(np.float32).max)
LEAST, MOST = 2.0**-60, 2.0**60  # of a scale


@pytest.fixture(autouse=True)
def few_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that the keys of a tile are split three ways."""
    monkeypatch.setattr(emulate, "LIMITS", replace(emulate.LIMITS, sms=3))


def using(**changes: Any) -> AbstractContextManager[None]:
    """The plain tile config with changes."""
    config = replace(PLAIN, **changes)
    return tile_configs(lambda _: config)


def normal(rows: int, dtype: str, size: float = 1.0, seed: int = 0) -> Array:
    drawn = np.random.default_rng((seed, rows)).standard_normal((1, rows, 1, HEAD_DIM))
    return (drawn * size).astype(dtype_of(dtype))


def in_float32(expected: Expected) -> Expected:
    """The log-sum-exp as float32 holds it; only queries without keys have minus infinity."""
    with np.errstate(over="ignore"):
        lse = expected.lse.astype(np.float32).astype(np.float64)
    is_low = (lse == -np.inf) & (expected.lse != -np.inf)
    return replace(expected, lse=np.where(is_low, -LARGEST, lse))


def check(
    backend: Any, q: Array, k: Array, v: Array, mask: Mask | None = None, **options: Any
) -> None:
    """Padded arrays and packed ones, each with the keys of a tile whole and split.

    On the CPU, where each is a build, two of the four.
    """
    mask = mask or Mask()
    expected = in_float32(attend(q[0], k[0], v[0], mask, **options))
    options |= {"causal": mask.causal, "return_lse": True}
    lengths = [np.array([0, array.shape[1]]) for array in (q, k)]
    has_all = not isinstance(backend, Emulate)
    for is_split in (False, True):
        if has_all or not is_split:
            with using(stream_k=is_split):
                out, lse = ops.attention(*map(backend.array, (q, k, v)), **options)
            assert_close(backend.host(out)[0], backend.host(lse)[0], expected, v[0])
        if not has_all and not is_split:
            continue
        packed = [backend.array(array[0]) for array in (q, k, v)]
        with using(kv_splits=3 if is_split else 1):
            out, lse = ops.varlen_attention(*packed, *lengths, **options)
        assert_close(backend.host(out), backend.host(lse), expected, v[0])


@pytest.mark.on_the_cpu(1, 3, 7)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scale", [None, 3e3, 1e8, 1e18])
def test_large_scores(backend: Any, dtype: str, scale: float | None) -> None:
    size = 1.0 if scale is not None else 1e5 if dtype == "bfloat16" else 1e4
    q, k = (normal(rows, dtype, size) for rows in (67, KEYS))
    k[:, [3, 140, 290]] = k[:, 140:141]  # of one score, in several blocks and splits

    # On the CPU with the mask, and so the builds, of the tests below.
    mask = Mask(isinstance(backend, Emulate))
    check(backend, q, k, normal(KEYS, dtype, seed=2), mask, scale=scale)


@pytest.mark.on_the_cpu(0, 2)
@pytest.mark.parametrize(
    ("dtype", "mask"), [("bfloat16", Mask(True)), ("float16", Mask())], ids=str
)
@pytest.mark.parametrize("offset", [65536, -65536, 4096])
def test_large_scores_of_small_differences(
    backend: Any, dtype: str, mask: Mask, offset: int
) -> None:
    """Every score is a multiple of 1/16 near the offset, which fp32 holds."""
    random = np.random.default_rng(1)
    q, k = (
        random.integers(-1, 2, (1, rows, 1, HEAD_DIM)).astype(dtype_of(dtype)) / 4
        for rows in (67, KEYS)
    )
    q[..., 0], k[..., 0] = 256, offset / 256

    check(backend, q, k, normal(KEYS, dtype, seed=2), mask, scale=1.0)


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("size", [1e31, 1e36])
def test_scores_below_minus_1e30(backend: Any, size: float) -> None:
    """Some queries have no key, one key, or keys in one split alone."""
    q, k = (np.ones((1, rows, 1, HEAD_DIM), dtype_of("bfloat16")) for rows in (KEYS + 50, KEYS))
    k *= -np.linspace(1, 2, KEYS)[None, :, None, None] * size / HEAD_DIM

    check(backend, q, k.astype(q.dtype), normal(KEYS, "bfloat16", seed=2), Mask(True), scale=1.0)


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("softcap", [2.0, 1e4])
@pytest.mark.chips("sm_90a", "sm_100a")
def test_softcap_of_large_scores(backend: Any, softcap: float) -> None:
    q, k, v = (normal(rows, "float16", seed=i) for i, rows in enumerate((67, KEYS, KEYS)))

    if not isinstance(backend, Emulate):
        check(backend, q, k, v, scale=MOST, softcap=softcap)
    for got, wanted in gradients(backend, q, k, v, scale=MOST, softcap=softcap):
        assert_gradient(got, wanted)


# --- float8 -----------------------------------------------------------------------------------


def check_float8(
    backend: Any, scales: tuple[Any, ...], queries: int = 67, wanted: str = "close", **options: Any
) -> None:
    random = np.random.default_rng(0)
    # Small integers, so that the 14 bits of the tensor cores hold every score.
    q, k = (
        random.integers(-2, 3, (1, rows, 1, HEAD_DIM)).astype(dtype_of(FLOAT8))
        for rows in (queries, KEYS)
    )
    v = normal(KEYS, FLOAT8, seed=2)
    factors = [np.float64(np.asarray(scale).reshape(())) for scale in scales]
    wide_q, wide_k, wide_v = (
        array[0].astype(np.float64) * factor
        for array, factor in zip((q, k, v), factors, strict=True)
    )
    expected = in_float32(attend(wide_q, wide_k, wide_v, Mask(), **options))
    given = tuple(backend.array(one) if isinstance(one, np.ndarray) else one for one in scales)
    # On the CPU, where each is a build, one of both.
    splits = ("softcap" not in options,) if isinstance(backend, Emulate) else (False, True)
    for is_split in splits:
        with using(stream_k=is_split, element_bytes=1, has_few_rows=queries <= 8):
            out, lse = ops.attention(
                *(backend.array(array.view(np.uint8)) for array in (q, k, v)),
                **{"scales": given, "dtype": FLOAT8, "return_lse": True, **options},
            )
        got, sums = backend.host(out)[0], backend.host(lse)[0]
        if wanted == "nan":
            assert np.isnan(got.astype(np.float32)).all()
        else:
            assert_close(got, sums, expected, wide_v, FLOAT8)


def array(number: float) -> Array:
    return np.array([number], np.float32)


TINY = (array(1e-30), array(1e-30), array(1e-3))
HUGE = (array(1e30), array(1e30), array(1e30))


@pytest.mark.on_the_cpu(0, 4, 8)
@pytest.mark.parametrize("scale", [LEAST, 1.0, MOST])
@pytest.mark.parametrize(
    "scales", [(LEAST, LEAST, LEAST), TINY, (array(0), array(1), array(1))], ids=lambda _: ""
)
def test_small_scales_of_float8(backend: Any, scales: tuple[Any, ...], scale: float) -> None:
    check_float8(backend, scales, scale=scale)


def test_the_largest_scales_of_float8(backend: Any) -> None:
    """Scores are integers below 64: scaled ones are below 2^26."""
    check_float8(backend, (2.0**10, 2.0**9, 1.0), scale=1.0)
    check_float8(backend, (array(2.0**10), array(2.0**9), array(1e30)), scale=1.0)


def test_larger_scales_of_float8_are_refused_or_give_nan(backend: Any) -> None:
    with pytest.raises(ArgumentError, match=r"scales\[1\] is .*resolved up to 2\^26"):
        check_float8(backend, (MOST, 1.0, 1.0), scale=1.0)
    check_float8(backend, HUGE, wanted="nan", scale=1.0)


def test_scales_of_float8_of_few_queries_and_with_softcap(backend: Any) -> None:
    check_float8(backend, (array(1e-30), array(1e-30), 1.0), queries=1, scale=MOST)
    for scales in ((MOST, MOST, 1.0), TINY, HUGE):
        check_float8(backend, scales, softcap=2.0, scale=MOST)


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("number", [-1.0, np.nan])
def test_a_scale_that_is_negative_or_no_number_gives_nan(backend: Any, number: float) -> None:
    check_float8(backend, (array(number), 1.0, 1.0), wanted="nan")
    check_float8(backend, (array(number), 1.0, 1.0), wanted="nan", softcap=2.0)


# --- the backward -----------------------------------------------------------------------------

SCALE = 500.0
SHIFT = 100.0  # of every score: log-sum-exps of 5e4


def gradients(
    backend: Any, q: Array, k: Array, v: Array, **options: Any
) -> list[tuple[Array, Gradient]]:
    """Each gradient, and the oracle's."""
    dout = normal(q.shape[1], q.dtype.name, seed=5)
    given = tuple(backend.array(array) for array in (q, k, v))
    outputs = ops.attention(*given, return_lse=True, **options)
    inputs = (backend.array(dout), *given, *outputs)
    found = ops.attention_backward(*inputs, **options)
    expected = differentiate(dout[0], q[0], k[0], v[0], Mask(), **options)
    return [(backend.host(one)[0], wanted) for one, wanted in zip(found, expected, strict=True)]


def spread_scores(rows: int, dtype: str) -> Array:
    """Rows whose scores, of small integers over 4096 and a shift, fp32 holds."""
    drawn = np.random.default_rng(rows).integers(-2, 3, (1, rows, 1, HEAD_DIM)) / 64
    drawn[..., 0] = SHIFT**0.5
    return drawn.astype(dtype_of(dtype))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.chips("sm_90a", "sm_100a")
def test_gradients_of_a_large_log_sum_exp(backend: Any, dtype: str) -> None:
    q, k = (spread_scores(rows, dtype) for rows in (67, KEYS))

    for got, wanted in gradients(backend, q, k, normal(KEYS, dtype, seed=2), scale=SCALE):
        # Without the column of the shift: it multiplies a sum that is 0 but for roundings.
        difference = (got.astype(np.float64) - wanted.gradient)[..., 1:]
        assert np.linalg.norm(difference) <= 0.01 * np.linalg.norm(wanted.gradient[..., 1:])


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("scale", [1e6, MOST])
@pytest.mark.chips("sm_90a")
def test_gradients_of_scores_that_fp32_cannot_resolve_are_nan(backend: Any, scale: float) -> None:
    q, k = (normal(rows, "bfloat16") for rows in (67, KEYS))
    q[:, 40:] = 0  # whose log-sum-exps are small

    (dq, of_q), *others = gradients(backend, q, k, normal(KEYS, "bfloat16", seed=2), scale=scale)

    assert np.isnan(dq[:40].astype(np.float32)).all()
    assert_gradient(dq[40:], replace(of_q, gradient=of_q.gradient[40:], bound=of_q.bound[40:]))
    for got, _ in others:
        assert np.isnan(got.astype(np.float32)).all()
