"""CTAs of an SM share its tensor memory: an allocation waits for another CTA, or for ever."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel, emulate

SOURCE = """
#include <tmaasync/cluster.cuh>
#include <tmaasync/ptx/tcgen05_alloc.cuh>
using namespace tmaasync;
using namespace tmaasync::ptx;

// Each block allocates, and waits until `awaited` blocks have done so before it frees.
extern "C" __global__ void meet(int* arrived, u32* bases, int columns, int awaited, bool keeps) {
    __shared__ u32 base;
    if (kCtas == 2) cluster_sync();
    tcgen05_alloc<kCtas>(static_cast<u32>(__cvta_generic_to_shared(&base)), columns);
    if (!keeps) tcgen05_relinquish_alloc_permit<kCtas>();
    __syncwarp();
    if (threadIdx.x == 0) {
        bases[blockIdx.x] = base;
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < awaited) __nanosleep(20);
    }
    if (kCtas == 2) cluster_sync();
    __syncwarp();
    tcgen05_dealloc<kCtas>(base, columns);
    if (kCtas == 2) cluster_sync();
}
"""
SMS = 148  # of a B200


@functools.cache
def kernel(ctas: int) -> Kernel:
    return Kernel(SOURCE, "meet", constants={"kCtas": ctas}, arch="sm_100a")


def meet(
    blocks: int, columns: int, awaited: int, *, keeps: bool = False, ctas: int = 1, seed: int = 0
) -> list[int]:
    """Return how many blocks began at each column."""
    arrived, bases = np.zeros(1, np.int32), np.full(blocks, 999, np.uint32)
    with emulate.scheduled("random", seed=seed, races=False):
        kernel(ctas)(blocks, 32, (arrived, bases, columns, awaited, keeps), cluster=ctas)
    assert arrived[0] == blocks
    return [int(count) for count in np.bincount(bases)[::columns]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ctas", [1, 2])
def test_as_many_blocks_as_the_columns_hold_are_there_at_once(ctas: int, seed: int) -> None:
    assert meet(2 * SMS, 256, 2 * SMS, ctas=ctas, seed=seed) == [SMS, SMS]


def test_an_allocation_waits_until_another_block_frees() -> None:
    assert meet(SMS + 40, 512, SMS) == [SMS + 40]


def test_blocks_on_different_sms_do_not_wait() -> None:
    assert meet(SMS, 512, SMS, keeps=True) == [SMS]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("ctas", [1, 2])
def test_a_block_that_never_frees_is_named(ctas: int, seed: int) -> None:
    words = (
        r"warp 0 waits for ever in tcgen05\.alloc: block \(\d+, 0, 0\), which runs on the same SM, "
        r"holds 512 columns of tensor memory from column 0 on, and does not free them\. Deallocate"
    )
    with pytest.raises(EmulatedFault, match=words):
        meet(SMS + ctas, 512, SMS + ctas, ctas=ctas, seed=seed)


def test_a_block_that_keeps_its_permit_is_named() -> None:
    words = r"allocated 32 columns .*has not executed tcgen05\.relinquish_alloc_permit\. Relinquish"
    with pytest.raises(EmulatedFault, match=words):
        meet(SMS + 1, 32, SMS + 1, keeps=True)
