"""Operations on chips without wgmma, whose warps multiply with mma.sync, with races searched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import BackendError, emulate, ops

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
ROUNDING = 2.0**-9


ON_120 = pytest.mark.parametrize("chip", ["sm_120a"], indirect=True)  # others have tensor memory
CHIPS = [pytest.param("sm_100a", marks=pytest.mark.slow), "sm_120a"]


@pytest.fixture(autouse=True, params=CHIPS)
def chip(request: pytest.FixtureRequest) -> Iterator[str]:
    with emulate.chip(request.param), emulate.scheduled("random", seed=1, races=True):
        yield str(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def halves(rng: np.random.Generator, *shape: int, dtype: Any = np.float16) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def check(got: Any, wanted: Any, depth: int = 1) -> None:
    assert (np.abs(got - wanted) <= ROUNDING * (np.abs(wanted) + np.sqrt(depth))).all()


def attended(q: Any, k: Any, v: Any, *, causal: bool) -> Any:
    """Attention over [batch, position, head, dim], in float64."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        queries, keys = scores.shape[-2:]
        last = np.arange(queries)[:, None] + keys - queries
        scores = np.where(np.arange(keys) <= last, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return (weights @ v).transpose(0, 2, 1, 3)


# --- GEMMs ----------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@ON_120
@pytest.mark.parametrize(("m", "dtype"), [(300, np.float16), (40, ml_dtypes.bfloat16)])
def test_matmul_in_every_layout(m: int, dtype: Any, rng: np.random.Generator) -> None:
    a, b = halves(rng, m, 100, dtype=dtype), halves(rng, 100, 200, dtype=dtype)
    wanted = a.astype(np.float64) @ b.astype(np.float64)

    for left in (a, np.asfortranarray(a)):
        for right in (b, np.asfortranarray(b)):
            check(ops.matmul(left, right, dtype="float32"), wanted)


@pytest.mark.sampled(1)
@ON_120
@pytest.mark.parametrize("name", ["tf32", "float8", "integers"])
def test_matmul_of_every_type(name: str, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-8, 8, shape) for shape in ((140, 48), (48, 72)))
    types = {"tf32": ("f4", "f4"), "float8": (E4M3, E5M2), "integers": ("i1", "u1")}[name]
    more: dict[str, Any] = {"precision": "tf32"} if name == "tf32" else {}
    output = "int32" if name == "integers" else "float32"

    c = ops.matmul(a.astype(types[0]), np.abs(b).astype(types[1]), dtype=output, **more)

    assert np.array_equal(c, a @ np.abs(b))


@pytest.mark.slow
@ON_120
def test_matmul_with_an_epilogue_and_k_split_over_the_grid(rng: np.random.Generator) -> None:
    a, b, bias = halves(rng, 130, 4096), halves(rng, 4096, 64), halves(rng, 64)
    wanted = a.astype(np.float64) @ b.astype(np.float64)

    check(ops.matmul(a, b, dtype="float32"), wanted)
    check(ops.matmul(a, b, bias=bias, activation="relu"), np.maximum(wanted + bias, 0), 4096)


@ON_120
def test_grouped_matmuls(rng: np.random.Generator) -> None:
    a, b = halves(rng, 200, 72), halves(rng, 3, 72, 136)
    ends = np.array([70, 70, 200], np.int32)
    rows = np.repeat(np.arange(3), np.diff(ends, prepend=0))
    wanted = np.einsum("mk,mkn->mn", a.astype(np.float64), b.astype(np.float64)[rows])

    check(ops.grouped_matmul(a, b, ends), wanted, 72)

    left, right = halves(rng, 200, 64), halves(rng, 200, 72)
    parts = [slice(0, 70), slice(70, 70), slice(70, 200)]
    wanted = np.stack([left[p].T.astype(np.float64) @ right[p].astype(np.float64) for p in parts])
    check(ops.k_grouped_matmul(left.T, right, ends), wanted, 200)


@ON_120
def test_conv2d(rng: np.random.Generator) -> None:
    images, filters = halves(rng, 2, 9, 11, 64), halves(rng, 72, 3, 3, 64)
    windows = np.lib.stride_tricks.sliding_window_view(images.astype(np.float64), (3, 3), (1, 2))
    wanted = np.einsum("nyxcrs,krsc->nyxk", windows, filters.astype(np.float64))

    check(ops.conv2d(images, filters), wanted, 576)


@ON_120
def test_scaled_matmul(rng: np.random.Generator) -> None:
    a, b = (halves(rng, *shape, dtype=E4M3) for shape in ((150, 256), (130, 256)))
    scale_a, scale_b = rng.random((150, 2), np.float32), rng.random((2, 2), np.float32)
    left = a.astype(np.float64) * np.repeat(scale_a, 128, axis=1)
    right = b.astype(np.float64) * np.repeat(np.repeat(scale_b, 128, axis=0)[:130], 128, axis=1)

    c = ops.scaled_matmul(a, b.T, scale_a, scale_b.T, dtype="float32")

    check(c, left @ right.T, 256)


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@ON_120
@pytest.mark.parametrize(("head_dim", "causal"), [(64, True), (128, False)])
def test_attention(head_dim: int, causal: bool, rng: np.random.Generator) -> None:
    q, k, v = (halves(rng, 1, 200, heads, head_dim) for heads in (4, 2, 2))

    check(ops.attention(q, k, v, causal=causal), attended(q, k, v, causal=causal))


@ON_120
@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [72, 192, 256])
def test_attention_of_other_head_dims(head_dim: int, rng: np.random.Generator) -> None:
    q, k, v = (halves(rng, 1, 150, 1, head_dim) for _ in range(3))

    check(ops.attention(q, k, v, causal=True), attended(q, k, v, causal=True))


@pytest.mark.slow
@ON_120
def test_attention_of_packed_sequences(rng: np.random.Generator) -> None:
    q, k, v = (halves(rng, 210, 2, 64) for _ in range(3))

    out = ops.varlen_attention(q, k, v, cu_seqlens_q=[0, 70, 210], causal=True)

    for part in (slice(0, 70), slice(70, 210)):
        wanted = attended(q[None, part], k[None, part], v[None, part], causal=True)
        check(out[part], wanted[0])


@pytest.mark.slow
def test_attention_in_float8(rng: np.random.Generator) -> None:
    q, k, v = (halves(rng, 1, 150, 1, 128, dtype=E4M3) for _ in range(3))

    out = ops.attention(q, k, v)

    assert np.abs(out - attended(q, k, v, causal=False)).max() < 0.05


@pytest.mark.slow
@ON_120
def test_attention_in_float8_of_wide_heads_fits_or_is_refused(rng: np.random.Generator) -> None:
    q, k, v = (halves(rng, 1, 130, 1, 144, dtype=E4M3) for _ in range(3))
    wide = np.ones((1, 130, 1, 256), E4M3)

    assert np.abs(ops.attention(q, k, v) - attended(q, k, v, causal=False)).max() < 0.05

    for given in (wide, wide[:, :1]):
        with pytest.raises(BackendError, match=r"FP8 with heads of 256 columns .* to bfloat16"):
            ops.attention(given, given, given)


def test_the_attention_backward_needs_the_shared_memory_of_hopper(
    chip: str, rng: np.random.Generator
) -> None:
    q, k, v, do = (halves(rng, 1, 100, 1, 64) for _ in range(4))
    out, lse = ops.attention(q, k, v, return_lse=True)

    if chip == "sm_120a":
        with pytest.raises(
            BackendError, match=r"backward needs 232448 bytes .* Run it inside emulate\.chip"
        ):
            ops.attention_backward(do, q, k, v, out, lse)
        return
    *_, dv = ops.attention_backward(do, q, k, v, out, lse)
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64)) / 8
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    check(dv, np.einsum("bhqk,bqhd->bkhd", weights, do.astype(np.float64)), 100)
