"""Attention by the signatures of torch and flash_attn, against torch in float64 on the CPU."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError

torch: Any = pytest.importorskip("torch")

from torch_cases import draw, error  # noqa: E402

operators: Any = importlib.import_module("tmaasync.torch")

TYPES = [torch.bfloat16, torch.float16]
SDPA = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def strided(rng: np.random.Generator, *shape: int, dtype: Any) -> Any:
    """Draw a tensor that is contiguous, a slice off 16 bytes, or expanded over its batch."""
    kind = int(rng.integers(4))
    if kind == 0:
        return draw(*shape[:-1], shape[-1] + 3, dtype=dtype)[..., 3:]
    if kind == 1:
        return draw(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
    if kind == 2:
        return draw(1, *shape[1:], dtype=dtype).expand(*shape)
    return draw(*shape, dtype=dtype)


def head_dim(rng: np.random.Generator) -> int:
    return int(rng.choice([8, 16, 20, 33, 64]))


@pytest.mark.parametrize("case", range(12))
def test_sdpa_computes_what_torchs_function_computes(case: int) -> None:
    rng = np.random.default_rng(case)
    batch, kv_heads, queries, keys = (int(x) for x in rng.integers(1, [3, 3, 40, 40]))
    enable_gqa = bool(rng.integers(2))
    heads = kv_heads * int(rng.integers(1, 4)) if enable_gqa else kv_heads
    lead: list[tuple[int, ...]] = [(batch, heads), (batch, kv_heads)]
    if case % 5 == 0:
        lead, enable_gqa = [(batch,), (batch,)], False
    columns = head_dim(rng)
    dtype = TYPES[case % 2]
    q = strided(rng, *lead[0], queries, columns, dtype=dtype)
    k, v = (strided(rng, *lead[1], keys, columns, dtype=dtype) for _ in range(2))
    options = {
        "is_causal": bool(rng.integers(2)),
        "scale": None if rng.integers(2) else float(rng.uniform(0.05, 1)),
        "enable_gqa": enable_gqa,
    }

    found = operators.scaled_dot_product_attention(q, k, v, **options)

    wanted = SDPA(q.double(), k.double(), v.double(), **options)
    assert (found.shape, found.dtype) == (q.shape, dtype)
    assert error(found, wanted) < (1e-2 if dtype is torch.bfloat16 else 1.5e-3)


def test_sdpa_has_torchs_parameters_and_one_more() -> None:
    ours = list(inspect.signature(operators.scaled_dot_product_attention).parameters.values())
    names = "query key value attn_mask dropout_p is_causal scale enable_gqa"

    assert [one.name for one in ours] == [*names.split(), "fallback"]
    assert [one.default for one in ours[3:]] == [None, 0.0, False, None, False, False]
    assert ours[-1].kind is inspect.Parameter.KEYWORD_ONLY


Q = draw(2, 4, 12, 16)
LACKING: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "a mask": ((Q, Q, Q), {"attn_mask": torch.zeros(12, 12).half()}, r"attn_mask is of shape"),
    "dropout": ((Q, Q, Q), {"dropout_p": 1e-9}, "dropout_p is 1e-09; the kernels have no"),
    "a negative scale": ((Q, Q, Q), {"scale": -0.5}, "scale is -0.5; it must be"),
    "float32": ((Q.float(),) * 3, {}, r"query.dtype is torch.float32"),
    "wider values": ((Q, Q, draw(2, 4, 12, 32)), {}, r"value.shape is \(2, 4, 12, 32\)"),
    "a head_dim of 288": ((draw(1, 1, 4, 288),) * 3, {}, r"key.shape\[-1\] is 288"),
    "no queries": ((Q[:, :, :0], Q, Q), {}, "neither may be empty"),
    "no keys": ((Q, Q[:, :, :0], Q[:, :, :0]), {}, "neither may be empty"),
    "a broadcast batch": ((Q, Q[:1], Q[:1]), {}, r"key.shape is \(1, 4, 12, 16\)"),
    "five dimensions": ((Q[None], Q[None], Q[None]), {}, "both have 3 or 4 dimensions"),
    "broadcast heads": ((Q, Q[:, :1], Q[:, :1]), {}, "pass enable_gqa=True"),
    "a gradient": (
        (*[draw(1, 1, 4, 136)] * 2, draw(1, 1, 4, 136).requires_grad_()),
        {},
        "there is no backward.*fallback=True",
    ),
}


@pytest.mark.parametrize("what", LACKING)
def test_what_the_kernels_lack_is_refused_or_computed_by_torch(what: str) -> None:
    given, options, message = LACKING[what]

    with pytest.raises(ArgumentError, match=message):
        operators.scaled_dot_product_attention(*given, **options)
    found = operators.scaled_dot_product_attention(*given, **options, fallback=True)

    assert torch.equal(found, SDPA(*given, **options))
    assert found.requires_grad == (what == "a gradient")


def test_sdpa_compiles_whole_with_and_without_a_fallback() -> None:
    torch._dynamo.reset()

    def call(q: Any, mask: Any) -> Any:
        attend = operators.scaled_dot_product_attention
        return attend(q, q, q, is_causal=True), attend(q, q, q, attn_mask=mask, fallback=True)

    mask = torch.zeros(12, 12).half()
    found = torch.compile(call, backend="aot_eager", fullgraph=True)(Q, mask)

    assert all(torch.equal(*pair) for pair in zip(found, call(Q, mask), strict=True))


# --- flash_attn ---------------------------------------------------------------------------------


def flash_reference(
    q: Any, k: Any, v: Any, scale: float | None, causal: bool, window: Any, softcap: float
) -> tuple[Any, Any]:
    """Return the output and the log-sum-exp by the definition, for [positions, heads, head_dim]."""
    q, k, v = (one.double().transpose(0, 1) for one in (q, k, v))
    k, v = (one.repeat_interleave(len(q) // len(k), 0) for one in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = scores.shape[1:]
    distance = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    left, right = window
    right = 0 if causal and right < 0 else min(right, 0) if causal else right
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0:
        seen &= distance <= right
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(lse[..., None] == -torch.inf, 0, (scores - lse[..., None]).exp())
    return (weights.nan_to_num() @ v).transpose(0, 1), lse


def drawn_mask(rng: np.random.Generator) -> dict[str, Any]:
    windows = [(-1, -1), (-1, -1), (5, -1), (4, 3), (-1, 6)]
    return {
        "softmax_scale": None if rng.integers(2) else float(rng.uniform(0.05, 1)),
        "causal": bool(rng.integers(2)),
        "window_size": windows[int(rng.integers(len(windows)))],
        "softcap": float(rng.choice([0.0, 0.0, 5.0])),
    }


def close(found: Any, wanted: Any, dtype: Any) -> None:
    assert found.shape == wanted.shape
    finite = torch.isfinite(wanted)
    assert torch.equal(finite, torch.isfinite(found))
    assert error(found[finite], wanted[finite]) < (1e-2 if dtype is torch.bfloat16 else 1.5e-3)


@pytest.mark.parametrize("case", range(8))
def test_flash_attn_func_computes_what_it_is_defined_to(case: int) -> None:
    rng = np.random.default_rng(case)
    batch, kv_heads, queries, keys = (int(x) for x in rng.integers(1, [3, 3, 40, 40]))
    heads, columns, dtype = kv_heads * int(rng.integers(1, 4)), head_dim(rng), TYPES[case % 2]
    q = strided(rng, batch, queries, heads, columns, dtype=dtype)
    k, v = (strided(rng, batch, keys, kv_heads, columns, dtype=dtype) for _ in range(2))
    mask = drawn_mask(rng)

    out, lse, none = operators.flash_attn_func(q, k, v, **mask, return_attn_probs=True)

    each = [flash_reference(q[i], k[i], v[i], *mask.values()) for i in range(batch)]
    close(out, torch.stack([one for one, _ in each]), dtype)
    close(lse, torch.stack([one for _, one in each]), dtype)
    assert none is None
    assert torch.equal(operators.flash_attn_func(q, k, v, **mask), out)


@pytest.mark.parametrize("case", range(5))
def test_flash_attn_varlen_func_computes_what_it_is_defined_to(case: int) -> None:
    rng = np.random.default_rng(case)
    lengths = rng.integers(1, 30, (2, int(rng.integers(1, 4))))
    kv_heads, columns, dtype = int(rng.integers(1, 3)), head_dim(rng), TYPES[case % 2]
    heads = kv_heads * int(rng.integers(1, 4))
    sums = [np.concatenate([[0], one.cumsum()]) for one in lengths]
    q = draw(int(sums[0][-1]), heads, columns, dtype=dtype)
    k, v = (draw(int(sums[1][-1]), kv_heads, columns, dtype=dtype) for _ in range(2))
    cumulative = [torch.tensor(one, dtype=torch.int32) for one in sums]
    mask, longest = drawn_mask(rng), [int(one.max()) for one in lengths]

    out, lse, none = operators.flash_attn_varlen_func(
        q, k, v, *cumulative, *longest, **mask, return_attn_probs=True
    )

    each = [
        flash_reference(q[a:b], k[c:d], v[c:d], *mask.values())
        for a, b, c, d in zip(sums[0][:-1], sums[0][1:], sums[1][:-1], sums[1][1:], strict=True)
    ]
    close(out, torch.cat([one for one, _ in each]), dtype)
    close(lse, torch.cat([one for _, one in each], 1), dtype)
    assert none is None


@pytest.mark.parametrize("case", range(6))
def test_flash_attn_with_kvcache_computes_what_it_is_defined_to(case: int) -> None:
    rng = np.random.default_rng(case)
    batch, kv_heads, queries, new = (int(x) for x in rng.integers(1, [4, 3, 6, 6]))
    heads, columns, dtype = kv_heads * int(rng.integers(1, 4)), 16, TYPES[case % 2]
    is_paged, appends = case % 3 == 0, case % 4 < 2
    pages, page_size = (3, 8) if is_paged else (1, 32)
    capacity = pages * page_size
    entries = rng.permutation(batch * pages + 2)[: batch * pages].reshape(batch, pages)
    table = torch.tensor(entries, dtype=torch.int32)
    caches = [draw(batch * pages + 2, page_size, kv_heads, columns, dtype=dtype) for _ in range(2)]
    before = [one.clone() for one in caches]
    lengths = torch.tensor(rng.integers(1, capacity - 6, batch), dtype=torch.int32)
    q = draw(batch, queries, heads, columns, dtype=dtype)
    added: list[Any] = [None, None]
    if appends:
        added = [draw(batch, new, kv_heads, columns, dtype=dtype) for _ in range(2)]
    where = {"block_table": table} if is_paged else {"cache_batch_idx": table[:, 0]}
    mask = drawn_mask(rng)

    out, lse = operators.flash_attn_with_kvcache(
        *(q, *caches, *added), cache_seqlens=lengths, **where, **mask, return_softmax_lse=True
    )

    each = []
    for i in range(batch):
        kv = [one[entries[i]].reshape(capacity, kv_heads, columns) for one in before]
        kv = [one[: int(lengths[i])] for one in kv]
        if appends:
            kv = [torch.cat([one, more[i]]) for one, more in zip(kv, added, strict=True)]
        each.append(flash_reference(q[i], *kv, *mask.values()))
        for cache, wanted in zip(caches, kv, strict=True):
            held = cache[entries[i]].reshape(capacity, kv_heads, columns)
            assert torch.equal(held[: len(wanted)], wanted)
    close(out, torch.stack([one for one, _ in each]), dtype)
    close(lse, torch.stack([one for _, one in each]), dtype)


def test_the_whole_cache_is_read_by_default() -> None:
    q, cache = draw(2, 1, 2, 16), draw(2, 24, 2, 16)

    whole = operators.flash_attn_with_kvcache(q, cache, cache)

    assert torch.equal(whole, operators.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=24))
    assert (
        error(
            whole,
            SDPA(*(one.double().transpose(1, 2) for one in (q, cache, cache))).transpose(1, 2),
        )
        < 1e-3
    )


def test_what_flash_attn_has_and_the_kernels_lack_is_refused() -> None:
    q, slopes, turn = draw(1, 8, 2, 136), torch.ones(2), torch.ones(8, 8)
    with pytest.raises(ArgumentError, match=r"dropout_p is 0.1[\s\S]*alibi_slopes is of shape"):
        operators.flash_attn_func(q, q, q, dropout_p=0.1, alibi_slopes=slopes)
    with pytest.raises(ArgumentError, match=r"rotary_cos is of shape.*Rotate q and k before"):
        operators.flash_attn_with_kvcache(q, q, q, rotary_cos=turn, rotary_sin=turn)
    with pytest.raises(ArgumentError, match="requires grad"):
        operators.flash_attn_func(q.requires_grad_(), q, q)
