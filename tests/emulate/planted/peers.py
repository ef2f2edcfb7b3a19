"""Defects between two devices, each a step of planted/peers.cu that goes wrong.

They are of the kind that was reported publicly in 2026 as "stochastically wrong output": a flag
that is polled by ordinary loads before TMA reads (DeepEP 621), a missing proxy fence (sglang 39124,
FlashKDA 24) or one on the wrong side of the barrier (pytorch/ao 4278), an mbarrier whose init is
not fenced (FlashKDA 24), a relaxed wait (ThunderKittens). The text is our own.

A fence after the barrier is sound in the thread that goes on to store or to post: it lies on the
path from all writes to what TMA reads (PTX ISA, "Causality order").
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import Kernel, Signals, TMATensorTileArray, create_tma_tile, emulate
from tmaasync.peers import enable_peer_access

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, ROUNDS, SHAPE = 32, 3, (4, 32)

SOUND = {
    "FENCE_INIT": "fence_barrier_init()",
    "FILLED": "fence_async_view_proxy(); __syncthreads()",
    "WAIT_ARRIVED": "signals.wait(kArrived, epoch)",
    "WAIT_FREE": "signals.wait(kFree, round)",
    "BEFORE_WRITING": "",
    "POST_FREE": "signals.post(kProducer, kFree, epoch)",
    "WAIT_STORE": "wait_group<0>()",
    "POST": "signals.post(kConsumer, kArrived, epoch)",
    "MEET": "ptx::fence_proxy_async_global(); __syncthreads()",
    "WAIT_CLEARED": "signals.wait(kArrived, 1)",
    "COUNT": "atomicAdd_system(counter, 1u)",
    "LEAVE": "signals.post(kProducer, kFree, 1)",
    "BEFORE_REUSE": "signals.wait(kFree, 1)",
}
# The same orders in CUDA's own words.
PLAIN = {
    "WAIT_ARRIVED": "while (*flag < epoch) {} __threadfence_system(); "
    "ptx::fence_proxy_async_global()",
    "POST": "__threadfence_system(); *flag = epoch",
}


@dataclass(frozen=True)
class Defect:
    """A wrong step, and the report of it.

    ``between`` is False where both accesses are to shared memory of the producer.
    """

    name: str
    scenario: str
    steps: dict[str, str]
    cause: str
    operations: tuple[str, str]
    lines: tuple[str, str] = ("", "")
    between: bool = True


_STORED, _LOADED = "tiles[kConsumer].async_store", "tile.async_copy(shared.tile"
_WRITTEN = "target[i] = 10.f + round"
_TMA = (("TMA store", "TMA load"), (_STORED, _LOADED))
_THREADS = (("ordinary write", "TMA load"), (_WRITTEN, _LOADED))
_FILLED = (
    ("ordinary write", "TMA store"),
    ("shared.tile.data()[i] = value", _STORED),
)
_ORDER = "no release and acquire at system scope"
_READER, _WRITER = "The reading thread calls ptx::fence", "Every writing thread calls ptx::fence"

DEFECTS = (
    Defect("only .read is waited for", "by_tma", {"WAIT_STORE": "wait_group_read<0>()"},
           "wait_group_read frees shared memory", *_TMA),
    Defect("no release", "by_tma", {"POST": "*flag = epoch"}, _ORDER, *_TMA),
    Defect("release of the GPU's scope", "by_tma", {"POST": "__threadfence(); *flag = epoch"},
           _ORDER, *_TMA),
    Defect("no acquire", "by_tma",
           {"WAIT_ARRIVED": "while (*flag < epoch) {} ptx::fence_proxy_async_global()"},
           _ORDER, *_TMA),
    Defect("a relaxed wait", "by_tma",
           {"WAIT_ARRIVED": "while (relaxed(flag) < epoch) {} ptx::fence_proxy_async_global()"},
           _ORDER, *_TMA),
    Defect("acquire of the GPU's scope", "by_tma",
           {"WAIT_ARRIVED": "while (*flag < epoch) {} __threadfence(); "
            "ptx::fence_proxy_async_global()"}, _ORDER, *_TMA),
    Defect("the flag is polled, then TMA reads", "by_tma",
           {"WAIT_ARRIVED": "while (signals.epoch_of(kArrived) < epoch) {}"}, _READER, *_TMA),
    Defect("the fence is before the wait", "by_tma",
           {"WAIT_ARRIVED": "ptx::fence_proxy_async_global(); "
            "while (signals.epoch_of(kArrived) < epoch) {}"}, _READER, *_TMA),
    Defect("an epoch twice", "by_tma", {"WAIT_ARRIVED": "signals.wait(kArrived, 1)"},
           "", ("", "")),
    Defect("the tile is not waited for to be free", "by_tma", {"WAIT_FREE": ""}, "", ("", "")),
    Defect("the consumer resets the flag", "by_tma",
           {"POST_FREE": "signals.post(kProducer, kFree, epoch); "
            "signals.pads[kConsumer][kArrived] = 0"},
           "Let no rank reset a signal", ("", "")),
    Defect("ordinary writes without the writer's fence", "by_threads", {"MEET": "__syncthreads()"},
           _WRITER, *_THREADS),
    Defect("the fence is before the writes", "by_threads",
           {"BEFORE_WRITING": "ptx::fence_proxy_async_global()", "MEET": "__syncthreads()"},
           _WRITER, *_THREADS),
    Defect("ordinary writes without the reader's fence", "by_threads",
           {"WAIT_ARRIVED": "while (signals.epoch_of(kArrived) < epoch) {}"}, _READER, *_THREADS),
    Defect("the fence is after the barrier, and not in the posting thread", "by_threads",
           {"MEET": "__syncthreads(); if (threadIdx.x) ptx::fence_proxy_async_global()"},
           _WRITER, *_THREADS),
    Defect("no barrier before the post", "by_threads", {"MEET": "ptx::fence_proxy_async_global()"},
           "", ("ordinary write", "TMA load")),
    Defect("a reduction against a store", "add", {"WAIT_CLEARED": ""},
           "one rank adds and another one stores", ("", "")),
    Defect("atomics of the GPU's scope", "add", {"COUNT": "atomicAdd(counter, 1u)"},
           "both are atomic for their own device alone", ("atomic operation", "atomic operation")),
    Defect("a peer reads after the exit", "read", {"BEFORE_REUSE": ""},
           "Let the reader post a second signal", ("", "")),
    Defect("the reader leaves without a signal", "read", {"LEAVE": "", "BEFORE_REUSE": ""},
           "Let the reader post a second signal", ("", "")),
    Defect("TMA stores what was written without a fence", "by_tma", {"FILLED": "__syncthreads()"},
           "fence_async_view_proxy", *_FILLED, between=False),
    Defect("the fence is after the barrier, and not in the storing thread", "by_tma",
           {"FILLED": "__syncthreads(); if (threadIdx.x) fence_async_view_proxy()"},
           "fence_async_view_proxy", *_FILLED, between=False),
    Defect("TMA arrives at an mbarrier whose init is not fenced", "by_tma", {"FENCE_INIT": ""},
           "fence_barrier_init", ("", ""), between=False),
)  # fmt: skip
"""Of two accesses whose order depends on the seed, operations and cause are left empty."""

SCENARIOS = ("by_tma", "by_threads", "add", "read")


def _step(name: str) -> str:
    """The code of a step: the defects' own by their numbers, else the sound one."""
    wrong = [(number, defect.steps) for number, defect in enumerate(DEFECTS)] + [
        (PLAIN_CUDA, PLAIN)
    ]
    cases = [
        f"case {number}: {{ {steps[name]}; }} break;" for number, steps in wrong if name in steps
    ]
    return f"do {{ switch (bug) {{ {' '.join(cases)} default: {SOUND[name]}; }} }} while (0)"


PLAIN_CUDA, NO_BUG = len(DEFECTS), -1


@functools.cache
def _kernel(name: str) -> Kernel:
    tile = create_tma_tile(np.zeros(SHAPE, np.float32), SHAPE)
    options = [f"-D{step}={_step(step)}" for step in SOUND]
    return Kernel(SOURCE, name, types={"Tile": tile}, options=options)


def run(scenario: str, bug: int, seed: int) -> None:
    """Run a scenario on two devices, and compare what it has computed."""
    with emulate.scheduled("random", seed=seed, races=True), emulate.devices(2) as world:
        enable_peer_access([0, 1])
        arrays = [device.array(np.full(SHAPE, device.ordinal, np.float32)) for device in world]
        outs = [device.array(np.full(SHAPE, np.nan, np.float32)) for device in world]
        tiles = TMATensorTileArray([create_tma_tile(array, SHAPE) for array in arrays])
        signals = Signals([device.array(np.zeros(4, np.uint32)) for device in world])
        counter = world[1].array(np.zeros(1, np.uint32))
        launches: dict[str, list[tuple[str, Any]]] = {
            "by_tma": [("by_tma", (tiles, out, ROUNDS)) for out in outs],
            "by_threads": [("by_threads", (tiles, out, arrays[1], ROUNDS)) for out in outs],
            "add": [("add", (tiles, array, counter)) for array in arrays],
            "read": [("overwrite", (arrays[0],)), ("read", (tiles, outs[1]))],
        }
        for own, (name, args) in zip(signals, launches[scenario], strict=True):
            _kernel(name)(1, THREADS, (own, *args, bug), device=own.rank)
    wanted = {"by_tma": 12, "by_threads": 12, "add": 3, "read": 0}[scenario]
    result = arrays[1] if scenario == "add" else outs[1]
    assert np.array_equal(result, np.full(SHAPE, wanted, np.float32))
    assert scenario != "add" or counter[0] == 2
