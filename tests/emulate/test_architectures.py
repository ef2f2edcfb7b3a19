"""Kernels for the chips that the emulator knows: their macros, limits and cache."""

from __future__ import annotations

import numpy as np
import pytest

from tmaasync import Kernel, LaunchError
from tmaasync.emulate.chips import SM_90A, SM_100A, SM_120A, Chip

ARCHS = ("sm_90a", "sm_100a", "sm_103a", "sm_120a")

# The macros of a chip; nvcc is the reference.
MACROS = """
#include <nv/target>
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FEATURES 90
#elif defined(__CUDA_ARCH_FEAT_SM100_ALL)
#define FEATURES 100
#elif defined(__CUDA_ARCH_FEAT_SM103_ALL)
#define FEATURES 103
#elif defined(__CUDA_ARCH_FEAT_SM120_ALL)
#define FEATURES 120
#endif
extern "C" __global__ void macros(int* out) {
    out[0] = __CUDA_ARCH__;
    out[1] = FEATURES;
    out[2] = __CUDA_ARCH_SPECIFIC__;
    out[3] = __CUDA_ARCH_FAMILY_SPECIFIC__;
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_100, out[4] = 1;, out[4] = 0;)
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_103, out[5] = 1;, out[5] = 0;)
    NV_IF_ELSE_TARGET(NV_PROVIDES_SM_120, out[6] = 1;, out[6] = 0;)
    NV_IF_ELSE_TARGET(NV_HAS_FEATURE_SM_90a, out[7] = 1;, out[7] = 0;)
    NV_IF_ELSE_TARGET(NV_HAS_FEATURE_SM_100a, out[8] = 1;, out[8] = 0;)
    NV_IF_ELSE_TARGET(NV_IS_EXACTLY_SM_103, out[9] = 1;, out[9] = 0;)
    NV_IF_ELSE_TARGET(NV_HAS_FEATURE_SM_120a, out[10] = 1;, out[10] = 0;)
}
"""
ANSWERS = {
    "sm_90a": (900, 90, 900, 900, 0, 0, 0, 1, 0, 0, 0),
    "sm_100a": (1000, 100, 1000, 1000, 1, 0, 0, 0, 1, 0, 0),
    "sm_103a": (1030, 103, 1030, 1030, 1, 1, 0, 0, 0, 1, 0),
    "sm_120a": (1200, 120, 1200, 1200, 1, 1, 1, 0, 0, 0, 1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "given"), [*((one, "arch") for one in ARCHS), ("sm_103a", "")])
def test_the_macros_follow_the_chip(arch: str, given: str) -> None:
    out = np.full(len(ANSWERS[arch]), -1, np.int32)
    named = {"arch": arch} if given == "arch" else {"options": [f"--gpu-architecture={arch}"]}

    Kernel(MACROS, "macros", **named)(1, 1, (out,))

    assert out.tolist() == [*ANSWERS[arch]]


def test_the_default_is_hopper() -> None:
    for arch in (None, "sm_90"):
        out = np.zeros(len(ANSWERS["sm_90a"]), np.int32)
        Kernel(MACROS, "macros", arch=arch)(1, 1, (out,))
        assert out.tolist() == [*ANSWERS["sm_90a"]]


MODULE = """
.version 8.8
.target {target}
.address_size 64
.visible .entry sms(.param .u64 out)
{{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [out];
    mov.u32 %r1, %nsmid;
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""


@pytest.mark.parametrize(
    ("target", "arch", "sms"),
    [
        ("sm_80", None, 132),
        ("sm_90a", None, 132),
        ("sm_100a", None, 148),
        ("sm_80", "sm_120a", 188),
    ],
)
def test_a_module_runs_on_its_target(target: str, arch: str | None, sms: int) -> None:
    out = np.zeros(1, np.uint32)

    Kernel(MODULE.format(target=target), arch=arch)(1, 1, (out,))

    assert out[0] == sms


@pytest.mark.parametrize("chip", [SM_90A, SM_100A, SM_120A])
def test_a_launch_has_the_shared_memory_and_the_clusters_of_its_chip(chip: Chip) -> None:
    text = """
    extern "C" __global__ void last(int* out) {
        extern __shared__ unsigned char bytes[];
        const unsigned at = out[0] - 1;
        bytes[at] = 7;
        out[1] = bytes[at];
    }
    """
    kernel, most = Kernel(text, "last", arch=chip.arch), chip.device.shared_bytes
    out = np.array([most, 0], np.int32)

    kernel(1, 1, (out,), shared_mem=most)
    assert out[1] == 7
    with pytest.raises(LaunchError, match=f"has at most {most}"):
        kernel(1, 1, (out,), shared_mem=most + 1)

    blocks = chip.device.cluster_blocks
    with pytest.raises(LaunchError, match=f"a cluster on .* has at most {blocks}"):
        kernel(blocks * 2, 1, (out,), cluster=blocks * 2, shared_mem=most)


@pytest.mark.parametrize("chip", [SM_90A, SM_120A])
def test_a_cooperative_grid_fills_its_chip(chip: Chip) -> None:
    text = """
    extern "C" __global__ void meet(int* arrived, unsigned* sms) {
        if (blockIdx.x == 0) {
            asm("mov.u32 %0, %%nsmid;" : "=r"(sms[0]));
            asm("mov.u32 %0, %%nwarpid;" : "=r"(sms[1]));
        }
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < int(gridDim.x)) __nanosleep(20);
    }
    """
    kernel, most = Kernel(text, "meet", arch=chip.arch), chip.device.sms
    arrived, sms = np.zeros(1, np.int32), np.zeros(2, np.uint32)
    shared = chip.sm_shared_bytes // 2

    kernel(most, 1, (arrived, sms), shared_mem=shared, cooperative=True)

    assert arrived[0] == most
    assert sms.tolist() == [most, chip.sm_warps]
    with pytest.raises(LaunchError, match=f"holds {most} of meet"):
        kernel(most + 1, 1, (arrived, sms), shared_mem=shared, cooperative=True)
