"""Attention whose scaled scores are far beyond those of a model, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity.attention_oracle import Array, Mask, assert_close, attend, dtype_of

from tmaasync import emulate, ops
from tmaasync.ops._flash.config import TileConfig
from tmaasync.ops._operation import tile_configs

HEAD_DIM, BLOCK = 64, 64
SPLIT = TileConfig(HEAD_DIM, 1, BLOCK, stream_k=True)
WHOLE = TileConfig(HEAD_DIM, 1, BLOCK)


def drawn(magnitude: float, rows: int, dtype: str, seed: int) -> Array:
    random = np.random.default_rng(seed)
    return (random.standard_normal((1, rows, 1, HEAD_DIM)) * magnitude).astype(dtype_of(dtype))


def check(backend: Any, q: Array, k: Array, v: Array, **options: Any) -> None:
    """One call with the keys of a tile whole, and one with them split."""
    expected = attend(q[0], k[0], v[0], Mask(), **options)
    for config in (WHOLE, SPLIT):
        with tile_configs(lambda _, config=config: config):
            out, lse = ops.attention(
                *map(backend.array, (q, k, v)), return_lse=True, **options
            )
        assert_close(backend.host(out)[0], backend.host(lse)[0], expected, v[0])


@pytest.fixture(autouse=True)
def few_sms(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few that a tile of 300 keys is split three ways."""
    monkeypatch.setattr(emulate, "LIMITS", replace(emulate.LIMITS, sms=3))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("scale", [None, 3e3, 1e6, 1e12, 1e18])
def test_large_scores(backend: Any, dtype: str, scale: float | None) -> None:
    magnitude = 1.0 if scale is not None else 1e5 if dtype == "bfloat16" else 1e4
    q, k = (drawn(magnitude, rows, dtype, rows) for rows in (67, 300))

    check(backend, q, k, drawn(1, 300, dtype, 2), scale=scale)
