"""Memory that only pointers in arrays lead to."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel


def test_a_kernel_reaches_arrays_through_a_table_and_no_others() -> None:
    text = """
extern "C" __global__ void total(const float* const* table, float* out, long at) {
    for (int i = 0; i < 100; ++i) out[0] += table[i % 2][i] + (i == 99 ? table[0][at] : 0.0f);
}
"""
    rows = np.arange(400, dtype=np.float32).reshape(2, 200)
    table, out = np.array([row.ctypes.data for row in rows], np.uint64), np.zeros(1, np.float32)
    kernel = Kernel(text, "total")
    kernel(1, 1, (table, out, 0))
    assert out[0] == sum(rows[i % 2][i] for i in range(100))
    with pytest.raises(EmulatedFault, match="lies in none of the launch's arrays"):
        kernel(1, 1, (table, out, -(1 << 40)))
