"""ops.varlen_attention of float8 operands, packed and paged, against float64 on either back end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from parity.attention_oracle import Array, Mask, assert_close_in_float8, dtype_of, scales_of_heads
from parity.backends import Emulate
from parity.paged_keys import PagedKeys, paged_from
from parity.random_attention import Problem, draw
from parity.test_attention import of_sms
from parity.tile_configs import noted, tile_configs

from tmaasync import ArgumentError, ArrayTypeError, ops
from tmaasync.emulate import scheduled
from tmaasync.ops._flash.config import TileConfig

# `make test` has the plain attention of test_attention.py.
pytestmark = pytest.mark.slow

FLOAT8 = "float8_e4m3fn"
NAN = 0x7F
LENGTHS = (0, 1, 127, 128, 129)


def one_config(
    consumers: int, block_n: int = 128, heads_per_tile: int = 1, kv_splits: int = 1
) -> AbstractContextManager[None]:
    return tile_configs(
        lambda config: TileConfig(
            *(config.head_dim, consumers, block_n, heads_per_tile),
            kv_splits=kv_splits,
            element_bytes=1,
            transposes_v=True,
        )
    )


@pytest.fixture(autouse=True)
def searched() -> Iterator[None]:
    """On the emulator, every launch with the search for races."""
    with scheduled("adversarial", races=True):
        yield


PLAIN = replace(
    draw(0, small=True),
    queries=LENGTHS,
    keys=(129, 128, 1, 0, 127),
    heads=4,
    kv_heads=2,
    dtype=FLOAT8,
    mask=Mask(),
    softcap=None,
)


def bytes_of(array: Array) -> Array:
    return array.view(np.uint8)


def with_nan_around(problem: Problem, rows: int, heads: int, seed: int) -> tuple[Array, Array]:
    """The rows of all sequences, and an array in which nine rows of NaN follow them."""
    own = problem.packed(rows, heads, seed)
    around = np.full((rows + 9, *own.shape[1:]), NAN, np.uint8)
    around[:rows] = bytes_of(own)
    return own, around


def check(
    backend: Any,
    problem: Problem,
    pages: PagedKeys | None = None,
    scales: tuple[Any, ...] | None = None,
    out_type: str = "bfloat16",
) -> None:
    """One call; every sequence against the oracle, and no row after the last one is written."""
    queries, keys = (np.cumsum((0, *rows)) for rows in (problem.queries, problem.keys))
    q, given_q = with_nan_around(problem, int(queries[-1]), problem.heads, 0)
    options: dict[str, Any] = {"scales": scales} if scales is None else {}
    if scales is not None:
        options["scales"] = tuple(
            backend.array(scale) if isinstance(scale, np.ndarray) else scale for scale in scales
        )
    if pages is None:
        (k, given_k), (v, given_v) = (
            with_nan_around(problem, int(keys[-1]), problem.kv_heads, seed) for seed in (1, 2)
        )
    else:
        given_k, given_v = bytes_of(pages.k), bytes_of(pages.v)
        options["page_table"] = backend.array(pages.table)
    shape = (len(given_q), *given_q.shape[1:])
    out = backend.array(np.full(shape, np.nan, dtype_of(out_type)))

    _, lse = ops.varlen_attention(
        backend.array(given_q),
        backend.array(given_k),
        backend.array(given_v),
        queries,
        keys,
        return_lse=True,
        dtype=FLOAT8,
        out=out,
        **options,
        **problem.options,
    )

    got, got_lse = backend.host(out), backend.host(lse)
    of_heads = scales_of_heads(scales, len(problem.queries), problem.kv_heads)
    for index, length in enumerate(problem.keys):
        rows, own = slice(*queries[index : index + 2]), slice(*keys[index : index + 2])
        one_k, one_v = (k[own], v[own]) if pages is None else pages.of(index, length)
        operands = q[rows], one_k, one_v
        assert_close_in_float8(
            got[rows],
            got_lse[:, rows],
            operands,
            of_heads[:, index],
            problem.mask,
            softcap=problem.softcap,
        )
    assert np.isnan(got[queries[-1] :].astype(np.float32)).all()


# On the CPU, where each type and kind of mask is a build, the two that share one.
@pytest.mark.on_the_cpu(1, 2)
@pytest.mark.parametrize(
    "mask", [Mask(), Mask(True), Mask("top_left"), Mask(window=(40, 90))], ids=str
)
@pytest.mark.parametrize("out_type", ["bfloat16", "float16"])
def test_lengths_and_masks(backend: Any, mask: Mask, out_type: str) -> None:
    """Every length of queries with every length of keys."""
    rotations = range(len(LENGTHS)) if mask == Mask(True) else (0, 2)
    with one_config(1, heads_per_tile=2):
        for places in rotations:
            keys = (*LENGTHS[places:], *LENGTHS[:places])
            check(backend, replace(PLAIN, keys=keys, mask=mask), out_type=out_type)


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("mask", [Mask(), Mask(True)], ids=str)
@pytest.mark.parametrize("size", [16, 64, 256])
def test_pages(backend: Any, size: int, mask: Mask) -> None:
    """Pages that sequences share, NaN in rows that none of them has, and wild entries after."""
    problem = replace(PLAIN, queries=(3, 67, 0, 5, 1), keys=(129, 300, 7, 0, 128), mask=mask)
    with one_config(1, heads_per_tile=2):
        check(backend, problem, paged_from(problem, size))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("page_size", [0, 16])
def test_keys_are_split(backend: Any, page_size: int) -> None:
    problem = replace(PLAIN, queries=(1, 3, 0, 1, 2), keys=(700, 129, 5, 0, 1000), mask=Mask(True))
    pages = paged_from(problem, page_size) if page_size else None
    with one_config(1, heads_per_tile=2, kv_splits=3):
        check(backend, problem, pages)


@pytest.mark.on_the_cpu(0, 11)
@pytest.mark.parametrize(
    ("consumers", "block_n", "head_dim"),
    [
        *((2, 128, 128), (3, 128, 64), (3, 128, 128)),
        *((1, 128, 80), (2, 128, 192), (2, 64, 256), (1, 64, 256)),
    ],
)
@pytest.mark.parametrize("page_size", [0, 64])
@pytest.mark.chips("sm_90a", "sm_100a")  # whose tile configs hold as many columns
def test_tile_configs(
    backend: Any, consumers: int, block_n: int, head_dim: int, page_size: int
) -> None:
    problem = replace(
        PLAIN, queries=(200, 1, 70), keys=(300, 129, 0), heads=2, kv_heads=1, head_dim=head_dim
    )
    with one_config(consumers, block_n):
        check(backend, problem, paged_from(problem, page_size) if page_size else None)


def test_scales_are_of_all_or_of_a_head_of_a_sequence(backend: Any) -> None:
    rng = np.random.default_rng(0)
    of_heads = [rng.uniform(0.5, 2, (5, 2)).astype(np.float32) for _ in range(3)]
    one = np.array([1.5], np.float32)
    problem = replace(PLAIN, mask=Mask(True))
    with one_config(1, heads_per_tile=2):  # as the tests above: these have built it
        for scales in ((0.5, 2, 0.125), (None, one, 3.0), tuple(of_heads), (of_heads[0], one, 4)):
            check(backend, problem, scales=scales)
        check(backend, problem, paged_from(problem, 16), scales=tuple(of_heads))


@pytest.mark.gpu  # on the CPU few rows have it
def test_softcap(backend: Any) -> None:
    with one_config(1):
        check(backend, replace(PLAIN, softcap=3.0, mask=Mask(True)), scales=(2.0, None, 0.5))


@pytest.mark.on_the_cpu(1)
@pytest.mark.parametrize("number", range(40))
def test_random_problems_with_the_config_of_the_cost_model(backend: Any, number: int) -> None:
    is_small = isinstance(backend, Emulate)
    problem = replace(draw(number, small=is_small), dtype=FLOAT8)
    if not is_small:
        problem = replace(problem, head_dim=-(-problem.head_dim // 16) * 16)
    rng = np.random.default_rng(number)
    scales = (None, 0.75, rng.uniform(0.5, 2, (len(problem.keys), problem.kv_heads)))
    scales = (*scales[:2], scales[2].astype(np.float32))
    size = (0, 16, 64, 128)[number % 4]
    pages = paged_from(problem, size) if size else None
    with noted() as configs:
        check(backend, problem, pages, scales, ("bfloat16", "float16")[number % 2])
    assert all(config.transposes_v for config in configs)


@pytest.mark.on_the_cpu(3)
@pytest.mark.parametrize("mask", [Mask(), Mask(True)], ids=str)
@pytest.mark.parametrize("page_size", [0, 16])
@pytest.mark.chips("sm_90a", "sm_100a")  # whose tile configs hold as many columns
def test_decode_of_long_keys_has_several_ctas(backend: Any, mask: Mask, page_size: int) -> None:
    """At most 8 rows of a tile are queries: the softmax leaves out the other row of a thread."""
    problem = replace(PLAIN, queries=(1, 1, 0), keys=(4000, 1100, 5), heads=8, kv_heads=1)
    problem = replace(problem, mask=mask)
    with noted() as configs:
        check(backend, problem, paged_from(problem, page_size) if page_size else None)
    assert min(config.kv_splits for config in configs) >= 4
    assert all(config.has_few_rows for config in configs)


@pytest.mark.on_the_cpu(1, 5)
@pytest.mark.parametrize(("queries", "heads", "few"), [(8, 1, True), (9, 1, False), (2, 4, True)])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.chips("sm_90a", "sm_100a")  # whose tile configs hold as many columns
def test_few_rows_of_short_keys(
    backend: Any, queries: int, heads: int, few: bool, softcap: float | None
) -> None:
    """Rows of one warp, up to the last that a thread's first row can be."""
    problem = replace(PLAIN, queries=(queries, 1, 0), keys=(129, 64, 200), heads=heads, kv_heads=1)
    with noted() as configs:
        check(backend, replace(problem, softcap=softcap, mask=Mask(True)))
    assert all(config.has_few_rows == few for config in configs)


def test_many_tiles_of_a_cta_under_many_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    of_sms(monkeypatch, 2)
    problem = replace(PLAIN, queries=(67, 0, 200, 1), keys=(150, 3, 0, 61), mask=Mask(True))
    for seed in range(2):
        with one_config(2), scheduled("adversarial", seed=seed, races=True):
            check(Emulate(), problem)
            check(Emulate(), problem, paged_from(problem, 16))


# --- what is refused ---


def zeros(*shape: int, dtype: str = FLOAT8) -> Array:
    return np.zeros(shape, dtype_of(dtype))


ROW, OTHER = zeros(3, 1, 16), zeros(3, 1, 16, dtype="float8_e5m2")


@pytest.mark.parametrize(
    ("operands", "options", "error", "said"),
    [
        ((zeros(3, 1, 16, dtype="float16"),) * 3, {"scales": (1, 1, 1)}, ArgumentError,
         "only float8_e4m3fn operands have scales"),
        ((ROW,) * 3, {"scales": (1, np.ones((2, 1), np.float32), 1)}, ArgumentError,
         r"scales\[1\].shape is \(2, 1\).* 1 x 1"),
        ((OTHER,) * 3, {}, ArrayTypeError, "float8_e5m2"),
        ((ROW, zeros(3, 1, 16, dtype="float16"), ROW), {}, ArrayTypeError, "one type"),
        ((ROW,) * 3, {"out": zeros(3, 1, 16, dtype="float32")}, ArrayTypeError,
         "bfloat16 or float16"),
        ((zeros(3, 1, 24),) * 3, {}, ArgumentError, "a multiple of 16 columns"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    operands: tuple[Array, ...], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    q, k, v = operands
    with pytest.raises(error, match=said):
        ops.varlen_attention(q, k, v, [0, 3], **options)
