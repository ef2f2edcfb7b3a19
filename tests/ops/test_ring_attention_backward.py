"""ops.ring_attention_backward on emulated devices, with races searched."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ring_cases import check_gradients, drawn, shards
from worlds import arrays_on, poison_buffers, poisoned, world_of

from tmaasync import ArgumentError, ArrayTypeError, ops
from tmaasync.emulate.launch.schedule import Policy
from tmaasync.emulate.launch.world import World

BF16 = ml_dtypes.bfloat16
backward: Any = ops.ring_attention_backward


class Case:
    """A call of the forward and of the backward, into poisoned outputs."""

    def __init__(
        self,
        world: World,
        rng: np.random.Generator,
        sizes: tuple[int, int, int, int],
        *,
        causal: bool,
        dtype: Any = BF16,
        **options: Any,
    ) -> None:
        batch, length, heads, kv_heads = sizes
        ranks, positions = len(world), len(world) * length
        self.causal, self.options = causal, options
        self.whole = drawn(rng, batch, positions, heads, kv_heads, 64, dtype)
        self.dout = drawn(rng, batch, positions, heads, kv_heads, 64, dtype)[0]
        of_q, of_k = ((batch, length, each, 64) for each in (heads, kv_heads))
        dout, *given = (
            arrays_on(world, shards(one, ranks, causal=causal)) for one in (self.dout, *self.whole)
        )
        out, lse = ops.ring_attention(*given, causal=causal, return_lse=True, **self.scale)
        self.given = [dout, *given, out, lse]
        targets = (poisoned(world, [shape] * ranks, dtype) for shape in (of_q, of_k, of_k))
        self.targets = dict(zip(("dq", "dk", "dv"), targets, strict=True))
        self.found = self.run(**self.targets)

    @property
    def scale(self) -> dict[str, Any]:
        return {"scale": self.options["scale"]} if "scale" in self.options else {}

    def run(self, **targets: Any) -> Any:
        return backward(*self.given, causal=self.causal, **self.options, **targets)

    def check(self) -> None:
        for name, found in zip(("dq", "dk", "dv"), self.found, strict=True):
            pairs = zip(found, self.targets[name], strict=True)
            assert all(one is two for one, two in pairs)
        check_gradients(self.found, self.dout, self.whole, causal=self.causal, **self.scale)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("ranks", "causal"), [(2, False), (1, True)])
def test_calls_of_different_shapes_follow_each_other(ranks: int, causal: bool) -> None:
    rng, calls = np.random.default_rng(ranks), []
    with world_of(ranks, seed=ranks) as world:
        for number in range(2):
            if number == 1:
                poison_buffers(world)
            batch, chunk, kv_heads = (int(rng.integers(1, most)) for most in (3, 90, 3))
            sizes = (batch, 2 * chunk, 2 * kv_heads, kv_heads)
            calls.append(Case(world, rng, sizes, causal=causal))
        world.synchronize()
        for call in calls:
            call.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 5])  # each policy; causal or not; deterministic
def test_random_worlds_and_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    policies: tuple[Policy, ...] = ("random", "adversarial", "round_robin")
    options: dict[str, Any] = {"causal": bool(seed % 2), "deterministic": seed > 3, "scale": 0.2}
    with world_of(int(rng.choice([2, 3])), seed, policies[seed % 3]) as world:
        length = 2 * int(rng.integers(1, 80))
        options["dtype"] = np.float16 if options["deterministic"] else BF16
        calls = [Case(world, rng, (1, length, 2, 1), **options) for _ in range(2)]
        world.synchronize()
        for call in calls:
            call.check()


@pytest.mark.slow
def test_deterministic_calls_repeat_their_bits_in_any_order() -> None:
    bits = []
    for seed in range(2):
        with world_of(2, seed) as world:
            case = Case(
                world, np.random.default_rng(0), (1, 140, 2, 1), causal=True, deterministic=True
            )
            again = case.run()
            world.synchronize()
            bits += [
                [one.view(np.uint16) for arrays in found for one in arrays]
                for found in (case.found, again)
            ]
    for other in bits[1:]:
        assert all(map(np.array_equal, bits[0], other))


@pytest.mark.slow
def test_one_rank_needs_no_world() -> None:
    rng = np.random.default_rng(5)
    whole, dout = drawn(rng, 1, 100, 2, 1, 64, BF16), drawn(rng, 1, 100, 2, 1, 64, BF16)[0]
    given = [[one] for one in whole]
    out, lse = ops.ring_attention(*given, causal=True, return_lse=True)

    found = backward([dout], *given, out, lse, causal=True)

    check_gradients(found, dout, whole, causal=True)


@pytest.mark.slow
def test_operands_and_gradients_are_slices_of_packed_projections() -> None:
    rng = np.random.default_rng(3)
    with world_of(2) as world:
        whole, dout = drawn(rng, 2, 120, 2, 2, 64, BF16), drawn(rng, 2, 120, 2, 2, 64, BF16)[0]
        packed = arrays_on(world, shards(np.concatenate(whole, 2), 2, causal=True))
        wide = poisoned(world, [(2, 60, 8, 64)] * 2, BF16)
        given = [[one[:, :, at : at + 2] for one in packed] for at in (0, 2, 4)]
        targets = [[one[:, :, at : at + 2] for one in wide] for at in (0, 2, 4)]
        out, lse = ops.ring_attention(*given, causal=True, return_lse=True)
        found = backward(
            *(arrays_on(world, shards(dout, 2, causal=True)), *given, out, lse),
            causal=True,
            **dict(zip(("dq", "dk", "dv"), targets, strict=True)),
        )
        world.synchronize()
        check_gradients(found, dout, whole, causal=True)
        assert all(np.isnan(one[:, :, 6:].astype(np.float32)).all() for one in wide)


@pytest.mark.parametrize("shape", [(0, 4, 2, 64), (2, 0, 2, 64)])
def test_empty_extents(shape: tuple[int, ...]) -> None:
    with world_of(2) as world:
        given = [arrays_on(world, [np.ones(shape, BF16)] * 2) for _ in range(5)]
        lse = arrays_on(world, [np.ones((shape[0], 2, shape[1]), np.float32)] * 2)
        found = backward(*given, lse, causal=True)
        assert [one.shape for arrays in found for one in arrays] == [shape] * 6


# --- what is refused --------------------------------------------------------------------------

_ORDER = ("dout", "q", "k", "v", "out", "lse", "dq", "dk", "dv")


def replaced(name: str, rank: int, shape: tuple[int, ...], dtype: Any = BF16) -> Any:
    def change(world: World, lists: dict[str, Any]) -> None:
        lists[name][rank] = world[rank].array(np.ones(shape, dtype))

    return change


def _spread(world: World, lists: dict[str, Any]) -> None:
    lists["k"][1] = world[1].array(np.ones((1, 6, 2, 128), BF16))[..., :64]


def _wide(world: World, lists: dict[str, Any]) -> None:
    for name in _ORDER:
        if name != "lse":
            lists[name][:] = arrays_on(world, [np.ones((1, 6, 2, 192), BF16)] * 2)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        (r"dout\[1\] is bfloat16 of shape \(1, 6, 4, 64\).*q\[0\] holds",
         replaced("dout", 1, (1, 6, 4, 64))),
        (r"out\[0\] is float16", replaced("out", 0, (1, 6, 2, 64), np.float16)),
        (r"lse\[1\] is of shape \(1, 6, 2\)", replaced("lse", 1, (1, 6, 2), np.float32)),
        (r"dk\[0\] is bfloat16 of shape \(1, 4, 2, 64\)", replaced("dk", 0, (1, 4, 2, 64))),
        (r"k\[1\] is at .*rows of contiguous elements", _spread),
        (r"q\.shape\[-1\] is 192; .*128", _wide),
        (r"dv is 1 arrays", lambda _, lists: lists["dv"].pop()),
        (r"dq\[0\] overlaps out\[0\]", lambda _, lists: lists.update(dq=lists["out"])),
        (r"dv\[0\] overlaps dk\[0\]", lambda _, lists: lists.update(dv=lists["dk"])),
        (r"lse\[0\] is on emulated device 1; q\[0\]", lambda _, lists: lists["lse"].reverse()),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_before_anything_runs(said: str, change: Any) -> None:
    with world_of(2) as world:
        lists = {name: arrays_on(world, [np.ones((1, 6, 2, 64), BF16)] * 2) for name in _ORDER}
        lists["lse"] = arrays_on(world, [np.ones((1, 2, 6), np.float32)] * 2)
        change(world, lists)
        targets = {name: lists.pop(name) for name in ("dq", "dk", "dv")}
        with pytest.raises(ArgumentError, match=said):
            backward(*lists.values(), causal=True, **targets)
        world.synchronize()
        assert all((one == 1).all() for arrays in targets.values() for one in arrays)


def test_a_log_sum_exp_of_another_type_is_refused() -> None:
    with world_of(2) as world:
        given = [arrays_on(world, [np.ones((1, 6, 2, 64), BF16)] * 2) for _ in range(5)]
        lse = arrays_on(world, [np.ones((1, 2, 6), np.float64)] * 2)
        with pytest.raises(ArrayTypeError, match=r"lse\[0\]"):
            backward(*given, lse, causal=True)
