"""Arrays with a __cuda_array_interface__."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_arrays import CudaInterface

from tmaasync import ArgumentError, ArrayTypeError, StaleTileError
from tmaasync._arrays import require_current, view

# --- __cuda_array_interface__ ---------------------------------------------------------------------


def _interface(**changes: object) -> dict[str, object]:
    whole = {"shape": (4, 8), "typestr": "<f4", "data": (0x30000, False), "version": 3}
    return whole | changes


@pytest.fixture
def _without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmaasync._arrays.protocols._driver", lambda: None)


@pytest.mark.usefixtures("_without_driver")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("strides", "expected"), [(None, (32, 4)), ((64, 4), (64, 4)), ((4, -16), (4, -16))]
)
def test_a_cuda_array_interface_is_read(
    version: int, strides: tuple[int, ...] | None, expected: tuple[int, ...]
) -> None:
    seen = view(CudaInterface(_interface(version=version, strides=strides, data=(0x30000, True))))

    assert seen[:3] == (0x30000, (4, 8), expected)
    assert (seen.device, seen.read_only, seen.framework) == (0, True, "other")


@pytest.mark.usefixtures("_without_driver")
def test_a_cuda_array_interface_without_strides_member_is_contiguous() -> None:
    assert view(CudaInterface(_interface(shape=(2, 0, 3)))).strides_bytes == (0, 12, 4)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, "of version 1"),
        ({"mask": object()}, "ignore its mask"),
        ({"typestr": "<V2"}, "does not say what its elements are"),
        ({"data": (0, False)}, "at address 0"),
    ],
)
def test_a_cuda_array_interface_that_cannot_be_honoured_is_refused(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises((ArrayTypeError, ArgumentError), match=reason):
        view(CudaInterface(_interface(**changes)))


def test_an_incomplete_cuda_array_interface_is_refused_with_what_it_lacks() -> None:
    with pytest.raises(ArrayTypeError, match="lacks typestr, version"):
        view(CudaInterface({"shape": (1,), "data": (16, False)}))


def test_a_cuda_array_interface_that_is_no_dictionary_or_raises_is_refused() -> None:
    class Raising:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise KeyError("no device")

    for interface in (None, 7, [("shape", (4,))], "text"):
        with pytest.raises(ArrayTypeError, match=r"array is a .*__cuda_array_interface__"):
            view(CudaInterface(interface))  # type: ignore[arg-type]
    with pytest.raises(ArrayTypeError, match=r"cannot be read \(KeyError: 'no device'\)") as caught:
        view(Raising())
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.usefixtures("_without_driver")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"shape": None}, "shape None"),
        ({"shape": "48"}, "shape '48'"),
        ({"shape": 4}, "shape 4"),
        ({"shape": (4.0, 8)}, r"shape \(4\.0, 8\)"),
        ({"shape": (4, -8)}, r"its shape is \(4, -8\), and a size cannot be negative"),
        ({"shape": (2**40, 2**40)}, "more than the address space holds"),
        ({"shape": (0, 2**40, 2**40)}, "more than the address space holds"),
        ({"shape": (1,) * 65}, "has 65 dimensions, and arrays have at most 64"),
        ({"typestr": None}, "typestr None"),
        ({"typestr": 4}, "typestr 4"),
        ({"typestr": "<f5"}, "typestr '<f5'"),
        ({"typestr": "(("}, r"typestr '\(\('"),
        ({"data": None}, "data None"),
        ({"data": 0x30000}, "data 196608"),
        ({"data": (0x30000,)}, r"data \(196608,\)"),
        ({"data": (None, False)}, r"data \(None, False\)"),
        ({"data": ("x", False)}, r"data \('x', False\)"),
        ({"data": (0x30000, None)}, r"data \(196608, None\)"),
        ({"data": (-8, False)}, "reaches beyond the address space"),
        ({"data": (2**64 - 8, False)}, "reaches beyond the address space"),
        ({"strides": (4,)}, "2 dimensions and strides for 1"),
        ({"strides": ()}, "2 dimensions and strides for 0"),
        ({"strides": "ab"}, "strides 'ab'"),
        ({"strides": (32, None)}, r"strides \(32, None\)"),
        ({"strides": (-(2**20), 4)}, "reaches beyond the address space"),
        ({"shape": (1, 8), "strides": (2**64, 4)}, "more than the address space has"),
        ({"stream": "x"}, "stream 'x'"),
        ({"version": 0}, "of version 0"),
        ({"version": None}, "of version None"),
        ({"version": "3"}, "of version '3'"),
        ({"mask": False}, "ignore its mask"),
    ],
)
def test_every_member_of_a_cuda_array_interface_is_checked(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(ArrayTypeError, match=rf"^x is a .*{reason}"):
        view(CudaInterface(_interface(**changes)), argument="x")


@pytest.mark.usefixtures("_without_driver")
def test_numbers_of_numpy_in_a_cuda_array_interface_are_read() -> None:
    shape, strides = (np.int64(4), np.uint8(8)), (np.int32(32), np.int8(4))
    data = (np.uint64(0x30000), np.bool_(True))

    seen = view(CudaInterface(_interface(shape=shape, strides=strides, data=data)))

    assert seen[:3] == (0x30000, (4, 8), (32, 4))
    assert {type(number) for number in (seen.address, *seen.shape, *seen.strides_bytes)} == {int}


class _PointerTable:
    """A driver that knows one allocation, on device 2."""

    known = 0x30000

    def cuPointerGetAttribute(self, ordinal: Any, attribute: int, address: Any) -> int:  # noqa: N802
        assert attribute == 9
        if address.value != self.known:
            return 1
        ordinal._obj.value = 2
        return 0


def test_the_driver_knows_whose_memory_a_cuda_array_interface_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tmaasync._arrays.protocols._driver", _PointerTable)

    assert view(CudaInterface(_interface())).device == 2
    with pytest.raises(ArgumentError, match=r"at 0x40000; the driver knows no CUDA memory there"):
        view(CudaInterface(_interface(data=(0x40000, False))))


@pytest.mark.usefixtures("_without_driver")
def test_an_interface_that_moved_is_noticed_by_its_tile() -> None:
    owner = CudaInterface(_interface())
    seen = view(owner)
    require_current(seen, "tile")

    owner.interface["data"] = (0x50000, False)

    with pytest.raises(StaleTileError, match="it now lies at 0x50000"):
        require_current(seen, "tile")


@pytest.mark.usefixtures("_without_driver")
@pytest.mark.parametrize("broken", [{}, {"data": None}, {"shape": None, "data": (0x30000, False)}])
def test_an_interface_that_broke_after_the_view_is_noticed(broken: dict[str, object]) -> None:
    owner = CudaInterface(_interface())
    seen = view(owner)

    owner.interface = broken

    with pytest.raises(StaleTileError, match="that memory is gone"):
        require_current(seen, "tile")
