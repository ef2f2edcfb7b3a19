"""Launches found again: by what their arrays are, where they lie now, and the stream."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch

from tmaasync.ops import _launches
from tmaasync.ops._launches import LaunchCache, Repeatable

SHAPE = (4, 16)
Make = Callable[..., Any]


def memory(shape: tuple[int, ...] = SHAPE, shift_bytes: int = 0) -> Any:
    raw = np.zeros(2 * int(np.prod(shape)) + 256, np.uint8)
    start = -raw.ctypes.data % 128 + shift_bytes
    return raw[start : start + 2 * int(np.prod(shape))].view(np.float16).reshape(shape)


def on_device(array: Any, device: str = "cuda:0") -> Tensor:
    return Tensor(array, device=device)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


@pytest.fixture(params=["cupy", "torch", "torch without guards"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an array of one of the frameworks over NumPy memory."""
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=request.param == "torch"))
    return CupyArray if request.param == "cupy" else on_device


class Plan:
    """Notes every launch: how it was made, where it went, on which stream."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, tuple[int, ...], int]] = []
        self.bound_at: list[tuple[int, ...]] = []

    def aim(self, addresses: Sequence[int], *numbers: float) -> Any:
        if addresses[-1] in addresses[:-1]:
            return None
        return self, (*addresses, *numbers)

    def launch_at(self, addresses: tuple[int, ...], stream: int, how: str = "at") -> None:
        self.launched.append((how, addresses, stream))

    def bind(self, addresses: tuple[int, ...], stream: int) -> Callable[[], None]:
        self.bound_at.append(addresses)
        return functools.partial(self.launch_at, addresses, stream, "bound")

    def taken(self) -> list[tuple[str, tuple[int, ...], int]]:
        taken, self.launched = self.launched, []
        return taken


def cache_with(
    arrays: tuple[Any, ...], plan: Plan, new_arrays: Any = None, option: object = None
) -> LaunchCache:
    cache = LaunchCache()
    framework = "cupy" if isinstance(arrays[0], CupyArray) else "torch"
    cache.remember(arrays, option, Repeatable(plan.aim, new_arrays), (framework,), 0)
    return cache


def several(make: Make, count: int = 3) -> tuple[Any, ...]:
    return tuple(make(memory()) for _ in range(count))


def addresses(*arrays: Any) -> tuple[int, ...]:
    return tuple(array.array.ctypes.data for array in arrays)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_a_place_has_a_launch_of_its_own_from_the_second_time_on(make: Make, count: int) -> None:
    plan, arrays, others = Plan(), several(make, count), several(make, count)
    cache = cache_with(arrays, plan)
    stream = 7 if make is CupyArray else 5

    for given in (arrays, arrays, others, arrays, others, others):
        assert cache.run(given, None, None) is given

    here, there = addresses(*arrays), addresses(*others)
    hows = ["at", "bound", "at", "bound", "bound", "bound"]
    wheres = [here, here, there, here, there, there]
    assert plan.bound_at == [here, there]
    assert plan.taken() == [(how, where, stream) for how, where in zip(hows, wheres, strict=True)]


def test_the_stream_is_that_of_the_moment_or_the_callers(torch: Torch) -> None:
    plan, arrays = Plan(), several(on_device)
    cache = cache_with(arrays, plan)
    for _ in range(3):
        for torch.stream in (5, 0, 9):
            cache.run(arrays, None, None)
        cache.run(arrays, None, 11)

    assert [stream for _, _, stream in plan.taken()] == 3 * [5, 0, 9, 11]


def test_the_stream_is_the_callers_whatever_the_framework(make: Make) -> None:
    plan, arrays = Plan(), several(make)
    cache = cache_with(arrays, plan)
    for _ in range(3):
        cache.run(arrays, None, 11)

    assert [stream for _, _, stream in plan.taken()] == [11] * 3


@pytest.mark.parametrize(
    ("count", "which"), [(count, which) for count in (2, 3, 4, 5) for which in range(count)]
)
def test_a_tensor_that_got_other_memory_is_launched_at_that(
    torch: Torch, count: int, which: int
) -> None:
    plan, arrays = Plan(), several(on_device, count)
    cache = cache_with(arrays, plan)
    for _ in range(3):
        cache.run(arrays, None, None)
    plan.taken()
    arrays[which].array = memory()

    for _ in range(2):
        assert cache.run(arrays, None, None) is arrays

    assert [where for _, where, _ in plan.taken()] == [addresses(*arrays)] * 2


OTHERS = {
    "resized": on_device(memory((4, 8))),
    "of another rank": on_device(memory((4, 16, 1))),
    "transposed": on_device(memory((16, 4)).T),
    "padded": on_device(memory((4, 32))[:, :16]),
    "of another type": on_device(memory().view(np.int16)),
    "off 16 bytes": on_device(memory(shift_bytes=8)),
    "elsewhere": on_device(memory(), "cuda:1"),
    "on the host": on_device(memory(), "cpu"),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize(
    ("count", "which"), [(count, which) for count in (3, 4) for which in range(count)]
)
def test_a_tensor_that_was_changed_in_place_is_not_launched(
    torch: Torch, other: str, count: int, which: int
) -> None:
    plan, arrays = Plan(), several(on_device, count)
    cache = cache_with(arrays, plan)
    for _ in range(3):
        cache.run(arrays, None, None)
    plan.taken()
    before = vars(arrays[which]).copy()
    vars(arrays[which]).update(vars(OTHERS[other]))

    assert cache.run(arrays, None, None) is None
    vars(arrays[which]).update(before)
    assert cache.run(arrays, None, None) is arrays
    assert plan.taken() == [("bound", addresses(*arrays), 5)]


def test_an_object_in_the_place_of_another_is_looked_at(torch: Torch) -> None:
    plan, arrays = Plan(), several(on_device)
    cache = cache_with(arrays, plan)
    for other in (*OTHERS.values(), np.zeros(SHAPE, np.float16), "no array"):
        cache._guesses = {id(other): guess for guess in cache._guesses.values()}
        assert cache.run((arrays[0], other, arrays[2]), None, None) is None

    assert plan.taken() == []


def test_memory_that_was_freed_is_not_launched(make: Make) -> None:
    plan, arrays = Plan(), several(make)
    cache = cache_with(arrays, plan)
    cache.run(arrays, None, None)
    plan.taken()
    if isinstance(arrays[0], CupyArray):
        arrays[0].data.ptr = 0
    else:
        arrays[0].is_freed = True

    assert cache.run(arrays, None, None) is None
    assert plan.taken() == []


def test_arrays_in_each_others_way_are_not_launched(make: Make) -> None:
    plan, (a, b, out) = Plan(), several(make)
    cache = cache_with((a, b, out), plan)
    over_a = make(a.array)

    for _ in range(3):
        assert cache.run((a, b, over_a), None, None) is None
        assert cache.run((a, b, out), None, None) is not None

    assert {where for _, where, _ in plan.taken()} == {addresses(a, b, out)}


@pytest.mark.parametrize("is_copied", [False, True])  # found by its guess, or by its key
def test_scratch_memory_serves_no_stream_that_the_caller_names(make: Make, is_copied: bool) -> None:
    plan, arrays = Plan(), several(make, 2)
    made: list[Any] = []

    def new_arrays() -> tuple[Any, ...]:
        made.extend(several(make, 1))
        return tuple(made[-1:])

    cache = LaunchCache()
    framework = "cupy" if make is CupyArray else "torch"
    repeatable = Repeatable(plan.aim, new_arrays, has_scratch=True)
    cache.remember(arrays, None, repeatable, (framework,), 0)
    given = several(make, 2) if is_copied else arrays

    assert cache.run(given, None, 11) is None
    assert (made, plan.taken()) == ([], [])
    assert cache.run(given, None, None) == (*given, *made)
    assert len(plan.taken()) == 1


def test_arrays_that_the_caller_does_not_give_are_made_for_each_call(make: Make) -> None:
    made: list[Any] = []

    def new_arrays() -> tuple[Any, ...]:
        made.extend(several(make, 2))
        return tuple(made[-2:])

    plan, arrays = Plan(), several(make)
    cache = cache_with(arrays, plan, new_arrays)
    for _ in range(3):
        assert cache.run(arrays, None, None) == (*arrays, *made[-2:])

    wheres = [addresses(*arrays, *made[start : start + 2]) for start in (0, 2, 4)]
    assert [where for _, where, _ in plan.taken()] == wheres


def test_another_option_finds_nothing_and_one_that_is_no_key_is_not_kept(torch: Torch) -> None:
    plan, arrays = Plan(), several(on_device)
    cache = cache_with(arrays, plan, option=(1, None))
    for option in ((2, None), ([1], None), None):
        assert cache.run(arrays, option, None) is None
    cache.remember(arrays, ([1], None), Repeatable(plan.aim), ("torch",), 0)

    assert cache.run(arrays, ([1], None), None) is None
    assert cache.run(arrays, (1, None), None) is arrays


def test_options_have_launches_of_their_own_at_the_same_place(make: Make) -> None:
    plans, arrays = {"relu": Plan(), "none": Plan()}, several(make)
    cache = LaunchCache()
    framework = "cupy" if make is CupyArray else "torch"
    for option, plan in plans.items():
        cache.remember(arrays, option, Repeatable(plan.aim), (framework,), 0)
    for _ in range(3):
        for option in plans:
            cache.run(arrays, option, None)

    assert [len(plan.taken()) for plan in plans.values()] == [3, 3]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_numbers_go_along_and_have_launches_of_their_own(make: Make, count: int) -> None:
    plan, arrays = Plan(), several(make, count)
    cache, where = cache_with(arrays, plan), addresses(*arrays)
    for _ in range(3):
        for numbers in ((1.0, 0.0), (0.5, 0.0), ()):
            cache.run(arrays, None, None, numbers)

    taken = [launched for _, launched, _ in plan.taken()]
    assert taken == 3 * [(*where, 1.0, 0.0), (*where, 0.5, 0.0), where]
    assert len(plan.bound_at) == 3


def test_no_array_is_kept_alive(make: Make) -> None:
    plan, arrays = Plan(), several(make)
    cache = cache_with(arrays, plan)
    for _ in range(3):
        cache.run(arrays, None, None)
    owners = [weakref.ref(array) for array in arrays]
    del arrays
    gc.collect()

    assert [owner() for owner in owners] == [None] * 3


def test_many_places_do_not_fill_the_memory(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launches, "_MAX_LAUNCHES", 8)
    plan, arrays = Plan(), several(on_device)
    cache = cache_with(arrays, plan)
    outs = several(on_device, 20)
    for out in outs:
        for _ in range(2):
            assert cache.run((*arrays[:2], out), None, None) is not None

    assert len(cache._launches) <= 8
    assert [where[2:] for _, where, _ in plan.taken()[::2]] == [addresses(out) for out in outs]
