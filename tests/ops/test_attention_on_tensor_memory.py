"""Attention on emulated chips with tensor memory, with races searched."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from parity import random_attention
from parity.attention_oracle import Array, Mask, assert_close, attend
from parity.backends import Emulate
from parity.paged_keys import KINDS, draw_paged, paged_from
from parity.test_attention import check_packed
from parity.test_paged_attention import check_pages

from tmaasync import emulate, ops
from tmaasync.emulate.chips import CHIPS
from tmaasync.kernel.observed import observe
from tmaasync.ops._operation import tile_configs

SMS = 3  # so that a CTA has several tiles
LENGTHS = (1, 7, 64, 127, 128, 129, 200, 257, 300)
ALL = Mask()


@pytest.fixture(autouse=True)
def chip(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    whole = CHIPS["sm_100a"]
    monkeypatch.setitem(CHIPS, whole.arch, replace(whole, device=replace(whole.device, sms=SMS)))
    with emulate.chip(whole.arch), emulate.scheduled("random", seed=1, races=True):
        yield


def drawn(rng: random.Random, *shape: int, dtype: Any = np.float16) -> Array:
    return np.random.default_rng(rng.getrandbits(32)).standard_normal(shape).astype(dtype)


def check(q: Array, k: Array, v: Array, *, mask: Mask = ALL, **options: Any) -> None:
    out = np.full_like(q, np.nan)
    named = {"causal": mask.causal, "window": mask.window, **options}

    found, lse = ops.attention(q, k, v, out=out, return_lse=True, **named)

    assert found is out
    for at, (one_q, one_k, one_v) in enumerate(zip(q, k, v, strict=True)):
        expected = attend(one_q, one_k, one_v, mask, **options)
        assert_close(out[at], lse[at], expected, one_v)


def masks(rng: random.Random) -> Mask:
    left, right = rng.randint(0, 150), rng.randint(0, 150)
    corner = rng.choice(["top_left", "bottom_right"])
    forms = (Mask(), Mask(True), Mask(corner), Mask(corner, (left, None)))
    return rng.choice((*forms, Mask(window=(left, right)), Mask(window=(None, right))))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_random_shapes_types_and_masks(seed: int) -> None:
    rng = random.Random(seed)
    dtype = rng.choice([np.float16, ml_dtypes.bfloat16])
    head_dim = rng.choice([8, 64, 64, 96, 128, 128])
    queries, keys = rng.choice(LENGTHS), rng.choice(LENGTHS)
    kv_heads, group = rng.randint(1, 2), rng.choice([1, 1, 2, 3, 4])
    entries = rng.randint(1, 3)
    q = drawn(rng, entries, queries, kv_heads * group, head_dim, dtype=dtype)
    k, v = (drawn(rng, entries, keys, kv_heads, head_dim, dtype=dtype) for _ in "kv")
    options = {"scale": rng.choice([None, 0.1, 2.0]), "softcap": rng.choice([None, None, 5.0])}

    with emulate.scheduled(rng.choice(["random", "adversarial"]), seed=seed, races=True):
        check(q, k, v, mask=masks(rng), **options)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("head_dim", [160, 192, 256])
def test_wide_heads_have_one_query_tile(head_dim: int) -> None:
    rng = random.Random(head_dim)

    check(*(drawn(rng, 2, rows, 1, head_dim) for rows in (150, 200, 200)), mask=Mask(True))


@pytest.mark.slow
@pytest.mark.parametrize("queries", [700, 100])
def test_scores_that_grow_from_block_to_block(queries: int) -> None:
    """Every block rescales the output of the blocks before it."""
    rng = random.Random(queries)
    q, k, v = (drawn(rng, 1, rows, 2, 64) for rows in (queries, 600, 600))
    growth = np.linspace(8, 0.1, 600, dtype=np.float16)[:, None, None]  # the last block comes first

    check(abs(q), abs(k) * growth, v)


@pytest.mark.parametrize("key", [5, 6])
def test_a_nan_reaches_every_query(key: int) -> None:
    """Of keys whose exponentials are instructions and of keys with the polynomial."""
    q, k, v = (drawn(random.Random(key), 1, 40, 1, 64) for _ in range(3))
    k[0, key, 0, 3] = np.nan

    assert np.isnan(ops.attention(q, k, v)).all()


def test_rows_without_keys() -> None:
    rng = random.Random(5)

    check(*(drawn(rng, 2, rows, 2, 64) for rows in (300, 20, 20)), mask=Mask("bottom_right"))


def test_many_tiles_of_a_cta_have_one_block_or_none() -> None:
    rng = random.Random(6)

    check(*(drawn(rng, 9, rows, 2, 64) for rows in (280, 100, 100)), mask=Mask(True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(1)
def test_split_keys_of_random_shapes(seed: int) -> None:
    rng = random.Random(50 + seed)
    queries, group = rng.choice([1, 1, 3, 16, 100, 130, 300]), rng.choice([1, 2, 4, 8])
    keys, kv_heads, head_dim = rng.randint(1, 900), rng.randint(1, 2), rng.choice([8, 64, 128, 256])
    mask = Mask("bottom_right") if queries * group <= 128 and rng.random() < 0.5 else ALL
    q = drawn(rng, 2, queries, kv_heads * group, head_dim)
    k, v = (drawn(rng, 2, keys, kv_heads, head_dim) for _ in "kv")

    with tile_configs(lambda config: replace(config, stream_k=True)):
        check(q, k, v, mask=mask, softcap=rng.choice([None, 5.0]))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "splits"), [(0, 2), (1, 5), (2, 2)])
def test_split_keys_of_packed_sequences(number: int, splits: int) -> None:
    with tile_configs(lambda config: replace(config, kv_splits=splits)):
        check_packed(Emulate(), random_attention.draw(number, small=True))


def test_decode_splits_keys() -> None:
    q, k = np.ones((1, 1, 8, 64), np.float16), np.ones((1, 8192, 2, 64), np.float16)

    with observe(launches=False) as observer:
        ops.attention(q, k, k)

    names = [kernel.source.name for kernel in observer.kernels]
    assert names == ["attention_tensor_memory.cu", "attention_combine.cu"]


def test_slices_of_packed_qkv_and_repeated_calls() -> None:
    rng = random.Random(7)
    qkv = drawn(rng, 2, 140, 3, 4, 64)
    for _ in range(3):
        qkv = qkv + np.float16(0.25)
        check(*(qkv[:, :, one] for one in range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_random_packed_sequences(number: int) -> None:
    check_packed(Emulate(), random_attention.draw(number, small=True))


@pytest.mark.slow
def test_packed_sequences_of_wide_heads_in_a_group() -> None:
    drawn_one = random_attention.draw(3, small=True)
    check_packed(Emulate(), replace(drawn_one, heads=4, kv_heads=1, head_dim=192))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("size", "number"), [*zip(KINDS, [0, 1, 1, 0], strict=True)])
def test_random_pages(size: int, number: int) -> None:
    problem = draw_paged(number, size, small=True)

    check_pages(Emulate(), problem, paged_from(problem, size))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("splits", [4, 1])
def test_decode_from_pages(splits: int) -> None:
    problem = replace(
        draw_paged(0, 64, small=True),
        queries=(1, 4, 0, 2, 1),
        keys=(643, 131, 7, 0, 64),
        heads=8,
        kv_heads=2,
    )

    with tile_configs(lambda config: replace(config, kv_splits=splits)):
        check_pages(Emulate(), problem, paged_from(problem, 64))
