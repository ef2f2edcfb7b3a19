"""ops.matmul_reduce_scatter and ops.matmul_all_reduce on emulated devices, with races searched."""

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

BF16 = ml_dtypes.bfloat16
SCATTER, REDUCE = ops.matmul_reduce_scatter, ops.matmul_all_reduce

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("overlapped")]
each = pytest.mark.parametrize("call", [SCATTER, REDUCE], ids=["scatter", "all"])


def check(call: Any, outputs: list[Any], a: list[Any], b: list[Any]) -> None:
    """Compare with float64; after an all-reduce all ranks have the same bits."""
    if call is SCATTER:
        assert is_sum_of_matmuls(np.concatenate(outputs), a, b)
        return
    first = np.ascontiguousarray(outputs[0])
    assert is_sum_of_matmuls(first, a, b)
    for one in outputs[1:]:
        assert np.ascontiguousarray(one).tobytes() == first.tobytes()


def out_shapes(call: Any, rows: Any, n: int) -> list[tuple[int, int]]:
    """Return the shapes of the outputs, of all rows or of each rank's."""
    return [(int(rows.sum()) if call is REDUCE else int(count), n) for count in rows]


def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide shards into steps as a shape of many waves does."""
    monkeypatch.setattr(
        _matmul_reduce, "all_reduce_step_rows", lambda _, config, __: config.cluster_rows
    )


@each
@pytest.mark.parametrize("ranks", [2, 3])
def test_calls_of_different_shapes_follow_each_other(call: Any, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for number in range(4):
            if number == 3:
                poison_buffers(world)
            dtype = BF16 if number % 2 else np.float16
            n, depths = int(rng.integers(1, 12)) * 8, rng.integers(1, 20, ranks) * 8
            rows = rng.integers(1, 200 // ranks, ranks) * (rng.random(ranks) > 0.15)
            a = [drawn(rng, int(rows.sum()), int(k), dtype) for k in depths]
            b = [drawn(rng, int(k), n, dtype) for k in depths]
            kind = np.float32 if number == 2 else dtype
            out = poisoned(world, out_shapes(call, rows, n), kind)
            given = (k_major_on if number < 2 else arrays_on)(world, b)
            returned = call(arrays_on(world, a), given, out=out)
            assert all(one is two for one, two in zip(returned, out, strict=True))
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(call, *one)


@pytest.mark.parametrize(
    ("call", "seed"),
    [*zip([SCATTER, REDUCE, REDUCE, SCATTER], FEW_SEEDS["reduce-scatter"], strict=True)],
    ids=["scatter-10", "all-11", "all-12", "scatter-13"],
)
def test_random_worlds_shapes_tile_configs_and_orders(
    monkeypatch: pytest.MonkeyPatch, call: Any, seed: int
) -> None:
    """With an odd seed the third call uses the memory of the first, and a rank has no rows."""
    if seed % 2:
        few_rows_at_once(monkeypatch)
    with random_world(seed) as (world, rng):
        ranks, calls = len(world), []
        for number in range(3):
            if number == 0 or seed % 2 == 0:
                rows = rng.integers(0, 130, ranks) * (rng.random(ranks) > 0.2)
                n, depths = int(rng.integers(1, 16)) * 8, rng.integers(1, 150, ranks)
                rows[seed % ranks] *= 1 - seed % 2
            a = [drawn(rng, int(rows.sum()), int(k)) for k in depths]
            b = [drawn(rng, int(k), n) for k in depths]
            out = poisoned(world, out_shapes(call, rows, n), BF16)
            call(arrays_on(world, a), arrays_on(world, b), out=out)
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(call, *one)


@pytest.mark.parametrize(("call", "ranks", "m"), [(SCATTER, 2, 600), (REDUCE, 2, 500)])
def test_several_tiles_per_cluster_and_bit_equal_repeats(
    monkeypatch: pytest.MonkeyPatch, call: Any, ranks: int, m: int
) -> None:
    """An all-reduce pushes finished rows while later ones are multiplied."""
    few_rows_at_once(monkeypatch)
    rng = np.random.default_rng(7)
    with world_of(ranks) as world:
        a = [drawn(rng, m, 16) for _ in range(ranks)]
        b = [drawn(rng, 96, 16).T for _ in range(ranks)]
        left, right = arrays_on(world, a), k_major_on(world, b)
        with tile_configs(lambda chosen: type(chosen)(consumers=1, block_n=16, group_m=4)):
            first, again = (call(left, right) for _ in range(2))
            world.synchronize()
        check(call, first, a, b)
        for one, two in zip(first, again, strict=True):
            assert np.array_equal(one.view(np.uint16), two.view(np.uint16))


def test_rows_are_divided_evenly_by_default() -> None:
    with world_of(3) as world:
        a, b = [np.ones((8, 16), BF16)] * 3, [np.ones((16, 8), BF16)] * 3
        out = SCATTER(arrays_on(world, a), arrays_on(world, b))
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
        out = SCATTER(ops.all_gather_matmul(left, first), second)
        world.synchronize()
        hidden = [np.concatenate(x).astype(np.float32) @ one.astype(np.float32) for one in up]
        check(SCATTER, out, [one.astype(BF16) for one in hidden], down)


def test_operations_share_the_memory_of_ranks() -> None:
    rng = np.random.default_rng(9)
    with world_of(2) as world:
        a, b = [drawn(rng, 150, 64) for _ in range(2)], [drawn(rng, 64, 64) for _ in range(2)]
        left, right = arrays_on(world, a), arrays_on(world, b)
        for _ in range(2):
            reduced, scattered = REDUCE(left, right), SCATTER(left, right)
            gathered = ops.all_gather_matmul(left, right)
        world.synchronize()
        check(REDUCE, reduced, a, b)
        check(SCATTER, scattered, a, b)
        assert np.allclose(gathered[1][150:].astype("f4"), a[1].astype("f4") @ b[1].astype("f4"),
                           rtol=0.02, atol=0.2)  # fmt: skip


def test_an_output_is_the_next_calls_operand() -> None:
    with world_of(3) as world:
        left = arrays_on(world, [np.ones((100, 64), BF16)] * 3)
        right = arrays_on(world, [np.full((64, 64), 2.0**-6, BF16)] * 3)
        for _ in range(3):
            left = REDUCE(left, right)
        world.synchronize()
        assert all((one == 27).all() for one in left)


@each
@pytest.mark.parametrize(
    ("ranks", "m", "k", "n"),
    [
        *((3, 0, 64, 64), (3, 3, 0, 8), (3, 3, 8, 0), (3, 1, 1, 1), (3, 2, 40, 24), (3, 64, 9, 40)),
        (8, 300, 9, 40),
    ],
)
def test_empty_and_least_extents_and_most_ranks(
    call: Any, ranks: int, m: int, k: int, n: int
) -> None:
    """With 64 rows or fewer, one rank owns all rows of an all-reduce."""
    rng = np.random.default_rng(m)
    with world_of(ranks) as world:
        a, b = [drawn(rng, m, k) for _ in range(ranks)], [drawn(rng, k, n) for _ in range(ranks)]
        out = call(arrays_on(world, a), arrays_on(world, b))
        world.synchronize()
        check(call, out, a, b)


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
        out = REDUCE(left, right, out=out)
        world.synchronize()
        check(REDUCE, out, a, b)
        if form == "wide outputs":
            assert np.isnan(wide[0][:, :32].astype("f4")).all()
            assert np.isnan(wide[1][135:].astype("f4")).all()


def refused(world: World, call: Any, said: str, a: list[Any], b: list[Any], **more: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        call(arrays_on(world, a), arrays_on(world, b), **more)
    assert not world._queue


@each
def test_wrong_operands_are_named_with_their_rule_and_remedy(call: Any) -> None:
    a, b = np.ones((4, 16), BF16), np.ones((16, 8), BF16)
    with world_of(2) as world:
        for said, left, right in (
            (r"a\[1\] is of shape \(3, 16\); a\[0\] has 4 rows", a[:3], b),
            (r"b\[1\] is of shape \(8, 8\); a\[1\] has 16 columns", a, b[:8]),
            (r"b\[1\] is of shape \(16, 4\); .* b\[0\] 8", a, b[:, :4]),
            (r"a\[1\] is of shape \(4, 0\); a rank whose K is 0", a[:, :0], b[:0]),
            (r"(?s)a\[1\] is an array of float16.*b\[1\] is of shape", a.astype("f2"), b[:8]),
        ):
            refused(world, call, said, [a, left], [b, right])
        refused(world, call, r"streams is \[1\]; a has 2 arrays", [a, a], [b, b], streams=[1])


def test_wrong_outputs_are_named_with_their_rule_and_remedy() -> None:
    a, b = [np.ones((4, 16), BF16)] * 2, [np.ones((16, 8), BF16)] * 2
    with world_of(2) as world:
        for call, said, shape, kind in (
            (SCATTER, r"out\[0\] is bfloat16 of shape \(2, 7\)", (2, 7), BF16),
            (SCATTER, r"out is of \[3, 3\] rows; they divide the 4 rows", (3, 8), BF16),
            (SCATTER, r"out\[0\] is of shape \(8,\)", (8,), BF16),
            (REDUCE, r"out\[0\] is bfloat16 of shape \(2, 8\); .*\(4, 8\)", (2, 8), BF16),
            (REDUCE, r"out\[1\] is an array of float16; out\[0\] holds bfloat16", (4, 8), "f2"),
        ):
            first = np.ones(shape, BF16)
            out = arrays_on(world, [first, first.astype(kind)])
            refused(world, call, said, a, b, out=out)
        odd = arrays_on(world, [np.ones((4, 7), BF16)] * 2)
        refused(world, REDUCE, r"out\[0\] is of shape \(4, 7\).*multiples of 16", a,
                [one[:, :7] for one in b], out=odd)  # fmt: skip
