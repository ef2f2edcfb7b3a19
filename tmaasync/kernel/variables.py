"""Variables of a kernel's module in ``__constant__`` and ``__device__`` memory."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, Violation

__all__ = ["Variable", "VariableMemory"]


class VariableMemory(Protocol):
    """The bytes of a variable, in a module that a back end has loaded."""

    def read(self) -> bytes:
        """Return the bytes."""

    def write(self, data: bytes) -> None:
        """Replace all bytes."""


class Variable:
    """A ``__constant__`` or ``__device__`` variable of a kernel, made by `Kernel.variable`.

    Attributes:
        name: As it was asked for.
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
        """Return a copy of the variable in host memory: an array of one dimension.

        Waits for the device's work.

        Raises:
            ArgumentError: The variable does not hold a whole number of elements of this type.
        """
        try:
            element = np.dtype(dtype)
        except TypeError:
            rule, remedy = "it must be a NumPy dtype", "Pass the type of its elements"
            raise ArgumentError.of([Violation("dtype", shown(dtype), rule, remedy)]) from None
        if element.itemsize == 0 or self.size_bytes % element.itemsize:
            raise ArgumentError(
                f"dtype is {element}, of {element.itemsize} bytes; {self.name} has "
                f"{self.size_bytes} bytes, no multiple of it. Pass the type of its elements."
            )
        return np.frombuffer(self._memory.read(), element).copy()

    def write(self, values: npt.ArrayLike) -> None:
        """Fill the whole variable, as ``cudaMemcpyToSymbol`` does.

        Waits for the device's work; later launches read the new values.

        Args:
            values: A host array or NumPy scalar with as many bytes as the variable. Of a variable
                of numbers it has their type, or is uint8, its bytes.

        Raises:
            ArgumentError: They have more or fewer bytes, or another type.
        """
        data = np.asarray(values)
        if data.nbytes != self.size_bytes or data.dtype.hasobject:
            raise ArgumentError(
                f"values has {data.nbytes} bytes ({data.dtype}, shape {data.shape}); {self.name} "
                f"has {self.size_bytes} bytes. Pass an array of its size and element type."
            )
        name = data.dtype.name if data.dtype.isnative else data.dtype.str
        if self._elements is not None and name not in (*self._elements, "uint8"):
            raise ArgumentError(
                f"values holds {data.dtype}; {self.name} is declared with elements of "
                f"{self._elements[0]}. Convert it, or pass array.view('uint8') for its bytes."
            )
        self._memory.write(data.tobytes())
