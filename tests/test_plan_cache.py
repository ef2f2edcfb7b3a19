"""Plans found again: by arrays that look like earlier ones, and by no others."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray, Tensor, Torch

from tmaasync.errors import LaunchError
from tmaasync.ops import _plans
from tmaasync.ops._plans import PlanCache

Make = Callable[..., Any]
Arrays = list[Any]


def memory(shape: tuple[int, ...], dtype: Any = np.float16, shift_bytes: int = 0) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 256, np.uint8)
    start = -raw.ctypes.data % 128 + shift_bytes
    return raw[start : start + size].view(dtype).reshape(shape)


def on_device(array: Any, **options: Any) -> Tensor:
    return Tensor(array, device="cuda:0", **options)


@pytest.fixture(params=["cupy", "torch", "torch without guards"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an array of one of the frameworks over NumPy memory."""
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=request.param == "torch"))
    return CupyArray if request.param == "cupy" else on_device


def three(make: Make) -> Arrays:
    return [make(memory(shape)) for shape in ((4, 8), (8, 16), (4, 16))]


def cache_with(arrays: Arrays, option: object = None) -> PlanCache[str]:
    cache: PlanCache[str] = PlanCache()
    frameworks = ["cupy" if isinstance(array, CupyArray) else "torch" for array in arrays]
    cache.remember(arrays, option, "plan", frameworks, 0)
    return cache


def guess_for(cache: PlanCache[str], arrays: Arrays) -> None:
    """As if one of these had the memory of an object that a plan was guessed by."""
    for guess in list(cache._guesses.values()):
        cache._guesses = {id(arrays[1]): guess}


def test_arrays_like_the_first_ones_find_the_plan_their_addresses_and_the_stream(
    make: Make,
) -> None:
    cache = cache_with(three(make))

    for _ in range(3):
        again = three(make)
        addresses = [array.array.ctypes.data for array in again]
        wanted = ("plan", addresses, 7 if make is CupyArray else 5)
        assert cache.find(again, None, None) == wanted
        assert cache.find(again, None, None) == wanted
        assert cache.find(again, None, 11) == ("plan", addresses, 11)


OTHERS = {
    "shape": memory((8, 32)),
    "rank": memory((8, 16, 1)),
    "strides": memory((16, 8)).T,
    "rows that are padded": memory((8, 32))[:, :16],
    "type": memory((8, 16), np.int16),
    "a start that is no multiple of 16 bytes": memory((8, 16), np.float16, 8),
}


@pytest.mark.parametrize("difference", OTHERS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_layout_finds_nothing(make: Make, difference: str, place: int) -> None:
    arrays = [make(memory((8, 16))) for _ in range(3)]
    cache = cache_with(arrays)
    arrays[place] = make(OTHERS[difference])
    guess_for(cache, arrays)

    assert cache.find(arrays, None, None) is None


def test_which_array_starts_beside_a_multiple_of_16_bytes_matters(make: Make) -> None:
    scale = [make(memory((8, 16))), make(memory((8, 16))), make(memory((8, 16), np.float16, 4))]
    cache = cache_with(scale)
    operand = [make(memory((8, 16), np.float16, 4)), *(make(memory((8, 16))) for _ in range(2))]

    assert cache.find(scale, None, None) is not None
    assert cache.find(operand, None, None) is None


def test_another_option_finds_nothing(make: Make) -> None:
    arrays = three(make)
    cache = cache_with(arrays, option=("relu", 1))
    assert cache.find(arrays, ("relu", 1), None) is not None
    assert cache.find(arrays, ("relu", 2), None) is None


def test_an_array_whose_memory_was_freed_finds_nothing(make: Make) -> None:
    arrays = three(make)
    cache = cache_with(arrays)
    if isinstance(arrays[0], CupyArray):
        arrays[0].data.ptr = 0
    else:
        arrays[0].is_freed = True
    assert cache.find(arrays, None, None) is None


@pytest.mark.parametrize("has_guards", [True, False])
@pytest.mark.parametrize("other", [{"is_negated": True}, {"device": "cpu"}, {"device": "cuda:1"}])
def test_a_tensor_that_shows_other_values_or_lies_elsewhere_finds_nothing(
    has_guards: bool, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=has_guards))
    arrays = three(on_device)
    cache = cache_with(arrays)
    arrays[1] = Tensor(memory((8, 16)), **{"device": "cuda:0", **other})
    guess_for(cache, arrays)

    assert cache.find(arrays, None, None) is None


def test_tensors_seen_before_are_recognised_without_reading_their_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    arrays = three(on_device)
    cache = cache_with(arrays)
    monkeypatch.setattr(_plans, "fingerprint", lambda _: pytest.fail("read a layout"))

    assert cache.find(arrays, None, None) is not None


class Parameter(Tensor):
    """A tensor of another type, which the guards of plain ones refuse."""


Parameter.__module__ = "torch.nn"


def test_tensors_of_another_type_share_the_plan_and_get_a_guard_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    plain = three(on_device)
    cache = cache_with(plain)
    weights = Parameter(memory((8, 16)), device="cuda:0")
    arrays = [plain[0], weights, plain[2]]
    assert cache.find(arrays, None, None) is not None
    monkeypatch.setattr(_plans, "fingerprint", lambda _: pytest.fail("read a layout"))

    assert cache.find(arrays, None, None) is not None
    assert cache.find(plain, None, None) is not None


def test_one_tensor_may_be_both_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    one, out = on_device(memory((8, 8))), on_device(memory((8, 8)))
    cache = cache_with([one, one, out])

    for arrays in ([one, one, out], [one, on_device(memory((8, 8))), out]):
        assert cache.find(arrays, None, None) is not None


def test_the_stream_is_that_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    arrays = three(on_device)
    cache = cache_with(arrays)
    for torch.stream in (5, 0, 9):
        found = cache.find(arrays, None, None)
        assert found is not None
        assert found[2] == torch.stream


def test_mixed_arrays_need_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    arrays = [on_device(memory((4, 8))), CupyArray(memory((8, 16))), CupyArray(memory((4, 16)))]
    cache = cache_with(arrays)
    with pytest.raises(LaunchError, match=r"torch arrays \(current stream 0x5\)"):
        cache.find(arrays, None, None)
    torch.stream = 7
    found = cache.find(arrays, None, None)
    assert found is not None
    assert found[2] == 7


def test_no_array_is_kept_alive(make: Make) -> None:
    arrays = three(make)
    cache = cache_with(arrays)
    assert cache.find(arrays, None, None) is not None
    owners = [weakref.ref(array) for array in arrays]
    arrays.clear()
    gc.collect()

    assert [owner() for owner in owners] == [None] * 3


def test_many_layouts_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    monkeypatch.setattr(_plans, "_MAX_PLANS", 8)
    cache: PlanCache[int] = PlanCache()
    kept = []
    for rows in range(1, 40):
        arrays = [on_device(memory((rows, 8))) for _ in range(2)]
        kept.append(arrays)
        cache.remember(arrays, None, rows, ("torch",), 0)
        assert cache.find(arrays, None, None) is not None
    assert len(cache._entries) <= 8
    assert len(cache._guesses) <= 8
