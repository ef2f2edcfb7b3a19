"""ops.ring_attention on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ring_cases import check, drawn, shards
from worlds import arrays_on, poison_buffers, poisoned, world_of

from tmaasync import ArgumentError, ArrayTypeError, LaunchError, emulate, ops
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs

BF16 = ml_dtypes.bfloat16


def on_ranks(world: World, whole: list[Any], *, causal: bool) -> list[Any]:
    """Return the lists of q, k and v."""
    return [arrays_on(world, shards(one, len(world), causal=causal)) for one in whole]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "causal"), [(2, False), (1, True), (3, True)])
def test_calls_of_different_shapes_follow_each_other(ranks: int, causal: bool) -> None:
    rng, calls = np.random.default_rng(ranks), []
    with world_of(ranks, seed=ranks) as world:
        for call in range(4):
            if call == 3:
                poison_buffers(world)
            most = (3, 200 // (ranks + 1), 3)
            batch, chunk, kv_heads = map(int, rng.integers(1, most))
            whole = drawn(rng, batch, 2 * ranks * chunk, 2 * kv_heads, kv_heads, 64, BF16)
            out = poisoned(world, [(batch, 2 * chunk, 2 * kv_heads, 64)] * ranks, BF16)
            given = on_ranks(world, whole, causal=causal)
            found, lse = ops.ring_attention(*given, causal=causal, return_lse=True, out=out)
            assert all(one is two for one, two in zip(found, out, strict=True))
            calls.append((found, whole, lse))
        world.synchronize()
        for found, whole, lse in calls:
            check(found, whole, causal=causal, lse=lse)


_CONFIGS: list[dict[str, Any]] = [
    {"consumers": 1, "block_n": 32},
    {"consumers": 2, "block_n": 64, "heads_per_tile": 2},
    {"consumers": 2, "block_n": 64, "cluster": 2},
    {"consumers": 3, "block_n": 64},
]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 5, 6])  # each tile config and policy; causal or not
def test_random_worlds_shapes_tile_configs_and_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, causal = int(rng.choice([2, 3, 4])), bool(seed % 2)
    policies: tuple[Policy, ...] = ("random", "adversarial", "round_robin")
    parts = {"heads_per_tile": 1, **_CONFIGS[seed // 2]}
    calls = []
    with (
        world_of(ranks, seed, policies[seed % 3]) as world,
        tile_configs(lambda chosen: type(chosen)(chosen.head_dim, **parts)),
    ):
        for _ in range(2):
            batch, chunk = int(rng.integers(1, 3)), int(rng.integers(1, 90))
            whole = drawn(rng, batch, 2 * ranks * chunk, 2, 1, 64, np.float16)
            out = poisoned(world, [(batch, 2 * chunk, 2, 64)] * ranks, np.float16)
            given = on_ranks(world, whole, causal=causal)
            calls.append((ops.ring_attention(*given, causal=causal, scale=0.2, out=out), whole))
        world.synchronize()
        for out, whole in calls:
            check(out, whole, causal=causal, scale=0.2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("head_dim", "ranks"), [(8, 8), (72, 2), pytest.param(256, 2, marks=pytest.mark.slow)]
)
def test_head_dimensions_and_most_ranks(head_dim: int, ranks: int) -> None:
    rng = np.random.default_rng(head_dim)
    with world_of(ranks) as world:
        whole = drawn(rng, 1, 2 * ranks * (140 // ranks), 1, 1, head_dim, BF16)
        out = ops.ring_attention(*on_ranks(world, whole, causal=True), causal=True)
        world.synchronize()
        check(out, whole, causal=True)


@pytest.mark.slow
def test_operands_are_slices_of_packed_projections() -> None:
    rng = np.random.default_rng(3)
    with world_of(2) as world:
        whole = drawn(rng, 2, 4 * 50, 2, 2, 64, BF16)
        packed = arrays_on(world, shards(np.concatenate(whole, 2), 2, causal=True))
        given = [[one[:, :, at : at + 2] for one in packed] for at in (0, 2, 4)]
        wide = poisoned(world, [(2, 100, 4, 64)] * 2, BF16)
        ops.ring_attention(*given, causal=True, out=[one[:, :, 1:3] for one in wide])
        world.synchronize()
        check([one[:, :, 1:3] for one in wide], whole, causal=True)
        for one in wide:
            assert np.isnan(one[:, :, [0, 3]].astype(np.float32)).all()


@pytest.mark.slow
def test_an_output_is_the_next_calls_operand() -> None:
    """Layers one after the other, without a wait of the host."""
    rng = np.random.default_rng(4)
    with world_of(2) as world:
        whole = drawn(rng, 1, 4 * 64, 1, 1, 64, BF16)
        q, k, v = on_ranks(world, whole, causal=True)
        first = ops.ring_attention(q, k, v, causal=True)
        second = ops.ring_attention(q, first, first, causal=True)
        world.synchronize()
        check(first, whole, causal=True)
        joined = np.concatenate(
            [first[0][:, :64], first[1][:, :64], first[1][:, 64:], first[0][:, 64:]], 1
        )
        check(second, [whole[0], joined, joined], causal=True)


def test_one_rank_needs_no_world() -> None:
    whole = drawn(np.random.default_rng(5), 1, 100, 2, 1, 64, BF16)

    out, lse = ops.ring_attention(*([one] for one in whole), causal=True, return_lse=True)

    check(out, whole, causal=True, lse=lse)


@pytest.mark.parametrize("shape", [(0, 4, 2, 64), (2, 0, 2, 64)])
def test_empty_extents(shape: tuple[int, ...]) -> None:
    with world_of(2) as world:
        given = [arrays_on(world, [np.ones(shape, BF16)] * 2) for _ in range(3)]
        out, lse = ops.ring_attention(*given, causal=True, return_lse=True)
        assert [one.shape for one in out] == [shape] * 2
        assert [one.shape for one in lse] == [(shape[0], 2, shape[1])] * 2


# --- what is refused --------------------------------------------------------------------------


def refused(said: str, error: Any = ArgumentError, *, change: Any, **options: Any) -> None:
    """Check the report of a call with changed lists of q, k and v; nothing is written."""
    with world_of(2) as world:
        lists = [arrays_on(world, [np.ones((1, 6, 2, 64), BF16)] * 2) for _ in range(3)]
        out = poisoned(world, [(1, 6, 2, 64)] * 2, BF16)
        given = {"out": out, "causal": True, **options}
        change(world, lists, given)
        with pytest.raises(error, match=said):
            ops.ring_attention(*lists, **given)
        world.synchronize()
        assert all(np.isnan(one.astype(np.float32)).all() for one in out)


def replaced(at: int, rank: int, shape: tuple[int, ...], dtype: Any = BF16) -> Any:
    def change(world: World, lists: list[Any], _: Any) -> None:
        lists[at][rank] = world[rank].array(np.ones(shape, dtype))

    return change


@pytest.mark.parametrize(
    ("said", "change"),
    [
        (r"q\[1\] is float16 of shape \(1, 6, 2, 64\).*bfloat16",
         replaced(0, 1, (1, 6, 2, 64), np.float16)),
        (r"k\[1\] is bfloat16 of shape \(1, 4, 2, 64\).*equally many",
         replaced(1, 1, (1, 4, 2, 64))),
        (r"v\[0\] is of shape \(6, 64\); it must be \[batch", replaced(2, 0, (6, 64))),
        (r"k\.shape\[-1\] is 32", lambda w, lists, _: lists.__setitem__(
            slice(1, 3), [arrays_on(w, [np.ones((1, 6, 2, 32), BF16)] * 2)] * 2)),
        (r"q\.shape\[-2\] is 2", lambda w, lists, _: lists.__setitem__(
            slice(1, 3), [arrays_on(w, [np.ones((1, 6, 4, 64), BF16)] * 2)] * 2)),
        (r"k\.shape\[1\] is 8; q has 6 positions", lambda w, lists, _: lists.__setitem__(
            slice(1, 3), [arrays_on(w, [np.ones((1, 8, 2, 64), BF16)] * 2)] * 2)),
        (r"q\.shape\[1\] is 5.*two chunks.*2 P", lambda w, lists, _: lists.__setitem__(
            slice(0, 3), [arrays_on(w, [np.ones((1, 5, 2, 64), BF16)] * 2)] * 3)),
        (r"k is 1 arrays; it must be a list of 2", lambda _, lists, __: lists[1].pop()),
        (r"v\[1\] is on emulated device 0; q\[1\]", lambda _, lists, __: lists[2].reverse()),
        (r"scale is -1", lambda _, __, given: given.update(scale=-1)),
        (r"causal is 'top_left'", lambda _, __, given: given.update(causal="top_left")),
        (r"out\[0\] overlaps q\[0\]", lambda _, lists, given: given.update(out=lists[0])),
        (r"k\[0\]'s last stride is 4", lambda w, lists, _: lists[1].__setitem__(
            0, w[0].array(np.ones((1, 6, 2, 128), BF16))[..., ::2])),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_before_anything_runs(said: str, change: Any) -> None:
    refused(said, change=change)


def test_a_wrong_type_is_refused() -> None:
    def change(world: World, lists: list[Any], _: Any) -> None:
        for one in lists:
            one[:] = arrays_on(world, [np.ones((1, 6, 2, 64), np.float32)] * 2)

    refused("float32", ArrayTypeError, change=change)


def test_ranks_without_peer_access_are_refused() -> None:
    with emulate.devices(2) as world:
        given = [arrays_on(world, [np.ones((1, 6, 2, 64), BF16)] * 2) for _ in range(3)]
        with pytest.raises(LaunchError, match="enable_peer_access"):
            ops.ring_attention(*given)
