"""Blocks that signal one another: correct ones are never blamed, and defects are found."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest

from tmaasync import EmulatedDeadlock, EmulatedRace, Kernel, create_tma_tile
from tmaasync.emulate import scheduled
from tmaasync.emulate.launch.schedule import Policy

BLOCKS, THREADS = 6, 64

# `data` has a place for each thread of each block, `flags` one for each block and more, `out` the
# results. NEXT is the block before, which most wait for.
SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

struct SharedMemory {
    Tile::Shared tile;
    SharedMemBarrier full;
    int ticket, total;
};
extern "C" __device__ const int blocks_shared_bytes = sizeof(SharedMemory);

__device__ void publish(int* flag, int value) {
    __threadfence();
    atomicExch(flag, value);
}
__device__ int poll(int* flag) { return atomicAdd(flag, 0); }
__device__ int await(int* flag) {
    int value;
    while ((value = poll(flag)) == 0) __nanosleep(20);
    __threadfence();
    return value;
}

VARIANTS

extern "C" __global__ void blocks(
    const __grid_constant__ Tile tile, int* data, int* flags, int* out, int variant
) {
    auto& shared = dynamic_shared<SharedMemory>();
    if (threadIdx.x == 0) {
        shared.full.init(1);
        fence_barrier_init();
    }
    __syncthreads();
    switch (variant) {
CASES
    }
}
"""
VARIANT = """
__device__ void variant_NUMBER(
    SharedMemory& shared, const Tile& tile, int* data, int* flags, int* out
) {
    const int thread = threadIdx.x, block = blockIdx.x, last = gridDim.x - 1;
    int* const mine = data + block * blockDim.x;
    int* const before = mine - blockDim.x;
    (void)last, (void)before, (void)out, (void)flags;
    BODY
}
"""
CASE = "case NUMBER: variant_NUMBER(shared, tile, data, flags, out); break;"

# --- correct kernels ------------------------------------------------------------------------------

LOOK_BACK = """
    // A chain: each block adds the sum of all blocks before it.
    mine[thread] = thread;
    __syncthreads();
    if (thread == 0) {
        int sum = block == 0 ? 0 : await(flags + block - 1);
        for (int i = 0; i < THREADS; ++i) sum += mine[i];
        out[block] = sum;
        publish(flags + block, sum);
    }
""".replace("THREADS", str(THREADS))
LOOK_FORWARD = """
    // The first block collects what later ones wrote, as stream-K does.
    if (block > 0) {
        mine[thread] = block;
        __syncthreads();
        if (thread == 0) publish(flags + block, 1);
    } else {
        int sum = 0;
        for (int other = 1; other <= last; ++other) {
            if (thread == 0) await(flags + other);
            __syncthreads();
            sum += data[other * blockDim.x + thread];
        }
        out[thread] = sum;
    }
"""
LAST_ARRIVER = """
    // Split-K: the block that takes the last ticket adds up all partial sums.
    mine[thread] = block + thread;
    __threadfence();
    __syncthreads();
    if (thread == 0) shared.ticket = atomicAdd(flags, 1);
    __syncthreads();
    if (shared.ticket == last) {
        __threadfence();
        int sum = 0;
        for (int other = 0; other <= last; ++other) sum += data[other * blockDim.x + thread];
        out[thread] = sum;
        if (thread == 0) flags[0] = 0;
    }
"""
TICKETS = """
    // A dynamic persistent scheduler: tiles are handed out by a counter.
    while (true) {
        if (thread == 0) shared.ticket = atomicAdd(flags, 1);
        __syncthreads();
        const int number = shared.ticket;
        __syncthreads();
        if (number >= 20) break;
        out[number * blockDim.x + thread] = number;
    }
"""
TURNS = """
    // Blocks add to one array in order, by a semaphore.
    if (thread == 0) while (poll(flags) != block) __nanosleep(20);
    __syncthreads();
    out[thread] = out[thread] + block;
    __threadfence();
    __syncthreads();
    if (thread == 0) publish(flags, block + 1);
"""
LOCK = """
    // A lock around an update.
    if (thread == 0) {
        while (atomicCAS(flags, 0, 1) != 0) __nanosleep(20);
        __threadfence();
        out[0] = out[0] + 1;
        publish(flags, 0);
    }
"""
GRID_BARRIER = """
    mine[thread] = block;
    __syncthreads();
    if (thread == 0) {
        __threadfence();
        atomicAdd(flags, 1);
        while (poll(flags) != last + 1) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
    out[block * blockDim.x + thread] = data[(block + 1) % (last + 1) * blockDim.x + thread];
"""
HANDED_TILE = """
    // A tile that one block writes and the next one loads by TMA.
    if (block == 0) {
        for (int i = thread; i < 64; i += blockDim.x) data[i] = i;
        ptx::fence_proxy_async_global();
        __syncthreads();
        if (thread == 0) publish(flags, 1);
    } else if (thread == 0) {
        await(flags);
        shared.full.expect_bytes(Tile::kBytes);
        tile.async_copy(shared.tile, shared.full, {0, 0});
        shared.full.wait(0);
        out[block] = shared.tile.data()[9];
    }
"""
EVERY_THREAD_WAITS = """
    // Each thread waits by itself: no barrier of the block is needed.
    mine[thread] = block;
    __threadfence();
    __syncthreads();
    if (thread == 0) publish(flags + block, 1);
    if (block > 0) {
        await(flags + block - 1);
        out[block * blockDim.x + thread] = before[thread];
    }
"""
VOLATILE = """
    // A flag that is volatile.
    volatile int* const flag = flags;
    if (thread == 0 && block == last) {
        data[0] = 7;
        __threadfence();
        *flag = 1;
    } else if (thread == 0) {
        while (*flag == 0) __nanosleep(20);
        __threadfence();
        out[block] = data[0];
    }
"""
SEMAPHORE = """
    // CUTLASS: all threads meet in each round of polling.
    __shared__ int state;
    for (bool first = true; first || state != block; first = false) {
        __syncthreads();
        if (thread == 0) state = poll(flags);
        __syncthreads();
    }
    out[thread] = out[thread] + block;
    __threadfence();
    __syncthreads();
    if (thread == 0) publish(flags, block + 1);
"""

CORRECT = {
    "look-back": LOOK_BACK,
    "look-forward": LOOK_FORWARD,
    "last arriver": LAST_ARRIVER,
    "tickets": TICKETS,
    "turns": TURNS,
    "lock": LOCK,
    "grid barrier": GRID_BARRIER,
    "handed tile": HANDED_TILE,
    "every thread waits": EVERY_THREAD_WAITS,
    "volatile": VOLATILE,
    "semaphore": SEMAPHORE,
}


# --- defects --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Defect:
    """One replacement in a correct kernel, and the expected report.

    Attributes:
        place: Text of the line of one of the two accesses.
        seeds: The most seeds of `random` that may be needed; 0 if `round_robin` finds it.
    """

    kernel: str
    old: str
    new: str
    place: str
    remedy: str = "polls the flag by an atomic operation"
    seeds: int = 0


ONCE = "while (*flag == 0) __nanosleep(20);"
DEFECTS = {
    "look-back reads the flag once": Defect(
        "look-back", "await(flags + block - 1)", "poll(flags + block - 1) + before[5]", "before[5]"
    ),
    "the collector reads each flag once": Defect(
        "look-forward", "await(flags + other)", "poll(flags + other)", "sum += data[other"
    ),
    "threads do not meet after the flag": Defect(
        "look-forward",
        "await(flags + other);\n            __syncthreads();",
        "await(flags + other);",
        "sum += data[other",
    ),
    "no fence before the flag": Defect(
        "look-forward",
        "publish(flags + block, 1)",
        "atomicExch(flags + block, 1)",
        "mine[thread] = block",
    ),
    "a fence of the block alone": Defect(
        "look-forward",
        "publish(flags + block, 1)",
        "{ __threadfence_block(); atomicExch(flags + block, 1); }",
        "mine[thread] = block",
    ),
    "the flag is no atomic": Defect(
        "look-forward",
        "publish(flags + block, 1)",
        "{ __threadfence(); flags[block] = 1; }",
        "flags[block] = 1",
    ),
    "no fence before the ticket": Defect(
        "last arriver", "__threadfence();\n    __syncthreads();", "__syncthreads();", "mine[thread]"
    ),
    "the counter is reset by all": Defect(
        "last arriver",
        "if (thread == 0) flags[0] = 0;",
        "flags[0] = 0;",
        "flags[0] = 0",
        remedy="two threads write the same element",
    ),
    "the counter is reset by a thread that has not seen the last ticket": Defect(
        "last arriver",
        "if (thread == 0) flags[0] = 0;\n    }",
        "}\n    if (block == last && thread == 0) flags[0] = 0;",
        "flags[0] = 0",
    ),
    "two blocks take a ticket each, without an atomic": Defect(
        "tickets",
        "shared.ticket = atomicAdd(flags, 1);",
        "{ volatile int* next = flags; shared.ticket = *next; *next = shared.ticket + 1; }",
        "out[number * blockDim.x",
        seeds=4,
        remedy="two threads write the same element",
    ),
    "no turn is waited for": Defect(
        "turns", "while (poll(flags) != block) __nanosleep(20);", "poll(flags);", "out[thread] ="
    ),
    "a lock that is tried once": Defect(
        "lock",
        "while (atomicCAS(flags, 0, 1) != 0) __nanosleep(20);",
        "atomicCAS(flags, 0, 1);",
        "out[0] = out[0]",
        seeds=4,
    ),
    "a lock that is opened without a fence": Defect(
        "lock", "publish(flags, 0)", "atomicExch(flags, 0)", "out[0] = out[0]"
    ),
    "a grid barrier that nobody waits in": Defect(
        "grid barrier",
        "while (poll(flags) != last + 1) __nanosleep(20);",
        "poll(flags);",
        "mine[thread] = block",
    ),
    "a tile that is loaded after one look at the flag": Defect(
        "handed tile",
        "await(flags);",
        "poll(flags);",
        "data[i] = i",
        "and ptx::fence_proxy_async_global(), and then loads",
    ),
    "a volatile flag that is read once": Defect(
        "volatile", ONCE, "(void)*flag;", "out[block] = data[0]"
    ),
    "a thread waits for another block's flag": Defect(
        "every thread waits",
        "await(flags + block - 1);",
        "await(flags + block);",
        "mine[thread] = block",
    ),
}


def body_of(defect: Defect) -> str:
    body = CORRECT[defect.kernel]
    assert defect.old in body
    return body.replace(defect.old, defect.new, 1)


# All in one source: a build each would take minutes.
BODIES = {**CORRECT, **{name: body_of(defect) for name, defect in DEFECTS.items()}}
NUMBERS = {name: number for number, name in enumerate(BODIES)}
TEXT = SOURCE.replace(
    "VARIANTS",
    "".join(
        VARIANT.replace("NUMBER", str(NUMBERS[name])).replace("BODY", body)
        for name, body in BODIES.items()
    ),
).replace("CASES", "\n".join(CASE.replace("NUMBER", str(n)) for n in NUMBERS.values()))


@functools.cache
def kernel() -> Kernel:
    return Kernel(TEXT, "blocks", types={"Tile": tile_of(np.zeros(64, np.int32))})


def tile_of(data: Any) -> Any:
    return create_tma_tile(data[:64].reshape(8, 8), (8, 8))


def run(name: str, blocks: int = BLOCKS, **options: Any) -> tuple[Any, Any]:
    data, out = (np.zeros((blocks + 20) * THREADS, np.int32) for _ in range(2))
    flags = np.zeros(blocks + 1, np.int32)
    kernel()(blocks, THREADS, (tile_of(data), data, flags, out, NUMBERS[name]), **options)
    return out, flags


THREAD, BLOCK = np.arange(THREADS), np.arange(BLOCKS)
# The first values of `out` and `flags`; zeros follow.
EXPECTED: dict[str, tuple[Any, Any]] = {
    "look-back": (THREAD.sum() * (BLOCK + 1), THREAD.sum() * (BLOCK + 1)),
    "look-forward": (np.full(THREADS, BLOCK.sum()), BLOCK > 0),
    "last arriver": (BLOCK.sum() + BLOCKS * THREAD, [0]),
    "tickets": (np.repeat(np.arange(20), THREADS), [20 + BLOCKS]),
    "turns": (np.full(THREADS, BLOCK.sum()), [BLOCKS]),
    "lock": ([BLOCKS], [0]),
    "grid barrier": (np.repeat((BLOCK + 1) % BLOCKS, THREADS), [BLOCKS]),
    "handed tile": (9 * (BLOCK > 0), [1]),
    "every thread waits": (np.repeat(np.maximum(BLOCK - 1, 0), THREADS), BLOCK >= 0),
    "volatile": (7 * (BLOCK < BLOCKS - 1), [1]),
    "semaphore": (np.full(THREADS, BLOCK.sum()), [BLOCKS]),
}


def check_results(name: str, results: tuple[Any, Any]) -> None:
    for result, wanted in zip(results, EXPECTED[name], strict=True):
        assert np.array_equal(result[: len(wanted)], wanted)
        assert not result[len(wanted) :].any()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("policy", get_args(Policy))
def test_correct_blocks_are_never_blamed(name: str, policy: Policy) -> None:
    for seed in range(1 if policy == "round_robin" else 3):
        with scheduled(policy, seed=seed, races=True):
            check_results(name, run(name))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CORRECT)
def test_correct_blocks_run_on_one_core_without_the_race_search(name: str) -> None:
    for policy in get_args(Policy):
        with scheduled(policy, seed=1, workers=1, races=False):
            check_results(name, run(name))


def found(name: str) -> EmulatedRace | None:
    defect = DEFECTS[name]
    for seed in range(max(1, defect.seeds)):
        try:
            with scheduled("random" if defect.seeds else "round_robin", seed=seed, races=True):
                run(name)
        except EmulatedRace as race:
            return race
    return None


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_with_its_place_and_remedy(name: str) -> None:
    defect = DEFECTS[name]
    race = found(name)

    assert race is not None, "silent"
    lines = TEXT.splitlines()
    sites = [one.source or "" for one in (race.first, race.second)]
    places = [lines[int(site.removeprefix("kernel.cu:")) - 1] for site in sites]
    assert any(defect.place in place for place in places), places
    assert defect.remedy in str(race)


# --- grids that are not resident ------------------------------------------------------------------


@pytest.mark.parametrize("races", [False, True])
def test_a_barrier_of_more_blocks_than_are_resident_is_a_deadlock_that_says_so(races: bool) -> None:
    two_per_sm = 110 * 1024

    with scheduled(races=races), pytest.raises(EmulatedDeadlock) as caught:
        run("grid barrier", 265, shared_mem=two_per_sm)

    assert caught.value.resident == (264, 265)
    assert "264 of 265 blocks are resident" in str(caught.value)
    assert "launch at most 264 blocks" in str(caught.value)
    assert "cooperative=True" in str(caught.value)


def test_blocks_that_wait_for_earlier_ones_need_not_be_resident() -> None:
    one_per_sm = 220 * 1024

    for policy in get_args(Policy):
        with scheduled(policy, seed=1, races=True):
            out, _ = run("look-back", 200, shared_mem=one_per_sm)
        assert np.array_equal(out[:200], THREAD.sum() * (np.arange(200) + 1))
