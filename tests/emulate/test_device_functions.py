"""All functions that CUDA's headers declare for the device compile and run on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from parity.device_calls import SIGNATURES, kernel_text

from tmaasync import Kernel

# These functions end the launch when they get a kernel's arguments.
ENDS = {
    *("__trap", "__brkpt", "free"),
    *("__barrier_sync_count", "__cvta_generic_to_shared"),
    *("__cluster_map_shared_rank", "__cluster_query_shared_rank"),
    "__isConstant",
}


@pytest.mark.slow
def test_a_kernel_can_call_each() -> None:
    of_name: dict[str, str] = {}
    for signature in SIGNATURES.read_text().splitlines():
        of_name.setdefault(signature.partition("(")[0], signature)
    called = [signature for name, signature in of_name.items() if name not in ENDS]
    page = Path(__file__).parents[2].joinpath("docs", "emulator_runs.md").read_text()
    assert f"declare {len(of_name)} functions" in page
    assert f"calls {len(called)}, others" in " ".join(page.split())

    given, out = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    given[0] = 1  # a count, a mask of the only lane
    Kernel(kernel_text(called), "calls")(1, 1, (given, out))
