"""Ring attention of several GPUs: on all, and with ranks that share one.

timeout 600 python -m pytest -m gpu -p no:benchmark tests/gpu/test_ring_attention.py
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest
from gpu.test_ops_of_ranks import bit_equal_repeats, captured, host, on_each, poisoned, settle
from ring_cases import check, check_gradients, drawn, shards

from tmaasync import ops

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

cupy: Any = pytest.importorskip("cupy")

pytestmark = pytest.mark.timeout(200)

Arrays = list[Any]


@pytest.fixture(params=[2, 3, 4, 8])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def on_ranks(devices: list[int], whole: Arrays, *, causal: bool) -> list[Arrays]:
    return [on_each(devices, shards(one, len(devices), causal=causal)) for one in whole]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_calls_of_different_shapes_follow_each_other(
    devices: list[int], streams: Arrays, head_dim: int
) -> None:
    rng, ranks, calls = np.random.default_rng(head_dim), len(devices), []
    for call in range(8):
        causal, batch, kv_heads = bool(call % 2), int(rng.integers(1, 3)), int(rng.integers(1, 3))
        length = 2 * int(rng.integers(1, 1200 // ranks))
        whole = drawn(rng, batch, ranks * length, 4 * kv_heads, kv_heads, head_dim, np.float16)
        out = poisoned(devices, [(batch, length, 4 * kv_heads, head_dim)] * ranks)
        calls.append((on_ranks(devices, whole, causal=causal), whole, out, causal))
    settle(devices)
    sums = [
        ops.ring_attention(*given, causal=causal, return_lse=True, out=out, streams=streams)[1]
        for given, _, out, causal in calls
    ]
    settle(devices)

    for (_, whole, out, causal), lse in zip(calls, sums, strict=True):
        found = [list(map(host, arrays)) for arrays in (out, lse)]
        check(found[0], whole, causal=causal, lse=found[1])


@pytest.mark.parametrize("causal", [False, True])
def test_repeats_write_the_same_bits(devices: list[int], streams: Arrays, causal: bool) -> None:
    ranks, length = len(devices), 1024
    whole = drawn(np.random.default_rng(7), 1, ranks * length, 4, 2, 128, np.float16)
    given = on_ranks(devices, whole, causal=causal)
    call = functools.partial(ops.ring_attention, *given, causal=causal, streams=streams)
    bit_equal_repeats(call, 200, devices, streams, [(1, length, 4, 128)] * ranks)


def test_graphs_repeat_calls_on_new_contents(devices: list[int], streams: Arrays) -> None:
    """A graph for each rank, replayed next to calls without a graph."""
    rng, ranks, length = np.random.default_rng(8), len(devices), 500
    *given, out = (poisoned(devices, [(1, length, heads, 128)] * ranks) for heads in (4, 2, 2, 4))
    settle(devices)
    call = functools.partial(ops.ring_attention, *given, causal=True, out=out, streams=streams)
    call()  # allocates
    settle(devices)
    replay = captured(call, devices, streams)
    for turn in range(5):
        whole = drawn(rng, 1, ranks * length, 4, 2, 128, np.float16)
        for arrays, new in zip(given, whole, strict=True):
            for own, share in zip(arrays, shards(new, ranks, causal=True), strict=True):
                with own.device:
                    own[...] = cupy.asarray(share)
        settle(devices)
        if turn == 2:
            call()
        replay()
        settle(devices)
        check(list(map(host, out)), whole, causal=True)


# --- backward ---------------------------------------------------------------------------------


backward: Any = ops.ring_attention_backward


class Backward:
    """Operands of whole sequences, the forward's results, and poisoned gradients, on all ranks."""

    def __init__(
        self, devices: list[int], streams: Arrays, seed: int, sizes: tuple[int, ...], causal: bool
    ) -> None:
        rng, ranks = np.random.default_rng(seed), len(devices)
        batch, length, heads, kv_heads, head_dim = sizes
        shape = (batch, ranks * length, heads, kv_heads, head_dim)
        self.causal, self.whole = causal, drawn(rng, *shape, np.float16)
        self.dout = drawn(rng, *shape, np.float16)[0]
        dout, *given = on_ranks(devices, [self.dout, *self.whole], causal=causal)
        of_q, of_k = ((batch, length, each, head_dim) for each in (heads, kv_heads))
        self.targets = [poisoned(devices, [one] * ranks) for one in (of_q, of_k, of_k)]
        settle(devices)
        results = ops.ring_attention(*given, causal=causal, return_lse=True, streams=streams)
        self.call = functools.partial(
            backward,
            *(dout, *given, *results),
            causal=causal,
            streams=streams,
            **dict(zip(("dq", "dk", "dv"), self.targets, strict=True)),
        )

    def check(self) -> None:
        found = [list(map(host, arrays)) for arrays in self.targets]
        check_gradients(found, self.dout, self.whole, causal=self.causal)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_gradients_of_calls_that_follow_each_other(
    devices: list[int], streams: Arrays, head_dim: int
) -> None:
    rng, ranks, calls = np.random.default_rng(head_dim), len(devices), []
    for seed in range(6):
        batch, kv_heads = int(rng.integers(1, 3)), int(rng.integers(1, 3))
        length = 2 * int(rng.integers(1, 1200 // ranks))
        sizes = (batch, length, 4 * kv_heads, kv_heads, head_dim)
        calls.append(Backward(devices, streams, seed, sizes, bool(seed % 2)))
        calls[-1].call()
    settle(devices)
    for one in calls:
        one.check()


@pytest.mark.parametrize("causal", [False, True])
def test_deterministic_gradients_repeat_their_bits(
    devices: list[int], streams: Arrays, causal: bool
) -> None:
    """Eight ranks have more tiles of keys than a GPU has SMs."""
    one = Backward(devices, streams, 0, (1, 256, 32, 16, 128), causal)

    def bits() -> Arrays:
        one.call(deterministic=True)
        settle(devices)
        return [host(array).view(np.uint16) for arrays in one.targets for array in arrays]

    first = bits()
    one.check()
    for _ in range(49):
        assert all(map(np.array_equal, first, bits()))


def test_graphs_repeat_the_backward(devices: list[int], streams: Arrays) -> None:
    one = Backward(devices, streams, 1, (1, 500, 4, 2, 128), True)
    one.call()  # allocates
    settle(devices)
    replay = captured(one.call, devices, streams)
    for turn in range(3):
        for array in (array for arrays in one.targets for array in arrays):
            with array.device:
                array.fill(np.nan)
        settle(devices)
        if turn == 1:
            one.call()
        replay()
        settle(devices)
        one.check()
