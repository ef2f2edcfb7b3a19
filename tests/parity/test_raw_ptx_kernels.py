"""Whole kernels of CUDA C++ and inline PTX, which include no header, run unchanged on either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.raw_ptx_kernels import KERNELS, Gemm

from tmaasync import emulate


@pytest.mark.sampled(1)
@pytest.mark.parametrize("problem", KERNELS, ids=lambda problem: problem.name)
def test_a_kernel_without_a_header_equals_numpy(backend: Any, problem: Gemm) -> None:
    assert "#include" not in problem.text
    assert problem.text.count("\n") > 150

    error = problem.error(problem.kernel(), backend.array, backend.host)

    assert error < problem.tolerance


@pytest.mark.sampled(1)
@pytest.mark.parametrize("problem", KERNELS, ids=lambda problem: problem.name)
def test_no_schedule_of_a_right_kernel_raises(problem: Gemm) -> None:
    kernel = problem.kernel()
    for seed in range(2):
        with emulate.scheduled(("random", "adversarial")[seed % 2], seed=seed, races=True):
            assert problem.error(kernel, np.copy, np.asarray) < problem.tolerance
