"""Packed attention on arrays like an earlier call's, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch
from parity.attention_oracle import Mask, attend

from tmaasync import _arrays, ops
from tmaasync.errors import ArgumentError
from tmaasync.ops import _varlen_attention
from tmaasync.ops._call_cache import Binding, forget
from tmaasync.ops._flash.config import Batch
from tmaasync.ops._flash.launches import Addresses
from tmaasync.ops._flash.operands import Operands, Results, Scores
from tmaasync.ops._flash.pages import Pages
from tmaasync.ops._flash.sequences import Lengths
from tmaasync.ops._layouts import Layout
from tmaasync.ops._operation import tile_configs
from tmaasync.ops._sequence_lengths import CumulativeLengths
from tmaasync.ops._varlen_attention import VarlenAttention

ROWS, HEADS, HEAD_DIM = 48, 2, 64
SUMS = np.array([0, 5, 9, 48], np.int32)
OTHER_SUMS = np.array([0, 20, 20, 40], np.int32)
SHAPE = (ROWS, HEADS, HEAD_DIM)
NO_PAGES = Pages()


# --- on the emulator ------------------------------------------------------------------------------


def drawn(seed: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal(SHAPE).astype(np.float16) for _ in range(3))
    return q, k, v


def operation_of(*, has_lse: bool, pages: Pages = NO_PAGES) -> VarlenAttention:
    """The operation on packed arrays as above."""
    operands = Operands.of(*drawn(0), "[rows, heads, head_dim]")
    scores = Scores.of(HEAD_DIM, True, None, None, None)
    out = Layout.of(_arrays.view(np.zeros(SHAPE, np.float16)))
    batch = Batch(3, ROWS, ROWS)
    return VarlenAttention(operands.layouts, out, batch, scores, pages, has_lse=has_lse)


def launched_operation() -> VarlenAttention:
    """An operation that ran once, over arrays that are gone."""
    operation = operation_of(has_lse=True)
    assert not operation.is_bindable
    operands = Operands.of(*drawn(0), "[rows, heads, head_dim]")
    out, lse = (_arrays.view(array) for array in outputs())
    sums = CumulativeLengths("cu_seqlens", SUMS, 3, is_on_device=True)
    operation.run(operands, out, lse, (sums, sums), None)
    assert operation.is_bindable
    return operation


def outputs() -> tuple[Any, Any]:
    lse = np.full((HEADS, ROWS), np.nan, np.float32)
    return np.full(SHAPE, np.nan, np.float16), lse


def bound(
    operation: VarlenAttention, qkv: tuple[Any, ...], out: Any, lse: Any, sums: Any
) -> tuple[Binding, list[Any]]:
    """Return the launches on these arrays, and their workspaces."""
    workspaces = operation.workspaces(_arrays.view(qkv[0]))
    memory = {name: make() for name, make in workspaces.items()}
    arrays = dict(zip("qkv", qkv, strict=True)) | {"out": out, "lse": lse, "cu_seqlens_q": sums}
    binding = operation.bind_named(
        {name: array.ctypes.data for name, array in (arrays | memory).items()}
    )
    assert binding is not None
    return binding, [*memory.values()]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kv_splits", [3, 1])
def test_an_operation_is_bound_to_other_arrays_and_other_sums(kv_splits: int) -> None:
    with tile_configs(lambda config: replace(config, kv_splits=kv_splits)):
        operation, (q, k, v) = launched_operation(), drawn(1)
    out, lse = outputs()

    (launch, addresses), memory = bound(operation, (q, k, v), out, lse, OTHER_SUMS)
    assert len(memory) == (1 if kv_splits == 1 else 2)
    for is_bound in (False, True):
        out[...], lse[...] = np.nan, np.nan
        if is_bound:
            launch.bind(addresses, 0)()
        else:
            launch.launch_at(addresses, 0)

        for first, last in pairwise(OTHER_SUMS.tolist()):
            part = slice(first, last)
            wanted = attend(q[part], k[part], v[part], Mask(causal=True))
            assert np.allclose(out[part], wanted.out, atol=4e-3)
            assert np.allclose(lse[:, part], wanted.lse, atol=1e-3)
        assert np.isnan(out[40:]).all()
        assert np.isnan(lse[:, 40:]).all()


def test_a_bound_call_reports_what_the_call_before_found_wrong() -> None:
    operation, qkv, (out, lse) = launched_operation(), drawn(1), outputs()
    sums = np.array([0, 20, 60, 40], np.int32)
    (launch, addresses), _memory = bound(operation, qkv, out, lse, sums)
    call = launch.bind(addresses, 0)

    call()

    sums[...] = SUMS
    with pytest.raises(ArgumentError, match=r"an earlier call is wrong about sequence [12]:"):
        call()
    call()


def test_the_work_list_is_kept_where_sums_in_host_memory_stay_the_same() -> None:
    operation = operation_of(has_lse=True)
    operands = Operands.of(*drawn(0), "[rows, heads, head_dim]")
    kept: list[Any] = []

    for sums in (SUMS, SUMS.copy(), OTHER_SUMS, OTHER_SUMS, SUMS):
        given = CumulativeLengths("cu_seqlens", sums, 3, is_on_device=False)
        out, lse = (_arrays.view(array) for array in outputs())
        operation.run(operands, out, lse, (given, given), None)
        kept.append(operation._kept)

    assert [one is other for one, other in pairwise(kept)] == [True, False, True, False]


# --- how calls find it ----------------------------------------------------------------------------


class Launches:
    """Notes where it was launched."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, int]] = []

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        self.launched.append((addresses, stream))

    def bind(self, addresses: Sequence[int], stream: int) -> Callable[[], None]:
        return lambda: self.launch_at(addresses, stream)


class Calls:
    """Calls of varlen_attention, and where those were launched that were found."""

    def __init__(self) -> None:
        self.anew: list[Any] = []
        self.launches = Launches()

    def attend(self, call: Any, stream: object) -> None:
        """Stands for what makes a call anew."""
        del stream
        self.anew.append(call)

    def remember(self, **options: Any) -> None:
        """Have calls like the last one found."""
        call = self.anew.pop()
        is_paged = call.page_table is not None
        pages = Pages(size=16, step=16, total=3, table_step=4) if is_paged else NO_PAGES
        operation = operation_of(has_lse=call.options.return_lse, pages=pages)
        operation.prepared(lambda: self.launches)
        operands = Operands(*map(_arrays.view, (call.q, call.k, call.v)))
        results = Results(operands, call.out, return_lse=call.options.return_lse)
        _varlen_attention._remember(call, operation, results)

    def taken(self) -> list[tuple[Addresses, int]]:
        taken, self.launches.launched = self.launches.launched, []
        return taken


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    calls = Calls()
    monkeypatch.setattr(_varlen_attention, "_attend", calls.attend)
    forget()
    yield calls
    forget()


@pytest.fixture(params=["cupy", "torch", "torch without guards"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes an array of one of the frameworks over NumPy memory."""
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=request.param == "torch"))
    if request.param == "cupy":
        return CupyArray
    return lambda array: Tensor(array, device="cuda:0", dtype=array.dtype.name)


def packed(make: Any, count: int) -> list[Any]:
    return [make(np.zeros(SHAPE, np.float16)) for _ in range(count)]


def places(*arrays: Any) -> tuple[int, ...]:
    return tuple(array.array.ctypes.data for array in arrays)


OPTIONS: dict[str, Any] = {"causal": True, "max_seqlen_q": 48, "max_seqlen_k": 48}


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("has_output", [False, True])
@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("sums_of_keys", ["none", "the same", "others"])
def test_every_array_of_a_call_reaches_its_place(
    make: Any, calls: Calls, sums_of_keys: str, has_table: bool, has_output: bool, return_lse: bool
) -> None:
    def given() -> dict[str, Any]:
        q, k, v, out = packed(make, 4)
        sums = make(SUMS.copy())
        keys = {"none": None, "the same": sums, "others": make(SUMS.copy())}[sums_of_keys]
        table = make(np.zeros((3, 4), np.int32)) if has_table else None
        return {
            "q": q, "k": k, "v": v, "cu_seqlens_q": sums, "cu_seqlens_k": keys,
            "page_table": table, "out": out if has_output else None, "return_lse": return_lse,
        }  # fmt: skip

    ops.varlen_attention(**given(), **OPTIONS)
    calls.remember()

    for _ in range(3):
        again = given()
        got = ops.varlen_attention(**again, **OPTIONS)
        out, lse = got if return_lse else (got, None)
        assert out is again["out"] or not has_output
        assert out.shape == SHAPE
        ((addresses, stream),) = calls.taken()
        assert addresses[:4] == places(again["q"], again["k"], again["v"], out)
        keys = again["cu_seqlens_k"] or again["cu_seqlens_q"]
        sums = (addresses.cu_seqlens_q, addresses.cu_seqlens_k)
        assert sums == places(again["cu_seqlens_q"], keys)
        assert addresses.page_table == (places(again["page_table"])[0] if has_table else 0)
        assert addresses.lse == (0 if lse is None else places(lse)[0])
        assert addresses.schedule != 0
        assert stream == (7 if make is CupyArray else 5)
    assert calls.anew == []


def test_other_calls_are_made_anew(make: Any, calls: Calls) -> None:
    q, k, v, out = packed(make, 4)
    sums = make(SUMS.copy())
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": sums, "out": out, **OPTIONS}
    ops.varlen_attention(**given)
    calls.remember()
    assert ops.varlen_attention(**given) is out

    others: dict[str, dict[str, Any]] = {
        "no mask": {"causal": False},
        "shorter sequences": {"max_seqlen_q": 47},
        "lse": {"return_lse": True},
        "checks": {"check": True},
        "a length of another type": {"max_seqlen_q": np.int64(48)},
        "a stream of the caller's": {"stream": 11},
        "one sequence more": {"cu_seqlens_q": make(np.zeros(5, np.int32))},
        "sums of 64 bits": {"cu_seqlens_q": make(SUMS.astype(np.int64))},
        "sums in host memory": {"cu_seqlens_q": SUMS},
        "sums of keys": {"cu_seqlens_k": make(SUMS.copy())},
        "pages": {"page_table": make(np.zeros((3, 4), np.int32))},
        "no output": {"out": None},
        "an output over q": {"out": q},
        "other rows": {"v": make(np.zeros((ROWS + 1, HEADS, HEAD_DIM), np.float16))},
    }
    calls.taken()
    for name, other in others.items():
        ops.varlen_attention(**{**given, **other})
        assert calls.anew, name
        calls.anew.clear()
    assert calls.taken() == []


@pytest.mark.parametrize("changes", [{"check": True}, {"max_seqlen_q": np.int64(48)}])
def test_calls_whose_options_are_no_key_are_not_kept(
    make: Any, calls: Calls, changes: dict[str, Any]
) -> None:
    q, k, v = packed(make, 3)
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": make(SUMS.copy()), **OPTIONS, **changes}
    ops.varlen_attention(**given)
    calls.remember()

    ops.varlen_attention(**given)

    assert len(calls.anew) == 1
    assert calls.taken() == []


def test_max_seqlen_is_at_most_the_rows_of_the_array(make: Any) -> None:
    q, k = make(np.zeros(SHAPE, np.float16)), make(np.zeros((30, *SHAPE[1:]), np.float16))
    sums, most = make(SUMS.copy()), 2**31 - 1
    operands = Operands(*map(_arrays.view, (q, k, k)))

    _, batch = Lengths(sums, None, most, most, check=False).of(operands)
    _, of_pages = Lengths(sums, None, most, 40, check=False).of(operands, keys_are_packed=False)

    assert batch == Batch(3, ROWS, 30)
    assert of_pages == Batch(3, ROWS, 40)
