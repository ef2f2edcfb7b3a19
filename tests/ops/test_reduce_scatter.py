"""ops.matmul_reduce_scatter on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from worlds import (
    FEW_SEEDS,
    arrays_on,
    drawn,
    is_sum_of_matmuls,
    k_major_on,
    poison_buffers,
    poisoned,
    random_world,
    world_of,
)

from tmaasync import ArgumentError, ops
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs

pytestmark = pytest.mark.slow

BF16 = ml_dtypes.bfloat16


def check(outputs: list[Any], a: list[Any], b: list[Any]) -> None:
    assert is_sum_of_matmuls(np.concatenate(outputs), a, b)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_calls_of_different_shapes_follow_each_other(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for call in range(4):
            if call == 3:
                poison_buffers(world)
            dtype = BF16 if call % 2 else np.float16
            n, depths = int(rng.integers(1, 12)) * 8, rng.integers(1, 20, ranks) * 8
            rows = rng.integers(1, max(70, 300 // ranks), ranks) * (rng.random(ranks) > 0.15)
            m = int(rows.sum())
            a = [drawn(rng, m, int(k), dtype) for k in depths]
            b = [drawn(rng, int(k), n, dtype) for k in depths]
            shapes = [(int(count), n) for count in rows]
            out = poisoned(world, shapes, np.float32 if call == 2 else dtype)
            given = (k_major_on if call < 2 else arrays_on)(world, b)
            returned = ops.matmul_reduce_scatter(arrays_on(world, a), given, out=out)
            assert all(one is two for one, two in zip(returned, out, strict=True))
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(*one)


@pytest.mark.parametrize("seed", FEW_SEEDS["reduce-scatter"])
def test_random_worlds_shapes_tile_configs_and_orders(seed: int) -> None:
    with random_world(seed) as (world, rng):
        ranks = len(world)
        calls = []
        for _ in range(3):  # the third uses the memory of the first
            rows = rng.integers(0, 260, ranks) * (rng.random(ranks) > 0.2)
            n, depths = int(rng.integers(1, 25)) * 8, rng.integers(1, 200, ranks)
            m = int(rows.sum())
            a = [drawn(rng, m, int(k)) for k in depths]
            b = [drawn(rng, int(k), n) for k in depths]
            out = poisoned(world, [(int(count), n) for count in rows], BF16)
            ops.matmul_reduce_scatter(arrays_on(world, a), arrays_on(world, b), out=out)
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(*one)


def test_several_tiles_per_cluster_and_bit_equal_repeats() -> None:
    rng = np.random.default_rng(7)
    with world_of(3) as world:
        a = [drawn(rng, 900, 64) for _ in range(3)]
        b = [drawn(rng, 96, 64).T for _ in range(3)]
        left, right = arrays_on(world, a), k_major_on(world, b)
        with tile_configs(lambda chosen: type(chosen)(consumers=1, block_n=16, group_m=4)):
            first, again = (ops.matmul_reduce_scatter(left, right) for _ in range(2))
            world.synchronize()
        check(first, a, b)
        for one, two in zip(first, again, strict=True):
            assert np.array_equal(one.view(np.uint16), two.view(np.uint16))


def test_rows_are_divided_evenly_by_default() -> None:
    with world_of(3) as world:
        a, b = [np.ones((8, 16), BF16)] * 3, [np.ones((16, 8), BF16)] * 3
        out = ops.matmul_reduce_scatter(arrays_on(world, a), arrays_on(world, b))
        world.synchronize()
        assert [one.shape for one in out] == [(3, 8), (3, 8), (2, 8)]
        assert all((one == 48).all() for one in out)


def test_a_tensor_parallel_mlp_without_a_wait_of_the_host() -> None:
    """Column-parallel, then row-parallel: the output of one is the operand of the other."""
    rng = np.random.default_rng(8)
    with world_of(2) as world:
        x = [rng.integers(-2, 3, (40, 64)).astype(BF16) for _ in range(2)]
        up = [rng.integers(-1, 2, (64, 32)).astype(BF16) for _ in range(2)]
        down = [rng.integers(-1, 2, (32, 64)).astype(BF16) for _ in range(2)]
        left, first, second = (arrays_on(world, one) for one in (x, up, down))
        out = ops.matmul_reduce_scatter(ops.all_gather_matmul(left, first), second)
        world.synchronize()
        hidden = [np.concatenate(x).astype(np.float32) @ one.astype(np.float32) for one in up]
        check(out, [one.astype(BF16) for one in hidden], down)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 64, 64), (3, 0, 8), (3, 8, 0), (1, 1, 1)])
def test_empty_and_least_extents(m: int, k: int, n: int) -> None:
    with world_of(2) as world:
        a, b = [np.ones((m, k), BF16)] * 2, [np.ones((k, n), BF16)] * 2
        out = ops.matmul_reduce_scatter(arrays_on(world, a), arrays_on(world, b))
        world.synchronize()
        check(out, a, b)


def refused(world: World, said: str, a: list[Any], b: list[Any], **more: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        ops.matmul_reduce_scatter(arrays_on(world, a), arrays_on(world, b), **more)
    assert not world._queue


def test_a_wrong_argument_is_named_with_its_rule_and_remedy() -> None:
    a, b = np.ones((4, 16), BF16), np.ones((16, 8), BF16)
    with world_of(2) as world:
        refused(world, r"a\[1\] is of shape \(3, 16\); a\[0\] has 4 rows", [a, a[:3]], [b, b])
        refused(world, r"b\[1\] is of shape \(8, 8\); a\[1\] has 16 columns", [a, a], [b, b[:8]])
        refused(world, r"b\[1\] is of shape \(16, 4\); .* b\[0\] 8", [a, a], [b, b[:, :4]])
        refused(world, r"a\[1\] is of shape \(4, 0\); a rank whose K is 0", [a, a[:, :0]],
                [b, b[:0]])  # fmt: skip
        refused(world, r"(?s)a\[1\] is an array of float16.*b\[1\] is of shape",
                [a, a.astype("f2")], [b, b[:8]])  # fmt: skip
        narrow = arrays_on(world, [np.ones((2, 7), BF16)] * 2)
        refused(world, r"out\[0\] is bfloat16 of shape \(2, 7\)", [a, a], [b, b], out=narrow)
        long = arrays_on(world, [np.ones((3, 8), BF16)] * 2)
        refused(world, r"out is of \[3, 3\] rows; they divide the 4 rows", [a, a], [b, b], out=long)
        flat = arrays_on(world, [np.ones(8, BF16)] * 2)
        refused(world, r"out\[0\] is of shape \(8,\)", [a, a], [b, b], out=flat)
