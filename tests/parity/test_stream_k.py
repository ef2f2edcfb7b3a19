"""A GEMM whose tiles are shared by clusters (stream-K), against NumPy in float64."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate
from parity.stream_k import SOURCE, Launch, launch
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, without
from planted_choices import choices

from tmaasync import CompileError, emulate, include_dir

pytestmark = [pytest.mark.slow, pytest.mark.chips("sm_90a", "sm_100a")]

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


@pytest.mark.on_the_cpu(0, 4, 7, 8, 9)
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
    for policy in ("round_robin", *SEEDED):
        with emulate.scheduled(policy, races=True):
            found = launch(Emulate(), SMALL[case], times=2)

        assert found.are_right(), policy


def test_every_order_gives_the_same_bits() -> None:
    given = replace(SMALL["three CTAs to a tile"], exact=False)
    found = []
    for policy, seed in itertools.product(SEEDED, range(2)):
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
_WRITE, _SYNC = "partials_[slot].write(...);", "barrier().sync();"
_SHARED = r"race on .*global address(.|\n)*ordinary write"
_SET = r"flags\[cta\]\[consumer\] is 1; before a launch it must be 0"


def _of(kernel: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    """Return defects of rows: name, edit, classes, pattern, and whether a debug build reports."""
    return tuple(
        Defect(kernel, name, (edit,) if edit else (), reported, says, debug=bool(more))
        for name, edit, reported, says, *more in rows
    )


MISUSES = _of(
    "stream_k",
    ("a tile that is stored without its other blocks",
     Edit(_STORE, "(void)reduction.reduce(accumulators, tile); output.store"), RACE, "TMA"),
    ("a producer that ignores the range of K",
     Edit("produce(tile.k_blocks.count)", "produce(count_tiles(k, kK))"), DEADLOCK + FAULT,
     r"ring\.\w+\[\d\]"),
    ("consumers that ignore the range of K",
     Edit("accumulators, tile.k_blocks.count,", "accumulators, count_tiles(k, kK),"), DEADLOCK,
     r"ring\.full\[\d\].* 1 arrivals"),
    ("another schedule for the producer",
     after("auto producer = shared.ring.producer();",
           "const StreamKScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n), k / kK);"),
     DEADLOCK, r"ring\.full\[\d\]"),
    ("three of four warps", before(_STORE, "if (warp_index() % 4 != 3)"), DEADLOCK, "barrier"),
    ("the slot of another consumer",
     Edit("partials, flags, number", "partials, flags, 0"), RACE, _SHARED),
    ("slots for fewer consumers",
     Edit("<Loop::Accumulators, CONSUMERS,", "<Loop::Accumulators, 1,"), RACE, _SHARED),
    ("a workspace without the slot of a CTA", None, FAULT, r"none of the launch's arrays"),
    ("flags that are not zero", None, FAULT, _SET, "debug"),
)  # fmt: skip
LAUNCHES_WITH = {
    "a workspace without the slot of a CTA": Launch((129, 64, 520), 6, missing_slots=4),
    "flags that are not zero": Launch((129, 64, 520), 6, flag=1),
}
# Defects of the class StreamKReduction, which is not in the kernel's source.
DEFECTS = _of(
    "reduction",
    ("a flag that is not waited for", without("while (atomicCAS(...) == 0) continue;"), RACE,
     _SHARED),
    ("a flag that is not set",
     Edit(f"atomicExch({_FLAG})", f"atomicExch({_FLAG} - 1u)"), DEADLOCK, "consumer 0 .*: atomic"),
    ("a flag that is set before the accumulators are written",
     Edit(_WRITE, f"if (thread_in_warpgroup() == 0) atomicExch({_FLAG}); @@ return;"), RACE,
     _SHARED),
    ("no barrier before the flag", without(_SYNC, "OwnReduction", 1), RACE, _SHARED),
    ("no barrier after the flag", without(_SYNC, "OwnReduction", 2), RACE, _SHARED),
    ("no fence before the flag", without("__threadfence();", "OwnReduction", 1), RACE, _SHARED),
    ("a flag that stays set", Edit(f"atomicCAS({_FLAG}, 0u)", f"atomicCAS({_FLAG}, 1u)", nth=1),
     FAULT, _SET, "debug"),
)  # fmt: skip


def with_own_class() -> str:
    """Return the kernel's source with a copy of the class."""
    header = (Path(include_dir()) / "tmaasync" / "structured" / "stream_k.cuh").read_text()
    own = header.replace("#pragma once", "").replace("StreamKReduction", "OwnReduction")
    includes = "#include <tmaasync/structured.cuh>\n"
    assert SOURCE.count(includes) == 1
    return SOURCE.replace(includes, includes + own).replace("StreamKReduction<", "OwnReduction<")


def check_report(defect: Defect, source: str, policy: Any) -> None:
    problem = LAUNCHES_WITH.get(defect.name, PLAIN)
    with (
        choices(source, MISUSES if defect in MISUSES else DEFECTS).chosen(defect) as text,
        emulate.scheduled(policy, races=not defect.debug),
        pytest.raises(defect.reported) as caught,
    ):
        launch(Emulate(), problem, text, times=2, debug=defect.debug)
    assert re.search(defect.says, str(caught.value)), caught.value


@pytest.mark.parametrize("policy", ["round_robin", "adversarial"])
@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: misuse.name)
def test_a_misuse_is_reported(misuse: Defect, policy: Any) -> None:
    check_report(misuse, SOURCE, policy)


@pytest.mark.chips("sm_90a")
@pytest.mark.parametrize("policy", ["round_robin", "adversarial"])
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_of_the_reduction_is_reported(defect: Defect, policy: Any) -> None:
    check_report(defect, with_own_class(), policy)


COMPILER = _of(
    "stream_k",
    ("a schedule of whole tiles",
     Edit("StreamKScheduler schedule(OutputTiles<kM, kN, Cluster, 16>(m, n), count_tiles(k, kK));",
          "StaticScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n));"), (CompileError,),
     "k_blocks"),
    ("a reduction of another cluster",
     Edit("StreamKReduction<Loop::Accumulators, CONSUMERS, Cluster>",
          "StreamKReduction<Loop::Accumulators, CONSUMERS, ClusterShape<2>>"), (CompileError,),
     "reduce"),
    ("accumulators of another tile",
     Edit("StreamKReduction<Loop::Accumulators,", "StreamKReduction<float[1][8],"),
     (CompileError,), "reduce"),
)  # fmt: skip


@pytest.mark.parametrize("misuse", COMPILER, ids=lambda misuse: misuse.name)
def test_the_compiler_reports(misuse: Defect) -> None:
    with pytest.raises(CompileError) as caught:
        launch(Emulate(), PLAIN, misuse.plant(SOURCE))

    assert misuse.says in caught.value.log
