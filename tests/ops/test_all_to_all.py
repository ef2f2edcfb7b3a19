"""ops.all_to_all on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from exchange_cases import drawn_counts, drawn_tokens, packed, packed_ends
from worlds import arrays_on, world_of

from tmaasync import ArgumentError, ops
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World

BF16 = ml_dtypes.bfloat16
UNWRITTEN = 55
NUMPY_TRUE: Any = np.True_


def unwritten(world: World, rows: list[int], inner: tuple[int, ...], dtype: Any) -> list[Any]:
    return arrays_on(world, [np.full((count, *inner), UNWRITTEN, dtype) for count in rows])


def dispatched(world: World, tokens: list[Any], counts: Any, room: list[int]) -> list[Any]:
    """Dispatch; return the counts on their devices, the packed rows and their ends."""
    inner, dtype = tokens[0].shape[1:], tokens[0].dtype
    given = arrays_on(world, list(counts))
    out = unwritten(world, room, inner, dtype)
    ends = arrays_on(world, [np.full(counts.shape[1] // len(world), -1, np.int32)] * len(world))
    ops.all_to_all(arrays_on(world, tokens), given, out, ends=ends)
    return [given, out, ends]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("ranks", "policy"), [(1, "random"), (2, "random"), (3, "adversarial")])
def test_rows_go_to_their_experts_and_back(ranks: int, policy: Policy) -> None:
    rng, calls = np.random.default_rng(ranks), []
    cases: list[tuple[Any, tuple[int, ...], int, int]] = [
        (BF16, (3, 112), 2, 40), (np.float32, (40,), 1, 70), (np.int8, (16,), 4, 20)
    ]  # fmt: skip
    with world_of(ranks, ranks, policy) as world:
        for dtype, inner, owned, most in cases:
            counts = drawn_counts(rng, ranks, owned * ranks, max(4, most // ranks))
            tokens = drawn_tokens(rng, counts, inner, dtype)
            wanted = packed(tokens, counts)
            spare = rng.integers(0, 20, ranks)
            room = [len(one) + int(more) for one, more in zip(wanted, spare, strict=True)]
            given, out, ends = dispatched(world, tokens, counts, room)
            back = unwritten(world, list(map(len, tokens)), inner, dtype)
            assert ops.all_to_all(out, given, back, combine=NUMPY_TRUE) == back
            calls.append((out, wanted, ends, packed_ends(counts), back, tokens))
        world.synchronize()
    for out, wanted, ends, wanted_ends, back, tokens in calls:
        for rank in range(ranks):
            count = len(wanted[rank])
            assert np.array_equal(out[rank][:count], wanted[rank])
            assert (out[rank][count:] == UNWRITTEN).all()
            assert np.array_equal(ends[rank], wanted_ends[rank])
            assert np.array_equal(back[rank], tokens[rank])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_calls_of_different_sizes_use_the_same_memory_in_turn(seed: int) -> None:
    rng, ranks = np.random.default_rng(seed), int(2 + seed % 3)
    policies: tuple[Policy, ...] = ("random", "adversarial", "round_robin")
    with world_of(ranks, seed, policies[seed % 3]) as world:
        calls = []
        for _ in range(3):  # the third uses the memory of the first
            owned = int(rng.integers(1, 8))
            counts = drawn_counts(rng, ranks, owned * ranks, int(rng.integers(2, 30 // owned + 4)))
            tokens = drawn_tokens(rng, counts, (int(rng.integers(1, 40)) * 8,), BF16)
            wanted = packed(tokens, counts)
            calls.append((dispatched(world, tokens, counts, list(map(len, wanted))), wanted))
        world.synchronize()
    for (_, out, _), wanted in calls:
        assert all(np.array_equal(one, two) for one, two in zip(out, wanted, strict=True))


def test_the_ends_are_what_a_grouped_matmul_takes() -> None:
    """A mixture of experts: dispatch, the experts' matmul, combine; against float64."""
    rng, ranks, owned, k, n = np.random.default_rng(3), 2, 3, 64, 48
    counts = drawn_counts(rng, ranks, ranks * owned, 20)
    tokens = [rng.standard_normal((int(own.sum()), k)).astype(BF16) for own in counts]
    experts = rng.standard_normal((ranks * owned, k, n)).astype(BF16)
    room = [len(one) for one in packed(tokens, counts)]
    with world_of(ranks) as world:
        _, rows, ends = dispatched(world, tokens, counts, room)
        world.synchronize()
        given = [list(map(np.array, each)) for each in (rows, np.split(experts, ranks), ends)]
    outputs = [ops.grouped_matmul(*each) for each in zip(*given, strict=True)]
    with world_of(ranks) as world:
        out = [np.full((len(one), n), np.nan, BF16) for one in tokens]
        back = ops.all_to_all(
            arrays_on(world, outputs),
            arrays_on(world, list(counts)),
            arrays_on(world, out),
            combine=True,
        )
        world.synchronize()
    for one, own, found in zip(tokens, counts, back, strict=True):
        parts = np.split(one.astype(np.float64), np.cumsum(own)[:-1])
        pairs = zip(parts, experts, strict=True)
        wanted = np.concatenate([part @ matrix.astype(np.float64) for part, matrix in pairs])
        assert np.allclose(found.astype(np.float64), wanted, rtol=2.0**-8, atol=0.05)


def test_rows_may_lie_apart() -> None:
    counts = np.array([[3, 20], [17, 1]], np.int32)
    with world_of(2) as world:
        tokens = [np.full((int(own.sum()), 128), 5 + rank, np.float32)
                  for rank, own in enumerate(counts)]  # fmt: skip
        wide = arrays_on(world, tokens)
        out = arrays_on(world, [np.full((30, 96), np.nan, np.float32)] * 2)
        ops.all_to_all(
            [one[:, :64] for one in wide], arrays_on(world, list(counts)),
            [one[:, 16:80] for one in out],
        )  # fmt: skip
        world.synchronize()
    for one, own in zip(out, counts.T, strict=True):
        assert np.isnan(one[:, :16]).all()
        assert np.isnan(one[:, 80:]).all()
        assert (one[: own[0], 16:80] == 5).all()
        assert (one[own[0] : own.sum(), 16:80] == 6).all()
        assert np.isnan(one[own.sum() :]).all()


def test_rows_without_room_are_dropped() -> None:
    """The third segment of rank 0's expert is cut, and the fourth left out."""
    counts = np.array([[20, 30, 4], [20, 1, 0], [40, 2, 0]], np.int32)
    rng = np.random.default_rng(1)
    tokens = drawn_tokens(rng, counts, (16,), np.float32)
    wanted = packed(tokens, counts)
    with world_of(3) as world:
        room = [50, 30, 0]
        given, out, ends = dispatched(world, tokens, counts, room)
        back = unwritten(world, list(map(len, tokens)), (16,), np.float32)
        ops.all_to_all(out, given, back, combine=True)
        world.synchronize()
    for rank in range(3):
        assert np.array_equal(out[rank], wanted[rank][: room[rank]])
        assert ends[rank][0] == room[rank]
    assert np.array_equal(back[0][:50], tokens[0][:50])
    assert np.array_equal(back[1][:20], tokens[1][:20])
    assert np.array_equal(back[2][:10], tokens[2][:10])
    for one, first in ((back[0], 50), (back[1], 20), (back[2], 10)):
        assert (one[first:] == UNWRITTEN).all()


def test_wrong_counts_reach_no_other_memory() -> None:
    """Negative counts are 0, and a rank's counts end with its rows."""
    counts = np.array([[5, -3, 10, 2**31 - 1], [2**31 - 1] * 4], np.int32)
    used = np.array([[5, 0, 10, 6], [12, 0, 0, 0]])
    rng = np.random.default_rng(2)
    tokens = drawn_tokens(rng, used, (8,), np.float32)
    wanted = packed(tokens, used)
    with world_of(2) as world:
        _, out, ends = dispatched(world, tokens, counts, [40, 40])
        world.synchronize()
    for rank in range(2):
        assert np.array_equal(out[rank][: len(wanted[rank])], wanted[rank])
        assert (out[rank][len(wanted[rank]) :] == UNWRITTEN).all()
        assert np.array_equal(ends[rank], packed_ends(used)[rank])


@pytest.mark.parametrize("room", [[0, 0], [7, 0]])
def test_no_rows(room: list[int]) -> None:
    counts = np.zeros((2, 4), np.int32)
    with world_of(2) as world:
        _, out, ends = dispatched(world, drawn_tokens(np.random.default_rng(), counts, (8,), "f4"),
                                  counts, room)  # fmt: skip
        world.synchronize()
    assert all((one == UNWRITTEN).all() for one in out)
    assert all((one == 0).all() for one in ends)


# --- what is refused --------------------------------------------------------------------------


def test_a_wrong_argument_is_named_with_its_rule_and_remedy() -> None:
    rows, counts, ends = np.ones((4, 16), BF16), np.ones(4, np.int32), np.ones(2, np.int32)
    with world_of(2) as world:

        def refused(said: str, arrays: Any, given: Any, out: Any, **more: Any) -> None:
            placed = (arrays_on(world, one) for one in (arrays, given, out))
            with pytest.raises(ArgumentError, match=said):
                ops.all_to_all(*placed, **more)
            assert not world._queue

        two, numbers = [rows] * 2, [counts] * 2
        refused(r"out\[1\] is bfloat16 of shape \(4, 8\); arrays\[0\] holds", two, numbers,
                [rows, rows[:, :8]])  # fmt: skip
        refused(r"(?s)out\[0\] is float16.*counts\[1\] is int64 of shape \(4,\)", two,
                [counts, counts.astype("i8")], [rows.astype("f2")] * 2)  # fmt: skip
        refused(r"counts\[1\] is int32 of shape \(2,\)", two, [counts, ends], two)
        refused(
            r"counts\[0\].shape is \(3,\); 2 ranks own equally many", two, [counts[:3]] * 2, two
        )
        refused(r"counts\[0\].shape is \(1026,\).*up to 1024", two, [np.ones(1026, np.int32)] * 2,
                two)  # fmt: skip
        refused(r"arrays\[0\] is at .* multiples of 16", [rows[:, :3]] * 2, numbers,
                [rows[:, :3]] * 2)  # fmt: skip
        given = arrays_on(world, [ends] * 2)
        refused(r"ends is a list of arrays; a combine has none", two, numbers, two, ends=given,
                combine=True)  # fmt: skip
        wide = arrays_on(world, numbers)
        refused(r"ends\[0\] is int32 of shape \(4,\)", two, numbers, two, ends=wide)
        own = arrays_on(world, two)
        with pytest.raises(ArgumentError, match=r"out\[0\] is on .*a rank has one device"):
            ops.all_to_all(own, arrays_on(world, numbers), arrays_on(world, two)[::-1])
        with pytest.raises(ArgumentError, match=r"out\[0\] overlaps arrays\[0\]"):
            ops.all_to_all(own, arrays_on(world, numbers), own)


@pytest.mark.parametrize("flag", [None, "yes", 1])
def test_what_is_no_flag_is_refused(flag: Any) -> None:
    with pytest.raises(ArgumentError, match=r"combine is .*; it must be a bool"):
        ops.all_to_all([], [], [], combine=flag)


def test_an_output_that_overlaps_another_array_is_refused() -> None:
    with world_of(2) as world:
        two, numbers = [np.ones((4, 16), BF16)] * 2, [np.ones(4, np.int32)] * 2
        placed = [arrays_on(world, one) for one in (two, numbers, two)]
        firsts = {"counts": placed[1], "out": [one.reshape(-1).view(np.int32) for one in placed[2]]}
        for name, one in firsts.items():
            within = [array[2:4] for array in one]
            with pytest.raises(ArgumentError, match=rf"ends\[0\] overlaps {name}\[0\]"):
                ops.all_to_all(*placed, ends=within)
        over = [one.view(np.int32)[:, :4] for one in placed[2]]
        with pytest.raises(ArgumentError, match=r"out\[0\] overlaps counts\[0\]"):
            ops.all_to_all(placed[0], [one[0] for one in over], placed[2])
        assert not world._queue
