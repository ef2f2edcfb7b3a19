"""Arrays of any strides, for kernels that copy without a tensor map."""

from __future__ import annotations

import struct

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._hardware import INT32_LIMIT
from tmaasync._tile.argument import KernelArgument
from tmaasync.errors import TensorMapError, Violation

_MAX_RANK = 5


class StridedTensor(KernelArgument):
    """Address, strides and extents of an array of 1 to 5 dimensions, for loops of threads.

    It needs no alignment, and strides may be padded, zero or negative. Pass it to a kernel for a
    parameter of the type `cuda_type`.

    Args:
        array: As in `create_tma_tile`; each extent below 2**31, as coordinates have 32 bits.
        dtype: As in `create_tma_tile`.

    Raises:
        TensorMapError: The array has no dimensions or more than five, or an extent of 2**31.
        ArrayTypeError: Not an array, or not of a type that TMA can read.

    >>> import numpy as np
    >>> StridedTensor(np.zeros((4, 6), np.float32)[:, ::-2]).cuda_type
    'tmaasync::StridedTensor<float, 2>'
    """

    __slots__ = ("_argument", "_view")

    _kind = "tensor"
    _view: ArrayView

    def __init__(self, array: object, *, dtype: object = None) -> None:
        """Check the array and pack the kernel parameter."""
        view = _arrays.view(array, dtype=dtype)
        TensorMapError.raise_for(strided_violations(view))
        rank, innermost_first = view.ndim, (*reversed(view.strides_bytes), *reversed(view.shape))
        packed = struct.pack(f"<Q{rank}q{rank}i", view.address, *innermost_first)
        self._view = view
        self._argument = packed + bytes(-len(packed) % 8)

    @property
    def argument(self) -> bytes:
        """The bytes of the kernel parameter: address, strides in bytes, extents."""
        return self._argument

    @property
    def cuda_type(self) -> str:
        """The type in CUDA C++."""
        return f"tmaasync::StridedTensor<{self._view.element.cuda_type}, {self._view.ndim}>"


def strided_violations(view: ArrayView) -> list[Violation]:
    """Return what a kernel's 32-bit coordinates do not allow."""
    found = []
    if not 1 <= view.ndim <= _MAX_RANK:
        remedy = "Pass array.reshape(1)" if view.ndim == 0 else "Fold dimensions, or loop over one"
        found.append(
            Violation("array.shape", view.shape, f"a tile has 1 to {_MAX_RANK} sides", remedy)
        )
    found += [
        Violation(
            f"array.shape[{dim}]",
            extent,
            "coordinates in kernels have 32 bits with a sign",
            "Pass a slice, or reshape that dimension into two",
        )
        for dim, extent in enumerate(view.shape)
        if extent >= INT32_LIMIT
    ]
    return found
