"""GEMMs by tcgen05.mma: their kernels, operands and results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tmaasync import Swizzle, create_tma_tile

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
    """Return a shipped GEMM with these headers in place of their includes, as one text to edit."""
    kernels = FOLDER.parents[2] / "kernels"
    text = (kernels / "gemm" / name).read_text(encoding="utf-8")
    for header in headers:
        held = (kernels / header).read_text(encoding="utf-8").replace("#pragma once\n", "")
        (found,) = re.findall(rf'#include [<"](?:tmaasync/)?{Path(header).name}[>"]\n', text)
        text = text.replace(found, held)
    return text
