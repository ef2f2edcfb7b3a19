"""Attention of scores, values and scales far beyond those of a model, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.attention_oracle import Array, Expected, Mask, assert_close, attend, dtype_of

from tmaasync import emulate, ops
from tmaasync.ops._flash.config import TileConfig
from tmaasync.ops._operation import tile_configs

HEAD_DIM, KEYS = 64, 300
PLAIN = TileConfig(HEAD_DIM, 1, 64)
FLOAT8 = "float8_e4m3fn"
LARGEST = float(np.finfo(np.float32).max)
LEAST, MOST = 2.0**-60, 2.0**60  # of a scale


@pytest.fixture(autouse=True)
def few_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that the keys of a tile are split three ways."""
    monkeypatch.setattr(emulate, "LIMITS", replace(emulate.LIMITS, sms=3))


@contextmanager
def whole_and_split(**config: Any) -> Iterator[list[TileConfig]]:
    yield [replace(PLAIN, **config), replace(PLAIN, stream_k=True, **config)]


def normal(rows: int, dtype: str, size: float = 1.0, seed: int = 0) -> Array:
    drawn = np.random.default_rng((seed, rows)).standard_normal((1, rows, 1, HEAD_DIM))
    return (drawn * size).astype(dtype_of(dtype))


def in_float32(expected: Expected) -> Expected:
    """The log-sum-exp as float32 holds it; minus infinity is that of no key alone."""
    with np.errstate(over="ignore"):
        lse = expected.lse.astype(np.float32).astype(np.float64)
    is_low = (lse == -np.inf) & (expected.lse != -np.inf)
    return replace(expected, lse=np.where(is_low, -LARGEST, lse))


def check(
    backend: Any, q: Array, k: Array, v: Array, mask: Mask | None = None, **options: Any
) -> None:
    """Padded arrays and packed ones, each with the keys of a tile whole and split."""
    mask = mask or Mask()
    expected = in_float32(attend(q[0], k[0], v[0], mask, **options))
    options |= {"causal": mask.causal, "return_lse": True}
    lengths = [np.array([0, array.shape[1]]) for array in (q, k)]
    for is_split in (False, True):
        config = replace(PLAIN, stream_k=is_split)
        with tile_configs(lambda _, config=config: config):
            out, lse = ops.attention(*map(backend.array, (q, k, v)), **options)
        assert_close(backend.host(out)[0], backend.host(lse)[0], expected, v[0])
        config = replace(PLAIN, kv_splits=3 if is_split else 1)
        packed = [backend.array(array[0]) for array in (q, k, v)]
        with tile_configs(lambda _, config=config: config):
            out, lse = ops.varlen_attention(*packed, *lengths, **options)
        assert_close(backend.host(out), backend.host(lse), expected, v[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [None, 3e3, 1e8, 1e18])
def test_large_scores(backend: Any, dtype: str, scale: float | None) -> None:
    size = 1.0 if scale is not None else 1e5 if dtype == "bfloat16" else 1e4
    q, k = (normal(rows, dtype, size) for rows in (67, KEYS))
    k[:, [3, 140, 290]] = k[:, 140:141]  # of one score, in several blocks and splits

    check(backend, q, k, normal(KEYS, dtype, seed=2), scale=scale)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("offset", [65536, -65536, 4096])
def test_large_scores_of_small_differences(backend: Any, dtype: str, offset: int) -> None:
    """Every score is a multiple of 1/16 near the offset, which fp32 holds."""
    random = np.random.default_rng(1)
    q, k = (
        random.integers(-1, 2, (1, rows, 1, HEAD_DIM)).astype(dtype_of(dtype)) / 4
        for rows in (67, KEYS)
    )
    q[..., 0], k[..., 0] = 256, offset / 256

    check(backend, q, k, normal(KEYS, dtype, seed=2), Mask(True), scale=1.0)


@pytest.mark.parametrize("size", [1e31, 1e36])
def test_scores_below_minus_1e30(backend: Any, size: float) -> None:
    """Some queries have one key, or keys in one split alone."""
    q, k = (np.ones((1, rows, 1, HEAD_DIM), dtype_of("bfloat16")) for rows in (KEYS, KEYS))
    k *= -np.linspace(1, 2, KEYS)[None, :, None, None] * size / HEAD_DIM

    check(backend, q, k.astype(q.dtype), normal(KEYS, "bfloat16", seed=2), Mask(True), scale=1.0)


def test_large_values(backend: Any) -> None:
    q, k = (normal(rows, "bfloat16", 0.1) for rows in (67, KEYS))
    v = abs(normal(KEYS, "float64", seed=2)).clip(0.1, 1) * 3e38

    check(backend, q, k, v.astype(q.dtype))


# --- float8 -----------------------------------------------------------------------------------


def check_float8(
    backend: Any, scales: tuple[Any, ...], queries: int = 67, wanted: str = "close", **options: Any
) -> None:
    q, k, v = (normal(rows, FLOAT8, seed=seed) for seed, rows in enumerate((queries, KEYS, KEYS)))
    k[:, [3, 140, 290]] = k[:, 140:141]
    factors = [np.float64(np.asarray(scale).reshape(())) for scale in scales]
    wide = [
        array[0].astype(np.float64) * factor
        for array, factor in zip((q, k, v), factors, strict=True)
    ]
    expected = in_float32(attend(*wide, Mask(), **options))
    given = tuple(backend.array(one) if isinstance(one, np.ndarray) else one for one in scales)
    for is_split in (False, True):
        config = replace(PLAIN, stream_k=is_split, element_bytes=1)
        with tile_configs(lambda _, config=config: config):
            out, lse = ops.attention(
                *(backend.array(array.view(np.uint8)) for array in (q, k, v)),
                **{"scales": given, "dtype": FLOAT8, "return_lse": True, **options},
            )
        got, sums = backend.host(out)[0], backend.host(lse)[0]
        if wanted == "nan":
            assert np.isnan(got.astype(np.float32)).all()
        else:
            assert_close(got, sums, expected, wide[2], FLOAT8)


def array(number: float) -> Array:
    return np.array([number], np.float32)


@pytest.mark.parametrize(
    "scales",
    [
        (LEAST, LEAST, LEAST),
        (MOST, MOST, 1.0),
        (array(1e-30), array(1e-30), array(1e-3)),
        (array(1e30), array(1e30), array(1e36)),
        (array(0), array(1), array(1)),
    ],
    ids=["tiny", "huge", "tiny arrays", "huge arrays", "zero"],
)
@pytest.mark.parametrize("scale", [LEAST, 1.0, MOST])
def test_products_of_scales(backend: Any, scales: tuple[Any, ...], scale: float) -> None:
    check_float8(backend, scales, scale=scale)


def test_products_of_scales_of_few_queries_and_with_softcap(backend: Any) -> None:
    for scales in ((MOST, MOST, 1.0), (array(1e-30), array(1e-30), 1.0)):
        check_float8(backend, scales, queries=1, scale=MOST)
        check_float8(backend, scales, softcap=2.0, scale=MOST)


@pytest.mark.parametrize("number", [-1.0, np.nan])
def test_a_scale_that_is_negative_or_no_number_gives_nan(backend: Any, number: float) -> None:
    check_float8(backend, (array(number), 1.0, 1.0), wanted="nan")
    check_float8(backend, (array(number), 1.0, 1.0), wanted="nan", softcap=2.0)
