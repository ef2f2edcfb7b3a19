"""Arrays that operations make: results of the caller's framework, workspaces, staging copies."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays, _torch_internals
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._wheels import install_command
from tmaasync.errors import ArrayTypeError, BackendError
from tmaasync.kernel import backend_of
from tmaasync.ops._layouts import Layout, Operand, padded_row_bytes

_INT32 = np.iinfo(np.int32)
_NEW = 1 << 46
"""The address of stand-ins for new arrays, above all other addresses."""

Allocator = Callable[[], Any]
"""Makes an uninitialised array; holds none."""


def empty(like: ArrayView, shape: tuple[int, ...], element: Element) -> Any:
    """Return an uninitialised array of the framework and device of ``like``.

    Frameworks other than CuPy and torch get a CuPy array, which they take through DLPack; in host
    memory, a NumPy array. A stand-in gets a stand-in.

    Raises:
        BackendError: It has to be a CuPy array, and CuPy is not installed, or there is no driver.
    """
    if like.is_stand_in:
        steps = (math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        strides = tuple(element.itemsize * step for step in steps)
        return like._replace(address=_NEW, shape=shape, strides_bytes=strides, element=element)
    if like.framework == "torch":
        torch = sys.modules["torch"]
        device = "cpu" if like.is_on_host else f"cuda:{like.device}"
        return torch.empty(shape, dtype=getattr(torch, element.name), device=device)
    if like.is_on_host:
        return np.empty(shape, dtype=element.dtype)
    cupy = _cupy()
    try:
        with cupy.cuda.Device(like.device):
            return cupy.empty(shape, dtype=element.dtype)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f"an array is said to lie on cuda:{like.device}, which cannot be used ({error}). "
            "Install NVIDIA's driver, or pass an array in host memory."
        ) from error


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            "for GPU arrays of libraries other than torch, operations make outputs and workspaces "
            "with CuPy, which cannot be imported. Install it with: "
            f"{install_command('cuda13', 'cupy')}, or pass torch tensors: "
            "torch.from_dlpack(array). "
            f"({error})"
        ) from error
    return cupy


def empty_rows(like: ArrayView, shape: tuple[int, ...], element: Element) -> Any:
    """Return an `empty` array whose rows (the last dimension) are a multiple of 16 bytes apart."""
    if 0 in shape:  # torch takes it for contiguous whatever its strides are
        return empty(like, shape, element)
    *outer, columns = shape
    padded = padded_row_bytes(columns, element) // element.itemsize
    whole = empty(like, (*outer, padded), element)
    if like.is_stand_in:
        return whole._replace(shape=shape)
    return whole if padded == columns else whole[..., :columns]


def allocator(like: ArrayView, shape: tuple[int, ...], element: Element) -> Allocator:
    """Return an allocator that does what `empty` does, at less cost a call."""
    if like.framework == "torch" and like.device is not None:
        dtype = getattr(sys.modules["torch"], element.name)
        return _torch_internals.tensor_allocator(shape, dtype, like.device)
    return functools.partial(empty, _unowned(like), shape, element)


def rows_allocator(like: ArrayView, rows: ArrayView) -> Allocator:
    """Return an allocator of arrays of `empty_rows`, for ``like``, with the layout of ``rows``."""
    owner: Any = rows.owner
    if rows.framework == "torch" and owner.is_contiguous():
        return allocator(rows, rows.shape, rows.element)
    return functools.partial(empty_rows, _unowned(like), rows.shape, rows.element)


def _unowned(view: ArrayView) -> ArrayView:
    return view._replace(owner=None, lease=None)


def address_of(array: Any) -> int:
    """Return where an array of `empty` or of an allocator starts."""
    of_torch = getattr(array, "data_ptr", None)
    return _arrays.view(array).address if of_torch is None else int(of_torch())


class Output(NamedTuple):
    """The output of a call: the caller's array, or a new one whose rows TMA can store.

    Attributes:
        array: As the caller gets it.
        view: The view of it.
        like: The array that a new one is made like; None for the caller's.
    """

    array: Any
    view: ArrayView
    like: ArrayView | None

    @classmethod
    def of(
        cls,
        given: Any,
        like: ArrayView,
        shape: tuple[int, ...],
        types: Collection[str],
        dtype: object,
        *,
        what: str = "the output",
    ) -> Output:
        """Look at the caller's array, or make one: of ``dtype``, which must be one of ``types``."""
        array = given
        if given is None:
            array = empty_rows(like, shape, output_element(dtype, types, what))
        view = _arrays.view(array, argument="out")
        _arrays.require_writable(view, "out")
        return cls(array, view, like if given is None else None)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.view)._replace(owns_padding=self.like is not None)

    @property
    def allocators(self) -> tuple[Allocator, ...]:
        """The allocator of a new output; none for the caller's."""
        return () if self.like is None else (rows_allocator(self.like, self.view),)


# --- in the order of a stream -----------------------------------------------------------------


@contextlib.contextmanager
def in_order(framework: str, device: int | None, stream: int) -> Iterator[None]:
    """Make a stream the framework's current one, so that its allocations and kernels are in order.

    Frameworks other than torch are served by CuPy.
    """
    if backend_of(device).reads_host_memory:
        yield
    elif framework == "torch":
        with _torch_stream(device, stream):
            yield
    else:
        cupy = _cupy()
        with cupy.cuda.Device(device), _cupy_stream(cupy, stream):
            yield


def fill(view: ArrayView, value: float) -> None:
    """Set all elements of an array, inside `in_order`."""
    indexable(view)[...] = value


def _torch_stream(device: int | None, stream: int) -> Any:
    cuda = sys.modules["torch"].cuda
    if stream == 0:
        return cuda.stream(cuda.default_stream(device))
    return cuda.stream(cuda.ExternalStream(stream, device=device))


def _cupy_stream(cupy: Any, stream: int) -> Any:
    if int(cupy.cuda.get_current_stream().ptr) == stream:
        return contextlib.nullcontext()
    if hasattr(cupy.cuda.Stream, "from_external"):  # new in CuPy 14
        return cupy.cuda.Stream.from_external(_StreamHandle(stream))
    return cupy.cuda.ExternalStream(stream)


class _StreamHandle(NamedTuple):
    """A handle that CuPy takes for a stream."""

    value: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.value


def contiguous_copy(view: ArrayView, stream: int) -> ArrayView:
    """Return a copy of the same shape, made in the order of a stream."""
    with in_order(view.framework, view.device, stream):
        part = empty(view, view.shape, view.element)
        part[...] = indexable(view)
    return _arrays.view(part)


def indexable(view: ArrayView) -> Any:
    """Return the caller's array; if it has no indexing, one of NumPy or CuPy over its memory."""
    owner: Any = view.owner
    if view.framework in {"numpy", "cupy", "torch"}:
        return owner
    if view.is_on_host:
        return owner if view.framework == "jax" else _arrays.host_array(view)
    cupy = _cupy()
    return cupy.from_dlpack(owner) if hasattr(owner, "__dlpack__") else cupy.asarray(owner)


# --- lengths and offsets ----------------------------------------------------------------------


def zeros(like: ArrayView, shape: tuple[int, ...], stream: object) -> Any:
    """Return an array of zeros of the same element width, made in stream order."""
    handle = backend_of(like.device).stream((like.framework,), stream)
    with in_order(like.framework, like.device, handle):
        array = empty_rows(like, shape, element(f"int{8 * like.element.itemsize}"))
        array[...] = 0
        return array


def int32_on_device(
    values: Any, framework: str, device: int | None, stream: int, *, cumulative: bool = False
) -> Any:
    """Return integers as a contiguous int32 array of the framework, in the order of a stream.

    Numbers beyond 32 bits become the nearest int32, which no array reaches: the kernels report it.
    Frameworks other than torch are served by CuPy.

    Args:
        values: One-dimensional: a NumPy array, or an array on the device.
        framework: As `ArrayView.framework` has it.
        device: Where the result lies.
        stream: The handle of the stream.
        cumulative: Whether to return cumulative lengths instead: a 0, then each length added up.
    """
    with in_order(framework, device, stream):
        convert = _int32_of_torch if framework == "torch" else _int32_of_cupy
        numbers = convert(values, device)
        if not cumulative:
            return numbers
        like = _arrays.view(numbers)
        whole = empty(like, (len(numbers) + 1,), like.element)
        whole[:1] = 0
        int64 = sys.modules["torch"].int64 if framework == "torch" else np.int64
        whole[1:] = numbers.cumsum(0, dtype=int64).clip(_INT32.min, _INT32.max)
        return whole


def _int32_of_torch(values: Any, device: int | None) -> Any:
    torch = sys.modules["torch"]
    if isinstance(values, np.ndarray):
        # Pinned, so that the copy does not wait for the work that is in the stream.
        pinned = torch.tensor(values, dtype=torch.int32).pin_memory()
        return pinned.to(f"cuda:{device}", non_blocking=True)
    numbers = values if isinstance(values, torch.Tensor) else torch.from_dlpack(values)
    return saturated_int32(numbers).contiguous()


def saturated_int32(numbers: Any) -> Any:
    """Return integers of a torch tensor in int32, numbers beyond it as the nearest."""
    torch = sys.modules["torch"]
    if numbers.dtype == torch.uint64:  # torch compares few unsigned types
        numbers = numbers.view(torch.int64)
        numbers = numbers.where(numbers >= 0, _INT32.max)
    if numbers.dtype in (torch.int64, torch.uint32):
        numbers = numbers.to(torch.int64).clip(_INT32.min, _INT32.max)
    return numbers.to(torch.int32)


def _int32_of_cupy(values: Any, device: int | None) -> Any:
    del device  # CuPy's current one
    cupy = _cupy()
    if isinstance(values, np.ndarray):
        return cupy.asarray(values, np.int32)
    numbers = cupy.from_dlpack(values)
    if numbers.dtype.itemsize > _INT32.bits // 8 or numbers.dtype == np.uint32:
        low = _INT32.min if numbers.dtype.kind == "i" else 0
        numbers = numbers.clip(low, _INT32.max)
    return cupy.ascontiguousarray(numbers.astype(np.int32, copy=False))


def reached_operand(
    operand: Operand, view: ArrayView, stream: int, *, transposes: bool = False
) -> ArrayView:
    """Return the array that an operand is read from: itself, or a staging copy in stream order.

    ``transposes`` says whether the operand was made for the transpose of the array.
    """
    if not operand.is_staged:
        return view
    owner = indexable(view)
    is_transposed = transposes != operand.transposed
    *outer, rows, columns = operand.rows.shape
    shape = (*outer, columns, rows) if is_transposed else operand.rows.shape
    if view.ndim > len(shape):
        # A batch that was merged, or one that is the same matrix again and again.
        owner = owner.reshape(shape) if math.prod(view.shape) == math.prod(shape) else owner[0]
    with in_order(view.framework, view.device, stream):
        # Bytes that the caller reads as another type are copied as bytes.
        part = empty_rows(view, operand.rows.shape, _arrays.view(owner).element)
        part[...] = owner.swapaxes(-1, -2) if is_transposed else owner
    return _arrays.view(part, dtype=view.element)


@contextlib.contextmanager
def reached_output(
    operand: Operand, out: ArrayView, stream: int, *, keeps_rest: bool = False
) -> Iterator[ArrayView]:
    """Yield the array that a kernel writes: the output, or a staging copy, copied at the end.

    ``keeps_rest`` says whether the kernel leaves some of it as it is.
    """
    if not operand.is_staged:
        yield out
        return
    owner = indexable(out)
    with in_order(out.framework, out.device, stream):
        staged = empty_rows(out, operand.rows.shape, out.element)
        if keeps_rest:
            staged[...] = owner
        yield _arrays.view(staged)
        owner[...] = staged.reshape(out.shape)


def output_element(dtype: object, types: Collection[str], what: str = "the output") -> Element:
    """Return the element type of a new output, which must be one of ``types``."""
    held = element(dtype)
    if held.name not in types:
        raise ArrayTypeError.broken("dtype", held, f"{what} can be {', '.join(types)}", "Pass one")
    return held
