"""CUTLASS's tutorials for Blackwell run unmodified on the emulated B200.

Their text comes with the package nvidia-cutlass; their host parts are replaced by ours.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, create_tma_tile, emulate

FOLDER = Path(__file__).with_name("cutlass")
PACKAGE = importlib.util.find_spec("cutlass_library")
pytestmark = [
    pytest.mark.skipif(PACKAGE is None, reason="pip install --no-deps nvidia-cutlass"),
    pytest.mark.chips("sm_90a"),  # the kernels name sm_100a themselves
]
MARK = "// the device part\n"
CLUSTER = 4  # along M and N, from the third tutorial on
K = 128
# The rows of a box of A and of B: of a CTA's tile, divided among the CTAs that multicast it.
BOXES = {2: (128, 256), 3: (32, 64), 4: (32, 64), 5: (32, 64)}


@functools.cache
def kernel(number: int) -> Kernel:
    assert PACKAGE
    assert PACKAGE.origin
    package = Path(PACKAGE.origin).parent / "source"
    (example,) = (package / "examples/cute/tutorial/blackwell").glob(f"0{number}_*.cu")
    text = example.read_text(encoding="utf-8")
    start = text.index("// The shared memory buffers")
    device = text[start : text.index("template <class TypeA, class LayoutA,", start)]
    own = (FOLDER / "blackwell_tutorial.cu").read_text(encoding="utf-8")
    assert MARK in own
    source = f"#define TUTORIAL {number}\n{own.replace(MARK, device)}"
    if number >= 3:
        source = source.replace(
            "__launch_bounds__(128)",
            f"__launch_bounds__(128) __cluster_dims__({CLUSTER}, {CLUSTER}, 1)",
        )
    return Kernel(source, "tutorial", include_dirs=[package / "include"], arch="sm_100a")


def run(number: int) -> None:
    """Run D = 2 A B + 3 C of small integers, whose sums are exact."""
    m, n = (512, 1024) if number >= 3 else (128, 256)
    rng = np.random.default_rng(number)
    a, b = (rng.integers(-2, 3, (rows, K)).astype(np.float16) for rows in (m, n))
    c = rng.integers(-9, 9, (m, n)).astype(np.float32)
    d = np.full((m, n), np.nan, np.float32)
    arrays: list[Any] = [a, b, c, d]
    if number >= 2:
        arrays[:2] = [
            create_tma_tile(one, (rows, 64), swizzle="128B")
            for one, rows in zip((a, b), BOXES[number], strict=True)
        ]
    if number == 5:
        arrays[2:] = [create_tma_tile(one, (128, 32), swizzle="128B") for one in (c, d)]
    numbers = (*map(np.int32, (m, n, K)), np.float32(2), np.float32(3))
    # By the letter of the PTX ISA fences are missing, which a plain launch notes.
    with emulate.scheduled(races=False):
        kernel(number)((m // 128, n // 256), 128, (*arrays, *numbers))
    np.testing.assert_array_equal(d, 2 * (a.astype(np.float32) @ b.T.astype(np.float32)) + 3 * c)


# 20 s of g++ each; the fifth has all that the second to the fourth add to the first.
@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 5])
def test_a_tutorial_equals_numpy(number: int) -> None:
    run(number)
