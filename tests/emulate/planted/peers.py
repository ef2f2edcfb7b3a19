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
from planted import EVERY, RACE, Defect, Edit

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


@dataclass(frozen=True, slots=True)
class RaceOfPeers(Defect):
    """Wrong steps of a scenario, and the two accesses that are reported.

    Where their order depends on the seed, ``operations`` and ``lines`` are empty. Without
    ``between`` both accesses are to shared memory of the producer.
    """

    operations: tuple[str, str] = ("", "")
    lines: tuple[str, str] = ("", "")
    between: bool = True


def _of(scenario: str, *rows: tuple[Any, ...], **more: Any) -> tuple[RaceOfPeers, ...]:
    """Return defects of rows: name, code by step, words of the cause, operations and lines."""
    return tuple(
        RaceOfPeers(
            scenario, name, tuple(Edit(step, code, nth=EVERY) for step, code in steps.items()),
            RACE, says, **dict(zip(("operations", "lines"), accesses, strict=False)), **more,
        )
        for name, steps, says, *accesses in rows
    )  # fmt: skip


_STORED, _LOADED = "tiles[kConsumer].async_store", "tile.async_copy(shared.tile"
_WRITTEN = "target[i] = 10.f + round"
_TMA = (("TMA store", "TMA load"), (_STORED, _LOADED))
_THREADS = (("ordinary write", "TMA load"), (_WRITTEN, _LOADED))
_FILLED = (("ordinary write", "TMA store"), ("shared.tile.data()[i] = value", _STORED))
_ORDER = "no release and acquire at system scope"
_READER, _WRITER = "The reading thread calls ptx::fence", "Every writing thread calls ptx::fence"

DEFECTS = (
    *_of(
        "by_tma",
        ("only .read is waited for", {"WAIT_STORE": "wait_group_read<0>()"},
         "wait_group_read frees shared memory", *_TMA),
        ("no release", {"POST": "*flag = epoch"}, _ORDER, *_TMA),
        ("release of the GPU's scope", {"POST": "__threadfence(); *flag = epoch"}, _ORDER, *_TMA),
        ("no acquire", {"WAIT_ARRIVED": "while (*flag < epoch) {} ptx::fence_proxy_async_global()"},
         _ORDER, *_TMA),
        ("a relaxed wait",
         {"WAIT_ARRIVED": "while (relaxed(flag) < epoch) {} ptx::fence_proxy_async_global()"},
         _ORDER, *_TMA),
        ("acquire of the GPU's scope",
         {"WAIT_ARRIVED": "while (*flag < epoch) {} __threadfence(); "
         "ptx::fence_proxy_async_global()"}, _ORDER, *_TMA),
        ("the flag is polled, then TMA reads",
         {"WAIT_ARRIVED": "while (signals.epoch_of(kArrived) < epoch) {}"}, _READER, *_TMA),
        ("the fence is before the wait",
         {"WAIT_ARRIVED": "ptx::fence_proxy_async_global(); while (signals.epoch_of(kArrived) < "
         "epoch) {}"}, _READER, *_TMA),
        ("an epoch twice", {"WAIT_ARRIVED": "signals.wait(kArrived, 1)"}, ""),
        ("the tile is not waited for to be free", {"WAIT_FREE": ""}, ""),
        ("the consumer resets the flag",
         {"POST_FREE": "signals.post(kProducer, kFree, epoch); signals.pads[kConsumer][kArrived] "
         "= 0"}, "Let no rank reset a signal"),
    ),
    *_of(
        "by_threads",
        ("ordinary writes without the writer's fence", {"MEET": "__syncthreads()"}, _WRITER,
         *_THREADS),
        ("the fence is before the writes",
         {"BEFORE_WRITING": "ptx::fence_proxy_async_global()", "MEET": "__syncthreads()"}, _WRITER,
         *_THREADS),
        ("ordinary writes without the reader's fence",
         {"WAIT_ARRIVED": "while (signals.epoch_of(kArrived) < epoch) {}"}, _READER, *_THREADS),
        ("the fence is after the barrier, and not in the posting thread",
         {"MEET": "__syncthreads(); if (threadIdx.x) ptx::fence_proxy_async_global()"}, _WRITER,
         *_THREADS),
        ("no barrier before the post", {"MEET": "ptx::fence_proxy_async_global()"}, "",
         ("ordinary write", "TMA load")),
    ),
    *_of(
        "add",
        ("a reduction against a store", {"WAIT_CLEARED": ""},
         "one rank adds and another one stores"),
        ("atomics of the GPU's scope", {"COUNT": "atomicAdd(counter, 1u)"},
         "both are atomic for their own device alone", ("atomic operation", "atomic operation")),
    ),
    *_of(
        "read",
        ("a peer reads after the exit", {"BEFORE_REUSE": ""},
         "Let the reader post a second signal"),
        ("the reader leaves without a signal", {"LEAVE": "", "BEFORE_REUSE": ""},
         "Let the reader post a second signal"),
    ),
    *_of(
        "by_tma",
        ("TMA stores what was written without a fence", {"FILLED": "__syncthreads()"},
         "fence_async_view_proxy", *_FILLED),
        ("the fence is after the barrier, and not in the storing thread",
         {"FILLED": "__syncthreads(); if (threadIdx.x) fence_async_view_proxy()"},
         "fence_async_view_proxy", *_FILLED),
        ("TMA arrives at an mbarrier whose init is not fenced", {"FENCE_INIT": ""},
         "fence_barrier_init"),
        between=False,
    ),
)  # fmt: skip

SCENARIOS = ("by_tma", "by_threads", "add", "read")


def _step(name: str) -> str:
    """The code of a step: the defects' own by their numbers, else the sound one."""
    wrong = {
        number: {edit.old: edit.new for edit in defect.edits}
        for number, defect in enumerate(DEFECTS)
    } | {PLAIN_CUDA: PLAIN}
    cases = [
        f"case {number}: {{ {steps[name]}; }} break;"
        for number, steps in wrong.items()
        if name in steps
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
