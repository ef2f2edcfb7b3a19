"""Matmuls of several ranks with few rows: a collective and a GEMM, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from worlds import (
    arrays_on,
    drawn,
    is_sum_of_matmuls,
    k_major_on,
    poison_buffers,
    poisoned,
    world_of,
)

from tmaasync import Signals, ops

pytestmark = pytest.mark.slow

BF16 = ml_dtypes.bfloat16


def is_gathered_matmul(outputs: list[Any], a: list[Any], b: list[Any]) -> bool:
    whole = np.concatenate(a).astype(np.float64)
    return all(
        np.allclose(out.astype(np.float64), whole @ one.astype(np.float64), rtol=0.01, atol=0.1)
        for out, one in zip(outputs, b, strict=True)
    )


@pytest.mark.parametrize("ranks", [2, 5])
def test_calls_of_different_shapes_follow_each_other(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for call in range(3):  # the third repeats the layouts of the first
            if call % 2 == 0:
                rng = np.random.default_rng(ranks)
            dtype = BF16 if call % 2 else np.float16
            n, depths = int(rng.integers(1, 12)) * 8, rng.integers(1, 20, ranks) * 8
            rows = rng.integers(1, 50, ranks) * (rng.random(ranks) > 0.2)
            if call == 2:
                poison_buffers(world)
            a = [drawn(rng, int(rows.sum()), int(k), dtype) for k in depths]
            b = [drawn(rng, int(k), n, dtype) for k in depths]
            place = arrays_on if call % 2 else k_major_on
            scattered = poisoned(world, [(int(count), n) for count in rows], np.float32)
            reduced = poisoned(world, [(int(rows.sum()), n)] * ranks, dtype)
            left, right = arrays_on(world, a), place(world, b)
            ops.matmul_reduce_scatter(left, right, out=scattered)
            ops.matmul_all_reduce(left, right, out=reduced)
            x = [drawn(rng, int(count), 40, dtype) for count in rows]
            w = [drawn(rng, 40, int(width) * 8, dtype) for width in rng.integers(1, 20, ranks)]
            gathered = ops.all_gather_matmul(arrays_on(world, x), place(world, w))
            calls.append((a, b, scattered, reduced, x, w, gathered))
        world.synchronize()
        for a, b, scattered, reduced, x, w, gathered in calls:
            assert is_sum_of_matmuls(np.concatenate(scattered), a, b)
            assert is_sum_of_matmuls(np.ascontiguousarray(reduced[0]), a, b)
            for one in reduced[1:]:
                assert np.array_equal(one, reduced[0])
            assert is_gathered_matmul(gathered, x, w)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 9), (255, 8)])
def test_least_and_odd_extents(m: int, n: int) -> None:
    rng = np.random.default_rng(m)
    with world_of(2) as world:
        a, b = [drawn(rng, m, 24) for _ in range(2)], [drawn(rng, n, 24).T for _ in range(2)]
        left, right = arrays_on(world, a), k_major_on(world, b)
        scattered = ops.matmul_reduce_scatter(left, right)
        reduced = ops.matmul_all_reduce(left, right)
        world.synchronize()
        assert is_sum_of_matmuls(np.concatenate(scattered), a, b)
        assert is_sum_of_matmuls(np.ascontiguousarray(reduced[1]), a, b)


@pytest.mark.parametrize("seed", range(2))
def test_calls_of_few_and_many_rows_follow_each_other(seed: int) -> None:
    """Overlapping kernels may store into a buffer a round ahead of its rank."""
    rng, streams = np.random.default_rng(seed), (None, ["first", "second"])[seed]
    with world_of(2, seed=seed) as world:
        calls = []
        for are_many in (False, True, True, False, False, True):
            rows, k = ((300, 20), 40) if are_many else ((100, 20), 104)
            x = [drawn(rng, count, k) for count in rows]
            w = [drawn(rng, x[0].shape[1], 64) for _ in rows]
            given = arrays_on(world, x), arrays_on(world, w)
            calls.append((ops.all_gather_matmul(*given, streams=streams), x, w))
        world.synchronize()
        for one in calls:
            assert is_gathered_matmul(*one)


def test_a_matmul_and_a_copy_in_one_stream_are_in_order() -> None:
    rng = np.random.default_rng()
    with world_of(1) as world:
        a, b = drawn(rng, 120, 40), drawn(rng, 40, 64)
        signals = Signals([world[0].array(np.zeros(1, np.uint32))])
        out, copies = (poisoned(world, [(120, 64)], BF16)[0] for _ in range(2))
        ops.matmul(world[0].array(a), world[0].array(b), out=out, stream="both")
        signals.stream_copy(0, copies, out, stream="both")
        world.synchronize()
        assert is_sum_of_matmuls(copies, [a], [b])
