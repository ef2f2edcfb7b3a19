"""``__constant__`` and ``__device__`` variables of a kernel's module."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError


class VariableMemory(Protocol):
    """The bytes of a variable, in a module that a back end has loaded."""

    def read(self) -> bytes:
        """Return the bytes."""

    def write(self, data: bytes) -> None:
        """Replace all bytes."""


class Variable:
    """A ``__constant__`` or ``__device__`` variable of a kernel, made by `Kernel.variable`.

    Attributes:
        name: The name as passed to `Kernel.variable`.
        size_bytes: The size of the variable.
    """

    def __init__(
        self,
        name: str,
        size_bytes: int,
        memory: VariableMemory,
        elements: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self._memory = memory
        self._elements = elements

    def __repr__(self) -> str:
        return f"<Variable {self.name}: {self.size_bytes} bytes>"

    def read(self, dtype: npt.DTypeLike = np.uint8) -> npt.NDArray[Any]:
        """Return a copy of the variable in host memory, as an array of one dimension.

        It waits for the device's work.

        Raises:
            ArgumentError: The variable's size is not a multiple of this element type's.
        """
        try:
            element = np.dtype(dtype)
        except TypeError:
            rule, remedy = "it must be a NumPy dtype", "Pass the type of its elements"
            raise ArgumentError.broken("dtype", shown(dtype), rule, remedy) from None
        if element.itemsize == 0 or self.size_bytes % element.itemsize:
            raise ArgumentError.broken(
                "dtype",
                f"{element}, of {element.itemsize} bytes",
                f"{self.name} has {self.size_bytes} bytes, no multiple of it",
                "Pass the type of its elements",
            )
        return np.frombuffer(self._memory.read(), element).copy()

    def write(self, values: npt.ArrayLike) -> None:
        """Fill the whole variable, as ``cudaMemcpyToSymbol`` does.

        It waits for the device's work; later launches read the new values.

        Args:
            values: A host array or NumPy scalar of the variable's size in bytes. For a variable of
                numbers its type must match, or be uint8 for raw bytes.

        Raises:
            ArgumentError: The values have another size or type.
        """
        data = _arrays.numpy_array(values, "values")
        if data.nbytes != self.size_bytes or data.dtype.hasobject:
            raise ArgumentError.broken(
                "values",
                f"{data.nbytes} bytes ({data.dtype}, shape {data.shape})",
                f"{self.name} has {self.size_bytes} bytes",
                "Pass an array of its size and element type",
                verb="has",
            )
        name = data.dtype.name if data.dtype.isnative else data.dtype.str
        if self._elements is not None and name not in (*self._elements, "uint8"):
            raise ArgumentError.broken(
                "values",
                data.dtype,
                f"{self.name} is declared with elements of {self._elements[0]}",
                "Convert it, or pass array.view('uint8') for its bytes",
                verb="holds",
            )
        self._memory.write(data.tobytes())
