"""Addresses of arrays that a launch does not compare with the kernel's pointer type."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._tile.argument import KernelArgument


class Pointer(KernelArgument):
    """The address of an array, for a pointer parameter of any type.

    A launch checks element type, strides and writability of an array that is passed as a pointer.
    Of a `Pointer` it checks none: for kernels that reinterpret the bytes, that get the strides in
    another argument, or that only read through a pointer to non-const. The array stays alive as
    long as this object.

    Args:
        array: As in `create_tma_tile`, of any strides.
        dtype: As in `create_tma_tile`.

    Raises:
        ArrayTypeError: Not an array, or not of a type that the package knows.

    >>> import numpy as np
    >>> columns = np.arange(12, dtype=np.int32).reshape(3, 4)[:, :2]
    >>> Pointer(columns).cuda_type, Pointer(columns).address == columns.ctypes.data
    ('int*', True)
    """

    __slots__ = ("_view",)

    _kind = "pointer"
    _view: ArrayView

    def __init__(self, array: object, *, dtype: object = None) -> None:
        """Take the array's address."""
        self._view = _arrays.view(array, dtype=dtype)

    def __repr__(self) -> str:
        return f"<Pointer to {self._view.element} at {self.address:#x}>"

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: the address."""
        return self._view.address.to_bytes(8, "little")

    @property
    def cuda_type(self) -> str:
        """The type in CUDA C++ of a pointer to the array's elements."""
        return f"{self._view.element.cuda_type}*"


class PackedArgument(KernelArgument):
    """A kernel parameter as bytes, with the arrays whose addresses are in them.

    Reports use the names of the arrays, as the arguments of a compiler's function are called.

    Args:
        data: The bytes of the parameter.
        arrays: Names and views of the arrays.
    """

    __slots__ = ("_data", "arrays")

    _kind = "parameter"

    def __init__(self, data: bytes, arrays: Sequence[tuple[str, ArrayView]] = ()) -> None:
        self._data = data
        self.arrays = arrays

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.arrays)
        return f"<{len(self._data)} bytes of a parameter{names and f' with {names}'}>"

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter."""
        return self._data

    @property
    def cuda_type(self) -> str:
        """The parameter's type in CUDA C++: bytes."""
        return f"unsigned char[{len(self._data)}]"

    @property
    def array_view(self) -> ArrayView | None:
        """None: it is no array."""
        return None

    def members(self) -> Iterable[ArrayView]:
        """Return the arrays."""
        return tuple(view for _, view in self.arrays)

    @property
    def is_current(self) -> bool:
        """True, because it is made for one launch."""
        return True

    def check_alive(self, argument: str | None = None) -> None:
        """Do nothing: a launch is over before its arrays move."""
