"""Every kind of tcgen05.mma on small integers, which all types hold exactly, in its layout of D."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from tmaasync import Kernel

SOURCE = (Path(__file__).parent / "forms.cu").read_text(encoding="utf-8")
IMAGE_BYTES = 65536
A_AT, B_AT, A_SCALES_AT, B_SCALES_AT = 0, 16384, 32768, 36864
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint32]


class Form(NamedTuple):
    """A form of the kernel, with the bits of its instruction descriptor but for the shape."""

    what: int
    dtype: Any
    depth: int
    bits: int
    m: int
    n: int
    result: Any = np.float32
    block: int = 0  # elements that a scale factor is of


F16 = 1 << 4
BF16 = F16 | 1 << 7 | 1 << 10
E4M3 = ml_dtypes.float8_e4m3fn
FORMS = {
    "f16, M 128": Form(0, np.float16, 16, F16, 128, 96),
    "bf16, M 64": Form(0, ml_dtypes.bfloat16, 16, BF16, 64, 64),
    "f16 to f16": Form(0, np.float16, 16, 0, 128, 256, np.float16),
    "tf32": Form(1, np.float32, 8, 1 << 4 | 2 << 7 | 2 << 10, 128, 8),
    "e4m3": Form(2, E4M3, 32, 1 << 4, 128, 128),
    "i8": Form(3, np.int8, 32, 2 << 4 | 1 << 7 | 1 << 10, 64, 48, np.int32),
    "ws, M 128": Form(4, np.float16, 16, F16, 128, 64),
    "ws, M 64": Form(4, np.float16, 16, F16, 64, 128),
    "ws, M 32": Form(4, np.float16, 16, F16, 32, 128),
    "A in tensor memory": Form(5, np.float16, 16, F16, 128, 64),
    "ws, A in tensor memory": Form(11, np.float16, 16, F16, 128, 64),
    "mxf8f6f4": Form(6, E4M3, 32, 1 << 23, 128, 128, block=32),
    "mxf4": Form(7, ml_dtypes.float4_e2m1fn, 64, 1 << 7 | 1 << 10 | 1 << 23, 128, 128, block=32),
    "mxf4nvf4": Form(8, ml_dtypes.float4_e2m1fn, 64, 1 << 7 | 1 << 10, 128, 128, block=16),
    "lanes without output": Form(9, np.float16, 16, F16, 128, 64),
    "scale-input-d": Form(10, np.float16, 16, F16, 128, 64),
}


def descriptor(form: Form) -> int:
    """Return the instruction descriptor."""
    m = form.m >> 7 << 27 if form.block else form.m >> 4 << 24
    return form.bits | form.n >> 3 << 17 | m


def stored(values: npt.NDArray[Any]) -> Bytes:
    """Return rows of 32 bytes; two elements of four bits are one byte."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    if raw.shape[1] == 32:
        return raw
    return np.asarray(raw[:, ::2] | raw[:, 1::2] << 4, np.uint8)


def placed(image: Bytes, at: int, rows: Bytes) -> int:
    """Put core matrices of 8 rows of 16 bytes into the image; return the matrix descriptor."""
    count = len(rows)
    for row in range(count):
        for unit in range(2):
            start = at + row // 8 * 128 + unit * count * 16 + row % 8 * 16
            image[start : start + 16] = rows[row, 16 * unit : 16 * unit + 16]
    return at >> 4 | count << 16 | 8 << 32 | 1 << 46


def placed_scales(image: Bytes, at: int, codes: Bytes) -> int:
    """Put scale factors [row, 4] into the image, 128 rows in 512 bytes."""
    for row, four in enumerate(codes):
        start = at + row % 32 * 16 + row // 32 * 4
        image[start : start + 4] = four
    return at >> 4 | 8 << 32 | 1 << 46


def lane_of(form: Form, m: int, n: int) -> tuple[int, int]:
    """Return the lane and the column of an element of D."""
    if form.m == 128:
        return m, n
    if form.what == 4 and form.m == 64:
        return m + 64 * (n >= form.n // 2), n % (form.n // 2)
    if form.what == 4:
        return m + 32 * (n // (form.n // 4)), n % (form.n // 4)
    return m // 16 * 32 + m % 16, n


@functools.cache
def kernel() -> Kernel:
    return Kernel(SOURCE, "form", arch="sm_100a")


def run(form: Form, fill: int, wanted: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
    rng = np.random.default_rng(form.m + form.n)
    a, b = (rng.integers(-3, 4, (rows, form.depth)).astype(form.dtype) for rows in (form.m, form.n))
    image = np.zeros(IMAGE_BYTES, np.uint8)
    in_tensor_memory = form.what in (5, 11)
    if in_tensor_memory:
        image[:4096] = stored(a).ravel()
    of_a = 0 if in_tensor_memory else placed(image, A_AT, stored(a))
    of_b = placed(image, B_AT, stored(b))
    left, of_scales = a.astype(np.float64), [0, 0]
    other = b.astype(np.float64)
    if form.block:
        powers = [rng.integers(-2, 3, (128, 4)) for _ in range(2)]
        scale = E4M3 if form.block == 16 else ml_dtypes.float8_e8m0fnu
        codes = [(2.0**power).astype(np.float32).astype(scale).view(np.uint8) for power in powers]
        of_scales = [
            placed_scales(image, at, code)
            for at, code in zip((A_SCALES_AT, B_SCALES_AT), codes, strict=True)
        ]
        blocks = form.depth // form.block
        left *= np.repeat(2.0 ** powers[0][:, :blocks], form.block, axis=1)
        other *= np.repeat(2.0 ** powers[1][:, :blocks], form.block, axis=1)
    exact = wanted(left @ other.T).astype(form.result)
    out = np.zeros((128, 256), np.uint32)
    arguments = (image.view(np.uint32), of_a, of_b, descriptor(form), *of_scales, fill, out)
    kernel()(1, 128, (form.what, *arguments))

    memory = np.full((128, 256), fill, np.uint32)
    bits = exact.view(np.uint16 if form.result is np.float16 else np.uint32)
    for m in range(form.m):
        for n in range(form.n):
            memory[lane_of(form, m, n)] = bits[m, n]
    if form.what == 9:
        memory[32:48] = fill
        memory[96] = fill
    np.testing.assert_array_equal(out, memory)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_multiplies_exactly(name: str) -> None:
    run(FORMS[name], 0, lambda exact: exact + 0.0)


@pytest.mark.parametrize("name", ["f16, M 128", "bf16, M 64", "ws, M 32", "e4m3", "mxf4nvf4"])
def test_a_form_adds_to_d(name: str) -> None:
    run(FORMS[name], int(np.float32(5).view(np.uint32)), lambda exact: exact + 5)


def test_scale_input_d_divides_d_by_a_power_of_two() -> None:
    fill = int(np.float32(40).view(np.uint32))
    run(FORMS["scale-input-d"], fill, lambda exact: exact + 5)
