"""Packed attention on arrays that look like those of an earlier call, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch
from parity.attention_oracle import Mask, attend

from tmaasync import _arrays, ops
from tmaasync.errors import ArgumentError
from tmaasync.ops._plans import Layout
from tmaasync.ops.attention import varlen, varlen_plan
from tmaasync.ops.attention.arguments import Views
from tmaasync.ops.attention.scores import Scores
from tmaasync.ops.attention.varlen_plan import Batch, VarlenPlan
from tmaasync.ops.ragged.lengths import Sums

ROWS, HEADS, HEAD_DIM = 48, 2, 64
SUMS = np.array([0, 5, 9, 48], np.int32)
OTHER_SUMS = np.array([0, 20, 20, 40], np.int32)
SHAPE = (ROWS, HEADS, HEAD_DIM)


# --- on the emulator ------------------------------------------------------------------------------


def drawn(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(SHAPE).astype(np.float16) for _ in range(3)]


def started_plan() -> VarlenPlan:
    """A plan that attended once, over arrays that are gone."""
    (q, k, v), out = drawn(0), np.zeros(SHAPE, np.float16)
    views = Views.of(q, k, v, "[rows, heads, head_dim]")
    scores = Scores.of(HEAD_DIM, True, None, None, None)
    layout = Layout.of(_arrays.view(out))
    plan = VarlenPlan(views.layouts, layout, Batch(3, ROWS, ROWS), scores, has_lse=True)
    assert not plan.is_ready
    lse = _arrays.view(np.zeros((HEADS, ROWS), np.float32))
    sums = Sums("cu_seqlens", SUMS, 3, is_on_device=True)
    plan.run(views, _arrays.view(out), lse, (sums, sums), None)
    assert plan.is_ready
    return plan


def addresses(*arrays: Any) -> list[int]:
    return [array.ctypes.data for array in arrays]


@pytest.mark.parametrize("parts", [1, 3])
def test_a_plan_starts_on_other_arrays_and_other_sums(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen_plan, "parts_of_packed", lambda *_: parts)
    plan, (q, k, v) = started_plan(), drawn(1)
    out = np.full(SHAPE, np.nan, np.float16)
    lse = np.full((HEADS, ROWS), np.nan, np.float32)
    sums = addresses(OTHER_SUMS, OTHER_SUMS)

    for _ in range(2):
        plan.start(addresses(q, k, v, out), sums, 0, lse.ctypes.data, 0)

    for first, last in pairwise(OTHER_SUMS.tolist()):
        part = slice(first, last)
        wanted = attend(q[part], k[part], v[part], Mask(causal=True))
        assert np.allclose(out[part], wanted.out, atol=4e-3)
        assert np.allclose(lse[:, part], wanted.lse, atol=1e-3)
    assert np.isnan(out[40:]).all()
    assert np.isnan(lse[:, 40:]).all()


def test_a_start_reports_what_the_start_before_found_wrong() -> None:
    plan, (q, k, v) = started_plan(), drawn(1)
    out, lse = np.zeros(SHAPE, np.float16), np.zeros((HEADS, ROWS), np.float32)
    wrong = np.array([0, 20, 60, 40], np.int32)
    call = addresses(q, k, v, out)

    plan.start(call, addresses(wrong, wrong), 0, lse.ctypes.data, 0)

    with pytest.raises(ArgumentError, match=r"an earlier call is wrong about sequence [12]:"):
        plan.start(call, addresses(SUMS, SUMS), 0, lse.ctypes.data, 0)
    plan.start(call, addresses(SUMS, SUMS), 0, lse.ctypes.data, 0)


# --- how calls find it ----------------------------------------------------------------------------


class Plan(VarlenPlan):
    """What a plan is started with."""

    def __init__(self) -> None:
        self._spans = (ROWS * HEADS * HEAD_DIM * 2,) * 4
        self.started: list[tuple[Any, ...]] = []

    def start(
        self, arrays: Sequence[int], sums: Sequence[int], table: int, lse: int, stream: int
    ) -> None:
        self.started.append((tuple(arrays), tuple(sums), table, lse, stream))


@pytest.fixture(params=["cupy", "torch", "torch without guards"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes an array of one of the frameworks over NumPy memory."""
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=request.param == "torch"))
    varlen._PLANS.__init__()  # type: ignore[misc]
    yield (
        CupyArray
        if request.param == "cupy"
        else lambda array: Tensor(array, device="cuda:0", dtype=array.dtype.name)
    )
    varlen._PLANS.__init__()  # type: ignore[misc]


def packed(make: Any, count: int) -> list[Any]:
    return [make(np.zeros(SHAPE, np.float16)) for _ in range(count)]


def places(*arrays: Any) -> tuple[int, ...]:
    return tuple(array.array.ctypes.data for array in arrays)


def options(**changes: Any) -> varlen._Options:
    given = {"causal": True, "scale": None, "window": None, "softcap": None, "return_lse": False}
    lengths = {"max_seqlen_q": 48, "max_seqlen_k": 48, "check": False}
    return varlen._Options(**{**given, **lengths, **changes})


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("sums_of_keys", ["none", "the same", "others"])
def test_every_array_of_a_call_reaches_its_place(
    make: Any, sums_of_keys: str, has_table: bool
) -> None:
    def call() -> varlen._Call:
        q, k, v, out = packed(make, 4)
        sums = make(SUMS.copy())
        keys = {"none": None, "the same": sums, "others": make(SUMS.copy())}[sums_of_keys]
        return varlen._Call(q, k, v, sums, keys, make(np.zeros((3, 4), np.int32)) if has_table
                            else None, out)  # fmt: skip

    plan, first = Plan(), call()
    varlen._remember(first, options(), plan, _arrays.view(first.q))

    for _ in range(2):
        again = call()
        assert varlen._attend_again(again, options()) is again.out
        arrays, sums, table, lse, stream = plan.started.pop()
        assert arrays == places(again.q, again.k, again.v, again.out)
        keys = again.cu_seqlens_k or again.cu_seqlens_q
        assert sums == places(again.cu_seqlens_q, keys)
        assert table == (places(again.page_table)[0] if has_table else 0)
        assert lse == 0
        assert stream == (7 if make is CupyArray else 5)


def test_other_calls_are_made_anew(make: Any) -> None:
    q, k, v, out = packed(make, 4)
    sums = make(SUMS.copy())
    call = varlen._Call(q, k, v, sums, None, None, out)
    plan = Plan()
    varlen._remember(call, options(), plan, _arrays.view(q))
    assert varlen._attend_again(call, options()) is out

    for changes in ({"causal": False}, {"max_seqlen_q": 47}, {"return_lse": True}):
        assert varlen._attend_again(call, options(**changes)) is None
    others = {
        "one sequence more": call._replace(cu_seqlens_q=make(np.zeros(5, np.int32))),
        "sums of 64 bits": call._replace(cu_seqlens_q=make(SUMS.astype(np.int64))),
        "sums in host memory": call._replace(cu_seqlens_q=SUMS),
        "sums of keys": call._replace(cu_seqlens_k=make(SUMS.copy())),
        "pages": call._replace(page_table=make(np.zeros((3, 4), np.int32))),
        "no output": call._replace(out=None),
        "an output over q": call._replace(out=q),
        "other rows": call._replace(v=make(np.zeros((ROWS + 1, HEADS, HEAD_DIM), np.float16))),
    }
    for name, other in others.items():
        assert varlen._attend_again(other, options()) is None, name


@pytest.mark.parametrize("make", ["torch", "torch without guards"], indirect=True)
def test_a_new_output_is_like_q(make: Any) -> None:
    q, k, v = packed(make, 3)
    call = varlen._Call(q, k, v, make(SUMS.copy()), None, None, None)
    plan = Plan()
    varlen._remember(call, options(), plan, _arrays.view(q))

    out = varlen._attend_again(call, options())

    assert out.shape == SHAPE
    assert plan.started[0][0] == places(q, k, v, out)


@pytest.mark.parametrize("changes", [{"check": True}, {"max_seqlen_q": np.int64(3)}])
def test_options_that_are_no_key_find_nothing(changes: dict[str, Any]) -> None:
    assert options().can_be_key
    assert not options(**changes).can_be_key


def test_calls_on_host_arrays_are_not_kept() -> None:
    varlen._PLANS.__init__()  # type: ignore[misc]
    q, k, v = drawn(2)
    ops.varlen_attention(q, k, v, SUMS, causal=True)
    assert not varlen._PLANS._entries
