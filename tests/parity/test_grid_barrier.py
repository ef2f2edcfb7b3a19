"""sync_grid and cooperative launches: what every block wrote is seen by all after the barrier."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import pytest

from tmaasync import EmulatedFault, EmulatedRace, Kernel, LaunchError
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

# Each step, every thread adds what the thread of the next block wrote in the step before.
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

#ifndef BARRIER
#define BARRIER sync_grid()
#endif

extern "C" __global__ void neighbours(int* values, int steps) {
    const int thread = threadIdx.x + blockDim.x * threadIdx.y;
    const int threads = blockDim.x * blockDim.y, size = gridDim.x * gridDim.y * threads;
    const int mine = (blockIdx.x + gridDim.x * blockIdx.y) * threads + thread;
    for (int step = 0; step < steps; ++step) {
        const int* before = values + step % 2 * size;
        int* after = values + (step + 1) % 2 * size;
        after[mine] = before[mine] + 2 * before[(mine + threads) % size];
        BARRIER;
    }
}
"""
STEPS = 5


@functools.cache
def kernel(barrier: str = "sync_grid()") -> Kernel:
    return Kernel(SOURCE.replace("BARRIER;", barrier + ";"), "neighbours")


def expected(start: Any, threads: int) -> Any:
    for _ in range(STEPS):
        start = start + 2 * np.roll(start, -threads)
    return start


def arrays(blocks: int, threads: int) -> tuple[Any, Any]:
    start = np.random.default_rng(blocks).integers(0, 9, blocks * threads, np.int32)
    return start, np.concatenate([start, np.full_like(start, -99)])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("grid", "block", "cluster"),
    [(1, 32, None), (7, 96, None), ((3, 5), (16, 4), None), (12, 64, 4), (66, 33, None)],
)
def test_every_block_sees_what_all_wrote(backend: Any, grid: Any, block: Any, cluster: Any) -> None:
    blocks, threads = int(np.prod(grid)), int(np.prod(block))
    start, host = arrays(blocks, threads)
    values = backend.array(host)

    kernel()(grid, block, (values, STEPS), cluster=cluster, cooperative=True)

    result = backend.host(values).reshape(2, -1)[STEPS % 2]
    assert np.array_equal(result, expected(start, threads))


def test_a_prepared_launch_runs_again(backend: Any) -> None:
    start, host = arrays(6, 64)
    values = backend.array(host)
    launch = kernel().prepare(6, 64, (values, STEPS), cooperative=True)

    for _ in range(3):
        values[:] = backend.array(host)
        launch()
        result = backend.host(values).reshape(2, -1)[STEPS % 2]
        assert np.array_equal(result, expected(start, 64))


@pytest.mark.chips("sm_90a")
def test_a_grid_that_cannot_be_resident_is_refused(backend: Any) -> None:
    values = backend.array(np.zeros(8, np.int32))

    with pytest.raises(LaunchError, match=r"blocks; with cooperative=True .* do several tiles"):
        kernel()(132 * 32 + 1, 64, (values, 0), cooperative=True)
    with pytest.raises(LaunchError, match=r"holds 132 of neighbours .* 204800 bytes of shared"):
        kernel()(133, 64, (values, 0), shared_mem=200 * 1024, cooperative=True)


@pytest.mark.parametrize("policy", get_args(Policy))
def test_the_barrier_orders_blocks_for_the_race_search(policy: Policy) -> None:
    start, values = arrays(4, 64)

    for seed in range(3):
        held = values.copy()
        with scheduled(policy, seed=seed, races=True):
            kernel()(4, 64, (held, STEPS), cooperative=True)
        assert np.array_equal(held.reshape(2, -1)[STEPS % 2], expected(start, 64))


def test_a_barrier_of_the_block_does_not_order_the_grid() -> None:
    _, values = arrays(4, 64)

    with scheduled(races=True), pytest.raises(EmulatedRace, match=r"a race on values\[\d+\]"):
        kernel("__syncthreads()")(4, 64, (values, STEPS), cooperative=True)


def test_sync_grid_in_another_launch_is_a_fault() -> None:
    _, values = arrays(4, 64)

    with pytest.raises(EmulatedFault, match="Launch the kernel with cooperative=True"):
        kernel()(4, 64, (values, STEPS))
