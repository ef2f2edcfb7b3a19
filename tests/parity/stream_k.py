"""The stream-K GEMM of the cookbook, and launches of it on integers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from planted_choices import choosing

from tmaasync import Kernel, create_tma_tile

__all__ = ["SOURCE", "Launch", "Results", "launch"]

_PAGE = Path(__file__).parents[2] / "docs" / "cookbook" / "stream_k.md"
_BF16 = ml_dtypes.bfloat16


def _source_of(page: Path) -> str:
    found = re.search(r'^SOURCE = """\n(.*?)^"""', page.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


SOURCE = _source_of(_PAGE)


@dataclass(frozen=True)
class Launch:
    """C = A B^T of bf16 operands by this many CTAs, and the tile of each."""

    shape: tuple[int, int, int]
    ctas: int
    tile: tuple[int, int] = (128, 64)
    cluster: int = 1
    consumers: int = 2
    missing_slots: int = 0  # of the workspace, which has one for every CTA
    flag: int = 0  # before the first launch
    exact: bool = True  # integers, whose sums are the same in any order


@dataclass(frozen=True)
class Results:
    """What a launch left, and what C should be."""

    c: Any
    wanted: Any
    flags: Any
    differing: int  # elements of all launches that the last launch wrote otherwise

    def are_right(self) -> bool:
        return np.array_equal(self.c, self.wanted) and not self.flags.any() and self.differing == 0


@choosing
def _kernel(
    source: str, types: tuple[str, ...], cluster: int, consumers: int, debug: bool
) -> Kernel:
    return Kernel(
        source,
        "gemm_stream_k",
        types=dict(zip(("ATile", "BTile", "CTile"), types, strict=True)),
        constants={"CONSUMERS": consumers, "CLUSTER": cluster, "STAGES": 3},
        debug=debug,
    )


def _among_nans(backend: Any, host: Any) -> Any:
    """Return the array inside a wider one, whose rows have a multiple of 16 bytes."""
    rows, columns = host.shape
    whole = np.full((rows, -(-columns // 8) * 8 + 8), np.nan, host.dtype)
    whole[:, :columns] = host
    return backend.array(whole)[:, :columns]


def launch(
    backend: Any, given: Launch, source: str = SOURCE, *, times: int = 1, debug: bool = False
) -> Results:
    (m, n, k), (tile_m, tile_n) = given.shape, given.tile
    rng = np.random.default_rng(m + n + k)
    draw = (lambda shape: rng.integers(-3, 4, shape)) if given.exact else rng.standard_normal
    a, b = (draw((rows, k)).astype(_BF16) for rows in (m, n))
    c = _among_nans(backend, np.full((m, n), np.nan, _BF16))
    sides, boxes = (
        ((tile_m, 64), (tile_n, 64), (64, 64)),
        ((tile_m // given.cluster, 64), None, None),
    )
    tiles = [
        create_tma_tile(array, side, box_shape=box, swizzle="128B")
        for array, side, box in zip(
            (_among_nans(backend, a), _among_nans(backend, b), c), sides, boxes, strict=True
        )
    ]
    # Missing slots are memory that belongs to no array of the launch.
    partials = backend.array(np.full((given.ctas, tile_m, tile_n), np.nan, np.float32))
    partials = partials[: given.ctas - given.missing_slots]
    flags = backend.array(np.full((given.ctas, given.consumers), given.flag, np.uint32))
    types = tuple(tile.cuda_type for tile in tiles)
    kernel = _kernel(source, types, given.cluster, given.consumers, debug)
    bits = c.view(np.uint16)
    outputs = []
    for _ in range(times):
        bits[...] = 0x7FC0  # NaN
        arguments = (*tiles, partials, flags, m, n, k)
        kernel(given.ctas, 128 * (1 + given.consumers), arguments, cluster=given.cluster)
        outputs.append(bits.copy())
    differing = sum(int((output != bits).sum()) for output in outputs)
    wanted = (a.astype(np.float64) @ b.astype(np.float64).T).astype(_BF16)
    return Results(backend.host(c), wanted, backend.host(flags), differing)
