"""Flags order two emulated devices at system scope alone."""

from __future__ import annotations

import numpy as np
import pytest
from bodies import chosen

from tmaasync import EmulatedRace, Kernel, emulate, enable_peer_access

# How a flag is set and read, at which scope: whether that orders two devices.
FLAGGED = """
#include <cuda/atomic>
#include <cuda/ptx>
template <cuda::thread_scope kScope>
using Flag = cuda::atomic_ref<unsigned, kScope>;

// Both ranks write a number for each other, set the other's flag, and read theirs.
extern "C" __global__ void exchange(
    unsigned* flag, unsigned* of_peer, int* mine, int* of_peers, int* read, int sets, int gets
) {
    using namespace cuda;
    unsigned seen = 0;
    *of_peers = 7;
SETS
    while (seen == 0) {
GETS
    }
    *read = *mine;
}
"""
_PTX_SET = 'asm volatile("red.release.{}.global.add.u32 [%0], 1;" :: "l"(of_peer) : "memory");'
_PTX_GET = 'asm volatile("ld.acquire.{}.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");'
SETS = {
    "system": "Flag<thread_scope_system>(*of_peer).fetch_add(1u, memory_order_release);",
    "fence": "cuda::atomic_thread_fence(memory_order_release); *(volatile unsigned*)of_peer = 1;",
    "ptx sys": _PTX_SET.format("sys"),
    "fence sys": "ptx::fence(ptx::sem_acq_rel, ptx::scope_sys); atomicExch_system(of_peer, 1u);",
    "device": "Flag<thread_scope_device>(*of_peer).fetch_add(1u, memory_order_release);",
    "ptx gpu": _PTX_SET.format("gpu"),
    "fence gpu": "ptx::fence(ptx::sem_acq_rel, ptx::scope_gpu); atomicExch_system(of_peer, 1u);",
    "plain gpu": 'asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" :: "l"(of_peer) : "memory");',
}
GETS = {
    "system": "seen = Flag<thread_scope_system>(*flag).load(memory_order_acquire);",
    "fence": "seen = *(volatile unsigned*)flag; cuda::atomic_thread_fence(memory_order_acquire);",
    "ptx sys": _PTX_GET.format("sys"),
    "fence sys": "seen = *(volatile unsigned*)flag; ptx::fence(ptx::sem_acq_rel, ptx::scope_sys);",
    "device": "seen = Flag<thread_scope_device>(*flag).load(memory_order_acquire);",
    "ptx gpu": _PTX_GET.format("gpu"),
    "fence gpu": "seen = *(volatile unsigned*)flag; ptx::fence(ptx::sem_acq_rel, ptx::scope_gpu);",
}
SOUND = ("system", "fence", "ptx sys", "fence sys")


def exchange(sets: str, gets: str, seed: int) -> list[int]:
    text = FLAGGED.replace("SETS", chosen(SETS.values(), "sets"))
    text = text.replace("GETS", chosen(GETS.values(), "gets"))
    numbers = ([*SETS].index(sets), [*GETS].index(gets))
    with emulate.scheduled("random", seed=seed, races=True), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        flags = [device.array(np.zeros(1, np.uint32)) for device in world]
        given = [device.array(np.zeros(1, np.int32)) for device in world]
        read = [device.array(np.zeros(1, np.int32)) for device in world]
        for own, peer in ((0, 1), (1, 0)):
            args = (flags[own], flags[peer], given[own], given[peer], read[own], *numbers)
            Kernel(text, "exchange")(1, 1, args, device=own)
    return [int(one[0]) for one in read]


@pytest.mark.parametrize(
    ("sets", "gets"),
    [
        *zip(SETS, GETS, strict=False),
        *(("system", one) for one in GETS if one != "system"),
        *((one, "system") for one in SETS if one != "system"),
    ],
)
def test_flags_order_two_devices_at_system_scope(sets: str, gets: str) -> None:
    for seed in range(2):
        if sets in SOUND and gets in SOUND:
            assert exchange(sets, gets, seed) == [7, 7]
        else:
            with pytest.raises(EmulatedRace, match=r"system scope|their own device"):
                exchange(sets, gets, seed)
