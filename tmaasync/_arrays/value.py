"""ArrayView, and how an array's own element type and the caller's wish become one."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync._elements import Element, element
from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, ArrayTypeError

Framework = Literal["numpy", "cupy", "torch", "jax", "other"]

STAND_IN: Final = object()
"""The owner of a view without an array, by which arguments are checked and nothing is launched."""


# A NamedTuple, because a frozen dataclass of nine fields takes four times as long to make, and a
# launch makes one for every array it is given.
class ArrayView(NamedTuple):
    """The address and layout of an array at the time of the look.

    Shape and strides run outermost dimension first, one stride per dimension, in bytes; strides may
    be zero or negative. Equality compares everything but the owner, and the owner by identity.
    ``view._replace(shape=..., strides_bytes=...)`` is the same memory under another layout.
    """

    address: int
    """Of the element with all indices zero, which with negative strides is not the lowest."""

    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element: Element

    device: int | None
    """CUDA ordinal, or None for host memory."""

    read_only: bool
    framework: Framework

    owner: object
    """The caller's array. Whoever keeps the address keeps the owner."""

    lease: object = None
    """What else must live as long as the address: the DLPack capsule, where there is one."""

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape

    @property
    def is_on_host(self) -> bool:
        return self.device is None

    @property
    def location(self) -> str:
        """The location in a message, as in ``cuda:0``."""
        return "the host" if self.is_on_host else f"cuda:{self.device}"

    @property
    def is_stand_in(self) -> bool:
        return self.owner is STAND_IN

    @property
    def byte_bounds(self) -> tuple[int, int]:
        """The lowest address that belongs to the array, and the one after its highest."""
        if self.is_empty:
            return self.address, self.address
        reaches = [
            (size - 1) * stride for size, stride in zip(self.shape, self.strides_bytes, strict=True)
        ]
        low = self.address + sum(reach for reach in reaches if reach < 0)
        high = self.address + sum(reach for reach in reaches if reach > 0)
        return low, high + self.element.itemsize

    def __eq__(self, other: object) -> bool:
        """Compare by value, and the owners by identity."""
        if not isinstance(other, ArrayView):
            return NotImplemented
        return self.owner is other.owner and self[:7] == other[:7]

    def __ne__(self, other: object) -> bool:
        """Negate ``==``; a tuple's own would compare the owners' elements."""
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:7])

    def __repr__(self) -> str:
        device = self.location.removeprefix("the ")
        return (
            f"ArrayView({self.framework} {self.element} {self.shape} at {self.address:#x} on "
            f"{device}, strides_bytes={self.strides_bytes}"
            f"{', read only' if self.read_only else ''})"
        )


def host_array(view: ArrayView) -> npt.NDArray[Any]:
    """Return a NumPy array over a view's host memory, for libraries that offer only DLPack.

    It does not keep the view's owner alive.
    """
    low, high = view.byte_bounds
    memory = memoryview((ctypes.c_char * (high - low)).from_address(low))
    offset = view.address - low
    return np.ndarray(view.shape, view.element.dtype, memory, offset, view.strides_bytes)


def choose_element(own: object, itemsize: int, dtype: object, argument: str) -> Element:
    """Return the element type: the array's own, or the caller's if it has the same width.

    Args:
        own: How the array calls its type.
        itemsize: Bytes of one element of the array.
        dtype: The type that the caller reads it as; None for the array's own.
        argument: The array's name in an error.
    """
    if dtype is None:
        return element(own, argument=f"{argument}.dtype")
    wanted = element(dtype)
    if wanted.itemsize == itemsize:
        return wanted
    raise ArgumentError.broken(
        "dtype",
        wanted,
        f"dtype reinterprets bits, so its {wanted.itemsize} bytes must equal the "
        f"{itemsize} of {argument}.dtype, {own}",
        f"Pass a type of {itemsize} bytes, or convert the array first",
    )


def require_memory(address: int, shape: tuple[int, ...], argument: str) -> None:
    """Refuse an array that has elements but no memory for them."""
    if address == 0 and 0 not in shape:
        raise ArgumentError.broken(
            argument,
            f"an array of shape {tuple(shape)} at address 0",
            "its memory was freed, or it never had any",
            "Pass an array that holds data",
        )


MAX_DIMENSIONS = 64
"""Dimensions of an array of another library: as many as NumPy's and torch's have at most."""

_LARGEST_BYTES, _ADDRESSES = 2**63, 2**64


def require_layout(
    array: object,
    address: int,
    shape: tuple[int, ...],
    strides_bytes: tuple[int, ...],
    itemsize: int,
    argument: str,
) -> None:
    """Refuse an array of another library whose fields describe no memory.

    Raises:
        ArrayTypeError: A size, a stride or the address is impossible.
    """
    for rule in _impossible(address, shape, strides_bytes, itemsize):
        remedy = "Correct what its library exports, or pass an array of NumPy, CuPy, torch or JAX"
        raise not_an_array(array, rule, remedy, argument)


def _impossible(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> Iterator[str]:
    """Yield the first broken rule; a rule relies on those before it."""
    if len(shape) > MAX_DIMENSIONS:
        yield f"it has {len(shape)} dimensions, and arrays have at most {MAX_DIMENSIONS}"
    if len(strides) != len(shape):
        yield f"it has {len(shape)} dimensions and strides for {len(strides)}"
    if min(shape, default=0) < 0:
        yield f"its shape is {shape}, and a size cannot be negative"
    # Zeros are left out, as in NumPy: the strides of an empty array multiply its other sizes.
    if itemsize * math.prod(size or 1 for size in shape) >= _LARGEST_BYTES:
        yield f"its shape is {shape}, more than the address space holds"
    if any(abs(stride) >= _LARGEST_BYTES for stride in strides):
        yield f"its strides are {strides} bytes, more than the address space has"
    reaches = [max(size - 1, 0) * stride for size, stride in zip(shape, strides, strict=True)]
    low = address + (0 if 0 in shape else sum(reach for reach in reaches if reach < 0))
    high = address + (0 if 0 in shape else sum(reach for reach in reaches if reach > 0) + itemsize)
    if low < 0 or high > _ADDRESSES:
        yield (
            f"with shape {shape} and strides of {strides} bytes from address {address:#x} it "
            "reaches beyond the address space"
        )


def numpy_array(values: object, argument: str, dtype: object = None) -> npt.NDArray[Any]:
    """Return values as an array of NumPy, which reads ``__array_interface__`` and the like.

    Raises:
        ArgumentError: NumPy cannot read them.
    """
    try:
        return np.asarray(values, dtype)  # type: ignore[call-overload, no-any-return]
    except Exception as error:  # the values are of a class of the caller's, whose code NumPy runs
        rule, remedy = f"NumPy cannot read it ({described(error)})", "Pass a NumPy array"
        raise ArgumentError.broken(argument, shown(values), rule, remedy) from error


def described(error: Exception) -> str:
    """Return an error of another library's code in words."""
    try:
        text = str(error)
    except Exception:  # its own code, too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def not_an_array(array: object, rule: str, remedy: str, argument: str) -> ArrayTypeError:
    """Build the error for an object whose elements cannot be reached."""
    kind = type(array)
    module = kind.__module__
    if module.startswith("tmaasync."):
        module = "tmaasync"  # which has the names of its public classes
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return ArrayTypeError.broken(argument, f"a {name}", rule, remedy)
