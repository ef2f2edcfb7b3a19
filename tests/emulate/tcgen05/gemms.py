"""GEMMs by tcgen05.mma: their kernels, operands and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
from emulate.shipped import whole_text, without_pragma

from tmaasync import Swizzle, create_tma_tile
from tmaasync._source.paths import include_dir

__all__ = ["COLUMNS", "GEMM", "PAIR_GEMM", "Problem", "problem", "shipped_text"]

FOLDER = Path(__file__).parent
COLUMNS = 64  # of D
GEMM = (FOLDER / "gemm.cu").read_text(encoding="utf-8")
PAIR_GEMM = (FOLDER / "pair_gemm.cu").read_text(encoding="utf-8")
DEPTH, ROWS = 64, 128  # of a stage


class Problem(NamedTuple):
    """The tiles of A and B, an empty D, and D in float64."""

    a: Any
    b: Any
    out: npt.NDArray[np.float32]
    exact: npt.NDArray[np.float64]


def problem(tiles: int, steps: int, rows: int = ROWS, columns: int = COLUMNS) -> Problem:
    """Return random operands of several tiles of D and steps along K."""
    rng = np.random.default_rng(tiles * 10 + steps)
    a = rng.standard_normal((tiles * rows, steps * DEPTH)).astype(ml_dtypes.bfloat16)
    b = rng.standard_normal((columns, steps * DEPTH)).astype(ml_dtypes.bfloat16)
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    tile_a = create_tma_tile(a, (ROWS, DEPTH), swizzle=Swizzle.B128)
    tile_b = create_tma_tile(b, (min(columns, COLUMNS), DEPTH), swizzle=Swizzle.B128)
    return Problem(tile_a, tile_b, np.zeros(exact.shape, np.float32), exact)


def shipped_text(name: str, *headers: str) -> str:
    """Return a shipped GEMM as one text to edit, with its family's headers and these inlined."""
    text = whole_text(name, of_family_alone=True)
    for header in headers:
        text = text.replace(f"#include <{header}>\n", without_pragma(include_dir() / header))
    return text
