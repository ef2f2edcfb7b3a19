"""Shipped GEMMs on tensor memory with planted defects, run by a pair of CTAs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from planted import Defect
from planted_choices import Choices, choices
from planted_runs import check_reported, in_orders

from tmaasync import Kernel
from tmaasync.tile import create_tma_tile

_PAIR: dict[str, Any] = {"CTAS": 2, "GROUP_M": 8, "STAGES": 2, "STORES_PARTIALS": False}
_FLOAT4 = dict.fromkeys(("AElement", "BElement"), "tmaasync::float4_e2m1")
_PAIR |= {"A_IS_K_MAJOR": True, "B_IS_K_MAJOR": True}


class Problem(NamedTuple):
    """The kernel's arguments, the output among them, its types, and the sums in float64."""

    arguments: tuple[Any, ...]
    types: dict[str, Any]
    out: npt.NDArray[np.float32]
    exact: npt.NDArray[np.float64]


def packed_float4(
    rng: np.random.Generator, rows: int, row_bytes: int, block: int, code: Callable[[Any], Any]
) -> tuple[Any, Any, Any]:
    """Return packed 1.0 and 2.0 of float4, their scale factors in atoms, and the values.

    Each ``block`` elements have a power of two, of which ``code`` gives the factor's bits.
    """
    doubled = rng.integers(0, 2, (rows, row_bytes, 2), np.uint8)
    codes = np.where(doubled == 1, 4, 2).astype(np.uint8)  # 2.0 and 1.0
    factors = 2 * row_bytes // block
    powers = rng.integers(-2, 3, (rows, factors))
    atoms = code(powers).astype(np.uint8).reshape(rows // 128, 4, 32, factors // 4, 4)
    words = np.ascontiguousarray(atoms.transpose(0, 3, 2, 1, 4)).view(np.uint32)
    values = (1.0 + doubled.reshape(rows, -1)) * np.repeat(2.0**powers, block, axis=1)
    return codes[..., 0] | codes[..., 1] << 4, words.reshape(rows // 128, -1, 128), values


def gemm_of_float4(
    shape: tuple[int, int, int],
    block: int,
    code: Callable[[Any], Any],
    factor_box: tuple[int, int, int],
    c_tile: Callable[[Any], Any],
) -> Problem:
    """Return a GEMM of `packed_float4`; the shape is M, N and bytes of K."""
    m, n, k_bytes = shape
    rng = np.random.default_rng(0)
    sides = (packed_float4(rng, rows, k_bytes, block, code) for rows in (m, n))
    (a, of_a, left), (b, of_b, right) = sides
    out = np.zeros((m, n), np.float32)
    tiles = {
        "ATile": create_tma_tile(a, (128, 128), swizzle="128B"),
        "BTile": create_tma_tile(b, (64, 128), swizzle="128B"),
        "AFactorTile": create_tma_tile(of_a, factor_box),
        "BFactorTile": create_tma_tile(of_b, factor_box),
        "CTile": c_tile(out),
    }
    arguments = (*tiles.values(), 0, 0, np.float32(1), *shape)
    return Problem(arguments, tiles | _FLOAT4, out, left @ right.T)


def groups_of_float4(
    ends: Sequence[int], shape: tuple[int, int, int], c_tile: Callable[[Any], Any]
) -> Problem:
    """Return a grouped GEMM of NVFP4, whose every order of summing is exact.

    Args:
        ends: Where groups end.
        shape: Rows of all groups, N and bytes of K.
        c_tile: Makes the map of the output.
    """
    (rows, n, k_bytes), count = shape, len(ends)
    rng = np.random.default_rng(0)
    starts = [0, *ends[:-1]]
    heights = [-(-(end - start) // 128) * 128 for start, end in zip(starts, ends, strict=True)]
    code = lambda power: power + 7 << 3  # noqa: E731
    a, of_a, left = packed_float4(rng, sum(heights), k_bytes, 16, code)
    b, of_b, right = packed_float4(rng, count * n, k_bytes, 16, code)
    scales = 2.0 ** rng.integers(-2, 3, (2, count)).astype(np.float32)
    packed, out = np.zeros((rows, k_bytes), np.uint8), np.zeros((rows, n), np.float32)
    exact, padded = np.full((rows, n), np.nan), 0
    for group, (start, end) in enumerate(zip(starts, ends, strict=True)):
        of_group = slice(padded, padded + end - start)
        packed[start:end] = a[of_group]
        exact[start:end] = left[of_group] @ right[group * n : (group + 1) * n].T
        exact[start:end] *= scales[:, group].prod()
        padded += heights[group]
    tiles = {
        "ATile": create_tma_tile(packed, (128, 128), swizzle="128B"),
        "BTile": create_tma_tile(b.reshape(count, n, k_bytes), (1, 64, 128), swizzle="128B"),
        "AFactorTile": create_tma_tile(of_a, (1, 4, 128)),
        "BFactorTile": create_tma_tile(of_b, (1, 4, 128)),
        "CTile": c_tile(out),
    }
    groups = (np.array(ends, np.int32), count, rows)
    sizes = (n, k_bytes, np.zeros(1, np.int32))
    arguments = (*tiles.values(), *scales, np.float32(1), *groups, *sizes)
    return Problem(arguments, tiles | _FLOAT4, out, exact)


class PlantedGemm:
    """A kernel's text in all its forms, each compiled once."""

    def __init__(
        self, text: str, found: tuple[Defect, ...], constants: dict[str, Any], threads: int
    ) -> None:
        """Keep the text with these defects; a CTA has this number of threads."""
        self._text, self._defects, self._threads = text, found, threads
        self._constants = _PAIR | constants
        self._built: dict[str, Kernel] = {}

    @cached_property
    def _choices(self) -> Choices:
        return choices(self._text, self._defects)

    def run(self, problem: Problem, defect: Defect | None) -> None:
        kernel = self._kernel(self._choices.text_with(defect), problem)
        self._choices.choose(kernel, defect)
        problem.out.fill(np.nan)
        kernel(2, self._threads, problem.arguments, cluster=2)

    def _kernel(self, text: str, problem: Problem) -> Kernel:
        if text not in self._built:
            self._built[text] = Kernel(
                text,
                self._defects[0].kernel,
                types=problem.types,
                constants=self._constants,
                arch="sm_100a",
            )
        return self._built[text]

    def check_right(self, problem: Problem, seeds: int) -> None:
        """Check that the kernel without a defect is silent, and right, in this many orders."""

        def check() -> None:
            self.run(problem, None)
            np.testing.assert_array_equal(problem.out, problem.exact)

        in_orders(seeds, check)

    def check_reported(self, problem: Problem, defect: Defect) -> None:
        check_reported(defect, lambda: self.run(problem, defect))
