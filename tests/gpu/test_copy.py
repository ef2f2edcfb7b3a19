"""Copies on the chip are exact, and touch nothing else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tmaasync import ops

cupy = pytest.importorskip("cupy")

POISON = 0xA5
DTYPES = [
    "uint8", "int8", "bool", "uint16", "int16", "float16", "uint32", "int32", "float32", "uint64",
    "int64", "float64", "bfloat16",
]  # fmt: skip


def random_bytes(shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    raw = np.random.default_rng(0).integers(
        0, 2 if dtype == "bool" else 256, (*shape, kind.itemsize)
    )
    return raw.astype(np.uint8).view(kind)[..., 0]


def poisoned(shape: tuple[int, ...], dtype: Any) -> Any:
    array = cupy.empty(shape, dtype)
    array.view(np.uint8).fill(POISON)
    return array


def same_bits(x: Any, y: Any) -> bool:
    return bool(
        (np.ascontiguousarray(x).view(np.uint8) == np.ascontiguousarray(y).view(np.uint8)).all()
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(dtype: str) -> None:
    source = random_bytes((37, 48), dtype)

    got = ops.copy(cupy.asarray(source))

    assert got.dtype == source.dtype
    assert same_bits(cupy.asnumpy(got), source)


@pytest.mark.parametrize(
    "shape",
    [(100, 64), (33, 5, 64), (3, 7, 5, 32), (2, 3, 4, 5, 16), (1, 1, 1, 1, 16), (4097, 2064)],
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "float64"])
def test_strided_arrays_of_ranks_2_to_5(shape: tuple[int, ...], dtype: str) -> None:
    source = random_bytes(shape, dtype)
    room = (*(extent + 3 for extent in shape[:-1]), shape[-1] + 32)
    inside = tuple(slice(0, extent) for extent in shape)
    source_whole, target_whole = poisoned(room, source.dtype), poisoned(room, source.dtype)
    source_whole[inside] = cupy.asarray(source)

    ops.copy(source_whole[inside], target_whole[inside])

    got = cupy.asnumpy(target_whole)
    assert same_bits(got[inside], source)
    outside = np.ones(room, bool)
    outside[inside] = False
    assert (np.ascontiguousarray(got[outside]).view(np.uint8) == POISON).all()


def test_a_copy_waits_for_the_work_ahead_of_it_in_the_stream() -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        source = cupy.zeros(1 << 24, np.float32)
        for _ in range(50):
            source += 1
        target = ops.copy(source)
    stream.synchronize()

    assert (cupy.asnumpy(target) == 50).all()
