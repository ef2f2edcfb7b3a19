"""The number of blocks that the emulated device holds, and launches that no device takes."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pytest

from tmaasync import CompileError, EmulatedDeadlock, Kernel, LaunchError
from tmaasync._driver import LaunchConfig
from tmaasync.emulate import scheduled
from tmaasync.emulate.chips import SM_90A, SM_100A, SM_120A, Chip
from tmaasync.emulate.chips.occupancy import max_resident_clusters, residency

SMS = 132

# Every block waits until all of the grid have come.
SOURCE = """
extern "C" __global__ void meet(int* arrived, int* out) {
    STATIC
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < int(gridDim.x)) __nanosleep(20);
        out[blockIdx.x] = 1;
    }
}
"""


STATIC = """
    __shared__ int room[WORDS];
    room[threadIdx.x] = threadIdx.x;
    __syncwarp();
    if (room[31 - threadIdx.x] > 31) out[0] = 0;
"""


def meet(static_words: int = 0) -> Kernel:
    static = STATIC.replace("WORDS", str(static_words)) if static_words else ""
    return Kernel(SOURCE.replace("STATIC", static), "meet")


def config(threads: int, shared_bytes: int = 0, cluster: int = 1) -> LaunchConfig:
    return LaunchConfig(
        (9999, 1, 1), (threads, 1, 1), (cluster, 1, 1), shared_bytes, pdl=False, stream=0
    )


# By hand, from the CUDA Programming Guide's table of compute capability 9.0: 2048 threads, 32
# blocks, 228 KiB of shared memory (1 KiB of it the system's, of each block) and 64 Ki registers.
@pytest.mark.parametrize(
    ("launch", "registers", "static_bytes", "per_sm", "why"),
    [
        (config(1024), 0, 0, 2, "threads"),
        (config(33), 0, 0, 32, "threads"),  # two whole warps
        (config(32), 0, 0, 32, "the number of blocks"),
        (config(128, 113 * 1024), 0, 0, 2, "shared memory"),
        (config(128, 113 * 1024 + 1), 0, 0, 1, "shared memory"),
        (config(128, 75 * 1024), 0, 0, 3, "shared memory"),
        (config(128, 75 * 1024), 0, 1, 2, "shared memory"),
        (config(384), 168, 0, 1, "registers"),
        (config(128), 128, 0, 4, "registers"),
    ],
)
def test_an_sm_holds_as_many_blocks_as_its_scarcest_resource_allows(
    launch: LaunchConfig, registers: int, static_bytes: int, per_sm: int, why: str
) -> None:
    assert max_resident_clusters(SM_90A, launch, registers, static_bytes) == SMS * per_sm
    words = residency(SM_90A, launch, registers, static_bytes)
    assert words.startswith(f"132 SMs hold {SMS * per_sm} blocks: {per_sm} an SM by {why}")


# The same table of 10.0, and of 12.0: 1536 threads, 24 blocks, 100 KiB of shared memory.
@pytest.mark.parametrize(
    ("chip", "launch", "registers", "blocks", "why"),
    [
        (SM_100A, config(1024), 0, 148 * 2, "threads"),
        (SM_100A, config(32), 0, 148 * 32, "the number of blocks"),
        (SM_100A, config(128, 75 * 1024), 0, 148 * 3, "shared memory"),
        (SM_120A, config(1024), 0, 188, "threads"),
        (SM_120A, config(32), 0, 188 * 24, "the number of blocks"),
        (SM_120A, config(128, 49 * 1024), 0, 188 * 2, "shared memory"),
        (SM_120A, config(128, 49 * 1024 + 1), 0, 188, "shared memory"),
        (SM_120A, config(512), 128, 188, "registers"),
        (SM_120A, config(32, cluster=8), 0, 188 // 8 * 24 * 8, "the number of blocks"),
    ],
)
def test_each_chip_has_its_own_occupancy(
    chip: Chip, launch: LaunchConfig, registers: int, blocks: int, why: str
) -> None:
    words = residency(chip, launch, registers)

    assert words.startswith(f"{chip.device.sms} SMs hold {blocks} blocks")
    assert f"an SM by {why}" in words


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("threads", "kib", "per_sm"), [(64, 75, 3), (1, 0, 32)])
def test_a_full_device_of_blocks_that_wait_for_one_another_runs(
    threads: int, kib: int, per_sm: int
) -> None:
    arrived, out = np.zeros(1, np.int32), np.zeros(SMS * per_sm, np.int32)

    with scheduled(races=False):
        meet()(len(out), threads, (arrived, out), shared_mem=kib * 1024, cooperative=True)

    assert arrived[0] == len(out)
    assert out.all()


def test_one_block_more_is_a_deadlock_that_says_what_the_device_holds_and_why() -> None:
    arrived, out = np.zeros(1, np.int32), np.zeros(SMS + 1, np.int32)
    kernel = meet(static_words=9000)

    with scheduled(races=False), pytest.raises(EmulatedDeadlock) as caught:
        kernel(SMS + 1, 32, (arrived, out), shared_mem=150 * 1024)

    assert caught.value.resident == (SMS, SMS + 1)
    limit = r"\(132 SMs hold 132 blocks: 1 an SM by shared memory \(19\d{4} of 233472 bytes\)\)"
    assert re.search(limit, str(caught.value))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(LaunchError, match="holds 132 of meet"):
        kernel(SMS + 1, 32, (arrived, out), shared_mem=150 * 1024, cooperative=True)


def test_static_shared_memory_has_the_limit_of_ptxas() -> None:
    arrived, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    words = 48 * 1024 // 4

    meet(words)(1, 32, (arrived, out))

    assert out[0] == 1
    with pytest.raises(
        CompileError, match=r"49\d{3} bytes of static .* at most 49152\..*shared_mem"
    ):
        meet(words + 1)(1, 32, (arrived, out))


def test_static_and_dynamic_shared_memory_share_what_a_block_has() -> None:
    arrived, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernel = meet(static_words=1024)
    most = 227 * 1024 - 4096

    kernel(1, 32, (arrived, out), shared_mem=most)
    with pytest.raises(LaunchError, match=r"\d{4} bytes of static.*Ask for at most 22\d{4}"):
        kernel(1, 32, (arrived, out), shared_mem=most + 2048)
