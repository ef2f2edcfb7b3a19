"""A kernel that runs on and on is stopped: the process survives, and the next run works."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args

import numpy as np
import pytest

from tmaasync import ArgumentError, EmulatedTimeout, Kernel
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy


@pytest.fixture(autouse=True)
def unwatched(races: None) -> Iterator[None]:
    """The race detector would report the accesses first."""
    with scheduled(races=False):
        yield


SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
struct SharedMemory { SharedMemBarrier full; };
extern "C" __device__ const int loops_shared_bytes = sizeof(SharedMemory);
extern "C" __global__ void loops(int* out, int how) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) shared.full.init(1);
    __syncthreads();
    volatile int* flag = out;
    if (threadIdx.x == 5 && blockIdx.x == 0) {
        if (how == 1) while (true) {}
        if (how == 2) while (out[0] == 0) out[1] = expf(out[1]) + sqrtf(out[2]);
        if (how == 3) while (out[0] == 0) shared.full.expect_tx(0);
    }
    if (how == 4 && threadIdx.x < 32) while (*flag == 0) __syncwarp();
    if (how == 5) while (*flag == 0) __syncthreads();
    if (how == 6) while (*flag == 0) atomicAdd(out + 1, 1);
    if (how != 0) shared.full.wait(0);
    out[4 + threadIdx.x] = 1;
}
"""
IN_ONE_THREAD = {"nothing": 1, "mathematics": 2, "the runtime": 3}
TOGETHER = {"warps meet": 4, "the block meets": 5, "atomics": 6}


def run(how: int, blocks: int = 1) -> Any:
    out = np.zeros(4 + 64, np.int32)
    Kernel(SOURCE, "loops")(blocks, 64, (out, how))
    return out


def stopped(how: int, *, budget_seconds: float = 0.1, **schedule: Any) -> EmulatedTimeout:
    with (
        scheduled(budget_seconds=budget_seconds, **schedule),
        pytest.raises(EmulatedTimeout) as caught,
    ):
        run(how, blocks=3)
    return caught.value


@pytest.mark.parametrize(("how", "policy"), [*zip(IN_ONE_THREAD, get_args(Policy), strict=True)])
def test_a_thread_that_never_waits_is_named(how: str, policy: Policy) -> None:
    found = stopped(IN_ONE_THREAD[how], policy=policy)

    assert found.looping == ((0, 0, 0), 5)
    assert {5} in [set(wait.threads) for wait in found.waits if "runs" in wait.instruction]
    assert {thread for wait in found.waits for thread in wait.threads} == set(range(64))
    assert run(0)[4:].all()


@pytest.mark.parametrize("how", TOGETHER)
def test_threads_that_go_round_in_circles_are_stopped(how: str) -> None:
    found = stopped(TOGETHER[how])

    assert found.looping is None
    assert "make no progress" in str(found)
    assert {thread for wait in found.waits for thread in wait.threads} == set(range(64))
    assert run(0)[4:].all()


def test_the_message_says_where_everybody_stands() -> None:
    text = str(stopped(IN_ONE_THREAD["mathematics"]))

    assert text.startswith(
        "loops: budget_seconds=0.1 are spent; block (0, 0, 0), thread 5 runs on and never lets "
        "others run."
    )
    assert re.search(r"thread 5 at kernel\.cu:\d+: runs, and never waits", text)
    assert "emulate.scheduled(budget_seconds=...)" in text


def test_a_loop_that_nothing_can_end_needs_no_budget() -> None:
    began = time.process_time()
    found = stopped(IN_ONE_THREAD["nothing"], budget_seconds=math.inf)

    assert str(found).startswith("loops: block (0, 0, 0), thread 5 is in an endless loop, in which")
    assert time.process_time() - began < 5
    assert found.budget_seconds is None


def test_launches_on_several_threads_are_stopped_each_for_itself() -> None:
    def launch(how: int) -> bool:
        with scheduled(budget_seconds=0.2, races=False):
            try:
                run(how)
            except EmulatedTimeout:
                return True
        return False

    wanted = [1, 0, 3, 0]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(launch, wanted)) == [how != 0 for how in wanted]


SLOW = """
extern "C" __global__ void slow(int* out, int steps) {
    volatile long sum = 0;
    for (int i = 0; i < steps; ++i) sum += i;
    out[threadIdx.x] = 1;
}
"""


def test_threads_that_end_one_after_the_other_spend_no_budget() -> None:
    out = np.zeros(64, np.int32)
    kernel = Kernel(SLOW, "slow")
    began = time.process_time()

    with scheduled(budget_seconds=0.1):
        kernel(1, 64, (out, 20_000_000))

    assert out.all()
    assert time.process_time() - began > 0.1


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"budget_seconds is 0; it must be above 0.*math\.inf"):
        scheduled(budget_seconds=0).__enter__()


def test_a_handler_of_the_program_is_called_and_comes_back() -> None:
    calls = []
    before = signal.signal(signal.SIGURG, lambda *_: calls.append(1))
    try:
        stopped(1)
        signal.raise_signal(signal.SIGURG)
        assert calls == [1]
    finally:
        signal.signal(signal.SIGURG, before)
