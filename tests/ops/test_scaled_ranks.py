"""Block-scaled FP8 matmuls of several ranks on emulated devices, with races searched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from scaled_ranks import E4M3, E5M2, drawn_parts, drawn_shards, multiplied, terms
from worlds import arrays_on, poison_buffers, poisoned, world_of

from tmaasync import ArgumentError, ArrayTypeError, emulate, enable_peer_access, ops
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World
from tmaasync.ops._operation import tile_configs

BF16 = ml_dtypes.bfloat16
GATHER, SCATTER = ops.all_gather_scaled_matmul, ops.scaled_matmul_reduce_scatter
each = pytest.mark.parametrize("call", [GATHER, SCATTER], ids=["gather", "scatter"])

Operands = tuple[list[Any], ...]


def check(call: Any, outputs: list[Any], operands: Operands) -> None:
    """Compare with float64. Every sum is exact: of float32, and of 16 bits once it is rounded.

    After a reduce-scatter of 16 bits, what each rank sends is rounded too.
    """
    kind = outputs[0].dtype
    if call is GATHER:
        for found, wanted in zip(outputs, multiplied(*operands), strict=True):
            assert np.array_equal(found, wanted.astype(kind))
        return
    found, each = np.concatenate(outputs), terms(*operands)
    if kind == np.float32:
        assert np.array_equal(found, sum(each).astype(kind))
        return
    error = abs(found.astype(np.float64) - sum(each))
    assert bool((error <= 2.0**-8 * sum(map(abs, each)) + 2.0**-8 * abs(sum(each))).all())


def drawn(
    rng: np.random.Generator,
    call: Any,
    rows: Any,
    depths: Any,
    widths: Any,
    columns: int = 128,
    kind: Any = None,
) -> tuple[Operands, list[tuple[int, int]]]:
    """Return operands of all ranks, and the shapes of the outputs, one of whose sides differs."""
    if call is GATHER:
        operands = drawn_shards(rng, rows, int(depths[0]), widths, columns, kind)
        return operands, [(int(sum(rows)), int(width)) for width in widths]
    n = int(widths[0])
    operands = drawn_parts(rng, int(sum(rows)), depths, n, columns, kind)
    return operands, [(int(count), n) for count in rows]


def on(world: World, operands: Operands, *, k_major: bool = True) -> list[list[Any]]:
    """Return the operands on their devices; b and its scales with either side contiguous."""
    a, b, scale_a, scale_b = operands

    def transposed(arrays: list[Any]) -> list[Any]:
        return [one.T for one in arrays_on(world, [np.ascontiguousarray(x.T) for x in arrays])]

    place = transposed if k_major else (lambda arrays: arrays_on(world, arrays))
    right = place(b) if k_major else arrays_on(world, [np.ascontiguousarray(x) for x in b])
    return [arrays_on(world, a), right, place(scale_a), arrays_on(world, scale_b)]


@each
@pytest.mark.parametrize(
    "ranks", [2, *(pytest.param(one, marks=pytest.mark.slow) for one in (3, 4))]
)
def test_calls_of_different_shapes_follow_each_other(call: Any, ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    with world_of(ranks, seed=ranks) as world:
        calls = []
        for number in range(4):
            if number == 3:
                poison_buffers(world)
            rows = rng.integers(1, 300 // ranks, ranks) * (rng.random(ranks) > 0.15)
            depths, widths = rng.integers(1, 24, ranks) * 16, rng.integers(1, 20, ranks) * 8
            columns, kind = (1, E4M3) if number == 1 else (128, E5M2)  # few builds
            operands, shapes = drawn(rng, call, rows, depths, widths, columns, kind)
            out = poisoned(world, shapes, (np.float32, BF16, np.float16, np.float32)[number])
            given = on(world, operands, k_major=number != 2)
            returned = call(*given, out=out)
            assert all(one is two for one, two in zip(returned, out, strict=True))
            calls.append((out, operands))
        world.synchronize()
        for out, operands in calls:
            check(call, out, operands)


_CONFIGS: list[dict[str, Any]] = [
    {"consumers": 1, "block_n": 32, "group_m": 1},
    {"consumers": 2, "block_n": 64, "cluster": 2},
    {"consumers": 3, "block_n": 128},
    {"consumers": 1, "block_n": 128, "cluster": 4},
]


@contextmanager
def random_world(seed: int) -> Iterator[tuple[World, np.random.Generator]]:
    rng = np.random.default_rng(seed)
    policies: tuple[Policy, ...] = ("random", "adversarial", "round_robin")
    config = _CONFIGS[seed % len(_CONFIGS)]
    with (
        world_of(2 + seed % 3, seed, policies[seed % 3]) as world,
        tile_configs(lambda chosen: replace(chosen, **config)),
    ):
        yield world, rng


@each
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_worlds_shapes_tile_configs_and_orders(call: Any, seed: int) -> None:
    with random_world(seed) as (world, rng):
        ranks, calls = len(world), []
        for number in range(3):  # the third uses the memory of the first
            rows = rng.integers(0, 150, ranks) * (rng.random(ranks) > 0.2)
            depths, widths = rng.integers(1, 300, ranks), rng.integers(1, 20, ranks) * 8
            columns, kind = 1 if number == 1 else 128, (E4M3, E5M2)[seed % 2]
            operands, shapes = drawn(rng, call, rows, depths, widths, columns, kind)
            out = poisoned(world, shapes, np.float32)
            call(*on(world, operands, k_major=seed < 2), out=out)
            calls.append((out, operands))
        world.synchronize()
        for out, operands in calls:
            check(call, out, operands)


@each
@pytest.mark.slow
def test_several_tiles_per_cluster_several_units_and_bit_equal_repeats(call: Any) -> None:
    """Two units of the scales along K, of 8 blocks each, and columns for two scales of B."""
    rng = np.random.default_rng(7)
    operands, _ = drawn(rng, call, (390, 227), (1300, 1024), (200, 136))
    with world_of(2) as world, tile_configs(lambda chosen: replace(chosen, consumers=1, group_m=4)):
        given = on(world, operands)
        first, again = (call(*given) for _ in range(2))
        world.synchronize()
        check(call, first, operands)
        for one, two in zip(first, again, strict=True):
            assert np.array_equal(one.view(np.uint16), two.view(np.uint16))


@each
@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [
        ((1, 0, 0), 1, 1),
        ((3, 2, 0), 40, 24),
        ((0, 0, 0), 64, 8),
        ((3, 1, 1), 0, 8),
        pytest.param((40,) * 8, 130, 40, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_empty_and_least_extents_and_most_ranks(
    call: Any, rows: tuple[int, ...], k: int, n: int
) -> None:
    ranks = len(rows)
    operands, shapes = drawn(np.random.default_rng(k), call, rows, [k] * ranks, [n] * ranks)
    with world_of(ranks) as world:
        new = call(*on(world, operands), dtype="float32")
        if call is SCATTER:  # divides rows evenly by default
            shapes = [one.shape for one in new]
            assert max(count for count, _ in shapes) - min(count for count, _ in shapes) <= 1
        world.synchronize()
        assert [one.shape for one in new] == shapes
        check(call, new, operands)


@each
def test_bytes_are_read_as_the_type_that_the_call_names(call: Any) -> None:
    rng = np.random.default_rng(4)
    operands, _ = drawn(rng, call, (70, 60), (100, 100), (48, 48))
    a, b, *scales = operands
    raw = [one.view(np.uint8) for one in a], [one.T.view(np.uint8).T for one in b], *scales
    with world_of(2) as world:
        kinds = {str(one.dtype) for one in b}
        assert len(kinds) == 1
        out = call(*on(world, raw, k_major=False), a_dtype=str(a[0].dtype), b_dtype=kinds.pop())
        world.synchronize()
        check(call, out, operands)


def test_one_rank_needs_no_world() -> None:
    operands, _ = drawn(np.random.default_rng(5), GATHER, (70,), (130,), (40,))
    for call in (GATHER, SCATTER):
        check(call, call(*operands, dtype=np.float32), operands)


def test_a_column_parallel_layer_feeds_a_row_parallel_one_without_a_wait_of_the_host() -> None:
    """What a layer returns is rounded to FP8 by nobody: the second call has operands of its own."""
    rng = np.random.default_rng(6)
    with world_of(2) as world:
        one, _ = drawn(rng, GATHER, (130, 61), (256, 256), (64, 64))
        two, _ = drawn(rng, SCATTER, (130, 61), (64, 256), (64, 64))
        for _ in range(2):
            gathered = GATHER(*on(world, one), dtype="float32")
            scattered = SCATTER(*on(world, two), dtype="float32")
            plain = ops.all_gather(arrays_on(world, [np.ones((4, 64), np.float32)] * 2))
        world.synchronize()
        check(GATHER, gathered, one)
        check(SCATTER, scattered, two)
        assert all((array == 1).all() for array in plain)


def test_blackwell_multiplies_by_mma_sync() -> None:
    operands, _ = drawn(np.random.default_rng(8), GATHER, (70, 60), (200, 200), (64, 40))
    parts, _ = drawn(np.random.default_rng(8), SCATTER, (70, 60), (200, 64), (64, 40))
    with emulate.chip("sm_100a"), emulate.devices(2) as world:
        enable_peer_access(range(2))
        gathered = GATHER(*on(world, operands))
        scattered = SCATTER(*on(world, parts))
        world.synchronize()
        check(GATHER, gathered, operands)
        check(SCATTER, scattered, parts)


# --- what is refused --------------------------------------------------------------------------


def refused(world: World, call: Any, said: str, operands: Any, **more: Any) -> None:
    with pytest.raises(ArgumentError, match=said):
        call(*(arrays_on(world, list(one)) for one in operands), **more)
    assert not world._queue


@each
def test_a_wrong_operand_is_named_with_its_rule_and_remedy(call: Any) -> None:
    operands, _ = drawn(np.random.default_rng(0), call, (4, 4), (256, 256), (8, 8))
    a, b, of_a, of_b = operands
    half = a[1].astype(np.float16)
    with world_of(2) as world:
        for said, given in (
            (
                r"a\[1\] is an array of float16; the kernel multiplies float8.*a_dtype=",
                ([a[0], half], b, of_a, of_b),
            ),
            (
                r"b\[1\] is an array of float8_e5m2; b\[0\] holds float8_e4m3fn",
                (a, [b[0].astype(E4M3), b[1].astype(E5M2)], of_a, of_b),
            ),
            (
                r"scale_b\[0\] is an array of float64; scales are float32",
                (a, b, of_a, [of_b[0].astype("f8"), of_b[1]]),
            ),
            (
                r"scale_a\[1\]\.shape is .*; a row of a has a scale for every 128 .*Pass shape",
                (a, b, [of_a[0], of_a[1][:, :1]], of_b),
            ),
            (
                r"scale_b\[0\]\.shape is .*; b has a scale for 128 elements",
                (a, b, of_a, [of_b[0][:1], of_b[1]]),
            ),
            (r"b\[1\] is of shape .*For \[N, K\] pass b\.T", (a, [b[0], b[1].T], of_a, of_b)),
            (r"scale_a is 1 arrays; it must be a list of 2", (a, b, of_a[:1], of_b)),
            (
                r"(?s)a\[0\] is of shape .*two dim.*scale_a\[1\] is an array of float16",
                ([a[0][:, None], a[1]], b, [of_a[0], of_a[1].astype("f2")], of_b),
            ),
        ):
            with pytest.raises(ArgumentError, match=said):
                call(*(arrays_on(world, list(one)) if len(one) == 2 else one for one in given))
            assert not world._queue
        refused(world, call, r"streams is \[1\]; a has 2 arrays", operands, streams=[1])


def test_the_scales_of_b_are_of_one_kind_where_ranks_share_a_tile_config() -> None:
    a, b, of_a, of_b = drawn(np.random.default_rng(0), SCATTER, (4, 4), (256, 256), (8, 8))[0]
    with world_of(2) as world:
        refused(
            world,
            SCATTER,
            r"scale_b\[1\] is of shape .*; scale_b\[0\] has a scale for 128",
            (a, b, of_a, [of_b[0], np.repeat(of_b[1], 8, 1)]),
        )


@each
def test_a_wrong_output_is_named_with_its_rule_and_remedy(call: Any) -> None:
    operands, shapes = drawn(np.random.default_rng(0), call, (4, 4), (256, 256), (8, 8))
    with world_of(2) as world:
        out = arrays_on(world, [np.ones(shape, BF16) for shape in shapes])
        refused(
            world,
            call,
            r"out\[0\] is an array of bfloat16; dtype is float32",
            operands,
            out=out,
            dtype="float32",
        )
        whole = arrays_on(world, [np.ones(shape, np.int32) for shape in shapes])
        refused(world, call, r"out\[1\] is int32 of shape", operands, out=whole)
        with pytest.raises(ArrayTypeError, match=r"dtype is int8; the output can be bfloat16"):
            call(*on(world, operands), dtype="int8")
        assert not world._queue


def test_a_chip_with_less_shared_memory_is_refused_with_a_remedy() -> None:
    operands, _ = drawn(np.random.default_rng(0), GATHER, (4, 4), (256, 256), (8, 8))
    with emulate.chip("sm_120a"), emulate.devices(2) as world:
        enable_peer_access(range(2))
        with pytest.raises(Exception, match=r"needs 232448 bytes of shared memory.*sm_90a"):
            GATHER(*on(world, operands))
