"""Arrays that are exported by DLPack."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from arrays_in_memory import Array, bytes_at, sliced_arrays
from fake_arrays import Exporter
from hypothesis import given

from tmaasync import ArgumentError, ArrayTypeError
from tmaasync._arrays import ArrayView, have_stream_wait, view

# --- DLPack ---------------------------------------------------------------------------------------


class _Wrapped:
    """A NumPy array that shows nothing but DLPack, and exports a temporary each time."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.exported: list[weakref.ref[Array]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        temporary = self._array.view()
        self.exported.append(weakref.ref(temporary))
        return temporary.__dlpack__(**keywords)


@given(sliced_arrays())
def test_what_numpy_exports_is_read_as_numpy_lays_it_out(array: Array) -> None:
    seen = view(_Wrapped(array))

    assert (seen.shape, bytes_at(seen)) == (array.shape, array.tobytes())
    assert (seen.framework, seen.device) == ("other", None)


def test_a_read_only_export_is_read_only() -> None:
    array = np.ones(4)
    array.flags.writeable = False

    assert view(_Wrapped(array)).read_only


def test_the_exported_tensor_lives_exactly_as_long_as_the_view() -> None:
    wrapped = _Wrapped(np.ones(4))
    seen: ArrayView | None = view(wrapped)
    gc.collect()
    assert wrapped.exported[0]() is not None

    seen = None
    gc.collect()

    assert (seen, wrapped.exported[0]()) == (None, None)


@pytest.mark.parametrize("version", [None, (1, 0), (1, 1), (1, 7)])
def test_both_kinds_of_capsule_are_read(version: tuple[int, int] | None) -> None:
    exporter = Exporter(
        data=0x1000, shape=(3, 5), strides=(8, 1), byte_offset=0x40, version=version
    )

    assert view(exporter)[:3] == (0x1040, (3, 5), (32, 4))


@pytest.mark.parametrize(("flags", "read_only"), [(0, False), (1, True)])
def test_the_read_only_flag_of_a_capsule_is_honoured(flags: int, read_only: bool) -> None:
    exporter = Exporter(data=0x1000, shape=(4,), version=(1, 0), flags=flags)

    assert view(exporter).read_only is read_only


def test_null_strides_mean_contiguous() -> None:
    assert view(Exporter(data=0x1000, shape=(2, 3, 4))).strides_bytes == (48, 16, 4)


@pytest.mark.parametrize(
    ("code", "bits", "name"),
    [
        (0, 8, "int8"),
        (0, 64, "int64"),
        (1, 16, "uint16"),
        (2, 16, "float16"),
        (2, 64, "float64"),
        (4, 16, "bfloat16"),
        (6, 8, "bool"),
        (10, 8, "float8_e4m3fn"),
        (12, 8, "float8_e5m2"),
    ],
)
def test_type_codes_mean_what_dlpack_says(code: int, bits: int, name: str) -> None:
    assert view(Exporter(data=0x1000, shape=(4,), code=code, bits=bits)).element.name == name


def test_a_vector_element_is_one_more_dimension() -> None:
    seen = view(Exporter(data=0x1000, shape=(3, 2), strides=(4, 1), lanes=4, bits=16))

    assert (seen.shape, seen.strides_bytes) == ((3, 2, 4), (32, 8, 2))


@pytest.mark.parametrize(
    ("kind", "ordinal", "device", "keywords"),
    [(1, 0, None, {}), (3, 1, None, {}), (2, 1, 1, {"stream": -1}), (13, 2, 2, {"stream": -1})],
)
def test_memory_of_cuda_devices_is_asked_for_without_a_wait(
    kind: int, ordinal: int, device: int | None, keywords: dict[str, int]
) -> None:
    exporter = Exporter(data=0x1000, shape=(4,), device=(kind, ordinal))

    assert view(exporter).device == device
    assert exporter.asked == [keywords]


@pytest.mark.parametrize(
    ("exporter", "reason"),
    [
        (Exporter(data=1, shape=(4,), device=(10, 0)), "DLPack device type 10, neither host nor"),
        (Exporter(data=1, shape=(4,), code=5, bits=64), "no complex numbers"),
        (Exporter(data=1, shape=(4,), code=3, bits=64), "DLPack type code 3.*no element type"),
        (Exporter(data=1, shape=(4,), code=0, bits=4), "its elements are 4-bit int4"),
        (Exporter(data=1, shape=(4,), code=17, bits=4, lanes=2), "need sm_100"),
        (Exporter(data=0, shape=(4,)), "at address 0"),
        (Exporter(data=1, shape=(4,), version=(2, 0)), r"DLPack 2\.0"),
        (Exporter(data=1, shape=(4,), version=(1, 0), flags=2), "exports a copy"),
        (Exporter(data=1, shape=(4,), name=b"used_dltensor"), "not an unused DLPack capsule"),
    ],
)
def test_exports_that_tma_cannot_use_are_refused(exporter: Exporter, reason: str) -> None:
    with pytest.raises((ArrayTypeError, ArgumentError), match=reason):
        view(exporter)


@pytest.mark.parametrize("version", [None, (1, 1)])
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ndim": 2**31 - 1}, "has 2147483647 dimensions, and arrays have 0 to 64"),
        ({"ndim": -1}, "has -1 dimensions"),
        ({"ndim": -(2**31)}, "has -2147483648 dimensions"),
        ({"ndim": 65}, "has 65 dimensions"),
        ({"has_shape": False}, "has 1 dimensions and no shape"),
        ({"has_shape": False, "strides": (1,)}, "has 1 dimensions and no shape"),
        ({"bits": 0}, "are 0-bit float0"),
        ({"lanes": 0}, "0 x 32-bit float32"),
        ({"bits": 255, "lanes": 65535}, "65535 x 255-bit"),
        ({"code": 6, "bits": 64}, "'bool of 64 bits'; it names no element type"),
        ({"code": 10, "bits": 16}, "'float8_e4m3fn of 16 bits'; it names no element type"),
        ({"code": 2, "bits": 248}, "'float248'; it names no element type"),
        ({"code": 255}, "DLPack type code 255"),
        ({"shape": (-4,)}, r"its shape is \(-4,\), and a size cannot be negative"),
        ({"shape": (2**62,)}, "more than the address space holds"),
        ({"shape": (2**32, 2**32), "strides": (0, 0)}, "more than the address space holds"),
        ({"shape": (2**62, 0)}, "more than the address space holds"),
        ({"strides": (2**62,)}, "more than the address space has"),
        ({"strides": (-(2**61) + 1,)}, "reaches beyond the address space"),
        ({"byte_offset": 2**64 - 1}, "reaches beyond the address space"),
        ({"data": 2**64 - 4}, "reaches beyond the address space"),
        ({"data": 0}, "at address 0"),
        ({"data": 0, "byte_offset": 0x1000}, "at address 0"),
        ({"device": (0, 0)}, "DLPack device type 0"),
        ({"device": (99, 0)}, "DLPack device type 99"),
        ({"device": (2, -1)}, r"__dlpack_device__ returned \(2, -1\)"),
        ({"capsule_device": (2, 0)}, r"returns \(1, 0\), and its capsule has \(2, 0\)"),
        ({"device": (2, 1), "capsule_device": (2, 0)}, r"and its capsule has \(2, 0\)"),
    ],
)
def test_every_field_of_a_capsule_is_checked(
    fields: dict[str, Any], reason: str, version: tuple[int, int] | None
) -> None:
    exporter = Exporter(**{"data": 0x1000, "shape": (4,), "version": version, **fields})

    with pytest.raises((ArrayTypeError, ArgumentError), match=reason):
        view(exporter)


def test_a_capsule_without_dimensions_needs_no_shape() -> None:
    assert view(Exporter(data=0x1000, shape=(), has_shape=False))[:3] == (0x1000, (), ())


def test_a_capsule_without_elements_needs_no_memory() -> None:
    assert view(Exporter(data=0, shape=(0, 4), byte_offset=8)).strides_bytes == (16, 4)


@pytest.mark.parametrize(
    "device", [None, 1, (), (1,), (1, 0, 0), ("cpu", 0), (1.0, 0), "cu", (2, None)]
)
def test_a_dlpack_device_that_is_none_is_refused(device: Any) -> None:
    with pytest.raises(ArrayTypeError, match="not a device type and a number"):
        view(Exporter(data=0x1000, shape=(4,), device=device))


@pytest.mark.parametrize("name", [b"used_dltensor", b"used_dltensor_versioned", b"tensor", b""])
def test_a_used_capsule_and_one_of_another_name_are_refused(name: bytes) -> None:
    with pytest.raises(ArrayTypeError, match="not an unused DLPack capsule"):
        view(Exporter(data=0x1000, shape=(4,), name=name))


class _Answers:
    """An object whose DLPack methods are these functions."""

    def __init__(self, device: Any, capsule: Any) -> None:
        self._device, self._capsule = device, capsule

    def __dlpack_device__(self) -> Any:
        return self._device()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self._capsule()


def _raise(error: Exception) -> Any:
    raise error


class _UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


@pytest.mark.parametrize(
    "error", [TypeError("x"), KeyError("x"), AttributeError("x"), OSError("x"), _UnprintableError()]
)
def test_whatever_an_exporter_raises_is_an_error_of_the_package(error: Exception) -> None:
    for exporter in (
        _Answers(lambda: _raise(error), lambda: None),
        _Answers(lambda: (1, 0), lambda: _raise(error)),
    ):
        with pytest.raises(ArrayTypeError, match="does not export it") as caught:
            view(exporter)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("capsule", [None, 7, b"dltensor", _UnprintableError()], ids=type)
def test_what_is_no_capsule_is_refused(capsule: object) -> None:
    with pytest.raises(ArrayTypeError, match="not an unused DLPack capsule"):
        view(_Answers(lambda: (1, 0), lambda: capsule))


def test_packed_elements_can_be_moved_as_the_bytes_they_fill() -> None:
    exporter = Exporter(data=0x1000, shape=(4, 8), code=17, bits=4, lanes=2)

    assert view(exporter, dtype="uint8").strides_bytes == (8, 1)


def test_a_library_that_does_not_export_is_quoted() -> None:
    class Unwilling:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self) -> object:
            raise BufferError("not today")

    with pytest.raises(
        ArrayTypeError, match=r"does not export it \(BufferError: not today\)"
    ) as caught:
        view(Unwilling())

    assert isinstance(caught.value.__cause__, BufferError)


def test_an_exporter_that_does_not_wait_for_its_producer_is_quoted() -> None:
    with pytest.raises(ArrayTypeError, match=r"does not export it \(KeyError: 5\)"):
        have_stream_wait(_Answers(lambda: (2, 0), lambda: _raise(KeyError(5))), 1)
