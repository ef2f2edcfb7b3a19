"""Views and fingerprints of arrays, by the reader for their type."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tmaasync._arrays.frameworks import (
    refuse_tracer,
    requires_backward,
    view_cupy,
    view_jax,
    view_numpy,
    view_torch,
)
from tmaasync._arrays.protocols import has_interface, view_cuda_array_interface, view_dlpack
from tmaasync._arrays.value import ArrayView, choose_element, not_an_array
from tmaasync._torch_internals import forward_mode, tensor_guard

_Reader = Callable[[Any, object, str], ArrayView]


def _view_again(seen: ArrayView, dtype: object, argument: str) -> ArrayView:
    kind = choose_element(seen.element, seen.element.itemsize, dtype, argument)
    return seen if kind == seen.element else seen._replace(element=kind)


_BY_TYPE_NAME: dict[tuple[str, str], _Reader] = {
    ("numpy", "ndarray"): view_numpy,
    ("cupy", "ndarray"): view_cupy,
    ("torch", "Tensor"): view_torch,
    ("jax", "ArrayImpl"): view_jax,
    ("jaxlib", "ArrayImpl"): view_jax,
    ("jax", "Tracer"): refuse_tracer,
    ("tmaasync", "ArrayView"): _view_again,
}


def view(array: object, *, dtype: object = None, argument: str = "array") -> ArrayView:
    """Look at an array of any library without copying it.

    Accepted are NumPy, CuPy, torch and JAX arrays and everything with ``__dlpack__`` or
    ``__cuda_array_interface__``; a view of one is returned as it is. A JAX array is waited for, as
    JAX names no stream. Of the others nothing is waited for: the caller orders its work on the
    stream that made the data.

    Args:
        array: The array. It is the view's ``owner``, and the address is good while that lives.
        dtype: Read the elements as this type of the same width; for arrays that cannot say what
            they hold, such as bfloat16 stored as uint16.
        argument: What to call the array in an error.

    Raises:
        ArrayTypeError: No array, or TMA cannot move its elements.
        ArgumentError: ``dtype`` has another width, or the array has no single memory of its own
            (freed, deleted, sharded).

    >>> import numpy
    >>> seen = view(numpy.zeros((3, 8), numpy.uint16)[:, :6], dtype="bfloat16")
    >>> seen.shape, seen.strides_bytes, seen.element.name, seen.device
    ((3, 6), (16, 2), 'bfloat16', None)
    """
    kind: Any = type(array)
    return _reader_for(kind)(array, dtype, argument)


Fingerprint = tuple[int, tuple[object, ...]]


def fingerprint(array: object) -> Fingerprint | None:
    """Return an array's address, and a hashable value that decides everything else of its `view`.

    Several times cheaper than a view: the key of a cached tile or plan. For CuPy and torch arrays;
    None for all others.
    """
    read = _FINGERPRINTS[type(array)]
    return None if read is None else read(array)


def _cupy_fingerprint(array: Any) -> Fingerprint:
    memory = array.data
    return memory.ptr, (array.shape, array.strides, array.dtype, memory.device_id)


def _torch_fingerprint(tensor: Any) -> Fingerprint | None:
    if tensor.get_device() < 0 or tensor.is_neg() or tensor.is_conj():
        return None  # is_cuda is also true of a CPU tensor inside triton.on_cpu
    if tensor.requires_grad and requires_backward(tensor):  # 0.05 us; `view` refuses it
        return None
    if forward_mode()._current_level >= 0:  # as much; `view` looks for a tangent
        return None
    try:
        # Strides count elements here; the type of the dtype keeps these keys apart from CuPy's.
        layout = (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
        return tensor.data_ptr(), layout
    except RuntimeError:  # sparse, nested, fake, or inside torch.func transforms
        return None


class Guard(NamedTuple):
    """A quick test of arrays against the layouts of earlier ones; it holds none of them."""

    check: Callable[..., bool]
    """Compare arrays with the earlier ones in all that `fingerprint` has but the address."""
    address_of: Callable[[Any], int]
    """Return the address of an array that passed."""
    forward_mode: Any
    """Where its ``_current_level`` is not negative, an array that passed may have a tangent."""


def guard(arrays: Sequence[object]) -> Guard | None:
    """Return a test for arrays like these, several times cheaper than their fingerprints.

    For torch tensors only; None for all others, and where an array appears twice.
    """
    if any(_FINGERPRINTS[type(array)] is not _torch_fingerprint for array in arrays):
        return None
    check = tensor_guard(arrays)
    if check is None:
        return None
    return Guard(check, sys.modules["torch"].Tensor.data_ptr, forward_mode())


AddressReader = Callable[[Any], int | None]
"""Returns the address of an array like an earlier one; None for an array that is not like it."""


def address_reader(seen: ArrayView) -> AddressReader | None:
    """Return a reader of the addresses of arrays like a contiguous one that was viewed.

    Like it are contiguous arrays of the same class and element type on the same device. It costs a
    fifth of a `view` or less, and may raise RuntimeError. For CuPy and torch arrays; None for all
    others.
    """
    make = {"cupy": _cupy_reader, "torch": _torch_reader}.get(seen.framework)
    return None if make is None else make(seen.owner, seen.device)


def _cupy_reader(like: Any, device: int | None) -> AddressReader:
    kind, dtype = type(like), like.dtype
    # CuPy's own field costs 0.03 us, its public flags 0.3.
    has_own_field = hasattr(like, "_c_contiguous")

    def read(array: Any) -> int | None:
        if array.__class__ is not kind or array.dtype is not dtype:
            return None
        memory = array.data
        is_contiguous = array._c_contiguous if has_own_field else array.flags.c_contiguous
        return memory.ptr if is_contiguous and memory.device_id == device else None

    return read


def _torch_reader(like: Any, device: int | None) -> AddressReader:
    kind, dtype, forward = type(like), like.dtype, forward_mode()

    def read(tensor: Any) -> int | None:
        is_like = (
            tensor.__class__ is kind
            and tensor.dtype is dtype
            and tensor.get_device() == device
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_nested
            and not (tensor.requires_grad and requires_backward(tensor))
            and forward._current_level < 0
        )
        # The address is 0, or a RuntimeError, for tensors without memory of their own.
        return (tensor.data_ptr() or None) if is_like else None

    return read


class _ByType(dict[type, Callable[[Any], Fingerprint | None] | None]):
    """Fingerprint readers by type, filled as types are seen; a look-up is one C call."""

    def __missing__(self, kind: type) -> Callable[[Any], Fingerprint | None] | None:
        reader = _reader_for(kind)
        found: dict[_Reader, Callable[[Any], Fingerprint | None]] = {
            view_cupy: _cupy_fingerprint,
            view_torch: _torch_fingerprint,
        }
        self[kind] = found.get(reader)
        return self[kind]


_FINGERPRINTS = _ByType()


@lru_cache(maxsize=256)
def _reader_for(kind: type) -> _Reader:
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        reader = _BY_TYPE_NAME.get((library, base.__name__))
        if reader is not None:
            return reader
    # DLPack first: it names the device and knows bfloat16 and float8.
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return view_dlpack
    return _view_by_attribute


def _view_by_attribute(array: Any, dtype: object, argument: str) -> ArrayView:
    # Asked of the object, not of its type: many set it per instance, or raise for host memory.
    if has_interface(array):
        return view_cuda_array_interface(array, dtype, argument)
    remedy = (
        "Pass a NumPy, CuPy, torch or JAX array, or an object with __dlpack__ or "
        "__cuda_array_interface__"
    )
    # Types of ours whose parts are arguments, such as Signals, have their own remedy.
    remedy = getattr(type(array), "_remedy_as_argument", remedy)
    raise not_an_array(array, "it is no array", remedy, argument)
