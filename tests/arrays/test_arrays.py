from __future__ import annotations

import ctypes
import gc
import itertools
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_arrays import CudaInterface, Exporter, Named, Tensor
from hypothesis import given
from hypothesis import strategies as st

from tmaasync import ArgumentError, ArrayTypeError, StaleTileError
from tmaasync._arrays import (
    ArrayView,
    common_device,
    current_address,
    have_stream_wait,
    is_contiguous,
    may_overlap,
    numpy_array,
    require_current,
    require_writable,
    view,
)
from tmaasync._elements import ELEMENTS

_Array = np.ndarray[Any, Any]


def _addresses(seen: ArrayView) -> list[int]:
    """The address of every element, counted out one by one."""
    return [
        seen.address + sum(i * stride for i, stride in zip(index, seen.strides_bytes, strict=True))
        for index in itertools.product(*map(range, seen.shape))
    ]


def _bytes_at(seen: ArrayView) -> bytes:
    """What lies in host memory where the view says the elements are, in C order."""
    size = seen.element.itemsize
    return b"".join(ctypes.string_at(address, size) for address in _addresses(seen))


@st.composite
def _sliced_arrays(draw: st.DrawFn) -> _Array:
    shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    base = np.arange(np.prod(shape, dtype=int), dtype=draw(st.sampled_from("bhiq"))).reshape(shape)
    steps = st.sampled_from([None, 1, 2, -1, -2])
    sliced = base[tuple(slice(None, None, draw(steps)) for _ in shape)]
    return np.asarray(sliced.transpose(draw(st.permutations(range(len(shape))))))


def _device_array(shape: tuple[int, ...] = (4, 8), dtype: str = "f4", at: int = 0x10000) -> Any:
    """A real CuPy array over memory that nobody will touch."""
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.UnownedMemory(at, 1 << 20, None, 1)
    return cupy.ndarray(shape, dtype=dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


# --- NumPy ----------------------------------------------------------------------------------------


@given(_sliced_arrays())
def test_the_elements_of_any_slice_lie_where_its_view_says(array: _Array) -> None:
    seen = view(array)

    assert (seen.shape, _bytes_at(seen)) == (array.shape, array.tobytes())
    assert (seen.framework, seen.device, seen.owner) == ("numpy", None, array)


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_every_element_type_of_the_table_can_be_viewed(row: Any) -> None:
    assert view(np.zeros((2, 4), row.dtype), dtype=row).element is row


def test_padded_rows_show_in_the_strides() -> None:
    padded = np.zeros((6, 40), np.float16)[:, :33]

    assert view(padded).strides_bytes == (80, 2)


def test_a_broadcast_dimension_has_stride_zero_and_is_read_only() -> None:
    seen = view(np.broadcast_to(np.ones(4, np.float32), (3, 4)))

    assert (seen.strides_bytes, seen.read_only) == ((0, 4), True)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_arrays_without_dimensions_or_elements_can_be_viewed(shape: tuple[int, ...]) -> None:
    seen = view(np.zeros(shape, np.float32))

    assert (seen.shape, seen.ndim, seen.is_empty) == (shape, len(shape), 0 in shape)


def test_a_subclass_that_only_adds_to_an_array_is_one(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "data", np.float32, "w+", shape=(2, 3))

    assert view(mapped).shape == (2, 3)


def test_a_masked_array_is_refused_because_its_mask_would_be_lost() -> None:
    with pytest.raises(
        ArrayTypeError, match=r"a numpy\.ma\.MaskedArray; TMA would ignore its mask"
    ):
        view(np.ma.masked_array(np.ones(3), mask=True))


# --- an explicit dtype ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ("uint16", "bfloat16"),
        ("V2", "bfloat16"),
        ("uint8", "float8_e4m3fn"),
        ("V1", "float8_e5m2"),
        ("float32", "tf32"),
        ("complex64", "uint64"),
    ],
)
def test_bits_are_read_as_the_type_the_caller_names(stored: str, meant: str) -> None:
    array = np.zeros((2, 8), stored)

    seen = view(array, dtype=meant)

    assert (seen.element, seen.shape, seen.strides_bytes) == (
        view(np.zeros(1, seen.element.dtype), dtype=meant).element,
        array.shape,
        array.strides,
    )


def test_a_dtype_of_another_width_is_refused_with_both_widths() -> None:
    with pytest.raises(ArgumentError) as caught:
        view(np.zeros(4, np.uint16), dtype="float32", argument="source")

    assert str(caught.value) == (
        "dtype is float32; dtype reinterprets bits, so its 4 bytes must equal the 2 of "
        "source.dtype, uint16. Pass a type of 2 bytes, or convert the array first."
    )


def test_an_element_type_that_tma_lacks_is_refused_under_the_arguments_name() -> None:
    with pytest.raises(ArrayTypeError, match=r"^source\.dtype is complex64; TMA has no complex"):
        view(np.zeros(4, np.complex64), argument="source")


def test_a_view_is_returned_as_it_is_or_under_another_type() -> None:
    seen = view(np.zeros(4, np.uint16))

    assert view(seen) is seen
    assert view(seen, dtype="bfloat16") == seen._replace(element=view(seen, dtype="bf16").element)


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        ([1.0, 2.0], "a list"),
        (3, "a int"),
        (None, "a NoneType"),
        (b"bytes", "a bytes"),
        (np.float32(1), "a numpy.float32"),
    ],
)
def test_what_is_no_array_is_named_with_what_would_be_one(thing: object, name: str) -> None:
    with pytest.raises(
        ArrayTypeError, match=rf"^source is {name}; it is no array\. Pass a NumPy, "
    ):
        view(thing, argument="source")


# --- CuPy -----------------------------------------------------------------------------------------


def test_a_cupy_array_is_read_without_a_device() -> None:
    array = _device_array((4, 8), at=0x20000)[1:, ::2]

    seen = view(array)

    assert seen[:3] == (0x20000 + 32, (3, 4), (32, 8))
    assert (seen.device, seen.framework, seen.read_only) == (1, "cupy", False)


def test_a_cupy_array_takes_an_explicit_dtype() -> None:
    assert view(_device_array(dtype="u2"), dtype="bfloat16").element.name == "bfloat16"


# --- torch ----------------------------------------------------------------------------------------


@given(_sliced_arrays())
def test_a_torch_tensor_is_read_through_its_pointer_and_strides(array: _Array) -> None:
    seen = view(Tensor(array))

    assert _bytes_at(seen) == array.tobytes()
    assert (seen.framework, seen.device) == ("torch", None)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"])
def test_torch_types_are_read_by_name(name: str) -> None:
    array = np.zeros((2, 8), getattr(ml_dtypes, name, name))

    assert view(Tensor(array, dtype=name)).element.name == name


def test_a_tensor_on_a_gpu_has_its_ordinal() -> None:
    assert view(Tensor(np.zeros(4), device="cuda:3")).device == 3


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (Tensor(np.zeros(4), layout=Named("torch.sparse_coo")), "its layout is torch.sparse_coo"),
        (Tensor(np.zeros(4), is_negated=True), "a lazy negation or conjugate"),
        (Tensor(np.zeros(4), device="xpu:0"), "neither the host nor a CUDA device"),
        (Tensor(np.zeros(4), device="meta"), "a meta or fake tensor has a shape and no memory"),
        (Tensor(np.zeros(4, "u1"), dtype="quint8"), "names no element type"),
        (Tensor(np.zeros(4, "u1"), dtype="float4_e2m1fn_x2"), "need sm_100"),
    ],
)
def test_tensors_without_plain_memory_are_refused(tensor: Tensor, reason: str) -> None:
    with pytest.raises((ArrayTypeError, ArgumentError), match=reason):
        view(tensor)


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.parametrize(
    "name", ["float32", "bfloat16", "float8_e4m3fn", "bool", "int64", "uint16"]
)
def test_a_real_torch_tensor_lies_where_its_view_says(torch: Any, name: str) -> None:
    tensor = torch.arange(24).reshape(4, 6).to(getattr(torch, name))[1:, ::2].t()

    seen = view(tensor)

    assert seen.element.name == name
    assert _bytes_at(seen) == bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def test_a_real_tensor_that_requires_grad_is_read_outside_of_grad_mode_alone(torch: Any) -> None:
    tensor = torch.ones(4, requires_grad=True)

    with pytest.raises(ArgumentError, match=r"requires grad, in grad mode.*pass the tensor's .det"):
        view(tensor, argument="a")
    with torch.no_grad():
        assert view(tensor).shape == (4,)
    assert view(tensor.detach()).shape == (4,)


def test_real_tensors_without_plain_memory_are_refused(torch: Any) -> None:
    sparse = torch.eye(3).to_sparse()
    negated = torch.ones(3, dtype=torch.complex64).conj().imag

    for tensor in (sparse, negated):
        with pytest.raises(ArrayTypeError):
            view(tensor)


def test_real_tensors_without_memory_are_refused(torch: Any) -> None:
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake_tensor.FakeTensorMode():
        fake = torch.empty(3)

    for tensor in (fake, torch.empty(3, device="meta")):
        with pytest.raises(ArrayTypeError, match=r"has a shape and no memory.*torch.ops.tmaasync"):
            view(tensor)


def test_a_real_tensor_that_lost_its_storage_is_noticed(torch: Any) -> None:
    tensor = torch.ones(1024)
    seen = view(tensor)
    require_current(seen, "tile")

    tensor.untyped_storage().resize_(0)

    with pytest.raises(StaleTileError, match="that memory is gone"):
        require_current(seen, "tile")


def test_a_real_tensor_that_was_given_other_memory_is_noticed(torch: Any) -> None:
    tensor = torch.ones(1024)
    seen = view(tensor)

    tensor.set_(torch.ones(2048))

    with pytest.raises(StaleTileError, match="it now lies at"):
        require_current(seen, "tile")


# --- JAX ------------------------------------------------------------------------------------------


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float8_e4m3fn", "bool", "int8"])
def test_a_jax_array_lies_where_its_view_says(jax: Any, name: str) -> None:
    array = jax.numpy.arange(24).reshape(4, 6).astype(name)

    seen = view(array)

    assert (seen.element.name, seen.framework, seen.read_only) == (name, "jax", True)
    assert _bytes_at(seen) == np.asarray(array).tobytes()


def test_a_deleted_jax_array_is_refused_and_noticed_by_its_tile(jax: Any) -> None:
    array = jax.numpy.ones((4, 8))
    seen = view(array)

    array.delete()

    with pytest.raises(StaleTileError, match="that memory is gone"):
        require_current(seen, "tile")
    with pytest.raises(ArgumentError, match="deleted or donated"):
        view(array)


def test_a_jax_array_without_memory_of_its_own_is_refused(jax: Any) -> None:
    with pytest.raises(ArrayTypeError, match="an array has no memory yet"):
        jax.jit(lambda array: view(array).shape)(jax.numpy.ones(3))
    with pytest.raises(ArrayTypeError, match="no integers below 8 bits"):
        view(jax.numpy.ones(4, "int4"))


class ArrayImpl:
    """A JAX array spread over several devices."""

    shape = (8, 8)

    def is_deleted(self) -> bool:
        return False

    def devices(self) -> set[int]:
        return {0, 1}


ArrayImpl.__module__ = "jaxlib._jax"


def test_a_jax_array_over_several_devices_is_refused_with_the_way_to_its_parts() -> None:
    with pytest.raises(ArgumentError, match=r"over 2 devices; .*array\.addressable_shards\[i\]"):
        view(ArrayImpl())


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


# --- DLPack ---------------------------------------------------------------------------------------


class _Wrapped:
    """A NumPy array that shows nothing but DLPack, and exports a temporary each time."""

    def __init__(self, array: _Array) -> None:
        self._array = array
        self.exported: list[weakref.ref[_Array]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        temporary = self._array.view()
        self.exported.append(weakref.ref(temporary))
        return temporary.__dlpack__(**keywords)


@given(_sliced_arrays())
def test_what_numpy_exports_is_read_as_numpy_lays_it_out(array: _Array) -> None:
    seen = view(_Wrapped(array))

    assert (seen.shape, _bytes_at(seen)) == (array.shape, array.tobytes())
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
    [
        (1, 0, None, {}),
        (3, 1, None, {}),
        (2, 1, 1, {"stream": -1}),
        (13, 2, 2, {"stream": -1}),
    ],
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


# --- __array_interface__ --------------------------------------------------------------------------


class _ArrayInterface:
    def __init__(self, interface: object) -> None:
        self.__array_interface__ = interface


@pytest.mark.parametrize(
    "changes",
    [
        {"data": (0, False)},
        {"data": None},
        {"data": (0x1000,)},
        {"shape": (-4,)},
        {"shape": (2**40, 2**40)},
        {"shape": None},
        {"strides": (4, 4)},
        {"typestr": 4},
    ],
    ids=str,
)
def test_an_array_interface_that_numpy_cannot_read_is_refused(changes: dict[str, object]) -> None:
    whole = {"shape": (4,), "typestr": "<f4", "data": (0x1000, False), "version": 3}

    with pytest.raises(ArgumentError, match=r"values is .*; NumPy cannot read it \("):
        numpy_array(_ArrayInterface(whole | changes), "values")


def test_an_array_interface_is_read_in_place() -> None:
    source = np.arange(4.0)

    assert numpy_array(_ArrayInterface(source.__array_interface__), "values").tolist() == [
        0,
        1,
        2,
        3,
    ]


# --- what a launch asks ---------------------------------------------------------------------------


@given(_sliced_arrays())
def test_byte_bounds_hold_every_element_and_no_more(array: _Array) -> None:
    seen = view(array)

    addresses = _addresses(seen)

    assert seen.byte_bounds == (min(addresses), max(addresses) + seen.element.itemsize)


@given(_sliced_arrays())
def test_contiguous_is_what_numpy_calls_c_contiguous(array: _Array) -> None:
    assert is_contiguous(view(array)) == array.flags.c_contiguous


@given(st.tuples(*[st.integers(0, 12)] * 4))
def test_arrays_overlap_when_their_address_ranges_do(ends: tuple[int, ...]) -> None:
    base = np.zeros(12, np.int8)
    first, second = (base[slice(*sorted(pair))] for pair in (ends[:2], ends[2:]))

    assert may_overlap(view(first), view(second)) == np.may_share_memory(first, second)


def test_equal_addresses_on_two_devices_are_two_places() -> None:
    first = view(Exporter(data=0x1000, shape=(4,), device=(2, 0)))
    second = view(Exporter(data=0x1000, shape=(4,), device=(2, 1)))

    assert not may_overlap(first, second)


def test_a_view_cannot_be_changed() -> None:
    seen: Any = view(np.ones(3))

    with pytest.raises(AttributeError):
        seen.address = 0
    with pytest.raises(AttributeError):
        seen.note = "x"


def test_views_of_one_array_are_equal_and_views_of_its_twin_differ() -> None:
    array = np.ones((2, 3))

    assert view(array) == view(array)
    assert hash(view(array)) == hash(view(array))
    assert view(array) != view(array[:])
    assert view(array) != "something else"


def test_a_view_prints_where_it_is_and_not_what_it_holds() -> None:
    seen = view(Exporter(data=0x1000, shape=(2, 4), device=(2, 1), version=(1, 0), flags=1))

    assert repr(seen) == (
        "ArrayView(other float32 (2, 4) at 0x1000 on cuda:1, strides_bytes=(16, 4), read only)"
    )


def test_a_read_only_array_is_refused_as_a_target() -> None:
    array = np.ones(4)
    require_writable(view(array), "target")
    array.flags.writeable = False

    with pytest.raises(ArgumentError, match=r"^target is read only; .* Pass a writable array"):
        require_writable(view(array), "target")


@pytest.mark.parametrize(
    ("shape", "strides", "is_refused"),
    [
        ((33, 24), (16, 2), True),
        ((3, 33, 24), (48, 48, 2), True),
        ((4, 4), (-6, 2), True),
        ((4, 4), (2, 8), False),
        ((1, 4), (0, 2), False),
        ((4, 1, 3), (6, 2, 2), False),
        ((3, 4), (8, -2), False),
    ],
)
def test_a_target_whose_rows_overlap_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], is_refused: bool
) -> None:
    memory = np.zeros(4096, np.float16)[1000:]
    array = np.lib.stride_tricks.as_strided(memory, shape, strides)
    if is_refused:
        with pytest.raises(ArgumentError, match=r"target is of shape .* one place in memory"):
            require_writable(view(array), "target")
    else:
        require_writable(view(array), "target")


def test_arrays_of_one_device_agree_on_it() -> None:
    on_device = view(Exporter(data=0x1000, shape=(4,), device=(2, 1)))

    assert common_device({"a": on_device, "b": on_device}) == 1
    assert common_device({"a": view(np.ones(2))}) is None


def test_arrays_of_several_devices_are_named_by_argument() -> None:
    views = {
        "a": view(Exporter(data=0x1000, shape=(4,), device=(2, 1))),
        "b": view(np.ones(2)),
    }

    with pytest.raises(
        ArgumentError, match=r"a on cuda:1, b in host memory; one launch works on one"
    ):
        common_device(views)


def test_a_numpy_array_that_was_resized_is_noticed() -> None:
    array = np.ones(8)
    seen = view(array)
    assert current_address(seen) == array.ctypes.data

    array.resize(4, refcheck=False)

    with pytest.raises(StaleTileError, match=r"^tile is made for an array of shape \(8,\) at 0x"):
        require_current(seen, "tile")


def test_a_slice_of_a_numpy_array_that_was_resized_is_noticed() -> None:
    array = np.ones(4096)
    seen = view(array[2048:])
    require_current(seen, "tile")

    array.resize(16, refcheck=False)

    assert current_address(seen) is None


def test_an_array_that_was_only_reshaped_is_still_where_it_was() -> None:
    array = np.ones((4, 8))
    seen = view(array)

    reshaped = seen._replace(shape=(32,), strides_bytes=(8,))

    require_current(reshaped, "tile")


def test_a_cupy_array_is_where_it_was() -> None:
    seen = view(_device_array(at=0x10000))

    assert current_address(seen) == 0x10000


def test_a_torch_tensor_whose_storage_was_freed_is_noticed() -> None:
    tensor = Tensor(np.ones(8))
    seen = view(tensor)
    require_current(seen, "tile")

    tensor.is_freed = True

    with pytest.raises(StaleTileError, match="that memory is gone"):
        require_current(seen, "tile")
