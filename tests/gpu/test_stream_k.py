"""The stream-K GEMM of the cookbook on all SMs, run again and again: right, and the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from parity.backends import Cuda
from parity.stream_k import Launch, launch

cupy = pytest.importorskip("cupy")

SHAPES = {
    "two waves, the second with few tiles": (1400, 2570, 1100),
    "fewer tiles than SMs": (1536, 2304, 4200),
    "one tile": (120, 200, 9000),
    "twelve waves": (4100, 8200, 400),
}


@pytest.mark.parametrize("exact", [True, False], ids=["integers", "normal"])
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.parametrize("tile", [(128, 256), (256, 192), (128, 128)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_run_is_right_and_has_the_same_bits(
    shape: str, tile: tuple[int, int], cluster: int, exact: bool
) -> None:
    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    # Clusters of two leave no SM idle on a GPU of 132.
    given = Launch(SHAPES[shape], sms // 2 * 2, tile, cluster, exact=exact)

    found = launch(Cuda(), given, times=50)

    assert found.differing == 0
    assert found.are_right() or not exact
    error = np.linalg.norm(found.c.astype(np.float64) - found.wanted.astype(np.float64))
    assert error < 4e-3 * np.linalg.norm(found.wanted.astype(np.float64))
