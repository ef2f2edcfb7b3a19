"""ops.all_gather and ops.all_gather_matmul on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from worlds import (
    FEW_SEEDS,
    arrays_on,
    k_major_on,
    poison_buffers,
    poisoned,
    random_world,
    world_of,
)

from tmaasync import ArgumentError, Kernel, _arrays, ops
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs

BF16 = ml_dtypes.bfloat16
COPY = Kernel(
    """
extern "C" __global__ void copy(const float* source, float* target, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) target[i] = source[i];
}
""",
    "copy",
)


def shards(rng: np.random.Generator, ranks: int, k: int, dtype: Any) -> list[Any]:
    """Return uneven shards, some of which may be empty."""
    rows = rng.integers(1, max(70, 300 // ranks), ranks) * (rng.random(ranks) > 0.15)
    return [rng.standard_normal((int(count), k)).astype(dtype) for count in rows]


def check(outputs: list[Any], a: list[Any], b: list[Any]) -> None:
    """Compare with float64, on what a gather would return."""
    whole = np.concatenate(a).astype(np.float64)
    for output, own in zip(outputs, b, strict=True):
        wanted = whole @ own.astype(np.float64)
        bound = 2.0**-8 * np.abs(wanted) + 2.0**-7 * np.sqrt(whole.shape[1])
        assert output.shape == wanted.shape
        assert (np.abs(output.astype(np.float64) - wanted) <= bound).all()


# --- the matmul -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ranks", [2, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 8))]
)
def test_calls_of_different_shapes_follow_each_other(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for call in range(4):
            if call == 3:
                poison_buffers(world)
            dtype = BF16 if call % 2 else np.float16
            k, widths = int(rng.integers(1, 25)) * 8, rng.integers(1, 10, ranks) * 8
            a = shards(rng, ranks, k, dtype)
            b = [rng.standard_normal((k, int(width))).astype(dtype) for width in widths]
            shapes = [(sum(map(len, a)), int(width)) for width in widths]
            out = poisoned(world, shapes, np.float32 if call == 2 else dtype)
            given = (k_major_on if call < 2 else arrays_on)(world, b)
            returned = ops.all_gather_matmul(arrays_on(world, a), given, out=out)
            assert all(one is two for one, two in zip(returned, out, strict=True))
            calls.append((out, a, b))
        world.synchronize()
        for one in calls:
            check(*one)


@pytest.mark.parametrize("form", ["transposed a", "odd rows", "strided b", "one row each"])
def test_layouts_that_matmul_takes(form: str) -> None:
    rng = np.random.default_rng(5)
    with world_of(2) as world:
        k, rows = (37, (50, 61)) if form == "odd rows" else (96, (64, 70))
        if form == "one row each":
            rows = (1, 1)
        a = [rng.standard_normal((count, k)).astype(BF16) for count in rows]
        b = [rng.standard_normal((k, width)).astype(BF16) for width in (33, 64)]
        left = arrays_on(world, a)
        if form == "transposed a":
            left = [one.T for one in arrays_on(world, [one.T for one in a])]
        right = arrays_on(world, b)
        if form == "strided b":
            right = [one[:, ::2] for one in arrays_on(world, [np.repeat(one, 2, 1) for one in b])]
        out = ops.all_gather_matmul(left, right)
        world.synchronize()
        check(out, a, b)


@pytest.mark.slow
@pytest.mark.usefixtures("overlapped")
@pytest.mark.parametrize("seed", FEW_SEEDS["all-gather"])
def test_random_worlds_shapes_tile_configs_and_orders(seed: int) -> None:
    """With an odd seed the third call uses the memory of the first, and a rank has no rows."""
    with random_world(seed) as (world, rng):
        ranks = len(world)
        calls = []
        for call in range(3):
            if call == 0 or seed % 2 == 0:
                rows = rng.integers(0, 180, ranks) * (rng.random(ranks) > 0.2)
                if rng.random() < 0.3:
                    rows = rows // 64 * 64
                k, widths = int(rng.integers(1, 40)) * 8, rng.integers(1, 100, ranks)
                rows[seed % ranks] *= 1 - seed % 2
            a = [rng.standard_normal((int(count), k)).astype(BF16) for count in rows]
            b = [rng.standard_normal((int(width), k)).astype(BF16).T for width in widths]
            right = k_major_on(world, b)
            calls.append((ops.all_gather_matmul(arrays_on(world, a), right), a, b))
        world.synchronize()
        for one in calls:
            check(*one)


@pytest.mark.slow
def test_more_tiles_than_clusters() -> None:
    """A cluster takes several tiles, and the order wraps round after the last row of tiles."""
    rng = np.random.default_rng(7)
    with world_of(2) as world:
        a = [rng.standard_normal((count, 64)).astype(BF16) for count in (900, 1000)]
        b = [rng.standard_normal((96, 64)).astype(BF16).T for _ in range(2)]
        right = k_major_on(world, b)
        with tile_configs(lambda chosen: type(chosen)(consumers=1, block_n=16, group_m=4)):
            out = ops.all_gather_matmul(arrays_on(world, a), right)
        world.synchronize()
        check(out, a, b)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("rows", "consumers"),
    # The second one hung on two H200s (2026-11-28).
    [((39, 89, 134), 1), ((431, 144, 449, 222), 2)],
)
def test_a_shard_that_ends_with_a_tile_is_not_waited_for_by_the_next_tile(
    rows: tuple[int, ...], consumers: int
) -> None:
    """The rank loads its rows from its shard alone: they never arrive in its buffer."""
    rng = np.random.default_rng(9)
    with world_of(len(rows)) as world:
        a = [rng.standard_normal((count, 64)).astype(BF16) for count in rows]
        b = [rng.standard_normal((64, 64)).astype(BF16) for _ in rows]
        with tile_configs(lambda chosen: type(chosen)(consumers=consumers, block_n=64)):
            out = ops.all_gather_matmul(arrays_on(world, a), arrays_on(world, b))
        world.synchronize()
        check(out, a, b)


@pytest.mark.parametrize(("rows", "k", "width"), [((0, 0), 64, 64), ((3, 4), 0, 8), ((3, 4), 8, 0)])
def test_empty_extents(rows: tuple[int, int], k: int, width: int) -> None:
    with world_of(2) as world:
        a = [np.ones((count, k), BF16) for count in rows]
        b = [np.ones((k, width), BF16)] * 2
        out = poisoned(world, [(sum(rows), width)] * 2, BF16)
        ops.all_gather_matmul(arrays_on(world, a), arrays_on(world, b), out=out)
        world.synchronize()
        check(out, a, b)


def test_one_rank_needs_no_world() -> None:
    a, b = np.ones((70, 64), np.float16), np.ones((64, 40), np.float16)

    (out,) = ops.all_gather_matmul([a], [b])

    check([out], [a], [b])


# --- the plain all-gather ---------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_rank_has_all_rows(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for dtype, inner in ((np.float32, (40,)), (np.int8, (3, 112)), (BF16, (4, 72))):
            rows = rng.integers(0, max(70, 300 // ranks), ranks)
            parts = [rng.integers(-99, 99, (int(m), *inner)).astype(dtype) for m in rows]
            shape = (int(rows.sum()), *inner)
            out = arrays_on(world, [np.full(shape, 55, dtype)] * ranks)
            ops.all_gather(arrays_on(world, parts), out=out)
            calls.append((out, parts))
        world.synchronize()
        for out, parts in calls:
            for one in out:
                assert np.array_equal(one, np.concatenate(parts))


def test_rows_may_lie_apart() -> None:
    with world_of(2) as world:
        wide = arrays_on(world, [np.full((70, 128), rank, np.float32) for rank in range(2)])
        out = arrays_on(world, [np.full((140, 96), np.nan, np.float32)] * 2)
        ops.all_gather([one[:, :64] for one in wide], out=[one[:, 16:80] for one in out])
        world.synchronize()
        for one in out:
            assert np.isnan(one[:, :16]).all()
            assert np.isnan(one[:, 80:]).all()
            assert (one[:70, 16:80] == 0).all()
            assert (one[70:, 16:80] == 1).all()


def test_an_output_is_used_again_after_a_kernel_has_read_it() -> None:
    with world_of(2) as world:
        out = arrays_on(world, [np.full((128, 64), np.nan, np.float32)] * 2)
        kept = []
        for number in range(3):
            parts = [np.full((64, 64), 10 * number + rank, np.float32) for rank in range(2)]
            ops.all_gather(arrays_on(world, parts), out=out)
            kept.append(arrays_on(world, [np.empty((128, 64), np.float32)] * 2))
            for one, copied in zip(out, kept[-1], strict=True):
                COPY(1, 32, (one, copied, one.size))
        world.synchronize()
        for number, copies in enumerate(kept):
            for one in copies:
                assert (one[:64] == 10 * number).all()
                assert (one[64:] == 10 * number + 1).all()


# --- what is refused --------------------------------------------------------------------------


def refused(world: World, said: str, a: list[Any], b: list[Any], **more: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        ops.all_gather_matmul(arrays_on(world, a), arrays_on(world, b), **more)
    assert not world._queue


def test_a_wrong_argument_is_named_with_its_rule_and_remedy() -> None:
    a, b = np.ones((4, 16), BF16), np.ones((16, 8), BF16)
    with world_of(2) as world:
        refused(world, r"b\[1\] is of shape \(8, 8\); a has 16 columns", [a, a], [b, b[:8]])
        refused(world, r"a\[1\] is of shape \(4, 8\); a\[0\] has 16 columns", [a, a[:, :8]], [b, b])
        refused(world, r"a\[1\] is an array of float16; all operands hold", [a, a.astype("f2")],
                [b, b])  # fmt: skip
        refused(world, r"(?s)b\[0\] is an array of float32.*b\[1\] is of shape", [a, a],
                [b.astype("f4"), b[:8]])  # fmt: skip
        refused(world, r"a\[0\] is of shape \(4, 1, 16\)", [a[:, None], a], [b, b])
        refused(world, r"b\[1\] is of shape \(16, 0\); a rank without columns", [a, a],
                [b, b[:, :0]])  # fmt: skip
        refused(world, r"out is 1 arrays; it must be a list of 2", [a, a], [b, b], out=[a])
        refused(world, r"streams is \[1\]; a has 2 arrays", [a, a], [b, b], streams=[1])
        narrow = arrays_on(world, [np.ones((8, 7), BF16)] * 2)
        refused(world, r"out\[0\] is bfloat16 of shape \(8, 7\)", [a, a], [b, b], out=narrow)
        odd = [b[:, :7], b[:, :7]]
        refused(world, r"out\[1\] is of shape \(8, 7\).*multiples of 16", [a, a], odd, out=narrow)
        twice = [world[0].array(a), world[0].array(a)]
        with pytest.raises(ArgumentError, match=r"a\[1\] is .*rank 0 has the same device"):
            ops.all_gather_matmul(twice, arrays_on(world, [b, b]))
        with pytest.raises(ArgumentError, match=r"b\[0\] is .*a\[0\] is .*a rank has one device"):
            ops.all_gather_matmul(arrays_on(world, [a, a]), arrays_on(world, [b, b])[::-1])
        own = arrays_on(world, [a, a])
        square = arrays_on(world, [np.ones((16, 16), BF16)] * 2)
        with pytest.raises(ArgumentError, match=r"out\[0\] is at .*; it overlaps an operand"):
            ops.all_gather_matmul([one[:8] for one in square], square, out=square)
        with pytest.raises(ArgumentError, match="it must be a list of 1 to 8 arrays"):
            ops.all_gather_matmul(own * 5, own * 5)


def test_arrays_of_no_device_need_a_world() -> None:
    a, b = np.ones((4, 16), BF16), np.ones((16, 8), BF16)

    with pytest.raises(ArgumentError, match=r"a\[1\] is .*Make the arrays on the devices of emul"):
        ops.all_gather_matmul([a, a], [b, b])


def test_all_gather_refuses_what_tma_cannot_move() -> None:
    with world_of(2) as world:
        for array, said in (
            (np.ones(16, np.float32), r"arrays\[0\] is of shape \(16,\); it has two dim"),
            (np.ones((4, 3), np.float32), r"arrays\[0\] is at .* multiples of 16"),
            (np.ones((4, 8, 16), np.float32)[:, ::2], r"arrays\[0\] is at .*contiguous"),
        ):
            source = arrays_on(world, [np.ones((4, 8, 16), np.float32)] * 2)
            given = [one[:, ::2] for one in source] if array.ndim == 3 else arrays_on(
                world, [array] * 2
            )  # fmt: skip
            with pytest.raises(ArgumentError, match=said):
                ops.all_gather(given)


def test_workspaces_end_with_their_world() -> None:
    with world_of(2) as world:
        ops.all_gather(arrays_on(world, [np.ones((4, 16), BF16)] * 2))
        assert len(world[0].kept) == 1
    with world_of(2) as other:
        assert not other[0].kept
        assert _arrays.view(other[0].array(np.ones(3))).device is None
