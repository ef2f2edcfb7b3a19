"""PTX modules on a GPU: the kernels that the tests of the emulator run on the CPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import DriverError, Kernel, create_tma_tile

cupy = pytest.importorskip("cupy")

FOLDER = Path(__file__).parents[1] / "emulate" / "ptx_modules"
VERSION = re.compile(r"^\.version \d+\.\d+$", re.MULTILINE)


def module(name: str) -> str:
    """Return a module with a version that drivers of CUDA 12.9 and later take."""
    return VERSION.sub(".version 8.8", (FOLDER / f"{name}.ptx").read_text(encoding="utf-8"))


def test_softmax_equals_numpy() -> None:
    x = cupy.random.standard_normal((5, 1000)).astype(np.float32)
    out = cupy.full_like(x, np.nan)

    Kernel(module("softmax"))(5, 128, (x, out, 1000, 0, 0), shared_mem=16)

    e = np.exp(x.get().astype(np.float64))
    np.testing.assert_allclose(out.get(), e / e.sum(1, keepdims=True), rtol=1e-4)


def test_gemm_with_tensor_maps_equals_numpy() -> None:
    def drawn(*shape: int) -> Any:
        return cupy.random.standard_normal(shape).astype(np.float16)

    def descriptor(array: Any, *box: int) -> tuple[Any, ...]:
        return create_tma_tile(array, box, swizzle="128B"), *array.shape, array.shape[1], 1

    a, b, out = drawn(256, 192), drawn(192, 128), cupy.full((256, 128), np.nan, np.float16)
    maps = (*descriptor(a, 128, 64), *descriptor(b, 64, 64), *descriptor(out, 128, 64))

    Kernel(module("gemm"))((2, 1), 128, (*maps, 192, 0, 0), shared_mem=98328)

    expected = a.get().astype(np.float64) @ b.get().astype(np.float64)
    np.testing.assert_allclose(out.get(), expected, atol=1e-3 * np.abs(expected).max(), rtol=1e-3)


def test_a_version_that_the_driver_lacks_is_named() -> None:
    text = VERSION.sub(".version 99.0", module("softmax"))
    x = cupy.zeros((5, 1000), np.float32)

    with pytest.raises(DriverError, match="version is newer than the driver"):
        Kernel(text)(5, 128, (x, x.copy(), 1000, 0, 0), shared_mem=16)
