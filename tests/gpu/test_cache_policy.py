"""The constants of `CachePolicy` against what createpolicy makes on the chip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel

cupy: Any = pytest.importorskip("cupy")

POLICIES = """
#include <tmaasync/ptx/createpolicy.cuh>
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void policies(u64* made, u64* named) {
    made[0] = ptx::createpolicy_evict_normal();
    made[1] = ptx::createpolicy_evict_first();
    made[2] = ptx::createpolicy_evict_last();
    named[0] = static_cast<u64>(CachePolicy::kEvictNormal);
    named[1] = static_cast<u64>(CachePolicy::kEvictFirst);
    named[2] = static_cast<u64>(CachePolicy::kEvictLast);
}
"""


def test_createpolicy_makes_the_cache_policies_but_the_normal_one() -> None:
    made, named = cupy.zeros(3, np.uint64), cupy.ones(3, np.uint64)
    Kernel(POLICIES, "policies")(1, 1, (made, named))

    assert made.get()[1:].tolist() == named.get()[1:].tolist()
    # CUTLASS has another number for this priority.
    assert (int(made[0]), int(named[0])) == (0x16F0000000000000, 0x1000000000000000)
