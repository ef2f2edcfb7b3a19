"""Registers that no warpgroup could have on the chip, where the claim would wait for ever."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from tmaasync import EmulatedFault, Kernel
from tmaasync.emulate import scheduled

SOURCE = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

extern "C" __global__ void BOUNDS split(int what, int* out) {
    const u32 group = warpgroup_index();
    const u32 warp = warp_index();
    out[threadIdx.x] = 1;
CODE
}
"""
THREE = "__launch_bounds__(384, 1)"

LEGAL = {
    "all": "if (group == 0) release_registers<24>(); else claim_registers<240>();",
    "claimed first": """
        if (group == 0) {
            for (int i = 0; i < 100; ++i) __nanosleep(1);
            release_registers<24>();
        } else {
            claim_registers<240>();
        }""",
    "one after the other": """
        if (group == 0) release_registers<24>();
        if (group == 1) {
            claim_registers<240>();
            release_registers<160>();
            NamedBarrier<256>{1}.sync();
        }
        if (group == 2) {
            NamedBarrier<256>{1}.sync();
            claim_registers<240>();
        }""",
    "as many as at launch": "release_registers<168>();",
    "nobody claims": "if (group == 0) release_registers<40>();",
}


class Defect(NamedTuple):
    """The code, the report, and text of the line that the report names."""

    code: str
    match: str
    line: str


TAKES = r"\(setmaxnreg.inc\): the CTA was launched with 64512 registers \(168 a thread by __launch_"
DEFECTS = {
    "nobody releases": Defect(
        "if (group != 0) claim_registers<240>();",
        rf"^split: .* warps 4, 5, 6, 7 wait for ever in claim_registers<240> {TAKES}bounds__\), "
        r"warps 0, 1, 2, 3 hold 21504, warps 8, 9, 10, 11 hold 21504, and of the 9216 more that "
        r"this takes 0 are free. Nothing was released by warps 0, 1, 2, 3: let all warps of every "
        r"producer warpgroup call release_registers<N>\(\)",
        "claim_registers<240>",
    ),
    "claims more than there are": Defect(
        "if (group == 0) release_registers<40>(); else claim_registers<248>();",
        r"claim_registers<248> .* of the 10240 more that this takes 6144 are free. Claim at most "
        r"232, or let the producers keep less: tmaasync.RegisterSplit computes both",
        "claim_registers<248>",
    ),
    "everyone claims": Defect(
        "claim_registers<256>();",
        r"claim_registers<256> .* of the 11264 more that this takes 0 are free. Claim at most 168",
        "claim_registers<256>",
    ),
    "one warp for its warpgroup": Defect(
        """
        if (group == 0) {
            if (warp == 0) release_registers<48>();
        } else {
            claim_registers<224>();
        }""",
        r"release_registers<48> \(setmaxnreg.dec\) was executed by warp 0 of the warpgroup and not "
        r"by warps 1, 2, 3. setmaxnreg is the whole warpgroup's",
        "release_registers<48>",
    ),
    "warps that disagree": Defect(
        "if (warp == 0) release_registers<64>(); else release_registers<72>();",
        r"change their registers differently: release_registers<64> .* by warp 0, "
        r"release_registers<72> .* by warp 1. All four",
        "release_registers<72>",
    ),
    "a release that raises": Defect(
        "release_registers<200>();",
        r"release_registers<200> .* by warps 0, 1, 2, 3, whose threads have 168 registers: a claim "
        r"only raises",
        "release_registers<200>",
    ),
    "a claim that lowers": Defect(
        "release_registers<80>();\nclaim_registers<40>();",
        r"claim_registers<40> .* whose threads have 80 registers",
        "claim_registers<40>",
    ),
}


def source(bounds: str) -> str:
    codes = [*LEGAL.values(), *(defect.code for defect in DEFECTS.values())]
    cases = (f"if (what == {index}) {{\n{code}\n}}" for index, code in enumerate(codes))
    return SOURCE.replace("BOUNDS", bounds).replace("CODE", "\n".join(cases))


def run(what: str, bounds: str = THREE, threads: int = 384, options: tuple[str, ...] = ()) -> None:
    out = np.zeros(threads, np.int32)
    number = [*LEGAL, *DEFECTS].index(what)
    Kernel(source(bounds), "split", options=options)(1, threads, (number, out))
    assert out.all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", LEGAL)
def test_splits_that_fit_run(what: str) -> None:
    run(what)
    for seed in range(2):
        with scheduled("adversarial", seed=seed, races=bool(seed % 2)):
            run(what)


def test_a_block_that_starts_with_fewer_registers_than_it_could_may_claim_them() -> None:
    run("all", "__launch_bounds__(256, 1)", 256)


def test_where_only_the_compiler_knows_the_registers_nothing_is_checked() -> None:
    run("everyone claims", "")
    run("everyone claims", options=("--maxrregcount=128",))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("what", DEFECTS)
@pytest.mark.parametrize("races", [False, True])
def test_a_split_that_does_not_fit_is_a_fault(what: str, races: bool) -> None:
    code, match, line = DEFECTS[what]

    with scheduled(races=races), pytest.raises(EmulatedFault, match=match) as caught:
        run(what)

    lines = source(THREE).splitlines()
    assert code in "\n".join(lines)
    assert caught.value.source is not None
    assert line in lines[int(caught.value.source.removeprefix("kernel.cu:")) - 1]


def test_the_blocks_of_an_sm_share_its_registers() -> None:
    with pytest.raises(EmulatedFault, match=r"launched with 30720 registers \(80 a thread"):
        run("all", "__launch_bounds__(384, 2)")
