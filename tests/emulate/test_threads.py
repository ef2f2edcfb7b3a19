"""Every thread of a launch runs once, with its arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel

PLACES = """
extern "C" __global__ void places(int* out, signed char a, double b, float2 c) {
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        block * 1000 + thread + a + static_cast<int>(b + c.x * c.y);
}
"""


@pytest.mark.parametrize("cluster", [None, (2, 1, 2)])
def test_every_thread_of_every_block_runs_once_with_its_arguments(cluster: Any) -> None:
    grid, block = (4, 3, 2), (5, 2, 3)
    out = np.full((24, 30), -1, np.int32)
    pair = np.array([(2.0, 3.0)], [("x", np.float32), ("y", np.float32)])[0]

    Kernel(PLACES, "places")(grid, block, (out, -7, 100.5, pair), cluster=cluster)

    assert np.array_equal(out, np.arange(24)[:, None] * 1000 + np.arange(30) - 7 + 106)
