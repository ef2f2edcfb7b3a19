"""Kernels in CUDA C++ and inline PTX that include no header, and how to launch them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tmaasync import Kernel, create_tma_tile

__all__ = ["KERNELS", "Gemm"]

FOLDER = Path(__file__).with_name("raw_ptx")


@dataclass(frozen=True)
class Gemm:
    """out = a @ b.T, at most ``tolerance`` from it, relative to the largest value."""

    name: str
    tolerance: float
    kind: Any
    out_kind: Any
    shape: tuple[int, int, int]
    launch: Callable[..., None]

    @property
    def text(self) -> str:
        """The source."""
        return (FOLDER / f"{self.name}.cu").read_text()

    def kernel(self) -> Kernel:
        """Return the kernel."""
        return Kernel(self.text, self.name)

    def error(
        self, kernel: Kernel, array: Callable[[Any], Any], host: Callable[[Any], Any]
    ) -> float:
        """Return the largest error of one launch, relative to the largest value."""
        m, n, k = self.shape
        rng = np.random.default_rng(m + n + k)
        a = rng.standard_normal((m, k), np.float32).astype(self.kind)
        b = rng.standard_normal((n, k), np.float32).astype(self.kind)
        out = array(np.full((m, n), np.nan, self.out_kind))
        self.launch(kernel, array(a), array(b), out, self.shape)
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
        return relative_error(host(out), wanted)


def relative_error(result: Any, wanted: Any) -> float:
    return float(np.abs(result.astype(np.float64) - wanted).max() / np.abs(wanted).max())


def launch_gemm(kernel: Kernel, a: Any, b: Any, out: Any, shape: tuple[int, int, int]) -> None:
    tiles = [create_tma_tile(x, (128, 64), swizzle="128B") for x in (a, b)]
    kernel(2, 384, (*tiles, create_tma_tile(out, (64, 128)), *shape))


def launch_cluster(kernel: Kernel, a: Any, b: Any, out: Any, shape: tuple[int, int, int]) -> None:
    m, n, _ = shape
    tiles = (
        create_tma_tile(a, (128, 64), swizzle="128B"),
        create_tma_tile(b, (32, 64), swizzle="128B"),
    )
    grid = (2 * -(-m // 256), -(-n // 64))
    shared_bytes = 4 * (128 + 64) * 128
    kernel(grid, 384, (*tiles, out, *shape), shared_mem=shared_bytes, cluster=(2, 1, 1))


KERNELS = (
    Gemm("gemm", 2**-8, ml_dtypes.bfloat16, ml_dtypes.bfloat16, (128, 384, 192), launch_gemm),
    Gemm("cluster_gemm", 1e-5, np.float16, np.float32, (250, 62, 328), launch_cluster),
)
