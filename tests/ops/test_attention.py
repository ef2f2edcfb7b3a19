"""Attention without a GPU: what is refused, and how the work is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_in_memory import aligned

from tmaasync import ArgumentError, ArrayTypeError, ops
from tmaasync._arrays import view
from tmaasync.ops._attention import Attention
from tmaasync.ops._flash.config import Batch, Sizes, TileConfig, Variant
from tmaasync.ops._flash.cost_model import choose_tile_config
from tmaasync.ops._flash.float8 import UNSCALED, Float8Workspace, Scale
from tmaasync.ops._flash.launches import AttentionArguments, CombineArguments, TransposeArguments
from tmaasync.ops._flash.operands import Operands, Scores
from tmaasync.ops._flash.pages import Pages
from tmaasync.ops._flash.schedule import lpt_schedule
from tmaasync.ops._layouts import Layout
from tmaasync.ops._operation import LaunchSequence, tile_configs
from tmaasync.ops._sequence_lengths import CumulativeLengths
from tmaasync.ops._varlen_attention import VarlenAttention

Q = np.zeros((2, 12, 4, 64), np.float16)
K = np.zeros((2, 20, 2, 64), np.float16)
PACKED = np.zeros((12, 2, 64), np.float16)


def refused(error: type[Exception], said: str, **changes: Any) -> None:
    with pytest.raises(error, match=said):
        ops.attention(**{"q": Q, "k": K, "v": K, **changes})


@pytest.mark.parametrize("kept", [np.s_[:0], np.s_[:, :0]], ids=["batch", "queries"])
def test_without_queries_the_results_are_empty_and_gradients_zeros(kept: Any) -> None:
    q, k = Q[kept], K[: len(Q[kept])]

    out, lse = ops.attention(q, k, k, causal=True, return_lse=True)
    given = [np.full(one.shape, np.nan, np.float16) for one in (q, k, k)]
    dq, dk, dv = given
    for _ in range(2):
        found = ops.attention_backward(q, q, k, k, out, lse, causal=True, dq=dq, dk=dk, dv=dv)
        assert all(one is other for one, other in zip(found, given, strict=True))

    assert (out.shape, out.dtype) == (q.shape, np.float16)
    assert (lse.shape, lse.dtype) == ((len(q), 4, q.shape[1]), np.float32)
    assert not dq.size
    assert not np.any(dk)
    assert not np.any(dv)
    assert ops.attention(q, k, k, out=out) is out
    refused(ArgumentError, "scale is -1", q=q, k=k, v=k, scale=-1)


def refused_packed(said: str, **changes: Any) -> None:
    given = {"q": PACKED, "k": PACKED, "v": PACKED, "cu_seqlens_q": [0, 5, 12], **changes}
    with pytest.raises(ArgumentError, match=said):
        ops.varlen_attention(**given)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"q": Q[0]}, r"q\.shape is .*; it must be \[batch, positions, heads, head_dim\]"),
        (
            {"q": Q[..., :60], "k": K[..., :60], "v": K[..., :60]},
            (
                r"q\.shape\[-1\] is 60; a head has a multiple of 8 columns, up to 256\. Pad .* to "
                r"64, and pass scale="
            ),
        ),
        (
            {"q": np.zeros((2, 12, 4, 264), np.float16)},
            (
                r"q\.shape\[-1\] is 264; .* up to 256\. There is no kernel for larger heads: "
                r"compute softmax\(Q K\^T\) V with two calls of ops\.matmul"
            ),
        ),
        ({"k": K[..., :56]}, r"k\.shape\[-1\] is 56; q has heads of 64"),
        ({"v": K[:, :19]}, r"v\.shape is \(2, 19, 2, 64\); k has shape \(2, 20, 2, 64\)"),
        ({"k": K[:1], "v": K[:1]}, r"k\.shape\[0\] is 1; q has 2 entries"),
        ({"q": Q[:, :, :3]}, r"q\.shape\[-2\] is 3; k has 2 heads.*Pass a multiple"),
        ({"k": K[:, :, :0], "v": K[:, :, :0]}, r"q\.shape\[-2\] is 4; k has 0 heads"),
        ({"q": Q[:, :, :0], "k": K[:, :, :0], "v": K[:, :, :0]}, r"q\.shape\[-2\] is 0; k has 0"),
        ({"q": Q[..., ::-1]}, r"q's last stride is -2; .* contiguous\. Copy"),
        ({"q": Q[:, ::-1]}, r"q's stride 1 is -512 bytes; TMA takes strides of 16"),
        ({"k": np.broadcast_to(K[:1], K.shape)}, r"k's stride 0 is 0 bytes"),
        ({"causal": "left"}, r"causal is 'left'; it is True, False, 'top_left' or 'bottom_right'"),
        ({"causal": 1}, "causal is 1; it is True"),
        ({"scale": 0.0}, r"scale is 0\.0; it must be a number above 0"),
        ({"scale": np.float16(0)}, r"scale is .*0\.0.*; it must be a number above 0"),
        (
            {"scale": 1e39},
            r"scale is 1e\+39; it must be a number above 0, from 8\.7e-19 to 1\.2e\+18",
        ),
        ({"softcap": 1e-50}, r"softcap is 1e-50; it must be a number above 0"),
        ({"scale": float("nan")}, "scale is nan"),
        ({"softcap": -1.0}, r"softcap is -1\.0; it must be a number above 0"),
        ({"softcap": 1e6}, r"softcap is 1000000\.0; it must be .*, from 8\.7e-19 to 1\.0e\+04"),
        ({"window": 7}, r"window is 7; it must be \(left, right\)"),
        ({"window": (1, 2.5)}, r"window is \(1, 2\.5\)"),
        ({"window": [-2, 0]}, r"window is \[-2, 0\]"),
        ({"out": Q[:, :11]}, r"out has shape \(2, 11, 4, 64\) .*; the output has shape"),
        ({"out": Q}, r"out overlaps q \("),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **changes)


@pytest.mark.parametrize(
    ("which", "shift_bytes", "is_apart"),
    [
        ("q", 0, False),
        ("q", Q.nbytes - 16, False),
        ("q", Q.nbytes, True),
        ("k", -K.nbytes + 16, False),
        ("k", -K.nbytes, True),
        ("v", 16 - K.nbytes, False),
        ("v", Q.nbytes - 16, False),
        ("v", Q.nbytes, True),
    ],
)
def test_an_output_over_what_is_read_finds_no_launch(
    which: str, shift_bytes: int, is_apart: bool
) -> None:
    operation = attention_of(Q, K, has_lse=True)
    at = {"q": 0x20000, "k": 0x40000, "v": 0x60000, "out": 0x80000, "lse": 0xA0000}
    at[which] = at["out"] + shift_bytes

    assert operation.bind_named(at) is None  # it was never launched
    launch = operation.prepared(LaunchSequence)
    bound = operation.bind_named(at)
    assert (bound is not None) == is_apart
    if bound is not None:
        assert bound[0] is launch
        given: Any = bound[1]
        assert {name: getattr(given, name) for name in at} == at


def attention_of(
    q: Any, k: Any, *, has_lse: bool = False, scales: tuple[Scale, ...] = UNSCALED
) -> Attention:
    """The operation on arrays like these, with values like keys and an output of 16 bits."""
    operands = Operands.of(q, k, k, "[batch, positions, heads, head_dim]", may_be_float8=True)
    scores = Scores.of(64, False, None, None, None)
    out = Layout.of(view(Q))
    return Attention(operands.layouts, out, scores, has_lse=has_lse, scales=scales)


def test_an_address_off_the_granule_is_refused() -> None:
    off = aligned(K.shape, np.float16, offset_bytes=2)

    refused(ArgumentError, r"v's address is 0x[0-9a-f]+; TMA reads from multiples of 16", v=off)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"q": Q.astype(np.float32)},
            "q holds float32; the kernel multiplies bfloat16, float16 and float8_e4m3fn",
        ),
        ({"k": K.astype(np.int16)}, "k holds int16"),
        ({"out": Q.astype(np.float32)}, "out holds float32; it must hold float16"),
    ],
)
def test_types_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArrayTypeError, said, **changes)


def test_two_types_are_refused() -> None:
    refused(ArrayTypeError, "v holds bfloat16 and q float16", v=K.astype(ml_dtypes.bfloat16))


BYTES: dict[str, Any] = {
    "q": Q.view(np.uint8)[..., :64],
    **dict.fromkeys("kv", K.view(np.uint8)[..., :64]),
    "dtype": "float8_e4m3fn",
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"scales": 2.0},
            r"scales is 2\.0; it must hold one each for q, k and v\. Pass three: numbers",
        ),
        ({"scales": (1, 2)}, r"scales is \(1, 2\); it must hold one each for q, k and v"),
        ({"scales": (0, 1, 1)}, r"scales\[0\] is 0; it must be a number above 0, .*\. Pass None"),
        ({"scales": (1, np.inf, 1)}, r"scales\[1\] is inf; it must be a number above 0"),
        (
            {"scales": (1, 1, np.ones(3, np.float32))},
            r"scales\[2\]\.shape is \(3,\); one scale is for all, or 2 x 2 for the entries' heads",
        ),
        ({"scales": (1, np.ones((2, 2)), 1)}, r"scales\[1\] is of float64; scales are float32"),
        (
            {"q": BYTES["q"][..., :40], "k": BYTES["k"][..., :40], "v": BYTES["k"][..., :40]},
            r"q\.shape\[-1\] is 40; a head has a multiple of 16 columns, up to 256\. Pad .* to 48",
        ),
    ],
)
def test_scales_and_float8_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **{**BYTES, **changes})


def test_scales_of_other_types_are_refused() -> None:
    refused(ArgumentError, "scales are given, and q holds float16; only float8", scales=[1, 1, 1])


def test_float8_has_outputs_of_16_bits() -> None:
    out = np.zeros(Q.shape, np.float32)
    refused(ArrayTypeError, "out holds float32; it must hold bfloat16 or float16", **BYTES, out=out)


def taken(parameters: Any, last: str, addresses: Any) -> tuple[int, ...]:
    """What a launch takes for its parameters up to the last."""
    names = parameters._fields
    return tuple(getattr(addresses, name) for name in names[: names.index(last) + 1])


@pytest.mark.parametrize("transposes_v", [False, True])
@pytest.mark.parametrize("has_lse", [False, True])
def test_launches_of_float8_share_a_workspace(has_lse: bool, transposes_v: bool) -> None:
    q, k = (np.zeros((*shape[:3], 64), ml_dtypes.float8_e4m3fn) for shape in (Q.shape, K.shape))
    scales = (Scale(2.0), Scale(1.0, (2, 1)), Scale(1.0, (0, 0)))
    operation = attention_of(q, k, has_lse=has_lse, scales=scales)
    operation.prepared(LaunchSequence)
    names = ("q", "k", "v", "scale_k", "scale_v", "out", "lse", "workspace")
    at = {name: index << 16 for index, name in enumerate(names, 1)}
    with tile_configs(lambda config: replace(config, transposes_v=transposes_v)):
        bound = operation.bind_named({name: at[name] for name in names if has_lse or name != "lse"})

    assert bound is not None
    addresses: Any = bound[1]
    values, partials = at["v"], at["workspace"]
    if not transposes_v:
        values = partials
        partials += 2 * 2 * 64 * 32  # of 20 keys, up to a multiple of 16
    lse = at["lse"] if has_lse else 0
    if not transposes_v:
        assert taken(TransposeArguments, "values", addresses) == (at["v"], values)
    assert taken(AttentionArguments, "scale_v", addresses) == (
        *(at["q"], at["k"], values, at["out"], lse, partials),
        *(0, at["scale_k"], at["scale_v"]),
    )
    assert taken(CombineArguments, "partials", addresses) == (at["out"], lse, partials)


@pytest.mark.parametrize(("batch", "kv_heads"), [(1, 1), (3, 5), (2, 2)])
def test_partial_outputs_start_at_multiples_of_16(batch: int, kv_heads: int) -> None:
    v = view(np.zeros((batch, 20, kv_heads, 64), ml_dtypes.float8_e4m3fn))

    workspace = Float8Workspace.of(Layout.of(v))

    assert workspace.partials_at == batch * kv_heads * 64 * 32


@pytest.mark.parametrize("has_lse", [False, True])
def test_launches_of_split_keys_share_a_workspace(has_lse: bool) -> None:
    operation = attention_of(Q, K, has_lse=has_lse)
    operation.prepared(LaunchSequence)
    names = ("q", "k", "v", "out", "lse", "workspace")
    at = {name: index << 16 for index, name in enumerate(names, 1)}
    bound = operation.bind_named({name: at[name] for name in names if has_lse or name != "lse"})

    assert bound is not None
    addresses: Any = bound[1]
    lse = at["lse"] if has_lse else 0
    assert taken(AttentionArguments, "partials", addresses) == (
        *(at[name] for name in names[:4]),
        lse,
        at["workspace"],
    )
    assert taken(CombineArguments, "partials", addresses) == (at["out"], lse, at["workspace"])


def test_every_broken_rule_is_named() -> None:
    with pytest.raises(ArgumentError) as caught:
        ops.attention(Q, K, K, scale=-1, softcap=0, window=(-5, 0))

    assert [line.split()[0] for line in str(caught.value).splitlines()] == [
        "scale",
        "window",
        "softcap",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cu_seqlens_q": [0, 7, 5]}, r"cu_seqlens_q\[2\] is 5; cumulative lengths never decrease"),
        ({"cu_seqlens_q": [0, 5, 13]}, r"cu_seqlens_q\[2\] is 13; q has 12 rows"),
        ({"cu_seqlens_q": [1, 5]}, r"cu_seqlens_q\[0\] is 1; the first sequence starts at row 0"),
        ({"cu_seqlens_k": [0, 5, 13]}, r"cu_seqlens_k\[2\] is 13; k has 12 rows"),
        ({"cu_seqlens_k": [0, 5]}, "cu_seqlens_k is of 1 sequences; cu_seqlens_q describes 2"),
        ({"max_seqlen_q": 6}, r"cu_seqlens_q\[2\] - .* is 7; no sequence .* max_seqlen_q, 6 rows"),
        ({"max_seqlen_k": -1}, "max_seqlen_k is -1; it must be an integer of 0 or more"),
        ({"max_seqlen_q": 2.0}, r"max_seqlen_q is 2\.0; it must be an integer"),
        ({"cu_seqlens_q": [0]}, "cu_seqlens_q is of no sequence; there is one or more"),
        ({"cu_seqlens_q": []}, r"cu_seqlens_q\[0\] is missing"),
        ({"cu_seqlens_q": [0.0, 5.0]}, r"cu_seqlens_q\.dtype is float64; rows are counted in int"),
        ({"cu_seqlens_q": [[0, 5]]}, r"cu_seqlens_q\.shape is \(1, 2\)"),
        ({"q": Q}, r"q\.shape is .*; it must be \[rows, heads, head_dim\]"),
        ({"out": PACKED}, "out overlaps q"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused_packed(said, **changes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sums", "written"),
    [
        ([0, 7, 5, 12], slice(0, 7)),
        ([0, 5, 9, 13], slice(0, 9)),
        ([0, 1, 11, 12], [0, 11]),
        ([-1, 3, 4, 5], slice(3, 5)),
    ],
)
def test_wrong_sums_on_a_device_are_reported_and_leave_the_rest_alone(
    sums: list[int], written: Any
) -> None:
    """What the kernel finds, which on the host is never asked: sums there are checked before."""
    out = np.full(PACKED.shape, np.nan, np.float16)
    operands = Operands.of(PACKED, PACKED, PACKED, "[rows, heads, head_dim]")
    scores = Scores.of(64, False, None, None, None)
    layouts = (operands.layouts, Layout.of(view(out)))
    operation = VarlenAttention(*layouts, Batch(3, 9, 9), scores, Pages(), has_lse=False)
    given = np.array(sums, np.int32)
    on_device = CumulativeLengths("cu_seqlens", given, 3, is_on_device=True)
    right = CumulativeLengths("cu_seqlens", np.array([0, 5, 9, 12], np.int32), 3, is_on_device=True)

    with pytest.raises(ArgumentError, match=r"of this call is wrong about sequence \d"):
        operation.run(operands, view(out), None, (on_device, on_device), None)
    assert (out[written] == 0).all()
    out[written] = np.nan
    assert np.isnan(out).all()
    operation.run(operands, view(out), None, (right, right), None)
    assert (out == 0).all()


# --- how the work is cut ----------------------------------------------------------------------


PLAIN, CAUSAL = Variant(), Variant(has_right=True)


def sizes(queries: int, keys: int, **changes: int) -> Sizes:
    given = {"heads": 16, "heads_per_kv_head": 1, "batch": 4, "head_dim": 128, **changes}
    return Sizes(queries, keys, **given)


@pytest.mark.parametrize("head_dim", range(8, 264, 8))
@pytest.mark.parametrize("variant", [PLAIN, CAUSAL, Variant(has_softcap=True)], ids=str)
def test_every_head_dim_fits_shared_memory(head_dim: int, variant: Variant) -> None:
    for queries in (1, 100, 4096):
        given = sizes(queries, 4096, head_dim=head_dim)
        config = choose_tile_config(given, 132, variant)

        assert config.stages >= 2
        assert head_dim <= config.head_dim < head_dim + 32


@pytest.mark.parametrize("head_dim", range(16, 272, 16))
@pytest.mark.parametrize("variant", [PLAIN, CAUSAL, Variant(has_softcap=True)], ids=str)
def test_every_head_dim_of_float8_fits_shared_memory(head_dim: int, variant: Variant) -> None:
    for queries in (1, 100, 4096):
        given = sizes(queries, 4096, head_dim=head_dim, element_bytes=1)
        config = choose_tile_config(given, 132, variant)

        assert config.stages >= 2
        assert not config.output_is_over_queries
        assert head_dim <= config.head_dim < head_dim + 64


def test_few_queries_of_heads_that_share_keys_share_a_tile() -> None:
    config = choose_tile_config(sizes(1, 8192, heads=64, heads_per_kv_head=8), 132, PLAIN)

    assert (config.consumers, config.heads_per_tile) == (1, 8)
    assert config.spans(sizes(1, 8192, heads=64, heads_per_kv_head=8)) == 4 * 8


@pytest.mark.parametrize(
    ("given", "variant", "cluster"),
    [
        (sizes(4096, 4096), PLAIN, 2),
        (sizes(8192, 8192), CAUSAL, 2),
        # Three consumers,
        (sizes(4096, 4096, head_dim=64, heads=32), PLAIN, 1),
        (sizes(8192, 8192, head_dim=64, heads=32), CAUSAL, 1),
        # few tiles of a head,
        (sizes(384, 4096, batch=64), PLAIN, 1),
        (sizes(4096, 4096), CAUSAL, 1),
        # few rounds,
        (sizes(4096, 4096, batch=1, heads=8), PLAIN, 1),
        # one round more,
        (sizes(640, 4096, batch=20), PLAIN, 1),
        # keys that neighbours do not share, and places that nobody knows ahead.
        (sizes(4096, 4096), Variant(has_left=True, has_right=True), 1),
        (sizes(4096, 4096), Variant(is_packed=True), 1),
    ],
    ids=str,
)
def test_pairs_share_keys_where_heads_have_many_tiles(
    given: Sizes, variant: Variant, cluster: int
) -> None:
    assert choose_tile_config(given, 132, variant).cluster == cluster


@pytest.mark.parametrize(("heads", "shared"), [(1, 1), (2, 2), (3, 1), (6, 2), (12, 4), (128, 64)])
def test_heads_share_a_tile_in_powers_of_two(heads: int, shared: int) -> None:
    given = sizes(1, 128, heads=heads, heads_per_kv_head=heads)

    assert choose_tile_config(given, 132, PLAIN).heads_per_tile == shared


# --- the order of tiles -----------------------------------------------------------------------


def blocks_of(given: Sizes, scores: Scores, config: TileConfig, position: int) -> int:
    """Blocks of keys with a key that one of the span's positions sees, one by one."""
    shift = 0 if scores.is_top_left else given.keys - given.queries
    seen = set()
    step = config.span_positions
    for row in range(position * step, (position + 1) * step):
        own = row + shift
        first = 0 if scores.left is None else max(own - scores.left, 0)
        last = given.keys - 1 if scores.right is None else min(own + scores.right, given.keys - 1)
        seen |= {key // config.block_n for key in range(first, last + 1)}
    return len(seen)


@pytest.mark.parametrize(("clusters", "cluster"), [(1, 1), (7, 1), (132, 1), (5, 2), (66, 2)])
@pytest.mark.parametrize(
    ("causal", "window"), [(True, None), ("top_left", None), (False, (100, 50)), (True, (300, 0))]
)
def test_clusters_share_all_tiles_evenly(
    causal: Any, window: Any, clusters: int, cluster: int
) -> None:
    given = Sizes(queries=1500, keys=1700, heads=8, heads_per_kv_head=2, batch=3, head_dim=64)
    scores = Scores.of(64, causal, None, window, None)
    config = TileConfig(64, 2, 128, cluster=cluster)

    order = lpt_schedule(given, scores, config, clusters)

    per_head = -(-given.queries // config.span_positions)
    spans = order[order >= 0]
    assert sorted(spans) == list(range(given.batch * given.heads * per_head))
    costs = np.array([blocks_of(given, scores, config, p) + 1 for p in range(per_head)])
    work = [costs[own[own >= 0] % per_head].sum() for own in order.T]
    assert max(work) - min(work) <= costs.max()
    # No cluster has a gap in its rounds.
    assert all((np.diff((own >= 0).astype(int)) <= 0).all() for own in order.T)
