"""ops.matmul_all_reduce on emulated devices, with races searched."""

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
from tmaasync.ops import _matmul_reduce
from tmaasync.ops._operation import tile_configs

pytestmark = pytest.mark.slow

BF16 = ml_dtypes.bfloat16


def check(outputs: list[Any], a: list[Any], b: list[Any]) -> None:
    """All ranks have the same bits."""
    first = np.ascontiguousarray(outputs[0])
    assert is_sum_of_matmuls(first, a, b)
    for one in outputs[1:]:
        assert np.ascontiguousarray(one).tobytes() == first.tobytes()


def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide shards into steps as a shape of many waves does."""
    monkeypatch.setattr(
        _matmul_reduce, "all_reduce_step_rows", lambda _, config, __: config.cluster_rows
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_calls_of_different_shapes_follow_each_other(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for call in range(4):
            if call == 3:
                poison_buffers(world)
            dtype = BF16 if call % 2 else np.float16
            m, n = int(rng.integers(1, 300)), int(rng.integers(1, 12)) * 8
            depths = rng.integers(1, 20, ranks) * 8
            a = [drawn(rng, m, int(k), dtype) for k in depths]
            b = [drawn(rng, int(k), n, dtype) for k in depths]
            out = poisoned(world, [(m, n)] * ranks, np.float32 if call == 2 else dtype)
            given = (k_major_on if call < 2 else arrays_on)(world, b)
            returned = ops.matmul_all_reduce(arrays_on(world, a), given, out=out)
            assert all(one is two for one, two in zip(returned, out, strict=True))
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(*one)


@pytest.mark.parametrize("seed", FEW_SEEDS["reduce-scatter"])
def test_random_worlds_shapes_tile_configs_and_orders(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    if seed % 2:
        few_rows_at_once(monkeypatch)
    with random_world(seed) as (world, rng):
        calls = []
        for _ in range(3):  # the third uses the memory of the first
            m, n = int(rng.integers(1, 600)), int(rng.integers(1, 25)) * 8
            depths = rng.integers(1, 200, len(world))
            a = [drawn(rng, m, int(k)) for k in depths]
            b = [drawn(rng, int(k), n) for k in depths]
            out = poisoned(world, [(m, n)] * len(world), BF16)
            ops.matmul_all_reduce(arrays_on(world, a), arrays_on(world, b), out=out)
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(*one)


@pytest.mark.parametrize("ranks", [2, 3])
def test_finished_rows_are_pushed_while_later_ones_are_multiplied(
    monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """A rank adds up its rows in several steps; repeats have the same bits."""
    few_rows_at_once(monkeypatch)
    rng = np.random.default_rng(7)
    with world_of(ranks) as world:
        a = [drawn(rng, 500, 16) for _ in range(ranks)]
        b = [drawn(rng, 40, 16).T for _ in range(ranks)]
        left, right = arrays_on(world, a), k_major_on(world, b)
        with tile_configs(lambda chosen: type(chosen)(consumers=1, block_n=16, group_m=4)):
            first, again = (ops.matmul_all_reduce(left, right) for _ in range(2))
            world.synchronize()
        check([*first, *again], a, b)


def test_operations_share_the_memory_of_ranks() -> None:
    rng = np.random.default_rng(9)
    with world_of(2) as world:
        a, b = [drawn(rng, 150, 64) for _ in range(2)], [drawn(rng, 64, 64) for _ in range(2)]
        left, right = arrays_on(world, a), arrays_on(world, b)
        for _ in range(2):
            reduced = ops.matmul_all_reduce(left, right)
            scattered = ops.matmul_reduce_scatter(left, right)
            gathered = ops.all_gather_matmul(left, right)
        world.synchronize()
        check(reduced, a, b)
        assert np.allclose(np.concatenate(scattered).astype("f4"), reduced[0].astype("f4"),
                           rtol=0.02, atol=0.2)  # fmt: skip
        assert np.allclose(gathered[1][150:].astype("f4"), a[1].astype("f4") @ b[1].astype("f4"),
                           rtol=0.02, atol=0.2)  # fmt: skip


def test_an_output_is_the_next_calls_operand() -> None:
    with world_of(3) as world:
        left = arrays_on(world, [np.ones((100, 64), BF16)] * 3)
        right = arrays_on(world, [np.full((64, 64), 2.0**-6, BF16)] * 3)
        for _ in range(3):
            left = ops.matmul_all_reduce(left, right)
        world.synchronize()
        assert all((one == 27).all() for one in left)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(0, 64, 64), (3, 0, 8), (3, 8, 0), (1, 1, 1), (2, 40, 24), (64, 9, 40)]
)
def test_empty_and_least_extents(m: int, k: int, n: int) -> None:
    """With 64 rows or fewer, one rank owns all rows."""
    rng = np.random.default_rng(m)
    with world_of(3) as world:
        a, b = [drawn(rng, m, k) for _ in range(3)], [drawn(rng, k, n) for _ in range(3)]
        out = ops.matmul_all_reduce(arrays_on(world, a), arrays_on(world, b))
        world.synchronize()
        check(out, a, b)


@pytest.mark.parametrize("form", ["transposed a", "odd depth", "strided b", "wide outputs"])
def test_layouts_that_matmul_takes(form: str) -> None:
    rng = np.random.default_rng(5)
    with world_of(2) as world:
        k = 37 if form == "odd depth" else 96
        a, b = [drawn(rng, 130, k) for _ in range(2)], [drawn(rng, k, 64) for _ in range(2)]
        left, right = arrays_on(world, a), arrays_on(world, b)
        out = None
        if form == "transposed a":
            left = [one.T for one in arrays_on(world, [one.T for one in a])]
        if form == "strided b":
            right = [one[:, ::2] for one in arrays_on(world, [np.repeat(one, 2, 1) for one in b])]
        if form == "wide outputs":
            wide = poisoned(world, [(130, 128), (140, 96)], BF16)
            out = [wide[0][:, 32:96], wide[1][5:135, 16:80]]
        out = ops.matmul_all_reduce(left, right, out=out)
        world.synchronize()
        check(out, a, b)
        if form == "wide outputs":
            assert np.isnan(wide[0][:, :32].astype("f4")).all()
            assert np.isnan(wide[1][135:].astype("f4")).all()


def refused(world: World, said: str, a: list[Any], b: list[Any], **more: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        ops.matmul_all_reduce(arrays_on(world, a), arrays_on(world, b), **more)
    assert not world._queue


def test_a_wrong_argument_is_named_with_its_rule_and_remedy() -> None:
    a, b = np.ones((4, 16), BF16), np.ones((16, 8), BF16)
    with world_of(2) as world:
        refused(world, r"a\[1\] is of shape \(3, 16\); a\[0\] has 4 rows", [a, a[:3]], [b, b])
        refused(world, r"b\[1\] is of shape \(8, 8\); a\[1\] has 16 columns", [a, a], [b, b[:8]])
        refused(world, r"a\[1\] is of shape \(4, 0\); a rank whose K is 0", [a, a[:, :0]],
                [b, b[:0]])  # fmt: skip
        refused(world, r"streams is \[1\]; a has 2 arrays", [a, a], [b, b], streams=[1])
        short = arrays_on(world, [np.ones((2, 8), BF16)] * 2)
        refused(world, r"out\[0\] is bfloat16 of shape \(2, 8\); .*\(4, 8\)", [a, a], [b, b],
                out=short)  # fmt: skip
        mixed = arrays_on(world, [np.ones((4, 8), BF16), np.ones((4, 8), np.float16)])
        refused(world, r"out\[1\] is an array of float16; out\[0\] holds bfloat16", [a, a], [b, b],
                out=mixed)  # fmt: skip
        odd = arrays_on(world, [np.ones((4, 7), BF16)] * 2)
        refused(world, r"out\[0\] is of shape \(4, 7\).*multiples of 16", [a, a],
                [b[:, :7], b[:, :7]], out=odd)  # fmt: skip
