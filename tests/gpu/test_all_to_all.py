"""Ragged all-to-all of several GPUs: on all, and with ranks that share one.

timeout 600 python -m pytest -m gpu -p no:benchmark tests/gpu/test_all_to_all.py
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
from exchange_cases import drawn_counts, drawn_tokens, packed, packed_ends
from gpu.test_ops_of_ranks import captured, host, on, on_each, settle

from tmaasync import enable_peer_access, ops

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

cupy: Any = pytest.importorskip("cupy")

pytestmark = pytest.mark.timeout(200)

Arrays = list[Any]
UNWRITTEN = 55


@pytest.fixture(params=[2, 3, 4, 8])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def unwritten(devices: list[int], rows: list[int], like: Any) -> Arrays:
    return on_each(
        devices, [np.full((count, *like.shape[1:]), UNWRITTEN, like.dtype) for count in rows]
    )


class Exchange:
    """Tokens of random counts on the ranks' devices, and room for what is received."""

    def __init__(self, rng: Any, devices: list[int], owned: int, most: int, columns: int) -> None:
        ranks = len(devices)
        self.counts = drawn_counts(rng, ranks, owned * ranks, most)
        self.tokens = drawn_tokens(rng, self.counts, (columns,), np.float16)
        self.packed = packed(self.tokens, self.counts)
        self.arrays = on_each(devices, self.tokens)
        self.given = on_each(devices, list(self.counts))
        self.out = unwritten(devices, [len(one) + 7 for one in self.packed], self.tokens[0])
        self.ends = on_each(devices, [np.full(owned, -1, np.int32)] * ranks)
        self.back = unwritten(devices, list(map(len, self.tokens)), self.tokens[0])

    def run(self, streams: Arrays) -> None:
        ops.all_to_all(self.arrays, self.given, self.out, ends=self.ends, streams=streams)
        ops.all_to_all(self.out, self.given, self.back, combine=True, streams=streams)

    def check(self) -> None:
        ends = packed_ends(self.counts)
        for rank, wanted in enumerate(self.packed):
            found = host(self.out[rank])
            assert np.array_equal(found[: len(wanted)], wanted)
            assert (found[len(wanted) :] == UNWRITTEN).all()
            assert np.array_equal(host(self.ends[rank]), ends[rank])
            assert np.array_equal(host(self.back[rank]), self.tokens[rank])


def test_calls_of_different_sizes_follow_each_other(devices: list[int], streams: Arrays) -> None:
    rng, calls = np.random.default_rng(len(devices)), []
    cases = [(1, 3000, 1024), (32, 60, 4096), (2, 2, 8), (128 // len(devices), 9, 7168)] * 3
    for owned, most, columns in cases:
        calls.append(Exchange(rng, devices, owned, most, columns))
    settle(devices)
    for one in calls:
        one.run(streams)
    settle(devices)
    for one in calls:
        one.check()


def test_repeats_lose_no_row(devices: list[int], streams: Arrays) -> None:
    """Tokens change between the calls on the ranks' streams; one stale row would show."""
    rng = np.random.default_rng(3)
    one = Exchange(rng, devices, 8, 100, 1024)
    wrong = on_each(devices, [np.zeros(1, np.int64)] * len(devices))
    settle(devices)
    for _ in range(500):
        one.run(streams)
        for rank, stream in enumerate(streams):
            with cupy.cuda.Device(devices[rank]), stream:
                wrong[rank] += (one.back[rank] != one.arrays[rank]).sum()
                one.arrays[rank] += 1
                one.arrays[rank] %= 128
                one.back[rank][...] = UNWRITTEN
    settle(devices)
    assert [int(host(count)[0]) for count in wrong] == [0] * len(devices)


def test_graphs_take_new_counts(devices: list[int], streams: Arrays) -> None:
    """A graph for each rank, replayed with other tokens and counts, next to calls without one."""
    rng, ranks = np.random.default_rng(5), len(devices)
    room = Exchange(rng, devices, 4, 200, 512)
    rows = ranks * 4 * 200
    room.arrays, room.out, room.back = (
        unwritten(devices, [rows] * ranks, room.tokens[0]) for _ in range(3)
    )
    settle(devices)
    call = functools.partial(room.run, streams)
    call()  # allocates
    settle(devices)
    replay = captured(call, devices, streams)
    for turn in range(4):
        new = Exchange(rng, devices, 4, 200, 512)
        for rank, device in enumerate(devices):
            with cupy.cuda.Device(device):
                room.given[rank][...] = on(device, new.counts[rank])
                room.arrays[rank][: len(new.tokens[rank])] = new.arrays[rank]
        settle(devices)
        (call if turn == 2 else replay)()
        settle(devices)
        for rank, wanted in enumerate(new.packed):
            assert np.array_equal(host(room.out[rank])[: len(wanted)], wanted)
            assert np.array_equal(host(room.ends[rank]), packed_ends(new.counts)[rank])
            own = new.tokens[rank]
            assert np.array_equal(host(room.back[rank])[: len(own)], own)


def test_torch_tensors_in_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    count = min(torch.cuda.device_count(), 8)
    if count < 2:
        pytest.skip("this process sees one GPU")
    enable_peer_access(range(count))
    counts = drawn_counts(np.random.default_rng(6), count, 8 * count, 90)
    own = [int(one.sum()) for one in counts]
    x = [torch.randn(rows, 2048, dtype=torch.bfloat16, device=f"cuda:{rank}")
         for rank, rows in enumerate(own)]  # fmt: skip
    given = [torch.tensor(one, device=one_of.device) for one, one_of in zip(counts, x, strict=True)]
    out = [torch.zeros(sum(own), 2048, dtype=torch.bfloat16, device=one.device) for one in x]
    back = [torch.zeros_like(one) for one in x]

    ops.all_to_all(x, given, out)
    ops.all_to_all(out, given, back, combine=True)

    for found, wanted in zip(back, x, strict=True):
        assert torch.equal(found.cpu(), wanted.cpu())
