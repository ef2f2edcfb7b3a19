"""A GEMM whose tiles are shared by clusters (stream-K), against NumPy in float64."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate
from parity.stream_k import SOURCE, Launch, launch

from tmaasync import (
    CompileError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    emulate,
    include_dir,
)

LAUNCHES = {
    "a tile too many": Launch((300, 260, 801), 14),
    "fewer tiles than CTAs": Launch((300, 120, 1000), 13),
    "one tile": Launch((70, 8, 1301), 6),
    "fewer blocks than CTAs": Launch((129, 8, 65), 7),
    "whole waves": Launch((513, 250, 203), 5),
    "one CTA": Launch((200, 130, 130), 1),
    "clusters of two": Launch((300, 380, 600), 8, cluster=2),
    "clusters, fewer tiles": Launch((130, 130, 1111), 10, cluster=2),
    "128 rows": Launch((700, 200, 500), 8, tile=(256, 64)),
    "one consumer": Launch((321, 77, 480), 4, tile=(64, 64), consumers=1),
}
SEEDED: tuple[Any, ...] = ("random", "adversarial")


@pytest.mark.parametrize("case", LAUNCHES)
def test_a_gemm_is_right_and_leaves_its_flags_zero(backend: Any, case: str) -> None:
    assert launch(backend, LAUNCHES[case], times=2).are_right()


SMALL = {
    "two CTAs to a tile": Launch((250, 72, 200), 3),
    "three CTAs to a tile": Launch((129, 64, 520), 6),
    "clusters of two": Launch((129, 130, 328), 6, cluster=2),
}


@pytest.mark.parametrize("case", SMALL)
def test_a_gemm_is_right_in_any_order_and_races_with_nothing(case: str) -> None:
    for policy, seed in (("round_robin", 0), *itertools.product(SEEDED, range(2))):
        with emulate.scheduled(policy, seed=seed, races=True):
            found = launch(Emulate(), SMALL[case], times=2)

        assert found.are_right(), (policy, seed)


def test_every_order_gives_the_same_bits() -> None:
    given = replace(SMALL["three CTAs to a tile"], exact=False)
    found = []
    for policy, seed in itertools.product(SEEDED, range(3)):
        with emulate.scheduled(policy, seed=seed):
            found.append(launch(Emulate(), given, times=2))

    assert all(one.differing == 0 for one in found)
    assert all(np.array_equal(one.c, found[0].c) for one in found)
    rounded, exact = (x.astype(np.float64) for x in (found[0].c, found[0].wanted))
    assert np.linalg.norm(rounded - exact) < 4e-3 * np.linalg.norm(exact)


# --- planted defects ------------------------------------------------------------------------------

PLAIN = SMALL["three CTAs to a tile"]
_STORE = "if (reduction.reduce(accumulators, tile)) output.store"
_FLAG = "flags_ + slot, 1u"
_WAIT = f"while (atomicCAS({_FLAG}, 0u) == 0) continue;"
_WRITE = "partials_[slot].write(thread_in_warpgroup(), accumulators);"
_SYNC = "barrier().sync();"
_SHARED = r"race on .*global address(.|\n)*ordinary write"


@dataclass(frozen=True)
class Defect:
    """An edit of the kernel, or of the header's class: ``old`` becomes ``new``."""

    old: str
    new: str
    kind: type[Exception] | tuple[type[Exception], ...]
    report: str
    launch: Launch = PLAIN
    debug: bool = False


MISUSES = {
    "a tile that is stored without its other blocks": Defect(
        _STORE, "(void)reduction.reduce(accumulators, tile); output.store", EmulatedRace, "TMA"
    ),
    "a producer that ignores the range of K": Defect(
        "produce(tile.k_blocks.count)",
        "produce(count_tiles(k, kK))",
        (EmulatedDeadlock, EmulatedFault),
        r"ring\.\w+\[\d\]",
    ),
    "consumers that ignore the range of K": Defect(
        "accumulators, tile.k_blocks.count,",
        "accumulators, count_tiles(k, kK),",
        EmulatedDeadlock,
        r"ring\.full\[\d\].* 1 arrivals",
    ),
    "another schedule for the producer": Defect(
        "auto producer = shared.ring.producer();",
        "auto producer = shared.ring.producer();\n"
        "        const StreamKScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n), k / kK);",
        EmulatedDeadlock,
        r"ring\.full\[\d\]",
    ),
    "three of four warps": Defect(
        _STORE, f"if (warp_index() % 4 != 3) {_STORE}", EmulatedDeadlock, "barrier"
    ),
    "the slot of another consumer": Defect(
        "partials, flags, number", "partials, flags, 0", EmulatedRace, _SHARED
    ),
    "slots for fewer consumers": Defect(
        "<Loop::Accumulators, CONSUMERS,", "<Loop::Accumulators, 1,", EmulatedRace, _SHARED
    ),
    "a workspace without the slot of a CTA": Defect(
        "",
        "",
        EmulatedFault,
        r"none of the launch's arrays",
        Launch((129, 64, 520), 6, missing_slots=4),
    ),
    "flags that are not zero": Defect(
        "",
        "",
        EmulatedFault,
        r"flags\[cta\]\[consumer\] is 1; before a launch it must be 0",
        Launch((129, 64, 520), 6, flag=1),
        debug=True,
    ),
}
# Defects in the class StreamKReduction, which is not in the kernel's source.
DEFECTS = {
    "a flag that is not waited for": Defect(_WAIT, "", EmulatedRace, _SHARED),
    "a flag that is not set": Defect(
        f"atomicExch({_FLAG})",
        f"atomicExch({_FLAG} - 1u)",
        EmulatedDeadlock,
        "consumer 0 .*: atomic",
    ),
    "a flag that is set before the accumulators are written": Defect(
        _WRITE,
        f"if (thread_in_warpgroup() == 0) atomicExch({_FLAG});\n        {_WRITE}\n        return;",
        EmulatedRace,
        _SHARED,
    ),
    "no barrier before the flag": Defect(
        f"{_WRITE}\n        {_SYNC}", _WRITE, EmulatedRace, _SHARED
    ),
    "no barrier after the flag": Defect(
        f"}}\n        {_SYNC}\n        partials_[slot].add_to",
        "} partials_[slot].add_to",
        EmulatedRace,
        _SHARED,
    ),
    "no fence before the flag": Defect(
        "__threadfence();\n            const u32", "const u32", EmulatedRace, _SHARED
    ),
    "a flag that stays set": Defect(
        f"atomicCAS({_FLAG}, 0u)",
        f"atomicCAS({_FLAG}, 1u)",
        EmulatedFault,
        r"flags\[cta\]\[consumer\] is 1; before a launch it must be 0",
        debug=True,
    ),
}


def with_own_class() -> str:
    """Return the kernel's source with a copy of the class."""
    header = (Path(include_dir()) / "tmaasync" / "stream_k.cuh").read_text()
    own = header.replace("#pragma once", "").replace("StreamKReduction", "OwnReduction")
    includes = "#include <tmaasync/structured.cuh>\n"
    assert SOURCE.count(includes) == 1
    return SOURCE.replace(includes, includes + own).replace("StreamKReduction<", "OwnReduction<")


def report_of(defect: Defect, source: str, policy: Any) -> None:
    assert defect.old in source
    edited = source.replace(defect.old, defect.new) if defect.old else source
    with (
        emulate.scheduled(policy, races=not defect.debug),
        pytest.raises(defect.kind) as caught,
    ):
        launch(Emulate(), defect.launch, edited, times=2, debug=defect.debug)
    assert re.search(defect.report, str(caught.value)), caught.value


@pytest.mark.parametrize("policy", ["round_robin", *SEEDED])
@pytest.mark.parametrize("misuse", MISUSES)
def test_a_misuse_is_reported(misuse: str, policy: Any) -> None:
    report_of(MISUSES[misuse], SOURCE, policy)


@pytest.mark.parametrize("policy", ["round_robin", *SEEDED])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_reduction_is_reported(defect: str, policy: Any) -> None:
    report_of(DEFECTS[defect], with_own_class(), policy)


COMPILER = {
    "a schedule of whole tiles": (
        "StreamKScheduler schedule(OutputTiles<kM, kN, Cluster, 16>(m, n), count_tiles(k, kK));",
        "StaticScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n));",
        "k_blocks",
    ),
    "a reduction of another cluster": (
        "Reduction = StreamKReduction<Loop::Accumulators, CONSUMERS, Cluster>",
        "Reduction = StreamKReduction<Loop::Accumulators, CONSUMERS, ClusterShape<2>>",
        "reduce",
    ),
    "accumulators of another tile": (
        "Reduction = StreamKReduction<Loop::Accumulators, ",
        "Reduction = StreamKReduction<float[1][8], ",
        "reduce",
    ),
}


@pytest.mark.parametrize("misuse", COMPILER)
def test_the_compiler_reports(misuse: str) -> None:
    old, new, report = COMPILER[misuse]
    assert SOURCE.count(old) == 1

    with pytest.raises(CompileError) as caught:
        launch(Emulate(), PLAIN, SOURCE.replace(old, new))

    assert report in caught.value.log
