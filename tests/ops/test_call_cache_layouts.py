"""Which arrays are taken like the arrays of an earlier call."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from fake_arrays import Cupy, CupyArray, Tensor, Torch
from ops.conftest import Make, on_device
from ops.test_call_cache import Launch, addresses, cache_with, remember

from tmaasync.errors import LaunchError
from tmaasync.ops import _call_cache
from tmaasync.ops._call_cache import CallCache

# --- which arrays are like earlier ones -------------------------------------------------------

Arrays = list[Any]


def three(make: Make) -> Arrays:
    return [make(typed(shape)) for shape in ((4, 8), (8, 16), (4, 16))]


def typed(shape: tuple[int, ...], dtype: Any = np.float16, shift_bytes: int = 0) -> Any:
    return aligned(shape, dtype, alignment=128, offset_bytes=shift_bytes)


def test_arrays_like_the_first_ones_find_its_entry_their_addresses_and_the_stream(
    make: Make,
) -> None:
    launch = Launch()
    cache = cache_with(three(make), launch)

    for _ in range(3):
        again = tuple(three(make))
        for stream in (None, None, 11):
            assert cache.run(again, None, stream) is again
        current = 7 if make is CupyArray else 5
        wanted = [(addresses(*again), stream) for stream in (current, current, 11)]
        assert [taken[1:] for taken in launch.taken()] == wanted


LAYOUTS = {
    "shape": typed((8, 32)),
    "rank": typed((8, 16, 1)),
    "strides": typed((16, 8)).T,
    "rows that are padded": typed((8, 32))[:, :16],
    "type": typed((8, 16), np.int16),
    "a start that is no multiple of 16 bytes": typed((8, 16), np.float16, 8),
}


@pytest.mark.parametrize("difference", LAYOUTS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_another_layout_finds_nothing(make: Make, difference: str, place: int) -> None:
    arrays = [make(typed((8, 16))) for _ in range(3)]
    cache = cache_with(arrays, Launch())
    arrays[place] = make(LAYOUTS[difference])

    assert cache.run(tuple(arrays), None, None) is None


def test_which_array_starts_off_a_multiple_of_16_bytes_matters(make: Make) -> None:
    scale = [make(typed((8, 16))), make(typed((8, 16))), make(typed((8, 16), np.float16, 4))]
    cache = cache_with(scale, Launch())
    operand = [make(typed((8, 16), np.float16, 4)), *(make(typed((8, 16))) for _ in range(2))]

    assert cache.run(tuple(scale), None, None) is not None
    assert cache.run(tuple(operand), None, None) is None


@pytest.mark.parametrize("has_guards", [True, False])
@pytest.mark.parametrize("other", [{"is_negated": True}, {"device": "cpu"}, {"device": "cuda:1"}])
def test_a_tensor_that_shows_other_values_or_lies_elsewhere_finds_nothing(
    has_guards: bool, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch(has_guards=has_guards))
    arrays = three(on_device)
    cache = cache_with(arrays, Launch())
    arrays[1] = Tensor(typed((8, 16)), **{"device": "cuda:0", **other})

    assert cache.run(tuple(arrays), None, None) is None


def test_tensors_seen_before_are_recognised_without_reading_their_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    arrays = three(on_device)
    cache = cache_with(arrays, Launch())
    monkeypatch.setattr(_call_cache, "fingerprint", lambda _: pytest.fail("read a layout"))

    assert cache.run(tuple(arrays), None, None) is not None


class Parameter(Tensor):
    """A tensor of another type, which the guards of plain ones refuse."""


Parameter.__module__ = "torch.nn"


def test_tensors_of_another_type_share_the_entry_and_get_a_guard_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    plain = three(on_device)
    cache = cache_with(plain, Launch())
    weights = Parameter(typed((8, 16)), device="cuda:0")
    arrays = [plain[0], weights, plain[2]]
    assert cache.run(tuple(arrays), None, None) is not None
    monkeypatch.setattr(_call_cache, "fingerprint", lambda _: pytest.fail("read a layout"))

    assert cache.run(tuple(arrays), None, None) is not None
    assert cache.run(tuple(plain), None, None) is not None


def test_one_tensor_may_be_both_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    one, out = on_device(typed((8, 8))), on_device(typed((8, 8)))
    cache = cache_with([one, one, out], Launch())

    for arrays in ([one, one, out], [one, on_device(typed((8, 8))), out]):
        assert cache.run(tuple(arrays), None, None) is not None


def test_mixed_arrays_need_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    arrays = [on_device(typed((4, 8))), CupyArray(typed((8, 16))), CupyArray(typed((4, 16)))]
    launch = Launch()
    cache = cache_with(arrays, launch)
    with pytest.raises(LaunchError, match=r"torch arrays \(current stream 0x5\)"):
        cache.run(tuple(arrays), None, None)
    torch.stream = 7
    assert cache.run(tuple(arrays), None, None) is not None
    assert [stream for _, _, stream in launch.taken()] == [7]


def test_many_layouts_do_not_fill_the_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    monkeypatch.setattr(_call_cache, "_MAX_ENTRIES", 8)
    cache = CallCache()
    kept = []
    for rows in range(1, 40):
        arrays = [on_device(typed((rows, 8))) for _ in range(2)]
        kept.append(arrays)
        remember(cache, arrays, Launch())
        assert cache.run(tuple(arrays), None, None) is not None
    assert len(cache._entries) <= 8
    assert len(cache._likely) <= 8


def test_layouts_with_the_same_option_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    cache, launches, kept = CallCache(), [Launch() for _ in range(4)], []
    for rows, launch in enumerate(launches, 1):
        kept.append(tuple(on_device(typed((rows, 8))) for _ in range(2)))
        remember(cache, kept[-1], launch)
    monkeypatch.setattr(_call_cache, "fingerprint", lambda _: pytest.fail("read a layout"))

    for arrays, launch in zip(kept, launches, strict=True):
        assert cache.run(arrays, None, None) is not None
        assert [where for _, where, _ in launch.taken()] == [addresses(*arrays)]


def test_entries_that_differ_in_alignment_alone_are_distinguished(torch: Torch) -> None:
    cache, launches = CallCache(), (Launch(), Launch())
    kept = [
        (on_device(typed((8, 16))), on_device(typed((8, 16), np.float16, shift)))
        for shift in (0, 4)
    ]
    for arrays, launch in zip(kept, launches, strict=True):
        remember(cache, arrays, launch)

    for arrays, launch in 2 * [*zip(kept, launches, strict=True)]:
        assert cache.run(arrays, None, None) is not None
        assert len(launch.taken()) == 1
