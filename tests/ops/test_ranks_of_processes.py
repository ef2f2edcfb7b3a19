"""Operations whose ranks are launched one by one, as by the processes of a group.

Each "process" has its own workspaces, knows the layouts of the other ranks' arrays alone, and
reaches the shared memory of all ranks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import exchange_cases
import numpy as np
import pytest
import ring_cases
from worlds import BF16, arrays_on, drawn, is_sum_of_matmuls, k_major_on, poisoned, world_of

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync.emulate.launch.world import World
from tmaasync.kernel import backend_of
from tmaasync.ops._all_gather import gather_rows
from tmaasync.ops._all_gather_matmul import AllGatherMatmul, gather_and_multiply
from tmaasync.ops._all_to_all import exchange_rows
from tmaasync.ops._flash.gradients import GRADIENTS, INPUTS
from tmaasync.ops._flash.operands import Scores
from tmaasync.ops._matmul_reduce import MatmulAllReduce, MatmulReduceScatter, multiply_and_reduce
from tmaasync.ops._ranks import Ranks, even_shards
from tmaasync.ops._reduce_ranks import reduce_rows
from tmaasync.ops._ring_attention import RingOperands, attend
from tmaasync.ops._ring_attention_backward import differentiate


class Processes:
    """The groups of all ranks: the n-th shared array of each is the same.

    Attributes:
        prepared: The launches that ranks have prepared.
        ready_at: How many they were when the rank that is launched waited for the others.
    """

    def __init__(self, world: World, prepared: list[object]) -> None:
        self.world, self.prepared = world, prepared
        self.ready_at: int | None = None
        self.arrays: list[list[Any]] = []
        self.of = [Process(self, rank) for rank in range(len(world))]

    def ranks(self, rank: int, own: ArrayView) -> Ranks:
        memory = backend_of(None).memory_of(own)
        return Ranks((memory,) * len(self.world), (), self.of[rank])


class Process:
    stream = None  # the default one of each device

    def __init__(self, processes: Processes, rank: int) -> None:
        self.processes, self.rank = processes, rank
        self.kept: dict[Hashable, Any] = {}
        self.shared_arrays = 0

    def shared(self, shape: tuple[int, ...], kind: str) -> list[ArrayView]:
        arrays, number = self.processes.arrays, self.shared_arrays
        self.shared_arrays += 1
        if number == len(arrays):
            arrays.append([device.array(np.zeros(shape, kind)) for device in self.processes.world])
        assert [one.shape for one in arrays[number]] == [shape] * len(self.processes.world)
        return [_arrays.view(one) for one in arrays[number]]

    def ready(self) -> None:
        if self.processes.ready_at is None:
            self.processes.ready_at = len(self.processes.prepared)


def alone(rank: int, arrays: Sequence[Any]) -> list[ArrayView]:
    """Return the views that a process has: its own array, and layouts of the others."""
    own = _arrays.view(arrays[rank])
    return [
        own if one == rank else own._replace(shape=array.shape, strides_bytes=array.strides)
        for one, array in enumerate(arrays)
    ]


def views(arrays: Sequence[Any]) -> list[ArrayView]:
    return [_arrays.view(one) for one in arrays]


def launch(processes: Processes, arrays: Sequence[Any], call: Callable[[int, Ranks], Any]) -> None:
    """Launch each rank; the last one first, since no rank may depend on the host's order.

    All ranks wait for one another once. Nothing is compiled after that: a kernel of another rank
    may wait already.
    """
    for rank in reversed(range(len(arrays))):
        processes.ready_at = None
        call(rank, processes.ranks(rank, _arrays.view(arrays[rank])))
        assert processes.ready_at == len(processes.prepared)


def launch_matmul(
    processes: Processes,
    call: Callable[..., Any],
    a: Sequence[Any],
    b: Sequence[Any],
    out: Sequence[Any],
    *,
    reaches_all: bool = False,
) -> None:
    def launch_rank(rank: int, ranks: Ranks) -> None:
        outs = views(out) if reaches_all else alone(rank, out)
        call(ranks, (alone(rank, a), alone(rank, b)), outs, is_new=False)

    launch(processes, a, launch_rank)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("rows", [(150, 129, 180), (20, 9, 0)], ids=["overlapped", "in turn"])
def test_matmuls(prepared: list[object], ranks: int, rows: tuple[int, ...]) -> None:
    rng, counts = np.random.default_rng(ranks), rows[:ranks]
    counts_of_prepared = []
    with world_of(ranks, seed=ranks) as world:
        processes = Processes(world, prepared)
        for _ in range(2):
            x = [drawn(rng, count, 72) for count in counts]
            w = [drawn(rng, 72, 24 + 8 * rank) for rank in range(ranks)]
            a, b = arrays_on(world, x), k_major_on(world, w)
            out = poisoned(world, [(sum(counts), one.shape[1]) for one in w], BF16)
            gather = functools.partial(gather_and_multiply, AllGatherMatmul)
            launch_matmul(processes, gather, a, b, out)
            left = [drawn(rng, sum(counts), 16 + 8 * rank) for rank in range(ranks)]
            right = [drawn(rng, one.shape[1], 40) for one in left]
            c, d = arrays_on(world, left), k_major_on(world, right)
            scattered = poisoned(world, [(count, 40) for count in counts], BF16)
            reduced = poisoned(world, [(sum(counts), 40)] * ranks, BF16)
            scatter = functools.partial(multiply_and_reduce, MatmulReduceScatter)
            launch_matmul(processes, scatter, c, d, scattered)
            reduce = functools.partial(multiply_and_reduce, MatmulAllReduce)
            launch_matmul(processes, reduce, c, d, reduced, reaches_all=True)
            world.synchronize()
            for found, own in zip(out, w, strict=True):
                assert is_sum_of_matmuls(found, [np.concatenate(x)], [own])
            assert is_sum_of_matmuls(np.concatenate(scattered), left, right)
            assert is_sum_of_matmuls(reduced[0], left, right)
            assert all(np.array_equal(one, reduced[0]) for one in reduced)
            counts_of_prepared.append(len(prepared))
        assert counts_of_prepared[0] == counts_of_prepared[1] > 0  # launches are prepared once


@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives(prepared: list[object], ranks: int) -> None:
    rng, counts = np.random.default_rng(ranks), (20, 9, 0)[:ranks]
    total = sum(counts)
    with world_of(ranks, seed=ranks) as world:
        processes = Processes(world, prepared)
        parts = [drawn(rng, count, 40) for count in counts]
        a, full = arrays_on(world, parts), poisoned(world, [(total, 40)] * ranks, BF16)
        launch(processes, a, lambda rank, of: gather_rows(of, alone(rank, a), views(full)))
        terms = [rng.integers(-9, 9, (total, 40)).astype(np.float32) for _ in range(ranks)]
        b, c = arrays_on(world, terms), arrays_on(world, terms)
        scattered = poisoned(world, [(count, 40) for count in counts], np.float32)
        launch(
            processes,
            b,
            lambda rank, of: reduce_rows(
                of, views(b), alone(rank, scattered), counts, all_reduce=False
            ),
        )
        shards = tuple(even_shards(total, ranks))
        launch(
            processes,
            c,
            lambda rank, of: reduce_rows(of, views(c), views(c), shards, all_reduce=True),
        )
        world.synchronize()
        assert all(np.array_equal(one, np.concatenate(parts)) for one in full)
        assert np.array_equal(np.concatenate(scattered), sum(terms))
        assert all(np.array_equal(one, sum(terms)) for one in c)


def attend_rank(rank: int, ranks: Ranks, arrays: Sequence[Any], scores: Scores) -> None:
    *operands, out, lse = ([_arrays.view(one[rank])] * len(ranks) for one in arrays)
    each = RingOperands(*operands)
    attend(ranks, each, each.sizes(scores.right == 0), scores, out, lse)


def differentiate_rank(rank: int, ranks: Ranks, arrays: Sequence[Any], scores: Scores) -> None:
    lists = ([_arrays.view(one[rank])] * len(ranks) for one in arrays)
    every = dict(zip((*INPUTS, *GRADIENTS), lists, strict=True))
    sizes = RingOperands(every["q"], every["k"], every["v"]).sizes(scores.right == 0)
    differentiate(ranks, sizes, scores._replace(right=None), every, deterministic=False)


@pytest.mark.parametrize("causal", [False, True])
def test_ring_attention(prepared: list[object], causal: bool) -> None:
    ranks, length, heads = 2, 40, 2
    rng, scores = np.random.default_rng(5), Scores.of(64, causal, None, None, None)
    with world_of(ranks, seed=3) as world:
        processes = Processes(world, prepared)
        for _ in range(2):
            whole = ring_cases.drawn(rng, 1, ranks * length, heads, 1, 64, BF16)
            dout = rng.standard_normal(whole[0].shape).astype(BF16)
            q, k, v, grad = (
                arrays_on(world, ring_cases.shards(one, ranks, causal=causal))
                for one in (*whole, dout)
            )
            out, *grads = (poisoned(world, [one[0].shape] * ranks, BF16) for one in (q, q, k, v))
            lse = poisoned(world, [(1, heads, length)] * ranks, np.float32)
            forward, backward = (q, k, v, out, lse), (grad, q, k, v, out, lse, *grads)
            launch(processes, q, functools.partial(attend_rank, arrays=forward, scores=scores))
            differentiates = functools.partial(differentiate_rank, arrays=backward, scores=scores)
            launch(processes, q, differentiates)
            world.synchronize()
            ring_cases.check(out, whole, causal=causal, lse=lse)
            ring_cases.check_gradients(grads, dout, whole, causal=causal)


@pytest.mark.parametrize("counts", [[[9, 20, 0, 3], [1, 0, 17, 4]], [[9, 30], [0, 0]]])
def test_all_to_all(prepared: list[object], counts: list[list[int]]) -> None:
    """Dispatch and combine; in the second case a rank has no tokens."""
    rng, ranks, every = np.random.default_rng(2), len(counts), np.array(counts, np.int32)
    room, rows = 60, [sum(one) for one in counts]
    with world_of(ranks, seed=4) as world:
        processes = Processes(world, prepared)
        given = arrays_on(world, list(every))
        ends = arrays_on(world, [np.full(every.shape[1] // ranks, -1, np.int32)] * ranks)
        for _ in range(2):
            tokens = exchange_cases.drawn_tokens(rng, every, (40,), np.float32)
            sent, packed = (
                arrays_on(world, tokens),
                poisoned(world, [(room, 40)] * ranks, np.float32),
            )
            returned = poisoned(world, [(count, 40) for count in rows], np.float32)

            def exchange(combine: bool, a: Any, out: Any, rank: int, of: Ranks) -> None:
                own = [_arrays.view(given[rank])] * ranks
                written = [] if combine else [_arrays.view(ends[rank])] * ranks
                exchange_rows(of, alone(rank, a), own, views(out), written, combine=combine)

            launch(processes, sent, functools.partial(exchange, False, sent, packed))
            launch(processes, packed, functools.partial(exchange, True, packed, returned))
            world.synchronize()
            for rank, wanted in enumerate(exchange_cases.packed(tokens, every)):
                assert np.array_equal(packed[rank][: len(wanted)], wanted)
                assert np.array_equal(ends[rank], exchange_cases.packed_ends(every)[rank])
                assert np.array_equal(returned[rank], tokens[rank])
