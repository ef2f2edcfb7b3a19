"""`emulate.verify` of barriers of the grid: all blocks arrive, in any order, and all go on."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

BLOCKS = 4
HEADERS = {
    "sync_grid();": "#include <tmaasync/grid.cuh>",
    "cooperative_groups::this_grid().sync();": "#include <cooperative_groups.h>",
}
FORMS = list(HEADERS)


@functools.cache
def kernel(body: str, form: str) -> tma.Kernel:
    source = f"""{HEADERS[form]}
    using namespace tmaasync;
    extern "C" __global__ void meet(u32* data, u32* next, u32* sum, u32 chosen) {{
        const u32 b = blockIdx.x, after = (b + 1) % gridDim.x;
        {body.replace("BARRIER", form)}
    }}"""
    if "tmaasync" not in HEADERS[form]:
        source = source.replace("using namespace tmaasync;", "using u32 = unsigned;")
    return tma.Kernel(source, "meet")


def verified(
    body: str, *, form: str = FORMS[0], chosen: int = 0, cluster: int | None = None
) -> emulate.LaunchVerdict:
    """Return the verdict on four blocks; `data` and `sum` have a word for each."""
    arrays = [np.zeros(BLOCKS, np.uint32) for _ in range(3)]
    verdict = emulate.verify(
        *(kernel(body, form), BLOCKS, 1, (*arrays, chosen)), cooperative=True, cluster=cluster
    )
    (launch,) = verdict.launches
    return launch


@pytest.mark.parametrize("cluster", [None, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_barrier_of_the_grid_has_one_order(form: str, cluster: int | None) -> None:
    body = """for (u32 round = 1; round < 4; ++round) {
        data[b] = round;
        BARRIER
        if (data[after] != round) __trap();
        BARRIER
    }"""
    found = verified(body, form=form, cluster=cluster)
    assert (found.status, found.runs, found.unordered) == ("clean", 1, 0), found


@pytest.mark.parametrize("form", FORMS)
def test_a_block_that_skips_the_barrier_is_found(form: str) -> None:
    """In every order, and if it does so in orders alone in which it comes first."""
    body = """const bool is_first = chosen == 0 || atomicAdd(next, 1) == 0;
        if (is_first && b == 2) return;
        BARRIER"""
    always, at_times = (verified(body, form=form, chosen=chosen) for chosen in range(2))
    assert isinstance(always.error, tma.EmulatedDeadlock)
    assert isinstance(at_times.error, tma.EmulatedDeadlock)
    assert at_times.order


@pytest.mark.parametrize("form", FORMS)
def test_a_wait_orders_nothing_of_the_next_phase(form: str) -> None:
    """The last block to arrive goes on at once, and arrives again before others have read."""
    body = "BARRIER if (b == chosen) data[0] = 1; else sum[b] = data[0]; BARRIER"
    for block in range(BLOCKS):
        found = verified(body, form=form, chosen=block)
        assert isinstance(found.error, tma.EmulatedRace), (block, found)


def test_an_arrival_without_a_wait_orders_nothing() -> None:
    body = """const auto grid = cooperative_groups::this_grid();
        data[b] = 1;
        const auto token = grid.barrier_arrive();
        if (chosen == 0) sum[b] = data[after];
        if (chosen == 1) grid.barrier_arrive();"""
    races, arrives_twice = (verified(body, form=FORMS[1], chosen=chosen) for chosen in range(2))
    assert isinstance(races.error, tma.EmulatedRace)
    assert isinstance(arrives_twice.error, tma.EmulatedFault)


def test_a_counter_whose_old_value_is_used_has_all_orders() -> None:
    """A barrier of the kernel's own, whose last block does more than to go on."""
    body = """const u32 before = atomicAdd(next, 1);
        if (before == gridDim.x - 1 && b == chosen) __trap();
        while (*(volatile u32*)next < gridDim.x) {}"""
    for block in range(BLOCKS):
        assert isinstance(verified(body, chosen=block).error, tma.EmulatedFault), block


def test_a_look_at_the_barrier_may_find_any_number_of_arrivals() -> None:
    look = "if (b == 0 && *(volatile u32*)ptx::grid_barrier() == chosen) __trap();"
    for arrived in range(BLOCKS + 1):
        found = verified(f"{look} BARRIER", chosen=arrived)
        assert found.status == ("violated" if arrived < BLOCKS else "clean"), found
