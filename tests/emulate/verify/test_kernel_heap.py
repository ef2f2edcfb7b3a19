"""Memory that kernels allocate is, in every run of a verified launch, as before the first one."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tmaasync as tma
from tmaasync import emulate

# Two blocks take tickets, so that each kernel has two orders.
SOURCE = """
extern "C" __global__ void allocate(int** lists, int* next) {
    const int ticket = atomicAdd(next, 1);
    int* const list = static_cast<int*>(malloc(12));
    for (int i = 0; i < 3; ++i) list[i] = 0;
    lists[ticket] = list;
}
extern "C" __global__ void fill(int** lists, int* next) {
    const int ticket = atomicAdd(next, 1);
    if (lists[0][ticket] != 0) __trap();
    lists[0][ticket] = blockIdx.x + 1;
}
extern "C" __global__ void release(int** lists, int* next) {
    if (atomicAdd(next, 1) == 0) free(lists[0]);
}
extern "C" __global__ void borrow(int* out, int* next) {
    int* const list = static_cast<int*>(malloc(12));
    const int ticket = *list = atomicAdd(next, 1);
    out[ticket] = *list;
    free(list);
}
extern "C" __global__ void look(int** lists, int* out) {
    for (int i = 0; i < 3; ++i) out[i] = lists[0][i];
}
extern "C" __global__ void release_late(int** lists, int* out) {
    if (blockIdx.x == 0) *out = lists[0][2];
    else free(lists[0]);
}
extern "C" __global__ void read_freed(int** lists, int* out) {
    if (blockIdx.x) return;
    free(lists[0]);
    *out = lists[0][2];
}
"""


@functools.cache
def kernel(name: str) -> tma.Kernel:
    return tma.Kernel(SOURCE, name)


def verified(name: str, array: Any) -> emulate.LaunchVerdict:
    (launch,) = emulate.verify(kernel(name), 2, 1, (array, np.zeros(1, np.int32))).launches
    return launch


def two_lists() -> Any:
    """Return the addresses of two lists of three zeros that a kernel has allocated."""
    lists = np.zeros(2, np.uint64)
    kernel("allocate")(2, 1, (lists, np.zeros(1, np.int32)))
    return lists


def words(lists: Any) -> list[int]:
    out = np.full(3, -1, np.int32)
    kernel("look")(1, 1, (lists, out))
    return list(out)


def test_runs_find_blocks_of_an_earlier_launch_as_they_were() -> None:
    lists = two_lists()
    found = verified("fill", lists)
    assert (found.status, found.runs > 1) == ("clean", True), found
    assert words(lists) == [1, 2, 0]


def test_a_block_that_a_run_frees_is_there_in_the_next_one() -> None:
    lists = two_lists()
    found = verified("release", lists)
    assert (found.status, found.runs > 1) == ("clean", True), found
    with pytest.raises(tma.EmulatedFault, match="which is free already"):
        kernel("release")(2, 1, (lists, np.zeros(1, np.int32)))


def test_the_blocks_of_the_first_run_are_left() -> None:
    lists = np.zeros(2, np.uint64)
    found = verified("allocate", lists)
    assert (found.status, found.runs > 1) == ("clean", True), found
    assert words(lists) == [0, 0, 0]
    assert verified("release", lists).status == "clean"


def test_a_block_of_one_run_is_no_matter() -> None:
    out = np.zeros(2, np.int32)
    found = verified("borrow", out)
    assert (found.status, found.runs > 1) == ("clean", True), found
    assert list(out) == [0, 1]


def test_a_block_that_is_freed_too_early_is_found() -> None:
    """In the usual order of two blocks, the memory is read first."""
    assert isinstance(verified("release_late", two_lists()).error, tma.EmulatedRace)
    assert isinstance(verified("read_freed", two_lists()).error, tma.EmulatedFault)
