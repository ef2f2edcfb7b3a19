"""ops.reduce_scatter and ops.all_reduce on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from worlds import arrays_on, poisoned, world_of

from tmaasync import ArgumentError, LaunchError, emulate, enable_peer_access, ops

BF16 = ml_dtypes.bfloat16


def check(outputs: list[Any], arrays: list[Any]) -> None:
    """Compare with float64: a sum in float32, rounded once, with the same bits on all ranks."""
    exact = sum(one.astype(np.float64) for one in arrays)
    scale = sum(abs(one.astype(np.float64)) for one in arrays)
    rounding = {2: 2.0**-8 if arrays[0].dtype == BF16 else 2.0**-11, 4: 0}[arrays[0].itemsize]
    for one in outputs:
        assert one.shape == exact.shape
        bound = rounding * abs(exact) + len(arrays) * 2.0**-23 * scale
        assert (abs(one.astype(np.float64) - exact) <= bound).all()
        assert np.array_equal(one, outputs[0])


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(8, marks=pytest.mark.slow)])
def test_every_rank_has_its_rows_or_the_whole_sum(ranks: int) -> None:
    """Also with fewer rows than ranks, and ranks without rows."""
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for dtype, inner in ((np.float32, (40,)), (np.float16, (3, 112)), (BF16, (8,))):
            rows = rng.integers(0, max(24, 200 // ranks), ranks) * (rng.random(ranks) > 0.3)
            arrays = [drawn(rng, (int(rows.sum()), *inner), dtype) for _ in range(ranks)]
            few = [one[: ranks - 1] for one in arrays]
            own = arrays_on(world, arrays)
            scattered = poisoned(world, [(int(count), *inner) for count in rows], dtype)
            reduced = poisoned(world, [arrays[0].shape] * ranks, dtype)
            ops.reduce_scatter(own, out=scattered)
            ops.all_reduce(own, out=reduced)
            small = ops.all_reduce(arrays_on(world, few))
            calls.append((scattered, reduced, small, arrays, few))
        world.synchronize()
        for scattered, reduced, small, arrays, few in calls:
            check([np.concatenate(scattered)], arrays)
            check(reduced, arrays)
            check(small, few)


@pytest.mark.parametrize("shape", [(8,), (4096,), (1, 24), (5, 7, 8), (3, 5, 16), (140, 520)])
def test_contiguous_arrays_of_any_shape(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    with world_of(3) as world:
        arrays = [drawn(rng, shape, np.float16) for _ in range(3)]
        reduced = ops.all_reduce(arrays_on(world, arrays))
        world.synchronize()
        check(reduced, arrays)


def test_in_place_and_repeated() -> None:
    """The sum of one call is the operand of the next, in the same memory."""
    with world_of(3) as world:
        arrays = arrays_on(world, [np.ones((100, 64), BF16)] * 3)
        for _ in range(3):
            assert ops.all_reduce(arrays, out=arrays)[0] is arrays[0]
        halves = ops.reduce_scatter(arrays)
        gathered = ops.all_gather(halves)
        world.synchronize()
        assert all((one == 27).all() for one in arrays)
        assert [one.shape for one in halves] == [(34, 64), (33, 64), (33, 64)]
        assert all((one == 81).all() for one in gathered)


def test_rows_may_lie_apart() -> None:
    with world_of(2) as world:
        wide = arrays_on(world, [np.full((70, 128), rank + 1, np.float32) for rank in range(2)])
        out = arrays_on(world, [np.full((70, 96), np.nan, np.float32)] * 2)
        ops.all_reduce([one[:, :64] for one in wide], out=[one[:, 16:80] for one in out])
        shards = ops.reduce_scatter([one[:, 64:] for one in wide])
        world.synchronize()
        for one in out:
            assert np.isnan(one[:, :16]).all()
            assert np.isnan(one[:, 80:]).all()
            assert (one[:, 16:80] == 3).all()
        assert all((one == 3).all() for one in shards)


def test_equal_calls_give_equal_bits_in_any_order() -> None:
    rng = np.random.default_rng(3)
    arrays = [drawn(rng, (200, 72), np.float32) for _ in range(4)]
    found = set()
    for seed in range(3):
        with world_of(4, seed) as world:
            reduced = ops.all_reduce(arrays_on(world, arrays))
            world.synchronize()
            found |= {np.ascontiguousarray(one).tobytes() for one in reduced}
    in_order = ((arrays[0] + arrays[1]) + arrays[2]) + arrays[3]
    assert found == {in_order.tobytes()}


def test_empty_arrays_launch_nothing() -> None:
    with world_of(2) as world:
        ops.all_reduce(arrays_on(world, [np.ones((0, 8), BF16)] * 2))
        ops.reduce_scatter(arrays_on(world, [np.ones((4, 0), BF16)] * 2))
        assert not world._queue


def test_a_wrong_argument_is_named_with_its_rule_and_remedy() -> None:
    array = np.ones((4, 16), BF16)
    with world_of(2) as world:

        def refused(call: Any, said: str, arrays: list[Any], **more: Any) -> None:
            with pytest.raises(ArgumentError, match=said):
                call(arrays_on(world, arrays), **more)
            assert not world._queue

        for call in (ops.reduce_scatter, ops.all_reduce):
            refused(call, r"arrays\[1\] is bfloat16 of shape \(3, 16\); arrays\[0\] holds",
                    [array, array[:3]])  # fmt: skip
            refused(
                call,
                r"arrays\[0\] is an array of int8; it adds arrays of",
                [array.astype("i1")] * 2,
            )
            refused(call, r"streams is \[1\]; arrays has 2 arrays", [array] * 2, streams=[1])
            refused(call, r"out is 1 arrays; it must be a list of 2", [array] * 2, out=[array])
            own = arrays_on(world, [np.ones((8, 16), BF16)] * 2)
            with pytest.raises(ArgumentError, match=r"out\[0\] is at .*; it overlaps arrays\[0\]"):
                call([one[:4] for one in own], out=[one[2:6] for one in own])
            with pytest.raises(ArgumentError, match=r"out\[0\] is .*a rank has one device"):
                call(own, out=arrays_on(world, [np.ones((8, 16), BF16)] * 2)[::-1])
        refused(
            ops.reduce_scatter, r"arrays\[0\] is of shape \(16,\); it has two dim", [array[0]] * 2
        )
        refused(ops.reduce_scatter, r"arrays\[0\] is at .* multiples of 16", [array[:, :7]] * 2)
        short = arrays_on(world, [array[:1]] * 2)
        refused(ops.reduce_scatter, r"out is of \[1, 1\] rows; they divide the 4", [array] * 2,
                out=short)  # fmt: skip
        refused(ops.all_reduce, r"out\[0\] is bfloat16 of shape \(1, 16\)", [array] * 2, out=short)
        refused(
            ops.all_reduce, r"arrays\[0\] is at .*contiguous multiples of 16", [array[0, :7]] * 2
        )


def test_ranks_without_peer_access_are_named_with_all_devices() -> None:
    with emulate.devices(3) as world:
        arrays = arrays_on(world, [np.ones((4, 16), BF16)] * 3)
        enable_peer_access([0, 1])
        said = r"arrays\[2\] is on device 2; device 0 has no access .*access\(\[0, 1, 2\]\) once"
        with pytest.raises(LaunchError, match=said):
            ops.all_reduce(arrays)


@pytest.mark.parametrize("call", [ops.all_reduce, ops.all_gather])
def test_an_array_in_memory_of_no_device_is_named(call: Any) -> None:
    array = np.ones((4, 16), BF16)
    with world_of(2) as world:
        own = world[0].array(array)
        said = r"^arrays\[1\] is on the host; .*Make the arrays on the devices"
        with pytest.raises(ArgumentError, match=said):
            call([own, array])
        said = r"^arrays\[1\] is on emulated device 0; rank 0 has the same device"
        with pytest.raises(ArgumentError, match=said):
            call([own, own])
        outputs = [device.array(np.ones((8, 16), BF16)) for device in (world[0], world[0])]
        said = r"out\[1\] is on emulated device 0; arrays\[1\] is on emulated device 1"
        with pytest.raises(ArgumentError, match=said):
            call(arrays_on(world, [array, array]), out=outputs)
