"""`verify` of spin locks: every order of entry, and every deadlock of several locks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

TAKE = {
    "compare": "while (atomicCAS(lock, 0, 1) != 0) {}",
    "exchange": "while (atomicExch(lock, 1) != 0) {}",
    "read first": """do {
        while (*(volatile int*)lock) {}
    } while (atomicCAS(lock, 0, 1) != 0);""",
}


def kernel(take: str, body: str) -> tma.Kernel:
    source = f"""
    __device__ void take(int* lock) {{
        {TAKE[take]}
        __threadfence();
    }}
    __device__ void drop(int* lock) {{
        __threadfence();
        atomicExch(lock, 0);
    }}
    extern "C" __global__ void contend(int* locks, int* entered, int* shared, int wanted) {{
        const int b = blockIdx.x;
        {body}
    }}"""
    return tma.Kernel(source, "contend")


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("order", [*itertools.permutations((1, 2, 3))])
def test_every_order_of_entry_is_tried(take: str, order: tuple[int, int, int]) -> None:
    body = """take(locks);
        *entered = *entered * 10 + b + 1;
        if (*entered == wanted) __trap();
        drop(locks);"""
    wanted = int("".join(map(str, order)))
    words = (np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32), wanted)
    verdict = emulate.verify(kernel(take, body), 3, 1, words)
    assert isinstance(verdict.error, tma.EmulatedFault), str(verdict)


@pytest.mark.parametrize("take", TAKE)
@pytest.mark.parametrize("is_ordered", [False, True])
def test_two_locks_in_opposite_orders_hang(take: str, is_ordered: bool) -> None:
    body = f"""const int first = {"0" if is_ordered else "b"};
        take(locks + first);
        take(locks + 1 - first);
        *shared += 1;
        drop(locks + 1 - first);
        drop(locks + first);"""
    words = (np.zeros(2, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32), 0)
    verdict = emulate.verify(kernel(take, body), 2, 1, words)
    if is_ordered:
        assert verdict.status == "clean", str(verdict)
    else:
        assert isinstance(verdict.error, tma.EmulatedDeadlock), str(verdict)
