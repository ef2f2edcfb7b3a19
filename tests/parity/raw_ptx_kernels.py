"""Kernels in CUDA C++ and inline PTX that include no header, and how to launch them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from planted import Edit, edited

from tmaasync import Kernel, create_tma_tile

__all__ = ["KERNELS", "Problem"]

FOLDER = Path(__file__).with_name("raw_ptx")


@dataclass(frozen=True)
class Problem(ABC):
    """What a kernel computes, and how far it may be from it."""

    kernel_name: str
    tolerance: float

    @property
    def name(self) -> str:
        """What tests call it."""
        return self.kernel_name

    @property
    def text(self) -> str:
        """The source."""
        return (FOLDER / f"{self.kernel_name}.cu").read_text()

    def kernel(self, edits: Iterable[Edit] = ()) -> Kernel:
        """Return the kernel, with edits of its source."""
        return Kernel(edited(self.text, edits), self.kernel_name)

    @abstractmethod
    def error(
        self, kernel: Kernel, array: Callable[[Any], Any], host: Callable[[Any], Any]
    ) -> float:
        """Return the largest error relative to the largest value, of one launch."""


@dataclass(frozen=True)
class Gemm(Problem):
    """out = a @ b.T."""

    kind: Any
    out_kind: Any
    shape: tuple[int, int, int]
    launch: Callable[..., None]

    def error(
        self, kernel: Kernel, array: Callable[[Any], Any], host: Callable[[Any], Any]
    ) -> float:
        m, n, k = self.shape
        rng = np.random.default_rng(m + n + k)
        a = rng.standard_normal((m, k), np.float32).astype(self.kind)
        b = rng.standard_normal((n, k), np.float32).astype(self.kind)
        out = array(np.full((m, n), np.nan, self.out_kind))
        self.launch(kernel, array(a), array(b), out, self.shape)
        wanted = a.astype(np.float64) @ b.astype(np.float64).T
        return relative_error(host(out), wanted)


@dataclass(frozen=True)
class Attention(Problem):
    """o = softmax(q @ k.T / 8) @ v, and the log-sum-exp of each row."""

    heads: int
    queries: int
    keys: int
    is_causal: bool

    @property
    def name(self) -> str:
        return f"{self.kernel_name}_{'causal' if self.is_causal else 'full'}"

    def error(
        self, kernel: Kernel, array: Callable[[Any], Any], host: Callable[[Any], Any]
    ) -> float:
        rng = np.random.default_rng(self.keys)
        inputs = [
            rng.standard_normal((self.heads, rows, 64), np.float32).astype(np.float16)
            for rows in (self.queries, self.keys, self.keys)
        ]
        o = array(np.full(inputs[0].shape, np.nan, np.float16))
        lse = array(np.full(inputs[0].shape[:2], np.nan, np.float32))
        copies = [array(x) for x in inputs]
        tiles = [create_tma_tile(x, (1, 128, 64), swizzle="128B") for x in copies]
        tiles.append(create_tma_tile(o, (1, 64, 64), swizzle="128B"))
        sizes = (self.queries, self.keys, self.heads, int(self.is_causal))
        kernel(2, 384, (*tiles, lse, *sizes, np.float32(1 / 8)))

        q, k, v = (x.astype(np.float64) for x in inputs)
        s = q @ k.transpose(0, 2, 1) / 8
        if self.is_causal:
            s[:, np.arange(self.keys) > np.arange(self.queries)[:, None]] = -np.inf
        row_max = s.max(2, keepdims=True)
        p = np.exp(s - row_max)
        row_sum = p.sum(2, keepdims=True)
        wanted_lse = (row_max + np.log(row_sum))[..., 0]
        return max(relative_error(host(o), p @ v / row_sum), relative_error(host(lse), wanted_lse))


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


KERNELS: tuple[Problem, ...] = (
    Gemm("gemm", 2**-8, ml_dtypes.bfloat16, ml_dtypes.bfloat16, (128, 384, 192), launch_gemm),
    Gemm("cluster_gemm", 1e-5, np.float16, np.float32, (250, 62, 328), launch_cluster),
    Attention("attention", 2**-10, heads=2, queries=203, keys=331, is_causal=False),
    Attention("attention", 2**-10, heads=3, queries=179, keys=301, is_causal=True),
)
