"""The workspace of split-K over the grid: partial outputs, which split_k_combine.cu adds up."""

from __future__ import annotations

from typing import NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync.ops._allocation import Allocator, allocator
from tmaasync.ops._gemm.tiles import GemmMatrices
from tmaasync.ops._layouts import padded_row_bytes


class Partials(NamedTuple):
    """Partial outputs: ``shape`` is [splits, m, n], with n rounded up to a multiple of 16 bytes."""

    shape: tuple[int, int, int]
    element: Element

    @classmethod
    def of(cls, splits: int, out: ArrayView) -> Partials:
        m, n = out.shape
        accumulator = element("int32" if out.element.name == "int32" else "float32")
        columns = padded_row_bytes(n, accumulator) // accumulator.itemsize
        return cls((splits, m, columns), accumulator)

    def allocator(self, like: ArrayView) -> Allocator:
        return allocator(like, self.shape, self.element)


class SplitAddresses(NamedTuple):
    """The addresses of the two launches: operands, workspace and output."""

    a: int
    b: int
    partials: int
    out: int

    def of_gemm(self) -> GemmMatrices[int]:
        return GemmMatrices(self.a, self.b, self.partials)

    def of_combine(self) -> tuple[int, int]:
        return self.partials, self.out
