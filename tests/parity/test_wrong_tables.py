"""Wrong tables on a device: nothing outside the arrays moves, kernels end, and a call reports it.

The host checks tables in its own memory, so on the emulator these checks are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from parity.attention_oracle import Array, Mask, assert_close, attend
from parity.backends import Backend, Emulate
from parity.test_attention import few_builds, normal
from parity.test_schedulers import Cluster
from parity.test_schedulers import run as run_schedule
from parity.tile_configs import tile_configs

from tmaasync import ArgumentError, Kernel, ops
from tmaasync._ragged import batch
from tmaasync.emulate import scheduled
from tmaasync.ops import _grouped_matmul
from tmaasync.ops._flash.abi import BATCH_LIMITS, record
from tmaasync.ops._flash.backward import BackwardConfig
from tmaasync.ops._flash.config import Sizes, TileConfig, Variant, problem
from tmaasync.ops._flash.launches import WorkListArguments, work_list_bytes
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._flash.tiles import work_list_kernel

pytestmark = pytest.mark.slow

MOST, LEAST = 2**31 - 1, -(2**31)
ROWS, EDGE = 200, 16
"""Rows of an array, and rows on either side of it that no kernel may touch."""

# Three sequences of an array of ROWS.
TABLES = {
    "the first is too long": (0, MOST, 5, ROWS),
    "the last is too long": (0, 2, 90, MOST),
    "the first starts before row 0": (-9, 5, 90, ROWS),
    "one runs backwards": (0, 150, 10, ROWS),
    "two overlap": (0, ROWS, 0, ROWS),
    "all lie beyond": (MOST, MOST, MOST, MOST),
    "the least number": (LEAST, LEAST, 7, ROWS),
    "the least and the greatest": (LEAST, MOST, LEAST, MOST),
    "a difference that wraps": (5, LEAST, 5, ROWS),
    "one row too many": (0, 10, ROWS + 1, ROWS + 1),
}
RIGHT = (0, 70, 70, ROWS)
TABLE = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On the emulator, tables reach the kernels as they do on a device; few kernels are built."""
    for check in ("_sum_violations", "_total_violations"):
        monkeypatch.setattr(batch, check, lambda *_: ())
    monkeypatch.setattr(_grouped_matmul, "_check_order", lambda *_: None)
    # Sequences that overlap write the same rows.
    with few_builds(1), scheduled("adversarial", races=False):
        yield


class Guarded:
    """An array within a larger one, whose other rows hold NaN or keep their values."""

    def __init__(self, backend: Backend, inner: Array, around: float = np.nan) -> None:
        self._backend = backend
        rows, *others = inner.shape
        whole = np.full((rows + 2 * EDGE, *others), around, inner.dtype)
        whole[EDGE:-EDGE] = inner
        self._before = whole
        self._whole = backend.array(whole)
        self.array = self._whole[EDGE:-EDGE]

    def host(self) -> Array:
        """Return the array, and check that what lies around it is unchanged."""
        whole = self._backend.host(self._whole)
        for edge in (slice(0, EDGE), slice(-EDGE, None)):
            assert np.array_equal(whole[edge], self._before[edge], equal_nan=True)
        return np.array(whole[EDGE:-EDGE])


def outputs_of(
    backend: Backend, run: Callable[[Any], object], tables: Sequence[Any], outs: Sequence[Guarded]
) -> list[Array]:
    """Return the outputs of a call with a wrong table, which this call or the next reports."""
    wrong, right = (backend.array(np.array(one, np.int32)) for one in tables)
    is_emulated = isinstance(backend, Emulate)
    report = pytest.raises(ArgumentError, match="of this call is wrong")
    with report if is_emulated else nullcontext():
        run(wrong)
    found = [out.host() for out in outs]
    if not is_emulated:
        with pytest.raises(ArgumentError, match="of an earlier call is wrong"):
            run(right)
    run(right)
    return found


def within(table: Sequence[int]) -> list[int]:
    """Return the sequences that lie in the array, before the first that runs backwards."""
    pairs = list(itertools.pairwise(table))
    in_order = itertools.takewhile(lambda index: pairs[index][0] <= pairs[index][1], range(3))
    return [index for index in in_order if pairs[index][0] >= 0 and pairs[index][1] <= ROWS]


# --- packed attention -----------------------------------------------------------------------------

SIDES = pytest.mark.parametrize("side", ["q", "k"])


# On the CPU every table once, each option with several.
@pytest.mark.on_the_cpu(0, 2, 4, 6, 8, 11, 13, 15, 17, 19)
@TABLE
@SIDES
def test_varlen_attention(backend: Backend, table: tuple[int, ...], side: str) -> None:
    q, k, v = (normal(ROWS, 2, 64, seed=index) for index in range(3))
    of_q, of_k, of_v = (Guarded(backend, array).array for array in (q, k, v))
    out = Guarded(backend, np.full_like(q, 7), 7)
    right = backend.array(np.array(RIGHT, np.int32))

    def run(given: Any) -> None:
        sums = (given, right) if side == "q" else (right, given)
        ops.varlen_attention(of_q, of_k, of_v, *sums, MOST, MOST, out=out.array)

    (got,) = outputs_of(backend, run, (table, RIGHT), [out])

    assert not np.isnan(got).any()
    tables = (table, RIGHT) if side == "q" else (RIGHT, table)
    for index in {*within(tables[0])}.intersection(within(tables[1])):
        rows, keys = (slice(*sums[index : index + 2]) for sums in tables)
        expected = attend(q[rows], k[keys], v[keys], Mask())
        assert_close(got[rows], None, expected, v[keys])


def test_overlapping_sequences_have_more_tiles_than_the_work_list(backend: Backend) -> None:
    q = Guarded(backend, normal(3000, 1, 64)).array
    out = Guarded(backend, np.full((3000, 1, 64), 7, np.float16), 7)

    def run(sums: Any) -> None:
        ops.varlen_attention(q, q, q, sums, max_seqlen_q=MOST, window=(64, 0), out=out.array)

    tables = [0, 3000] * 5, [*range(0, 1000, 100), 3000][:10]
    (got,) = outputs_of(backend, run, tables, [out])

    assert not np.isnan(got).any()


def test_limits_near_2_31_leave_every_tile_a_bin(backend: Backend) -> None:
    """The work list of one query with more blocks of keys than there are bins."""
    keys, config = 600_000, TileConfig(64, 2, 128)
    sizes = Sizes(queries=1, keys=keys, heads=1, heads_per_kv_head=1, batch=1, head_dim=64)
    scores = Scores.of(64, False, None, None, None)
    work_list = backend.array(np.zeros(work_list_bytes(2, is_paged=False), np.uint8))
    arguments = WorkListArguments(
        cu_seqlens_q=backend.array(np.array([0, 1], np.int32)),
        cu_seqlens_k=backend.array(np.array([0, keys], np.int32)),
        schedule=work_list,
        page_table=0,
        broken_sequence=backend.array(np.zeros(1, np.int32)),
        section_keys=MOST,
        heads_at_once=1,
        limits=record(BATCH_LIMITS, max_queries=MOST, max_keys=MOST, table_step=0),
        problem=problem(sizes, scores),
    )

    work_list_kernel(Variant(is_packed=True), config)(1, 1024, arguments)

    assert backend.host(work_list)[:4].view(np.int32).tolist() == [1]


@pytest.mark.on_the_cpu(0, 4, 8, 11, 15, 19, 22, 26, 33, 37)
@TABLE
@SIDES
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.chips("sm_90a", "sm_100a")
def test_the_attention_backward(
    backend: Backend, table: tuple[int, ...], side: str, deterministic: bool
) -> None:
    """A tile that waits for one that no CTA has would never end."""
    dout, q, k, v, o = (
        Guarded(backend, normal(ROWS, 2, 64, seed=index)).array for index in range(5)
    )
    lse = backend.array(np.zeros((2, ROWS), np.float32))
    right = backend.array(np.array(RIGHT, np.int32))
    outs = [Guarded(backend, np.full((ROWS, 2, 64), 7, np.float16), 7) for _ in range(3)]
    dq, dk, dv = (out.array for out in outs)

    def run(given: Any) -> None:
        sums = (given, right) if side == "q" else (right, given)
        ops.varlen_attention_backward(
            *(dout, q, k, v, o, lse, *sums, MOST, MOST),
            causal=True,
            dq=dq,
            dk=dk,
            dv=dv,
            deterministic=deterministic,
        )

    with tile_configs(lambda _: BackwardConfig(64, 64)):
        got = outputs_of(backend, run, (table, RIGHT), outs)

    assert not any(np.isnan(one).any() for one in got)


# --- packing --------------------------------------------------------------------------------------


@pytest.mark.on_the_cpu(0, 3, 6, 9, 11, 14, 17, 22, 25, 28)
@TABLE
@pytest.mark.parametrize("max_length", [1, 48, ROWS])
def test_ragged_store_and_load(backend: Backend, table: tuple[int, ...], max_length: int) -> None:
    padded = np.ones((3, max_length, 64), np.float16)
    packed, spread = (
        Guarded(backend, np.full((ROWS, 64), 7, np.float16), 7),
        Guarded(backend, np.full_like(padded, 9), 9),
    )
    source = backend.array(padded)
    right = (0, 1, 1, 2)

    def store(sums: Any) -> None:
        ops.ragged_store(source, cu_seqlens=sums, out=packed.array)

    def load(sums: Any) -> None:
        ops.ragged_load(packed.array, cu_seqlens=sums, out=spread.array)

    (stored,) = outputs_of(backend, store, (table, right), [packed])
    (loaded,) = outputs_of(backend, load, (table, right), [spread])

    is_written = np.zeros(ROWS, bool)
    for start, end in itertools.pairwise(table):
        if 0 <= start <= end and start + min(end - start, max_length) <= ROWS:
            is_written[start : start + min(end - start, max_length)] = True
    assert (stored[~is_written] == 7).all()
    assert np.isin(loaded, (0, 1, 7, 9)).all()


# --- groups of rows -------------------------------------------------------------------------------

ENDS = [(MOST, 5, 40), (-5, MOST, 12), (30, 10, 40), (LEAST, LEAST, MOST), (10, ROWS + 1, ROWS)]


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_grouped_matmul(backend: Backend, ends: tuple[int, ...]) -> None:
    a, b = normal(ROWS, 64), normal(3, 64, 72)
    rows, out = Guarded(backend, a), Guarded(backend, np.full((ROWS, 72), 7, np.float16), 7)
    matrices = backend.array(b)

    def run(offsets: Any) -> None:
        ops.grouped_matmul(rows.array, matrices, offsets, out=out.array)

    (got,) = outputs_of(backend, run, (ends, (5, 5, 90)), [out])

    cut = np.maximum.accumulate(np.clip(ends, 0, ROWS))
    wanted = np.full((ROWS, 72), 7.0)
    for start, end, matrix in zip([0, *cut], cut, b, strict=False):
        wanted[start:end] = a[start:end].astype(float) @ matrix.astype(float)
    assert np.allclose(got.astype(float), wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("ends", ENDS, ids=str)
def test_k_grouped_matmul(backend: Backend, ends: tuple[int, ...]) -> None:
    a, b = normal(ROWS, 72), normal(ROWS, 64, seed=1)
    left, right = Guarded(backend, a), Guarded(backend, b)
    out = Guarded(backend, np.full((3, 72, 64), 7, np.float32), 7)

    def run(offsets: Any) -> None:
        ops.k_grouped_matmul(left.array.T, right.array, offsets, out=out.array)

    (got,) = outputs_of(backend, run, (ends, (5, 5, 90)), [out])

    cut = np.maximum.accumulate(np.clip(ends, 0, ROWS))
    for start, end, one in zip([0, *cut], cut, got, strict=False):
        wanted = a[start:end].astype(float).T @ b[start:end].astype(float)
        assert np.allclose(one, wanted, rtol=1e-3, atol=1e-2)


# --- the headers ----------------------------------------------------------------------------------

SEQUENCES = """
#include <tmaasync/ragged.cuh>
using namespace tmaasync;
extern "C" __global__ void sequences(const Index* cu_seqlens, i32* found) {
    const auto sequence = RaggedSequence::of(cu_seqlens, threadIdx.x);
    found[2 * threadIdx.x] = sequence.start;
    found[2 * threadIdx.x + 1] = sequence.is_within(1000, 1000) ? sequence.length : -1;
}
"""


@pytest.mark.parametrize(
    ("dtype", "name", "table", "wanted"),
    [
        ("int64", "long long", [0, 60, 2**32 + 90, -(2**40)], [0, 60, 60, -1, MOST, -1]),
        ("uint64", "unsigned long long", [0, 60, 2**32 + 90, 2**63], [0, 60, 60, -1, MOST, -1]),
        ("uint32", "unsigned", [0, 60, 2**32 - 1, 5], [0, 60, 60, -1, MOST, -1]),
        ("int32", "int", [0, 60, LEAST, MOST], [0, 60, 60, -1, LEAST, -1]),
    ],
)
def test_cumulative_lengths_beyond_32_bits_are_no_sequence(
    backend: Backend, dtype: str, name: str, table: list[int], wanted: list[int]
) -> None:
    found = backend.array(np.zeros(6, np.int32))

    kernel = Kernel(SEQUENCES, "sequences", types={"Index": name})
    kernel(1, 3, (backend.array(np.array(table, dtype)), found))

    assert backend.host(found).tolist() == wanted


@TABLE
def test_the_tiles_of_sequences_lie_in_the_array(backend: Backend, table: tuple[int, ...]) -> None:
    heads = 2
    given = (np.array(table, np.int32), 3, heads, ROWS)

    visited = run_schedule(backend, "sequence_schedule", Cluster(), 1, *given)

    for row, head, length, start, _ in (tile for tiles in visited for tile in tiles):
        assert 0 <= row < max(length, 1)
        assert 0 <= head < heads
        assert 0 <= start <= ROWS - length
