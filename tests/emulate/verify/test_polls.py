"""`emulate.verify` of threads that repeat a read, or a compare and swap, until it finds a value."""

from __future__ import annotations

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

CASES = {
    "an earlier value ends the poll": (
        """if (b) { int v; do v = *vx; while (v == 1); if (v == 0) __trap(); }
        else { *vx = 1; *vx = 2; }""",
        tma.EmulatedFault,
    ),
    "no value between ends the poll": (
        """if (b) { int v; do v = *vx; while (v == 1); if (v == 1) __trap(); }
        else { *vx = 1; *vx = 2; }""",
        None,
    ),
    "the write that ends the poll may come before it is undone": (
        "if (b) atomicExch(x, 0); else { atomicExch(x, 2); while (*vx == 2) {} }",
        tma.EmulatedDeadlock,
    ),
    "a flag": (
        """if (b) { while (!*vx) {} __threadfence(); if (*data != 1) __trap(); }
        else { *data = 1; __threadfence(); *vx = 1; }""",
        None,
    ),
    "a flag without a fence": (
        "if (b) { while (!*vx) {} if (*data != 1) __trap(); } else { *data = 1; *vx = 1; }",
        tma.EmulatedRace,
    ),
    "a lock": (
        """while (atomicCAS(x, 0, 1)) {} __threadfence(); ++*data;
        __threadfence(); atomicExch(x, 0);""",
        None,
    ),
    "a lock that its second owner does not open": (
        """while (atomicCAS(x, 0, 1)) {} __threadfence(); const int before = (*data)++;
        __threadfence(); if (b != 1 || before != 1) atomicExch(x, 0);""",
        tma.EmulatedDeadlock,
    ),
    "a compare and swap that fails": (
        """if (b) { int v = *vx; __threadfence(); if (v + *data == 9) __trap(); }
        else { *data = 1; __threadfence(); if (atomicCAS(x, 5, 6) == 5) __trap(); }""",
        tma.EmulatedRace,
    ),
    "a lock that one block tries once": (
        """if (b) { while (atomicCAS(x, 0, 1)) {} __threadfence(); atomicExch(x, 0); }
        else if (atomicCAS(x, 0, 1)) __trap(); else atomicExch(x, 0);""",
        tma.EmulatedFault,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_poll_waits_for_every_value_that_ends_it(case: str) -> None:
    body, error = CASES[case]
    source = f"""extern "C" __global__ void meet(int* x, int* data) {{
        volatile int* vx = x;
        const int b = blockIdx.x;
        {body}
    }}"""
    blocks = 3 if "lock" in case else 2
    words = np.zeros(1, np.int32), np.zeros(1, np.int32)
    verdict = emulate.verify(tma.Kernel(source, "meet"), blocks, 1, words)
    assert verdict.status == ("violated" if error else "clean"), str(verdict)
    assert error is None or isinstance(verdict.error, error), str(verdict)


def test_a_grid_that_waits_for_held_events_is_no_deadlock() -> None:
    """To reverse one pair alone is impossible here: the held events go first after all."""
    source = """extern "C" __global__ void meet(int* a, int* b, volatile int* flag, int* sum) {
        if (threadIdx.x == 0) {
            int found = 0;
            if (blockIdx.x == 0) found = atomicAdd(a, 1) + atomicAdd(b, 1);
            if (blockIdx.x == 1) {
                found = atomicAdd(b, 1) + atomicAdd(a, 1);
                *flag = 1;
            }
            while (!*flag) {}
            atomicAdd(sum, found);
        }
        __syncthreads();
    }"""
    words = np.zeros(64, np.int32)
    arguments = (words, words[16:], words[32:], words[48:])
    verdict = emulate.verify(tma.Kernel(source, "meet"), 80, 128, arguments, max_runs=4)
    assert verdict.status == "incomplete", str(verdict)
