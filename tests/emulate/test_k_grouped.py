"""K-grouped GEMM and reductions under random interleavings, with every access watched for races."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import ops
from tmaasync.emulate import scheduled


@pytest.mark.parametrize("seed", range(3))
def test_no_race_is_found_in_a_k_grouped_gemm(seed: int) -> None:
    rng, ends = np.random.default_rng(seed), [0, 70, 71, 200]
    a, b = (rng.integers(-4, 5, (200, n)).astype(np.float16) for n in (72, 136))

    with scheduled("random", seed=seed, races=True):
        out = ops.k_grouped_matmul(a.T, b, ends, dtype="float32")

    for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        wanted = a[start:end].astype(np.float64).T @ b[start:end].astype(np.float64)
        assert np.array_equal(out[group], wanted)


@pytest.mark.parametrize("seed", range(3))
def test_no_race_is_found_in_contended_reductions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, source = rng.integers(0, 9, (4, 40)), rng.integers(0, 9, (7, 4, 40))
    wanted, got = target + source.sum(0), target.astype(np.float32)

    with scheduled("random", seed=seed, races=True):
        ops.reduce_add(got, source.astype(np.float32))

    assert np.array_equal(got, wanted)
