"""Loads and stores of global memory under a predicate: every size, and what they leave alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, EmulatedRace, Kernel

SOURCE = """
#include <tmaasync/tmaasync.cuh>

using namespace tmaasync;

struct __align__(16) Words8 { u32 words[8]; };

template <typename T>
__device__ void move(const void* from, void* to, int i, int size, bool loads, bool stores) {
    const T* source = static_cast<const T*>(from) + i;
    // An address that must not be touched.
    const T value = load_global(loads ? source : source + (1 << 28), loads);
    store_global(stores ? static_cast<T*>(to) + i : static_cast<T*>(to) + (1 << 28), value, stores);
}

extern "C" __global__ void moves(
    const void* from, void* to, int size, const bool* loads, const bool* stores, int shift
) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const void* source = static_cast<const char*>(from) + shift;
    if (size == 4) move<float>(source, to, i, size, loads[i], stores[i]);
    if (size == 8) move<uint2>(source, to, i, size, loads[i], stores[i]);
    if (size == 16) move<float4>(source, to, i, size, loads[i], stores[i]);
    if (size == 32) move<Words8>(source, to, i, size, loads[i], stores[i]);
}

extern "C" __global__ void racing(uint4* to) {
    store_global(to + threadIdx.x / 2, uint4{threadIdx.x, 0, 0, 0});
}
"""


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel(SOURCE, name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [4, 8, 16, 32])
def test_values_move_where_the_predicates_hold(backend: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    count = 192
    source = rng.integers(0, 256, (count, size), np.uint8)
    target = np.full((count, size), 0xA5, np.uint8)
    loads, stores = rng.random(count) < 0.7, rng.random(count) < 0.7
    held = backend.array(target)

    arguments = (backend.array(source), held, size, backend.array(loads), backend.array(stores), 0)
    kernel("moves")(3, 64, arguments)

    wanted = np.where(stores[:, None], np.where(loads[:, None], source, 0), target)
    assert np.array_equal(backend.host(held), wanted)


def test_an_address_that_is_no_multiple_of_the_size_is_a_fault() -> None:
    always = np.ones(64, bool)
    room = np.zeros(2048, np.uint8)

    with pytest.raises(EmulatedFault, match="no multiple of its size"):
        kernel("moves")(1, 64, (room, np.zeros(1024, np.uint8), 16, always, always, 8))


def test_stores_to_one_place_race() -> None:
    with pytest.raises(EmulatedRace, match=r"a race on to\[0\]"):
        kernel("racing")(1, 64, (np.zeros(256, np.uint32),))
