"""ops.attention of float8 operands against float64, on either back end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.attention_oracle import (
    Array,
    Mask,
    assert_close,
    assert_close_in_float8,
    attend,
    dtype_of,
    scales_of_heads,
)
from parity.backends import Emulate
from parity.test_attention import of_sms
from parity.tile_configs import noted, tile_configs

from tmaasync import ops
from tmaasync.emulate import scheduled
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant
from tmaasync.ops._flash.cost_model import TileShape, tile_shapes
from tmaasync.ops._flash.schedule import stream_k_schedule

pytestmark = pytest.mark.slow

FLOAT8 = "float8_e4m3fn"


@pytest.fixture(autouse=True)
def one_build() -> Iterator[None]:
    with few_builds():
        yield


def few_builds(shape: TileShape | None = None, cluster: int = 1) -> AbstractContextManager[None]:
    """One tile config per head dimension: of the shape for long sequences, or this one."""

    def choose(config: TileConfig) -> TileConfig:
        throughput = tile_shapes(config.head_dim, Variant(), element_bytes=1)
        chosen = shape or max(throughput, key=throughput.__getitem__)
        return TileConfig(
            *(config.head_dim, *chosen), cluster=cluster, stream_k=config.stream_k, element_bytes=1
        )

    return tile_configs(choose)


def normal(*shape: int, seed: int = 0) -> Array:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return values.astype(dtype_of(FLOAT8))


def drawn(*sides: tuple[int, ...]) -> list[Array]:
    return [normal(*shape, seed=seed) for seed, shape in enumerate(sides)]


def check(
    backend: Any,
    arrays: list[Array],
    mask: Mask | None = None,
    scales: tuple[Any, ...] | None = None,
    out_type: str = "bfloat16",
    **options: Any,
) -> None:
    """One call, every entry of the batch against the oracle. CuPy has float8 as bytes."""
    q, k, v = arrays
    mask = mask or Mask()
    out = backend.array(np.full(q.shape, np.nan, dtype_of(out_type)))
    given = scales and tuple(
        backend.array(scale) if isinstance(scale, np.ndarray) else scale for scale in scales
    )
    returned, lse = ops.attention(
        *(backend.array(array.view(np.uint8)) for array in arrays),
        causal=mask.causal,
        window=mask.window,
        return_lse=True,
        scales=given,
        dtype=FLOAT8,
        out=out,
        **options,
    )
    assert returned is out
    got, sums = backend.host(out), backend.host(lse)
    of_heads = scales_of_heads(scales, len(q), k.shape[2])
    for entry in range(len(q)):
        operands = q[entry], k[entry], v[entry]
        assert_close_in_float8(
            got[entry], sums[entry], operands, of_heads[:, entry], mask, **options
        )


@pytest.mark.on_the_cpu(0, 1)
@pytest.mark.parametrize(
    ("head_dim", "out_type"),
    [
        (128, "float16"),
        (256, "bfloat16"),
        (64, "float16"),
        (16, "bfloat16"),
        (80, "float16"),
        (192, "bfloat16"),
    ],
)
def test_head_dims_and_types_of_output(
    backend: Any, chip: str, head_dim: int, out_type: str
) -> None:
    if chip == "sm_120a" and head_dim > 192:
        pytest.skip("99 KiB do not hold a block of keys and values")
    arrays = drawn((2, 150, 2, head_dim), (2, 191, 2, head_dim), (2, 191, 2, head_dim))

    check(backend, arrays, out_type=out_type)


@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("queries", [67, 150])
@pytest.mark.parametrize("corner", ["top_left", "bottom_right"])
def test_either_corner_of_a_causal_mask(backend: Any, corner: str, queries: int) -> None:
    check(backend, drawn((1, queries, 1, 64), (1, 100, 1, 64), (1, 100, 1, 64)), Mask(corner))


def test_windows_softcap_and_scale(backend: Any) -> None:
    arrays = drawn((1, 131, 1, 64), (1, 257, 1, 64), (1, 257, 1, 64))

    check(backend, arrays, Mask(window=(30, 5)))
    check(backend, arrays, Mask(True), scales=(2.0, None, None), softcap=3.0, scale=0.3)


@pytest.mark.on_the_cpu(0, 3, 4, 6)
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 127, 128, 129, 300])
def test_lengths(backend: Any, keys: int) -> None:
    check(backend, drawn((1, 3, 2, 64), (1, keys, 1, 64), (1, keys, 1, 64)))


def test_without_keys_there_are_zeros(backend: Any) -> None:
    check(backend, drawn((1, 5, 2, 64), (1, 0, 2, 64), (1, 0, 2, 64)))


def test_scales_are_of_all_or_of_a_head_of_keys(backend: Any) -> None:
    rng = np.random.default_rng(0)
    of_heads = [rng.uniform(0.5, 2, (2, 3)).astype(np.float32) for _ in range(3)]
    one = np.array([1.5], np.float32)
    for scales in (
        (0.5, 2, 0.125),
        (None, one, np.float32(3.0)),
        (one[0:1].reshape(()), None, of_heads[0]),
        tuple(of_heads),
        (of_heads[0], of_heads[1][:, ::-1].copy(), 4.0),
    ):
        check(backend, drawn((2, 70, 6, 64), (2, 90, 3, 64), (2, 90, 3, 64)), scales=scales)


def test_slices_of_one_array_among_nans(backend: Any) -> None:
    """Elements before, between and after the heads of these arrays are NaN."""
    q, k, v = drawn((2, 70, 2, 64), (2, 70, 2, 64), (2, 70, 2, 64))
    around = np.full((2, 75, 3, 4, 80), 0x7F, np.uint8)
    for place, array in enumerate((q, k, v)):
        around[:, 3:73, place, 1:3, :64] = array.view(np.uint8)
    whole = backend.array(around)
    written = backend.array(np.full((2, 75, 4, 72), np.nan, dtype_of("bfloat16")))

    parts = (whole[:, 3:73, place, 1:3, :64] for place in range(3))
    ops.attention(*parts, dtype=FLOAT8, out=written[:, 3:73, 1:3, :64])

    got = backend.host(written)
    for entry in range(2):
        one_q, one_k, one_v = (array[entry].astype(np.float64) for array in (q, k, v))
        expected = attend(one_q, one_k, one_v, Mask())
        assert_close(got[entry, 3:73, 1:3, :64], None, expected, one_v, FLOAT8)
    got[:, 3:73, 1:3, :64] = np.nan
    assert np.isnan(got).all()


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("mask", [Mask(), Mask(True)])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_pairs_share_keys(backend: Any, head_dim: int, mask: Mask) -> None:
    arrays = drawn((1, 300, 2, head_dim), *[(1, 400, 1, head_dim)] * 2)
    with few_builds((1, 128), cluster=2):
        check(backend, arrays, mask)


@pytest.mark.gpu
def test_blocks_of_192_keys(backend: Any) -> None:
    with few_builds((2, 192)):
        check(backend, drawn((1, 200, 1, 128), (1, 500, 1, 128), (1, 500, 1, 128)))


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("cluster", [1, 2])
def test_keys_are_split(backend: Any, monkeypatch: pytest.MonkeyPatch, cluster: int) -> None:
    heads = 1 if cluster == 2 else 4
    config = TileConfig(64, 1, 128, heads, cluster, stream_k=True, element_bytes=1)
    of_sms(monkeypatch, 6)
    rng = np.random.default_rng(0)
    scales = tuple(rng.uniform(0.5, 2, (1, 3)).astype(np.float32) for _ in range(3))
    arrays = drawn((1, 5, 3 * heads, 64), (1, 900, 3, 64), (1, 900, 3, 64))

    with tile_configs(lambda _: config):
        check(backend, arrays, scales=scales)


def test_few_queries_of_many_keys_have_several_ctas(backend: Any) -> None:
    with noted() as configs:
        check(backend, drawn((1, 8, 16, 64), (1, 3000, 2, 64), (1, 3000, 2, 64)), Mask(True))

    (config,) = configs
    assert config.stream_k
    schedule = stream_k_schedule(Sizes(8, 3000, 16, 8, 1, 64, element_bytes=1), config, 132)
    assert schedule.partials >= 4 * len(schedule.splits)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
def test_nothing_of_long_sums_is_lost(backend: Any, head_dim: int) -> None:
    keys = 3000 if isinstance(backend, Emulate) else 16384
    q = np.zeros((1, 5, 1, head_dim), dtype_of(FLOAT8))  # weights are equal
    k, v = normal(1, keys, 1, head_dim), abs(normal(1, keys, 1, head_dim, seed=1))
    given = [backend.array(array.view(np.uint8)) for array in (q, k, v)]
    out = backend.array(np.full(q.shape, np.nan, np.float16))

    with tile_configs(lambda config: replace(config, stream_k=False)):
        ops.attention(*given, dtype=FLOAT8, out=out)

    mean = v.astype(np.float64).mean(1, keepdims=True)
    np.testing.assert_allclose(backend.host(out), np.broadcast_to(mean, q.shape), rtol=2e-3)


@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("stream_k", [False, True])
@pytest.mark.parametrize("with_lse", [False, True])
def test_keys_whose_weight_float8_rounds_to_0_are_not_in_the_divisor(
    backend: Any, with_lse: bool, stream_k: bool
) -> None:
    """All but the last key have a weight of e^-11.1, and together a part of the sum."""
    keys = 2000 if isinstance(backend, Emulate) else 65536
    q, k = (np.zeros((1, rows, 1, 64), dtype_of(FLOAT8)) for rows in (70, keys))
    q[..., 0], k[:, :-1, :, 0] = 1, -1
    v = np.ones(k.shape, k.dtype)
    given = [backend.array(array.view(np.uint8)) for array in (q, k, v)]
    out = backend.array(np.full(q.shape, np.nan, np.float16))

    with tile_configs(lambda config: replace(config, stream_k=stream_k)):
        ops.attention(*given, scale=11.1, dtype=FLOAT8, out=out, return_lse=with_lse)

    assert (backend.host(out) == 1).all()


def test_many_tiles_of_a_cta_under_many_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    of_sms(monkeypatch, 2)
    mask = Mask(True, (150, None))
    arrays = drawn((2, 200, 2, 64), (2, 400, 1, 64), (2, 400, 1, 64))
    for seed in range(2):
        with scheduled("adversarial", seed=seed, races=True):
            check(Emulate(), arrays, mask, scales=(0.5, None, np.array([2], np.float32)))


def test_a_result_of_its_own(backend: Any) -> None:
    q, k, v = drawn((1, 67, 2, 64), (1, 67, 2, 64), (1, 67, 2, 64))
    given = [backend.array(array.view(np.uint8)) for array in (q, k, v)]
    scale = backend.array(np.array([0.5], np.float32))
    one_q, one_k, one_v = (array[0].astype(np.float64) for array in (q, k, v))
    expected = attend(one_q, one_k, one_v, Mask())

    for _ in range(3):  # the second time by the operation of the first, the third by its launch
        out = ops.attention(*given, dtype=FLOAT8, scales=(2.0, scale, None))

        got = backend.host(out)
        assert got.dtype == dtype_of("bfloat16")
        assert_close(got[0], None, expected, one_v, FLOAT8)


@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("number", range(19, 80))
def test_random_problems(backend: Any, number: int) -> None:
    rng = np.random.default_rng(number)
    is_small = isinstance(backend, Emulate)
    longest = 200 if is_small else 3000
    head_dim = 64 if is_small else int(rng.integers(1, 17)) * 16
    batch, kv_heads, group = (int(rng.integers(1, most)) for most in (4, 4, 9))
    queries = int(rng.integers(1, 20 if rng.random() < 0.4 else longest))
    keys = int(rng.integers(1, longest))
    sides = (None, 0, int(rng.integers(1, longest)))
    mask = (
        Mask(),
        Mask(True),
        Mask("top_left"),
        Mask(window=(sides[rng.integers(3)], sides[rng.integers(3)])),
    )[rng.integers(4)]
    given: list[Any] = [None, 0.75, np.array([1.25], np.float32)]
    given.append(rng.uniform(0.5, 2, (batch, kv_heads)).astype(np.float32))
    scales = tuple(given[rng.integers(4)] for _ in range(3))
    of_keys = batch, keys, kv_heads, head_dim
    arrays = drawn((batch, queries, kv_heads * group, head_dim), of_keys, of_keys)
    options = {"softcap": 5.0} if rng.random() < 0.2 else {}

    check(backend, arrays, mask, scales, ("bfloat16", "float16")[number % 2], **options)
