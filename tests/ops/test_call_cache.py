"""Calls found again: by what their arrays are, their present addresses, and the stream."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from fake_arrays import CupyArray, Tensor, Torch
from ops.conftest import Make, on_device

from tmaasync.ops import _call_cache
from tmaasync.ops._call_cache import CallCache, forget

SHAPE = (4, 16)


def memory(shape: tuple[int, ...] = SHAPE, shift_bytes: int = 0) -> Any:
    return aligned(shape, np.float16, alignment=128, offset_bytes=shift_bytes)


class Launch:
    """Notes every launch: how it was made, at which addresses, on which stream."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, tuple[int, ...], int]] = []
        self.bound_at: list[tuple[int, ...]] = []

    def launch_at(self, addresses: tuple[int, ...], stream: int, how: str = "at") -> None:
        self.launched.append((how, addresses, stream))

    def bind(self, addresses: tuple[int, ...], stream: int) -> Callable[[], None]:
        self.bound_at.append(addresses)
        return functools.partial(self.launch_at, addresses, stream, "bound")

    def taken(self) -> list[tuple[str, tuple[int, ...], int]]:
        taken, self.launched = self.launched, []
        return taken


class Operation:
    """One launch, unless the last array is one of the others."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch

    def bind(self, addresses: Sequence[int], *numbers: float) -> Any:
        if addresses[-1] in addresses[:-1]:
            return None
        return self.launch, (*addresses, *numbers)


def remember(
    cache: CallCache, arrays: Sequence[Any], launch: Launch, option: object = None, **made: Any
) -> None:
    frameworks = ["cupy" if isinstance(array, CupyArray) else "torch" for array in arrays]
    cache.remember(arrays, option, Operation(launch), frameworks, 0, **made)


def cache_with(
    arrays: Sequence[Any], launch: Launch, allocators: Any = (), option: object = None
) -> CallCache:
    cache = CallCache()
    remember(cache, arrays, launch, option, allocators=allocators)
    return cache


def several(make: Make, count: int = 3) -> tuple[Any, ...]:
    return tuple(make(memory()) for _ in range(count))


def addresses(*arrays: Any) -> tuple[int, ...]:
    return tuple(array.array.ctypes.data for array in arrays)


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_addresses_have_a_bound_call_from_the_second_time_on(make: Make, count: int) -> None:
    launch, arrays, others = Launch(), several(make, count), several(make, count)
    cache = cache_with(arrays, launch)
    stream = 7 if make is CupyArray else 5

    for given in (arrays, arrays, others, arrays, others, others):
        assert cache.run(given, None, None) is given

    here, there = addresses(*arrays), addresses(*others)
    hows = ["at", "bound", "at", "bound", "bound", "bound"]
    wheres = [here, here, there, here, there, there]
    assert launch.bound_at == [here, there]
    assert launch.taken() == [(how, where, stream) for how, where in zip(hows, wheres, strict=True)]


def test_the_stream_is_the_current_one_or_the_callers(torch: Torch) -> None:
    launch, arrays = Launch(), several(on_device)
    cache = cache_with(arrays, launch)
    for _ in range(3):
        for torch.stream in (5, 0, 9):
            cache.run(arrays, None, None)
        cache.run(arrays, None, 11)

    assert [stream for _, _, stream in launch.taken()] == 3 * [5, 0, 9, 11]


def test_the_stream_is_the_callers_whatever_the_framework(make: Make) -> None:
    launch, arrays = Launch(), several(make)
    cache = cache_with(arrays, launch)
    for _ in range(3):
        cache.run(arrays, None, 11)

    assert [stream for _, _, stream in launch.taken()] == [11] * 3


@pytest.mark.parametrize(
    ("count", "which"), [(count, which) for count in (2, 3, 4, 5) for which in range(count)]
)
def test_a_tensor_that_got_other_memory_is_launched_at_that(
    torch: Torch, count: int, which: int
) -> None:
    launch, arrays = Launch(), several(on_device, count)
    cache = cache_with(arrays, launch)
    for _ in range(3):
        cache.run(arrays, None, None)
    launch.taken()
    arrays[which].array = memory()

    for _ in range(2):
        assert cache.run(arrays, None, None) is arrays

    assert [where for _, where, _ in launch.taken()] == [addresses(*arrays)] * 2


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
    launch, arrays = Launch(), several(on_device, count)
    cache = cache_with(arrays, launch)
    for _ in range(3):
        cache.run(arrays, None, None)
    launch.taken()
    before = vars(arrays[which]).copy()
    vars(arrays[which]).update(vars(OTHERS[other]))

    assert cache.run(arrays, None, None) is None
    vars(arrays[which]).update(before)
    assert cache.run(arrays, None, None) is arrays
    assert launch.taken() == [("bound", addresses(*arrays), 5)]


@pytest.mark.parametrize("has_guards", [True, False])
def test_a_tensor_that_requires_grad_is_launched_outside_of_grad_mode_alone(
    monkeypatch: pytest.MonkeyPatch, has_guards: bool
) -> None:
    torch = Torch(has_guards=has_guards)
    monkeypatch.setitem(sys.modules, "torch", torch)
    launch, (a, _, out) = Launch(), several(on_device)
    weights = Tensor(memory(), device="cuda:0", requires_grad=True)
    torch.is_in_grad_mode = False
    cache = cache_with((a, weights, out), launch)
    for _ in range(3):
        for torch.is_in_grad_mode in (False, True):
            done = cache.run((a, weights, out), None, None)
            assert (done is None) == torch.is_in_grad_mode

    assert len(launch.taken()) == 3


@pytest.mark.parametrize("has_guards", [True, False])
def test_where_tensors_may_have_tangents_nothing_is_launched(
    monkeypatch: pytest.MonkeyPatch, has_guards: bool
) -> None:
    """Their view looks for one."""
    torch = Torch(has_guards=has_guards)
    monkeypatch.setitem(sys.modules, "torch", torch)
    mode = torch.autograd.forward_ad
    launch, arrays = Launch(), several(on_device)
    cache = cache_with(arrays, launch)
    for mode._current_level in (-1, 0, 1, -1):
        done = cache.run(arrays, None, None)
        assert (done is None) == (mode._current_level >= 0)
    assert len(launch.taken()) == 2


def test_every_object_is_looked_at(torch: Torch) -> None:
    launch, arrays = Launch(), several(on_device)
    cache = cache_with(arrays, launch)
    for other in (*OTHERS.values(), np.zeros(SHAPE, np.float16), "no array"):
        assert cache.run((arrays[0], other, arrays[2]), None, None) is None

    assert launch.taken() == []


def test_memory_that_was_freed_is_not_launched(make: Make) -> None:
    launch, arrays = Launch(), several(make)
    cache = cache_with(arrays, launch)
    cache.run(arrays, None, None)
    launch.taken()
    if isinstance(arrays[0], CupyArray):
        arrays[0].data.ptr = 0
    else:
        arrays[0].is_freed = True

    assert cache.run(arrays, None, None) is None
    assert launch.taken() == []


def test_arrays_that_overlap_are_not_launched(make: Make) -> None:
    launch, (a, b, out) = Launch(), several(make)
    cache = cache_with((a, b, out), launch)
    over_a = make(a.array)

    for _ in range(3):
        assert cache.run((a, b, over_a), None, None) is None
        assert cache.run((a, b, out), None, None) is not None

    assert {where for _, where, _ in launch.taken()} == {addresses(a, b, out)}


@pytest.mark.parametrize("is_copied", [False, True])  # the arrays themselves, or others like them
def test_a_workspace_serves_no_stream_that_the_caller_names(make: Make, is_copied: bool) -> None:
    launch, arrays = Launch(), several(make, 2)
    made: list[Any] = []

    def new_array() -> Any:
        made.extend(several(make, 1))
        return made[-1]

    cache = CallCache()
    remember(cache, arrays, launch, allocators=[new_array], has_workspace=True)
    given = several(make, 2) if is_copied else arrays

    assert cache.run(given, None, 11) is None
    assert (made, launch.taken()) == ([], [])
    assert cache.run(given, None, None) == (*given, *made)
    assert len(launch.taken()) == 1


def test_arrays_that_the_caller_does_not_give_are_made_for_each_call(make: Make) -> None:
    made: list[Any] = []

    def new_array() -> Any:
        made.extend(several(make, 1))
        return made[-1]

    launch, arrays = Launch(), several(make)
    cache = cache_with(arrays, launch, [new_array] * 2)
    for _ in range(3):
        assert cache.run(arrays, None, None) == (*arrays, *made[-2:])

    wheres = [addresses(*arrays, *made[start : start + 2]) for start in (0, 2, 4)]
    assert [where for _, where, _ in launch.taken()] == wheres


def test_another_option_finds_nothing_and_one_that_is_no_key_is_not_kept(torch: Torch) -> None:
    launch, arrays = Launch(), several(on_device)
    cache = cache_with(arrays, launch, option=(1, None))
    for option in ((2, None), ([1], None), None):
        assert cache.run(arrays, option, None) is None
    remember(cache, arrays, launch, ([1], None))

    assert cache.run(arrays, ([1], None), None) is None
    assert cache.run(arrays, (1, None), None) is arrays


def test_options_have_bound_calls_of_their_own_at_the_same_addresses(make: Make) -> None:
    launches, arrays = {"relu": Launch(), "none": Launch()}, several(make)
    cache = CallCache()
    for option, launch in launches.items():
        remember(cache, arrays, launch, option)
    for _ in range(3):
        for option in launches:
            cache.run(arrays, option, None)

    assert [len(launch.taken()) for launch in launches.values()] == [3, 3]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_numbers_go_along_and_have_bound_calls_of_their_own(make: Make, count: int) -> None:
    launch, arrays = Launch(), several(make, count)
    cache, where = cache_with(arrays, launch), addresses(*arrays)
    for _ in range(3):
        for numbers in ((1.0, 0.0), (0.5, 0.0), ()):
            cache.run(arrays, None, None, numbers)

    taken = [launched for _, launched, _ in launch.taken()]
    assert taken == 3 * [(*where, 1.0, 0.0), (*where, 0.5, 0.0), where]
    assert len(launch.bound_at) == 3


def test_no_array_is_kept_alive(make: Make) -> None:
    launch, arrays = Launch(), several(make)
    cache = cache_with(arrays, launch)
    for _ in range(3):
        cache.run(arrays, None, None)
    owners = [weakref.ref(array) for array in arrays]
    del arrays
    gc.collect()

    assert [owner() for owner in owners] == [None] * 3


def test_many_addresses_do_not_fill_the_memory(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_call_cache, "_MAX_ENTRIES", 8)
    launch, arrays = Launch(), several(on_device)
    cache = cache_with(arrays, launch)
    outs = several(on_device, 20)
    for out in outs:
        for _ in range(2):
            assert cache.run((*arrays[:2], out), None, None) is not None

    assert len(cache._bound) <= 8
    assert [where[2:] for _, where, _ in launch.taken()[::2]] == [addresses(out) for out in outs]


# --- operations -------------------------------------------------------------------------------


class Made:
    """An operation that says for which layouts it was made."""

    def __init__(self, *layouts: object, **options: object) -> None:
        self.layouts = (*layouts, *options.items())


def test_an_operation_is_made_once_for_its_layouts_and_options() -> None:
    cache = CallCache()
    first = cache.operation(Made, (4, 8), "f16", is_new=True)

    assert first.layouts == ((4, 8), "f16", ("is_new", True))
    assert cache.operation(Made, (4, 8), "f16", is_new=True) is first
    for other in (
        cache.operation(Made, (4, 9), "f16", is_new=True),
        cache.operation(Made, (4, 8), "f16", is_new=False),
        CallCache().operation(Made, (4, 8), "f16", is_new=True),
    ):
        assert other is not first


def test_what_is_forgotten_is_made_and_looked_at_anew(make: Make) -> None:
    launch, arrays = Launch(), several(make)
    cache = cache_with(arrays, launch)
    first = cache.operation(Made, 1)
    assert cache.run(arrays, None, None) is arrays

    forget()

    assert cache.run(arrays, None, None) is None
    assert cache.operation(Made, 1) is not first


def test_many_operations_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_call_cache, "_MAX_OPERATIONS", 8)
    cache = CallCache()
    for number in range(20):
        assert cache.operation(Made, number) is cache.operation(Made, number)

    assert len(cache._operations) <= 8
