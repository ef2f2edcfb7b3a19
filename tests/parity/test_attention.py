"""ops.attention and ops.varlen_attention against float64, on either back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity import random_attention
from parity.attention_oracle import Array, Mask, assert_close, attend, dtype_of
from parity.backends import Emulate
from parity.tile_configs import noted, tile_configs

from tmaasync import emulate, ops
from tmaasync.emulate import scheduled
from tmaasync.ops._flash.config import Sizes, TileConfig
from tmaasync.ops._flash.schedule import stream_k_schedule


def few_builds(
    consumers: int = 2, heads_per_tile: int = 1, cluster: int = 1
) -> AbstractContextManager[None]:
    """One tile config per head dimension, so that few kernels are built; keys split as chosen.

    The attention backward keeps its own.
    """

    def choose(config: Any) -> Any:
        if not isinstance(config, TileConfig):
            return config
        block_n = 128 if config.head_dim <= 128 else 80
        return TileConfig(
            *(config.head_dim, consumers, block_n, heads_per_tile, cluster),
            stream_k=config.stream_k,
            kv_splits=config.kv_splits,
        )

    return tile_configs(choose)


@pytest.fixture(autouse=True)
def one_build() -> Iterator[None]:
    with few_builds():
        yield


@pytest.fixture
def two_ctas(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device so small that a CTA works on several tiles."""
    of_sms(monkeypatch, 2)


def of_sms(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """An emulated device with this number of SMs."""
    monkeypatch.setattr(emulate, "LIMITS", replace(emulate.LIMITS, sms=count))


def normal(*shape: int, dtype: str = "float16", seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype_of(dtype))


def poisoned(like: Array) -> Array:
    return np.full(like.shape, np.nan, like.dtype)


def check(
    backend: Any, q: Array, k: Array, v: Array, mask: Mask | None = None, **options: Any
) -> None:
    """One call on padded arrays, every entry of the batch against the oracle."""
    mask = mask or Mask()
    out = backend.array(poisoned(q))
    returned, lse = ops.attention(
        *map(backend.array, (q, k, v)),
        causal=mask.causal,
        window=mask.window,
        return_lse=True,
        out=out,
        **options,
    )
    assert returned is out
    got, sums = backend.host(out), backend.host(lse)
    for entry in range(len(q)):
        expected = attend(q[entry], k[entry], v[entry], mask, **options)
        assert_close(got[entry], sums[entry], expected, v[entry])


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        (128, "bfloat16"),
        (256, "float16"),
        (96, "float16"),
        (8, "float16"),
        (64, "bfloat16"),
        (200, "bfloat16"),
    ],
)
def test_head_dims_and_types(backend: Any, head_dim: int, dtype: str) -> None:
    q, k, v = (normal(2, rows, 2, head_dim, dtype=dtype, seed=rows) for rows in (150, 191, 192))

    check(backend, q, k, v[:, :191])


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize("queries", [67, 150])
@pytest.mark.parametrize("corner", ["top_left", "bottom_right"])
def test_either_corner_of_a_causal_mask(backend: Any, corner: str, queries: int) -> None:
    q, k, v = normal(1, queries, 1, 64), *(normal(1, 100, 1, 64, seed=i) for i in (1, 2))

    check(backend, q, k, v, Mask(corner))


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(1, 3, 5)
@pytest.mark.parametrize(
    "window", [(0, 0), (30, 5), (None, 3), (2**63, 3), (2**31 - 2, 2**31 - 2), (5, 2**31 - 1)]
)
def test_windows(backend: Any, window: tuple[int | None, int | None]) -> None:
    q, k, v = (normal(1, rows, 1, 64, seed=1) for rows in (67, 150, 150))

    check(backend, q, k, v, Mask(window=window))
    check(backend, q, k, v, Mask("top_left", window=window))


@pytest.mark.slow
def test_heads_share_tiles(backend: Any) -> None:
    for queries in (1, 13, 70):
        q, k, v = normal(2, queries, 8, 64), *(normal(2, 150, 2, 64, seed=i) for i in (1, 2))

        with few_builds(1, heads_per_tile=4):
            check(backend, q, k, v, Mask(True))


def test_without_keys_there_are_zeros(backend: Any) -> None:
    q, k = normal(1, 5, 2, 64), normal(1, 0, 2, 64)

    check(backend, q, k, k)


def test_a_result_of_its_own(backend: Any) -> None:
    q, k, v = (normal(1, 67, 2, 64, seed=i) for i in range(3))

    for _ in range(2):  # the second time by the operation of the first
        out = backend.host(ops.attention(*map(backend.array, (q, k, v))))

        assert_close(out[0], None, attend(q[0], k[0], v[0], Mask()), v[0])


def test_slices_of_one_array_go_in_and_nothing_outside_the_output_changes(backend: Any) -> None:
    together = normal(2, 70, 3, 2, 64)
    around = np.full((2, 72, 4, 72), np.nan, np.float16)
    whole, given = backend.array(around), backend.array(together)

    ops.attention(*(given[:, :, i] for i in range(3)), out=whole[:, 1:71, 1:3, :64])

    got = backend.host(whole)
    for entry in range(2):
        q, k, v = (together[entry, :, i] for i in range(3))
        assert_close(got[entry, 1:71, 1:3, :64], None, attend(q, k, v, Mask()), v)
    got[:, 1:71, 1:3, :64] = np.nan
    assert np.isnan(got).all()


def test_heads_outside_of_positions(backend: Any) -> None:
    q, k, v = (normal(2, 3, 67, 64, seed=i) for i in range(3))
    given = [backend.array(array).swapaxes(1, 2) for array in (q, k, v)]

    out = backend.host(ops.attention(*given))

    for entry in range(2):
        one_q, one_k, one_v = (array[entry].swapaxes(0, 1) for array in (q, k, v))
        assert_close(out[entry], None, attend(one_q, one_k, one_v, Mask()), one_v)


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "consumers"), [(64, 3), (256, 2)])
@pytest.mark.usefixtures("two_ctas")
def test_many_tiles_of_a_cta_under_many_schedules(head_dim: int, consumers: int) -> None:
    """Tiles that overlap, and tiles whose output leaves through the queries' memory."""
    q, k, v = normal(1, 200, 4, head_dim), *(normal(1, 300, 1, head_dim, seed=i) for i in (1, 2))

    with few_builds(consumers), scheduled("adversarial", seed=1, races=True):
        check(Emulate(), q, k, v, Mask(True, (150, None)))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize(
    ("head_dim", "mask"),
    [
        (64, Mask()),
        (64, Mask(True)),
        (64, Mask("top_left")),
        (96, Mask(True)),
        (128, Mask()),
        (128, Mask(True, (150, None))),
        (256, Mask()),
    ],
)
def test_pairs_share_keys(backend: Any, head_dim: int, mask: Mask) -> None:
    """Five tiles of queries: of the last pair, one is after them. Fewer keys, and more."""
    for keys in (130, 400):
        q, k, v = (
            normal(1, rows, heads, head_dim, seed=heads)
            for rows, heads in ((300, 2), (keys, 1), (keys, 1))
        )

        with few_builds(2, cluster=2):
            check(backend, q, k, v, mask)


@pytest.mark.slow
@pytest.mark.usefixtures("two_ctas")
def test_one_pair_with_many_tiles_under_many_schedules() -> None:
    """Three tiles of each of two heads, two of which share keys."""
    q, k, v = normal(1, 300, 2, 64), *(normal(1, 400, 1, 64, seed=i) for i in (1, 2))

    for seed in range(2):
        with few_builds(2, cluster=2), scheduled("adversarial", seed=seed, races=True):
            check(Emulate(), q, k, v, Mask(True))


# --- packed -----------------------------------------------------------------------------------


def check_packed(backend: Any, problem: random_attention.Problem) -> None:
    """One call on packed arrays with NaN around every operand, and no byte changed elsewhere."""
    sums = [np.concatenate([[0], np.cumsum(rows)]) for rows in (problem.queries, problem.keys)]
    operands = [
        problem.packed(int(total[-1]) + 9, heads, seed)
        for seed, (total, heads) in enumerate(
            ((sums[0], problem.heads), (sums[1], problem.kv_heads), (sums[1], problem.kv_heads))
        )
    ]
    for array, total in zip(operands, (sums[0], sums[1], sums[1]), strict=True):
        array[total[-1] :] = np.nan
    out = backend.array(poisoned(operands[0]))

    _, lse = ops.varlen_attention(
        *map(backend.array, operands), *sums, return_lse=True, out=out, **problem.options
    )

    got, got_lse = backend.host(out), backend.host(lse)
    check_sequences(problem, operands, sums, got, got_lse)
    assert np.isnan(got[sums[0][-1] :].astype(np.float32)).all()


def check_sequences(
    problem: random_attention.Problem,
    operands: list[Array],
    sums: list[Array],
    out: Array,
    lse: Any,
) -> None:
    for index in range(len(problem.queries)):
        rows, keys = (slice(*total[index : index + 2]) for total in sums)
        q, k, v = operands[0][rows], operands[1][keys], operands[2][keys]
        expected = attend(q, k, v, problem.mask, softcap=problem.softcap)
        assert_close(out[rows], lse[:, rows], expected, v)


# Several waves of tiles, the last of which is stream-K; tiles of several heads, fewer than CTAs;
# pairs, the second tile of the last of which has no queries; more CTAs than there are blocks; and
# full waves, so that nothing is split.
@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 1, 2, 3, 4)
@pytest.mark.parametrize(
    ("config", "sms", "shape", "mask"),
    [
        (TileConfig(64, 2, 128), 5, (2, 300, 700, 2, 1), Mask()),
        (TileConfig(64, 1, 128, heads_per_tile=4), 7, (2, 5, 900, 4, 1), Mask()),
        (TileConfig(64, 2, 128, cluster=2), 6, (1, 300, 500, 2, 2), Mask()),
        (TileConfig(64, 1, 128, heads_per_tile=4), 8, (1, 1, 300, 4, 1), Mask()),
        (TileConfig(64, 2, 128), 6, (2, 300, 200, 1, 1), Mask()),
    ],
    ids=["waves", "heads", "pairs", "one query", "full waves"],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_keys_are_split(
    backend: Any,
    monkeypatch: pytest.MonkeyPatch,
    config: TileConfig,
    sms: int,
    shape: tuple[int, ...],
    mask: Mask,
    seed: int,
) -> None:
    batch, queries, keys, heads, kv_heads = shape
    of_sms(monkeypatch, sms)
    q = normal(batch, queries, heads, 64, seed=seed)
    k, v = (normal(batch, keys, kv_heads, 64, seed=seed + other) for other in (1, 2))

    split = replace(config, stream_k=True)
    with tile_configs(lambda _: split), scheduled("adversarial", seed=seed, races=True):
        check(backend, q, k, v, mask)


@pytest.mark.slow
def test_a_row_has_more_splits_than_a_warp_lanes(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_sms(monkeypatch, 70)
    config = TileConfig(64, 1, 32, heads_per_tile=2, stream_k=True)
    keys = 180 * 32 - 5
    schedule = stream_k_schedule(Sizes(3, keys, 2, 2, 1, 64), config, 70)
    assert schedule.splits["splits"].tolist() == [schedule.partials]
    assert schedule.partials > 32
    q, k, v = normal(1, 3, 2, 64), *(normal(1, keys, 1, 64, seed=i) for i in (1, 2))

    with tile_configs(lambda _: config):
        check(backend, q, k, v, Mask())


@pytest.mark.slow
@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.chips("sm_90a", "sm_120a")
def test_few_queries_of_many_keys_have_several_ctas(backend: Any, causal: bool) -> None:
    q, k, v = normal(1, 3, 4, 64), *(normal(1, 3000, 2, 64, seed=i) for i in (1, 2))

    with noted() as configs:
        check(backend, q, k, v, Mask(causal))

    (config,) = configs
    assert config.stream_k
    schedule = stream_k_schedule(Sizes(3, 3000, 4, 2, 1, 64), config, 132)
    assert schedule.partials >= 4 * len(schedule.splits)


@pytest.mark.slow
@pytest.mark.on_the_cpu(0, 9, 16)
@pytest.mark.parametrize("number", range(30))
def test_random_packed_sequences(backend: Any, number: int) -> None:
    check_packed(backend, random_attention.draw(number, small=True))


def in_splits(count: int, consumers: int = 2) -> Callable[[TileConfig], TileConfig]:
    """One tile config per head dimension, with the keys of packed tiles split."""

    def choose(config: TileConfig) -> TileConfig:
        block_n = 128 if config.head_dim <= 128 else 80
        return TileConfig(config.head_dim, consumers, block_n, kv_splits=count)

    return choose


@pytest.mark.slow
@pytest.mark.on_the_cpu(0)
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("count", [2, 5])
def test_keys_of_random_packed_sequences_are_split(backend: Any, count: int, number: int) -> None:
    with tile_configs(in_splits(count)), scheduled("adversarial", seed=number, races=True):
        check_packed(backend, random_attention.draw(number, small=True))


@pytest.mark.slow
@pytest.mark.chips("sm_90a", "sm_120a")
def test_few_packed_queries_of_many_keys_have_several_ctas(backend: Any) -> None:
    problem = random_attention.draw(0, small=True)

    with noted() as configs:
        check_packed(backend, replace(problem, queries=(1, 3), keys=(4000, 1100), mask=Mask(True)))

    assert configs
    assert min(config.kv_splits for config in configs) >= 4


@pytest.mark.slow
@pytest.mark.usefixtures("two_ctas")
def test_packed_sequences_under_many_schedules() -> None:
    problem = replace(
        random_attention.draw(0, small=True),
        queries=(67, 0, 300, 1),
        keys=(150, 3, 0, 61),
        mask=Mask(True),
        softcap=None,
    )
    for seed in range(2):
        with scheduled("adversarial", seed=seed, races=True):
            check_packed(Emulate(), problem)
