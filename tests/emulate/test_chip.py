"""emulate.chip: the chip of kernels that name no architecture."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import ArgumentError, Kernel, emulate

ARCH = """
extern "C" __global__ void arch(int* out) {
    *out = __CUDA_ARCH__;
}
"""


def arch_of(kernel: Kernel) -> int:
    out = np.zeros(1, np.int32)
    kernel(grid=1, block=1, args=(out,))
    return int(out[0])


def test_a_kernel_runs_on_the_chip_of_the_innermost_with() -> None:
    kernel = Kernel(ARCH, "arch")

    assert arch_of(kernel) == 900
    with emulate.chip("sm_100a"):
        assert arch_of(kernel) == 1000
        with emulate.chip("sm_120a"):
            assert arch_of(kernel) == 1200
        assert arch_of(kernel) == 1000
    assert arch_of(kernel) == 900


def test_a_kernel_that_names_its_architecture_keeps_it() -> None:
    with emulate.chip("sm_100a"):
        assert arch_of(Kernel(ARCH, "arch", arch="sm_90a")) == 900


def test_an_unknown_chip_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"arch is 'sm_80'; the CPU back end emulates sm_90"):
        emulate.chip("sm_80").__enter__()
