"""Attention by the signatures of torch and flash_attn, against torch in float64 on the CPU."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

from tmaasync import ArgumentError

torch: Any = pytest.importorskip("torch")

from parity.test_attention import few_builds  # noqa: E402
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


# From the first ten: every head_dim, and strides of each kind for each operand.
@pytest.mark.parametrize("case", [0, 2, 3, 4, 5, 6, 8, 9])
def test_sdpa_computes_what_torchs_function_computes(case: int) -> None:
    rng = np.random.default_rng(case)
    batch, kv_heads, queries, keys = (int(x) for x in rng.integers(1, [3, 3, 40, 40]))
    enable_gqa = bool(rng.integers(2))
    heads = kv_heads * int(rng.integers(1, 4)) if enable_gqa else kv_heads
    lead: list[tuple[int, ...]] = [(batch, heads), (batch, kv_heads)]
    if case % 5 == 0:
        lead, enable_gqa = [(batch,), (batch,)], False
    columns = head_dim(rng)
    dtype = TYPES[columns <= 32]  # one for each build's head_dim
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
    "no columns": ((Q[..., :0],) * 3, {}, "only the number of keys may be 0"),
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


WRONG_OPTIONS: dict[str, Any] = {
    "is_causal is 'top_left'; it must be a bool": {"is_causal": "top_left"},
    "is_causal is None; it must be a bool": {"is_causal": None},
    "enable_gqa is 1; it must be a bool": {"enable_gqa": 1},
    "scale is 'a'; it must be a number above 0": {"scale": "a"},
}


@pytest.mark.parametrize("message", WRONG_OPTIONS)
def test_sdpa_names_an_option_of_another_kind(message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        operators.scaled_dot_product_attention(Q, Q, Q, **WRONG_OPTIONS[message])


def test_without_queries_there_is_an_empty_output_and_gradients_of_zero() -> None:
    for q in (Q[:0], Q[:, :0], Q[:, :, :0]):
        kv = (Q if len(q) else Q[:0]) if q.shape[1] else Q[:, :0]
        inputs = [one.detach().clone().requires_grad_() for one in (q, kv, kv)]

        found = operators.scaled_dot_product_attention(*inputs)
        flash = operators.flash_attn_func(*(one.transpose(1, 2) for one in inputs))

        assert (found.shape, found.dtype) == (q.shape, q.dtype)
        assert flash.transpose(1, 2).shape == q.shape
        found.sum().backward()
        assert all(one.grad is not None and not one.grad.any() for one in inputs)
    out, lse, _ = operators.flash_attn_func(Q[:, :0], Q, Q, return_attn_probs=True)
    assert (out.shape, lse.shape) == ((2, 0, 12, 16), (2, 12, 0))


def test_without_keys_the_output_is_zero() -> None:
    none = Q[:, :, :0]
    for is_causal in (False, True):
        found = operators.scaled_dot_product_attention(Q, none, none, is_causal=is_causal)
        assert torch.equal(found, SDPA(Q, none, none, is_causal=is_causal))
        assert not found.any()


def test_sdpa_compiles_whole_with_and_without_a_fallback() -> None:
    torch._dynamo.reset()

    def call(q: Any, mask: Any) -> Any:
        attend = operators.scaled_dot_product_attention
        return attend(q, q, q, is_causal=True), attend(q, q, q, attn_mask=mask, fallback=True)

    mask = torch.zeros(12, 12).half()
    found = torch.compile(call, backend="aot_eager", fullgraph=True)(Q, mask)

    assert all(torch.equal(*pair) for pair in zip(found, call(Q, mask), strict=True))


# --- flash_attn ---------------------------------------------------------------------------------


# tests/parity/test_flash_attn.py checks the effect of their values.
OPTIONS = (
    "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic "
    "return_attn_probs"
)
LENGTHS = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k"
FLASH_ATTN = {
    "flash_attn_func": f"q k v {OPTIONS}",
    "flash_attn_qkvpacked_func": f"qkv {OPTIONS}",
    "flash_attn_kvpacked_func": f"q kv {OPTIONS}",
    "flash_attn_varlen_func": f"q k v {LENGTHS} {OPTIONS} block_table",
    "flash_attn_varlen_qkvpacked_func": f"qkv cu_seqlens max_seqlen {OPTIONS}",
    "flash_attn_varlen_kvpacked_func": f"q kv {LENGTHS} {OPTIONS}",
    "flash_attn_with_kvcache": "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens "
    "cache_batch_idx cache_leftpad block_table softmax_scale causal window_size softcap "
    "rotary_interleaved alibi_slopes num_splits return_softmax_lse",
}
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(["softcap", "dropout_p"], 0.0),
    **dict.fromkeys(["causal", "deterministic", "return_attn_probs", "return_softmax_lse"], False),
    "window_size": (-1, -1),
    "rotary_interleaved": True,
    "num_splits": 0,
}


@pytest.mark.parametrize("name", FLASH_ATTN)
def test_arguments_have_the_names_order_and_defaults_of_flash_attn(name: str) -> None:
    """As flash_attn 2.8 has them: what it requires comes first, and most defaults are None."""
    parameters = list(inspect.signature(getattr(operators, name)).parameters.values())
    names = FLASH_ATTN[name].split()
    required = 3 if name == "flash_attn_with_kvcache" else names.index("dropout_p")

    assert [one.name for one in parameters] == names
    assert all(one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for one in parameters)
    assert all(one.default is inspect.Parameter.empty for one in parameters[:required])
    assert {one.name: one.default for one in parameters[required:]} == {
        one.name: DEFAULTS.get(one.name) for one in parameters[required:]
    }


@pytest.mark.parametrize("new", [{}, {"k": draw(0, 1, 2, 16), "v": draw(0, 1, 2, 16)}])
def test_no_sequences_have_an_empty_output(new: dict[str, Any]) -> None:
    q, caches = draw(0, 1, 4, 16), [draw(2, 32, 2, 16) for _ in range(2)]
    given = {"cache_seqlens": 3, **new}

    out, lse = operators.flash_attn_with_kvcache(q, *caches, return_softmax_lse=True, **given)

    assert (out.shape, lse.shape) == (q.shape, (0, 4, 1))


def test_the_whole_cache_is_read_by_default() -> None:
    q, cache = draw(2, 1, 2, 16), draw(2, 32, 2, 16)

    def call(**options: Any) -> Any:
        with few_builds():
            return operators.flash_attn_with_kvcache(
                q, cache, cache, **options, return_softmax_lse=True
            )[0]

    heads_first = (one.double().transpose(1, 2) for one in (q, cache, cache))
    assert torch.equal(call(), call(cache_seqlens=32))
    assert error(call(), SDPA(*heads_first).transpose(1, 2)) < 1e-3


CACHE = draw(2, 32, 2, 16)
NEW = {"k": draw(2, 1, 2, 16), "v": draw(2, 1, 2, 16), "cache_seqlens": 3}
WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "keys alone": ({"k": CACHE[:, :1]}, "v is None; k is given, and the cache takes"),
    "too long, an int": (
        {"k": CACHE[:, :2], "v": CACHE[:, :2], "cache_seqlens": 31},
        "cache_seqlens is 31; with 2 new keys it must be at most 32",
    ),
    "too long, a tensor": (
        {"k": CACHE[:, :2], "v": CACHE[:, :2], "cache_seqlens": torch.tensor([3, 31]).int()},
        "cache_seqlens is 31; with 2 new keys",
    ),
    "new keys in a full cache": (
        {"k": CACHE[:, :1], "v": CACHE[:, :1]},
        "cache_seqlens is 32; with 1 new keys",
    ),
    "two tables": (
        {"cache_batch_idx": torch.arange(2), "block_table": torch.zeros(2, 1).int()},
        r"cache_batch_idx is of shape \(2,\); block_table has the blocks",
    ),
    "30 rows": (
        {"k_cache": CACHE[:, :30], "v_cache": CACHE[:, :30]},
        r"k_cache.shape\[1\] is 30; it must be a multiple of 8.* Allocate 32",
    ),
    "no window": ({"window_size": None}, "window_size is None; it must be the numbers"),
    "a length for all, in a tensor": (
        {"cache_seqlens": torch.tensor(3)},
        r"cache_seqlens is of shape \(\); q has 2 sequences.* a tensor of shape \(2,\)",
    ),
    "new keys for one sequence": (
        {"k": CACHE[:1, :1], "v": CACHE[:1, :1], "cache_seqlens": 3},
        r"v is of shape \(1, 1, 2, 16\); q has 2 sequences.* such as \(2, 1, 2, 16\)",
    ),
    "a cache of two": (
        {"v_cache": CACHE[:, :16]},
        r"v_cache.shape is \(2, 16, 2, 16\); k_cache has",
    ),
    "one sequence": ({"k_cache": CACHE[0]}, r"k_cache.shape is \(32, 2, 16\); it has four"),
    "a cache for one": (
        {"k_cache": CACHE[:1], "v_cache": CACHE[:1]},
        r"k_cache.shape\[0\] is 1; q has 2 sequences",
    ),
    "another type": (
        {"k_cache": CACHE.float(), "v_cache": CACHE.float()},
        "k_cache.dtype is torch.float32; q holds torch.float16",
    ),
    "new keys of another type": (
        {"k": CACHE[:, :1].float(), "v": CACHE[:, :1], "cache_seqlens": 3},
        "k.dtype is torch.float32; the cache holds torch.float16",
    ),
    "half a key": ({"cache_seqlens": torch.ones(2)}, "cache_seqlens.dtype is torch.float32; keys"),
    "fewer than no keys": ({"cache_seqlens": -1}, "cache_seqlens is -1; a sequence has 0 keys"),
    "an entry too far": (
        {"cache_batch_idx": torch.tensor([2, 0])},
        "cache_batch_idx is from 0 to 2; the cache has entries 0 to 1",
    ),
    "entries that are no numbers": (
        {"cache_batch_idx": torch.ones(2)},
        "cache_batch_idx is of torch.float32 and shape",
    ),
    "a block too far": (
        {"block_table": torch.tensor([[0], [2]]).int(), "cache_seqlens": 3},
        r"block_table\[1, 0\] is 2; the cache has 2 blocks",
    ),
    "blocks for one": (
        {"block_table": torch.zeros(1, 1).int()},
        r"block_table.shape is \(1, 1\); q has 2 sequences",
    ),
    "a window of text": ({"window_size": ("1", 0)}, "window_size is .*; it must be the numbers"),
    "new values on another device": (
        {"k": CACHE[:, :1], "v": CACHE[:, :1].to("meta"), "cache_seqlens": 3},
        "v.device is meta; q lies on cpu",
    ),
    "lengths on another device": (
        {"cache_seqlens": torch.tensor([3, 4], dtype=torch.int32, device="meta")},
        "cache_seqlens.device is meta",
    ),
    "no factor": ({**NEW, "softmax_scale": 0.0}, "softmax_scale is 0.0; it must be a"),
    "a factor of text": ({**NEW, "softmax_scale": "a"}, "softmax_scale is 'a'; it must be a"),
    "no limit of scores": ({**NEW, "softcap": float("inf")}, "softcap is inf; it must be a number"),
    "a softcap of text": ({**NEW, "softcap": "a"}, "softcap is 'a'; it must be a number"),
    "a mask of 2": ({**NEW, "causal": 2}, "causal is 2; it is True, False"),
    "a flag of 1": ({**NEW, "return_softmax_lse": 1}, "return_softmax_lse is 1; it must be a bool"),
    "3 heads": (
        {**NEW, "q": draw(2, 1, 3, 16)},
        r"q.shape\[-2\] is 3; k has 2 heads, each of which serves as many of q",
    ),
    "264 columns": (
        {
            **{name: draw(2, 1, 2, 264) for name in ("q", "k", "v")},
            **{name: draw(2, 32, 2, 264) for name in ("k_cache", "v_cache")},
            "cache_seqlens": 3,
        },
        r"q.shape\[-1\] is 264; a head has a multiple of 8 columns, up to 256",
    ),
    "blocks of 12 rows": (
        {
            **NEW,
            "k_cache": CACHE[:, :12].clone(),
            "v_cache": CACHE[:, :12].clone(),
            "block_table": torch.arange(2).int()[:, None],
        },
        r"k_cache.shape\[1\] is 12; a page has a multiple of 8 rows",
    ),
    "a transposed cache": (
        {**NEW, "k_cache": CACHE.transpose(1, 2).contiguous().transpose(1, 2)},
        "v_cache's pages is 32 rows apart; pages of k are 64 rows apart",
    ),
    "blocks in columns": (
        {**NEW, "block_table": torch.zeros(1, 2).int().T.expand(2, 2)},
        "block_table's last stride is 0; the pages of a sequence must be contiguous",
    ),
    "a gradient": (
        {"k": CACHE[:, :1].clone().requires_grad_(), "v": CACHE[:, :1], "cache_seqlens": 3},
        "k is a tensor that requires grad, in grad mode; there is no backward through a cache",
    ),
}


@pytest.mark.parametrize("what", WRONG_CALLS)
def test_a_wrong_call_is_refused_before_the_cache_changes(what: str) -> None:
    options, message = WRONG_CALLS[what]
    caches = {"k_cache": CACHE.clone(), "v_cache": CACHE.clone()}
    given = {"q": draw(2, 1, 2, 16), **caches, **options}
    before = {name: given[name].clone() for name in caches}

    with pytest.raises(ArgumentError, match=message):
        operators.flash_attn_with_kvcache(**given)

    for name, cache in before.items():
        assert torch.equal(given[name], cache)
        assert not given[name].requires_grad


@pytest.mark.filterwarnings("ignore")  # of torch's own code
def test_a_tangent_is_refused_before_the_cache_changes() -> None:
    k_cache, v_cache, q = CACHE.clone(), CACHE.clone(), draw(2, 1, 2, 16)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, q)
        with pytest.raises(ArgumentError, match=r"q is a tensor .* with a tangent of forward_ad"):
            operators.flash_attn_with_kvcache(dual, k_cache, v_cache, **NEW)
    assert torch.equal(k_cache, CACHE)


def test_a_cache_that_torch_does_not_update_is_refused() -> None:
    k_cache = CACHE.clone()
    with torch.inference_mode():
        v_cache = CACHE.clone()
    with pytest.raises(ArgumentError, match="v_cache is an inference tensor of shape"):
        operators.flash_attn_with_kvcache(draw(2, 1, 2, 16), k_cache, v_cache, **NEW)
    assert torch.equal(k_cache, CACHE)


@pytest.mark.parametrize(("dtype", "length"), [(torch.uint8, 250), (torch.int8, 120)])
def test_lengths_of_8_bits_do_not_wrap_around(dtype: Any, length: int) -> None:
    q, new = draw(1, 1, 2, 16), draw(1, 10, 2, 16)
    caches = [draw(1, 264, 2, 16) for _ in range(2)]

    def call(lengths: Any) -> Any:
        k_cache, v_cache = (one.clone() for one in caches)
        with few_builds():
            out = operators.flash_attn_with_kvcache(
                q, k_cache, v_cache, new, new, cache_seqlens=lengths
            )
        return torch.cat([out.flatten(), k_cache.flatten(), v_cache.flatten()])

    assert torch.equal(call(torch.tensor([length], dtype=dtype)), call(length))


@pytest.mark.parametrize("columns", [8, 0])
def test_heads_of_two_widths_are_refused(columns: int) -> None:
    """Zeros fill heads up to one width, which would hide it."""
    q, ends = draw(1, 8, 2, 16), torch.tensor([0, 8], dtype=torch.int32)
    k = q[..., :columns]

    with pytest.raises(ArgumentError, match=rf"k.shape is \(1, 8, 2, {columns}\); q has shape"):
        operators.flash_attn_func(q, k, q)
    with pytest.raises(ArgumentError, match=rf"k.shape is \(8, 2, {columns}\); q has shape"):
        operators.flash_attn_varlen_func(q[0], k[0], q[0], ends, ends, 8, 8)
    if not columns:
        with pytest.raises(ArgumentError, match="head_dim, 1 or more"):
            operators.flash_attn_func(k, k, k)


@pytest.mark.parametrize("longest", ["8", 7.5])
def test_a_greatest_length_is_an_integer(longest: Any) -> None:
    q, ends = draw(8, 2, 16), torch.tensor([0, 8], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"max_seqlen_k is .*; it must be the rows"):
        operators.flash_attn_varlen_func(q, q, q, ends, ends, 8, longest)


@pytest.mark.filterwarnings("ignore")  # of torch's own code
def test_a_nested_tensor_is_refused_or_computed_by_torch() -> None:
    rows = [draw(length, 2, 16) for length in (3, 5)]
    q = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)

    with pytest.raises(ArgumentError, match="is nested; the kernels take dense tensors"):
        operators.scaled_dot_product_attention(q, q, q)
    found = operators.scaled_dot_product_attention(q, q, q, fallback=True)
    for one, row in zip(found.unbind(), rows, strict=True):
        assert error(one, SDPA(*(row.double().transpose(0, 1),) * 3)) < 5e-3


def test_what_flash_attn_has_and_the_kernels_lack_is_refused() -> None:
    q, slopes, turn = draw(1, 8, 2, 136), torch.ones(2), torch.ones(8, 8)
    with pytest.raises(ArgumentError, match=r"dropout_p is 0.1[\s\S]*alibi_slopes is of shape"):
        operators.flash_attn_func(q, q, q, dropout_p=0.1, alibi_slopes=slopes)
    with pytest.raises(ArgumentError, match=r"rotary_cos is of shape.*Rotate q and k before"):
        operators.flash_attn_with_kvcache(q, q, q, rotary_cos=turn, rotary_sin=turn)
    with pytest.raises(ArgumentError, match="requires grad"):
        operators.flash_attn_func(q.requires_grad_(), q, q)
