"""Arrays of any slice, and where their elements lie in memory."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from tmaasync._arrays import ArrayView

Array = np.ndarray[Any, Any]


def aligned(
    shape: tuple[int, ...] | int,
    dtype: Any = np.float32,
    *,
    alignment: int = 256,
    offset_bytes: int = 0,
    fill: int = 0,
) -> Any:
    """An array of zeros, or other bytes, an offset after a multiple of the alignment."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape)) * kind.itemsize
    whole = np.full(size + 2 * alignment, fill, np.uint8)
    start = -whole.ctypes.data % alignment + offset_bytes
    return whole[start : start + size].view(kind).reshape(shape)


def addresses(seen: ArrayView) -> list[int]:
    """The address of every element, counted out one by one."""
    return [
        seen.address + sum(i * stride for i, stride in zip(index, seen.strides_bytes, strict=True))
        for index in itertools.product(*map(range, seen.shape))
    ]


def bytes_at(seen: ArrayView) -> bytes:
    """What lies in host memory where the view says the elements are, in C order."""
    size = seen.element.itemsize
    return b"".join(ctypes.string_at(address, size) for address in addresses(seen))


@st.composite
def sliced_arrays(draw: st.DrawFn) -> Array:
    shape = draw(st.lists(st.integers(1, 5), min_size=0, max_size=4))
    base = np.arange(np.prod(shape, dtype=int), dtype=draw(st.sampled_from("bhiq"))).reshape(shape)
    steps = st.sampled_from([None, 1, 2, -1, -2])
    sliced = base[tuple(slice(None, None, draw(steps)) for _ in shape)]
    return np.asarray(sliced.transpose(draw(st.permutations(range(len(shape))))))


def device_array(shape: tuple[int, ...] = (4, 8), dtype: str = "f4", at: int = 0x10000) -> Any:
    """A real CuPy array over memory that nobody will touch."""
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.UnownedMemory(at, 1 << 20, None, 1)
    return cupy.ndarray(shape, dtype=dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))
