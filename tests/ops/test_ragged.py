"""Packing and spreading out without a GPU: what is refused, and what costs little or nothing."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import aligned
from fake_arrays import Cupy, CupyArray, Tensor, Torch

from tmaasync import ArgumentError, TensorMapError, _arrays, ops
from tmaasync.ops._call_cache import forget
from tmaasync.ops._ragged import RaggedCopy


def test_an_operation_refuses_what_does_not_fit() -> None:
    padded, packed = aligned((3, 8, 32)), aligned((20, 32))

    with pytest.raises(ArgumentError, match="lengths describes 2 sequences; padded has 3"):
        ops.ragged_store(padded, [1, 2])
    with pytest.raises(
        ArgumentError, match=r"than padded\.shape\[1\], 8 rows. Use padded with 9 rows"
    ):
        ops.ragged_store(padded, [1, 2, 9])
    with pytest.raises(ArgumentError, match="the sum of lengths is 21; the packed array has 20"):
        ops.ragged_store(padded, [7, 7, 7], packed)
    with pytest.raises(ArgumentError, match=r"out has shape \(20, 16\); it must be \(20, 32\)"):
        ops.ragged_store(padded, [1, 2, 3], aligned((20, 16)))
    with pytest.raises(ArgumentError, match="out has element float64; it must be float32"):
        ops.ragged_store(padded, [1, 2, 3], aligned((20, 32), np.float64))
    with pytest.raises(ArgumentError, match=r"out has shape \(3, 8, 32\); it must be \(2, 8, 32\)"):
        ops.ragged_load(packed, [1, 2], padded)
    with pytest.raises(ArgumentError, match=r"than max_length, 4 rows\. Use max_length=5"):
        ops.ragged_load(packed, [1, 5], max_length=4)
    with pytest.raises(ArgumentError, match=r"than out\.shape\[1\], 4 rows\. Use out with 5 rows"):
        ops.ragged_load(packed, [1, 5], aligned((2, 4, 32)))
    with pytest.raises(ArgumentError, match=r"lengths is \[\[1\], \[2, 3\]\]; .* Pass a flat list"):
        ops.ragged_load(packed, [[1], [2, 3]])
    with pytest.raises(ArgumentError, match=r"lengths\[0\] is 9223372036854775807; no sequence"):
        ops.ragged_load(packed, np.array([2**63], np.uint64))
    with pytest.raises(ArgumentError, match="max_length is -1; it must be an integer of 0 or more"):
        ops.ragged_load(packed, [], max_length=-1)
    with pytest.raises(ArgumentError, match=r"padded\.shape is \(20, 32\); it must have the shape"):
        ops.ragged_store(packed, [1])
    with pytest.raises(ArgumentError, match="out overlaps the other array"):
        ops.ragged_load(padded.reshape(24, 32), [1, 2], padded[:2], max_length=8)


def test_an_operation_refuses_rows_that_tma_cannot_reach() -> None:
    with pytest.raises(
        TensorMapError, match=r"a row of padded is 12 bytes long; TMA moves rows in"
    ):
        ops.ragged_store(aligned((2, 4, 3)), [1, 2])
    with pytest.raises(TensorMapError, match="packed's last stride is 8; the last dimension must"):
        ops.ragged_load(aligned((20, 32, 2))[:, :, 0], [1, 2])
    with pytest.raises(TensorMapError, match="packed's address is 0x"):
        ops.ragged_load(aligned((9, 32)).reshape(-1)[1:257].reshape(8, 32), [1, 2])


def test_a_read_only_output_is_refused() -> None:
    out = aligned((2, 8, 32))
    out.flags.writeable = False

    with pytest.raises(ArgumentError, match="out is read only"):
        ops.ragged_load(aligned((20, 32)), [1, 2], out)


def test_empty_batches_cost_nothing() -> None:
    assert ops.ragged_store(aligned((0, 8, 32)), []).shape == (0, 32)
    assert ops.ragged_store(aligned((2, 8, 32)), [0, 0]).shape == (0, 32)
    assert ops.ragged_load(aligned((5, 32)), []).shape == (0, 0, 32)
    assert (ops.ragged_load(aligned((0, 32)), [0, 0], max_length=3) == 0).all()


# --- calls that were made before --------------------------------------------------------------


class Launches:
    """In place of the driver: the addresses of each launch, and on which stream."""

    def __init__(self) -> None:
        self.addresses: list[tuple[int, ...]] = []
        self.streams: list[int] = []
        self.prepared = 0

    def prepare(self, *_: object) -> Launches:
        self.prepared += 1
        return self

    def launch_at(self, addresses: tuple[int, ...], stream: int) -> None:
        self.addresses.append(tuple(addresses))
        self.streams.append(stream)

    def bind(self, addresses: tuple[int, ...], stream: int) -> Callable[[], None]:
        return functools.partial(self.launch_at, addresses, stream)


class Device:
    """A device with the arrays of one library, where launches do nothing but be noted."""

    def __init__(self, library: Cupy | Torch, launches: Launches) -> None:
        self.uploads = library.uploads
        self.launches = launches
        self.is_torch = isinstance(library, Torch)
        self.stream = 5 if self.is_torch else 7

    def over(self, array: np.ndarray[Any, Any]) -> Any:
        return Tensor(array, device="cuda:0") if self.is_torch else CupyArray(array)

    def array(self, shape: tuple[int, ...], dtype: Any = np.float32, shift: int = 0) -> Any:
        size = int(np.prod(shape))
        whole = aligned((size + 64,), dtype)
        return self.over(whole[shift : shift + size].reshape(shape))


@pytest.fixture(params=["cupy", "torch without cupy"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    library = Cupy() if request.param == "cupy" else Torch()
    monkeypatch.setitem(sys.modules, "cupy", library if request.param == "cupy" else None)
    monkeypatch.setitem(sys.modules, "torch", library if request.param != "cupy" else None)
    launches = Launches()
    monkeypatch.setattr(RaggedCopy, "_prepare", launches.prepare)
    forget()
    yield Device(library, launches)
    forget()


def address(array: Any) -> int:
    return int(array.array.ctypes.data)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes looking at an array an error from now on."""

    def refuse() -> None:
        monkeypatch.setattr(_arrays, "view", lambda *_, **__: pytest.fail("looked at an array"))

    return refuse


@pytest.mark.parametrize("entry", ["ragged_store", "ragged_load"])
def test_a_call_like_an_earlier_one_looks_at_no_array(
    device: Device, unseen: Any, entry: str
) -> None:
    def arrays() -> tuple[Any, Any, Any]:
        sums = device.array((4,), np.int32)
        sums.array[:] = 0, 3, 3, 9
        return device.array((3, 8, 32)), device.array((20, 32)), sums

    def call(padded: Any, packed: Any, sums: Any) -> Any:
        if entry == "ragged_store":
            return ops.ragged_store(padded, out=packed, cu_seqlens=sums)
        return ops.ragged_load(packed, out=padded, cu_seqlens=sums)

    call(*arrays())
    again = arrays()
    unseen()

    out = call(*again)

    padded, packed, sums = again
    assert device.launches.addresses[-1] == (address(packed), address(padded), address(sums))
    assert device.launches.prepared == 1
    assert out is (packed if entry == "ragged_store" else padded)


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_lengths_in_host_memory_are_checked_and_uploaded_where_they_differ(
    device: Device, kind: Any
) -> None:
    padded, packed = device.array((3, 8, 32)), device.array((20, 32))
    sums = [0, 3, 3, 9]

    for _ in range(4):
        ops.ragged_store(padded, kind([3, 0, 6]), packed)
    assert device.uploads == [sums]
    ops.ragged_store(padded, kind([3, 0, 7]), packed)
    assert device.uploads == [sums, [0, 3, 3, 10]]

    with pytest.raises(ArgumentError, match=r"may have more than padded\.shape\[1\], 8 rows"):
        ops.ragged_store(padded, kind([3, 0, 9]), packed)
    with pytest.raises(ArgumentError, match="lengths describes 2 sequences; padded has 3"):
        ops.ragged_store(padded, kind([3, 0]), packed)
    with pytest.raises(ArgumentError, match="rows are counted in integers"):
        ops.ragged_store(padded, kind([3.0, 0.0, 7.0]), packed)
    assert len(device.uploads) == 2


def test_lengths_that_were_changed_in_place_are_noticed(device: Device) -> None:
    padded, packed = device.array((3, 8, 32)), device.array((20, 32))
    lengths = [1, 2, 3]
    for _ in range(2):
        ops.ragged_store(padded, lengths, packed)

    lengths[0] = 8
    ops.ragged_store(padded, lengths, packed)

    assert device.uploads[-1] == [0, 8, 10, 13]


def test_sums_on_a_device_are_read_in_place_unless_somebody_must_order_them(device: Device) -> None:
    padded, packed = device.array((3, 8, 32)), device.array((20, 32))
    sums, wide = device.array((4,), np.int32, shift=1), device.array((4,), np.int64)
    for given in (sums, wide):
        for stream in (None, 9):
            for _ in range(2):
                ops.ragged_store(padded, out=packed, cu_seqlens=given, stream=stream)
    places = [places[2] for places in device.launches.addresses]

    assert places[1] == address(sums)
    assert address(wide) not in places
    own = device.stream
    assert device.launches.streams == [own, own, 9, 9, own, own, 9, 9]
    assert device.launches.prepared == 1


def test_sums_may_change_between_host_and_device(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", Torch())
    padded, packed, sums = (
        Tensor(device.array(shape, dtype).array, device="cuda:0")
        for shape, dtype in (((3, 8, 32), np.float32), ((20, 32), np.float32), ((4,), np.int32))
    )
    for _ in range(3):
        for given in ([0, 3, 3, 9], sums):
            ops.ragged_store(padded, out=packed, cu_seqlens=given)
    used = [addresses[2] for addresses in device.launches.addresses]

    assert len(used) == 6
    assert used[1::2] == [sums.data_ptr()] * 3
    assert sums.data_ptr() not in used[::2]


def test_other_arguments_are_looked_at_as_the_first_time(device: Device) -> None:
    memory = device.array((24 * 32 + 20 * 32,))
    packed = device.over(memory.array[: 20 * 32].reshape(20, 32))
    for _ in range(2):
        ops.ragged_load(packed, [1, 2, 3], device.array((3, 8, 32)))
    overlapping = device.over(memory.array[-24 * 32 - 32 : -32].reshape(3, 8, 32))

    with pytest.raises(ArgumentError, match="out overlaps the other array"):
        ops.ragged_load(packed, [1, 2, 3], overlapping)
    with pytest.raises(ArgumentError, match="max_length is True"):
        ops.ragged_load(packed, [1, 2, 3], device.array((3, 8, 32)), max_length=True)
    with pytest.raises(ArgumentError, match="neither given"):
        ops.ragged_load(packed, out=device.array((3, 8, 32)))

    ops.ragged_load(packed, [1, 2, 3], device.array((3, 8, 32), shift=2))
    assert device.launches.prepared == 2  # off 16 bytes, which the real one refuses
