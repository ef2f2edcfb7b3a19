from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays_in_memory import Array, bytes_at, device_array, sliced_arrays
from fake_arrays import Named, Tensor
from hypothesis import given

from tmaasync import ArgumentError, ArrayTypeError, StaleTileError
from tmaasync._arrays import numpy_array, require_current, view
from tmaasync._elements import ELEMENTS

# --- NumPy ----------------------------------------------------------------------------------------


@given(sliced_arrays())
def test_the_elements_of_any_slice_lie_where_its_view_says(array: Array) -> None:
    seen = view(array)

    assert (seen.shape, bytes_at(seen)) == (array.shape, array.tobytes())
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
    array = device_array((4, 8), at=0x20000)[1:, ::2]

    seen = view(array)

    assert seen[:3] == (0x20000 + 32, (3, 4), (32, 8))
    assert (seen.device, seen.framework, seen.read_only) == (1, "cupy", False)


def test_a_cupy_array_takes_an_explicit_dtype() -> None:
    assert view(device_array(dtype="u2"), dtype="bfloat16").element.name == "bfloat16"


# --- torch ----------------------------------------------------------------------------------------


@given(sliced_arrays())
def test_a_torch_tensor_is_read_through_its_pointer_and_strides(array: Array) -> None:
    seen = view(Tensor(array))

    assert bytes_at(seen) == array.tobytes()
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
    assert bytes_at(seen) == bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


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
    assert bytes_at(seen) == np.asarray(array).tobytes()


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
