"""Instructions of machine code for a stage of a GEMM's main loop on Blackwell, ours and peers'.

    python benchmarks/main_loop_instructions.py --nvdisasm PATH [--record] \
        [CASE:PEER=gemm.cubin ...]

CASE is a key of CASES. Counted for the warp that multiplies and for the one that loads: the
shortest way round the loop through an MMA, or a TMA load, and a test of an mbarrier, divided by its
stages. So every wait is satisfied at once. A stage is 128 bytes of K. Needs no GPU.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from result_files import RESULTS, Section, write_section

from tmaasync import emulate, ops
from tmaasync._source.compile import compile_source, nvrtc_version
from tmaasync.kernel.observed import observe

SIDE = 4096  # of matrices whose tile is 256 x 256, or 256 rows by the columns that fit
PATH = RESULTS / "compiled" / "main_loop_instructions.jsonl"


class Case(NamedTuple):
    """An operation, and the MMAs of a warp and the TMA loads of a CTA in a stage."""

    arch: str
    call: Callable[[], object]
    mmas: int
    loads: int


def _bf16() -> None:
    a = np.empty((SIDE, SIDE), ml_dtypes.bfloat16)
    ops.matmul(a, a.T)


def _scaled(packs: int, block: int, factor: Any) -> Callable[[], None]:
    def call() -> None:
        a, scale = (
            np.empty((SIDE, SIDE // packs), np.uint8),
            np.empty((SIDE, SIDE // block), factor),
        )
        dtype = "float4_e2m1fn" if packs == 2 else "float8_e4m3fn"
        ops.scaled_matmul(a, a.T, scale, scale.T, a_dtype=dtype, b_dtype=dtype)

    return call


_E8M0, _E4M3 = ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fn
CASES = {
    "bf16": Case("sm_100a", _bf16, 4, 2),
    "mxfp8": Case("sm_100a", _scaled(1, 32, _E8M0), 4, 4),
    "mxfp4": Case("sm_100a", _scaled(2, 32, _E8M0), 4, 4),
    "nvfp4": Case("sm_100a", _scaled(2, 16, _E4M3), 4, 4),
    "mxfp8 on sm_120a": Case("sm_120a", _scaled(1, 32, _E8M0), 64, 4),
    "nvfp4 on sm_120a": Case("sm_120a", _scaled(2, 16, _E4M3), 64, 4),
}
KINDS = {  # of opcodes; an opcode has the first that fits
    "mma": r"(UTC)?[HQO]MMA",
    "load": "UTMALDG",
    "copy": "UTCCP|LDSM|LDS",  # of scale factors to tensor memory, of operands to registers
    "barrier": "UTCBAR|SYNCS",
    "branch": "BRA|BRX|BSSY|BSYNC|ELECT|WARPSYNC|CALL|RET|NOP|YIELD",
    "other": r"\w+",
}
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);(.*)")
_LABEL = re.compile(r"\.L_x_\w+")


def kind_of(instruction: str) -> str:
    opcode = re.sub(r"^@\S+\s+", "", instruction).split()[0].partition(".")[0]
    return next(kind for kind, opcodes in KINDS.items() if re.fullmatch(opcodes, opcode))


def kernels(nvdisasm: str, cubin: Path) -> Iterator[tuple[list[str], list[list[int]]]]:
    """Yield the instructions of each kernel, and which may follow each."""
    text = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True)
    for section in text.stdout.split("\t.section\t.text.")[1:]:
        code: list[str] = []
        labels: dict[str, int] = {}
        for line in section.splitlines():
            if line.startswith(".L_x_"):
                labels[line.rstrip(":")] = len(code)
            if found := _LINE.search(line):
                code.append("".join(found.groups()))
        yield code, _followers(code, labels)


def _followers(code: list[str], labels: dict[str, int]) -> list[list[int]]:
    followers = []
    joined: dict[str, list[int]] = {}  # by a convergence barrier: where its threads go on
    for at, text in enumerate(code):
        guarded, instruction = text.startswith("@"), re.sub(r"^@\S+\s+", "", text)
        opcode = instruction.split()[0].partition(".")[0]
        targets = [labels[label] for label in _LABEL.findall(text) if label in labels]
        falls = [at + 1] if at + 1 < len(code) else []
        if opcode == "BSSY":
            joined[instruction.split()[1]] = targets
        if opcode in ("BRA", "BRX"):
            operands = instruction.split(maxsplit=1)[1].partition("`")[0]
            falls = targets + (falls if guarded or operands.strip() else [])
        elif opcode == "BSYNC":
            falls = joined.get(instruction.split()[1] + ",", falls)
        elif opcode in ("EXIT", "RET"):
            falls = falls if guarded else []
        followers.append(falls)
    return followers


def way_round(code: list[str], followers: list[list[int]], start: int) -> list[int]:
    """Return the shortest way from an instruction back to it past a barrier's test, or none."""
    first = (start, False)
    before = {first: first}
    queue = deque([first])
    while queue:
        here = queue.popleft()
        for at in followers[here[0]]:
            there = (at, here[1] or "SYNCS.PHASECHK" in code[at])
            if there == (start, True):
                way = [here]
                while way[-1] != first:
                    way.append(before[way[-1]])
                return [index for index, _ in reversed(way)]
            if there not in before:
                before[there] = here
                queue.append(there)
    return []


def stage_of(nvdisasm: str, cubin: Path, kind: str, of_stage: int) -> dict[str, float]:
    """Return the instructions of a stage by kind, in the loop with these MMAs or loads."""
    best: dict[str, float] = {}
    for code, followers in kernels(nvdisasm, cubin):
        for start, text in enumerate(code):
            if kind_of(text) != kind:
                continue
            counts = Counter(kind_of(code[at]) for at in way_round(code, followers, start))
            if not counts:
                continue
            stages = counts[kind] / of_stage
            here = {"all": counts.total() / stages} | {one: counts[one] / stages for one in KINDS}
            best = min(best or here, here, key=lambda one: one["all"])
    return best


def compiled(case: Case) -> Path:
    """Return the cubin of our kernel."""
    with emulate.chip(case.arch), observe(launches=False) as seen:
        case.call()
    (kernel,) = (one for one in seen.kernels if "gemm" in one.source.name)
    return compile_source(kernel.source, case.arch).path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--record", action="store_true", help="write the results file")
    parser.add_argument("--versions", default="", help="of the peers and their compiler, to record")
    arguments = parser.parse_args()
    cubins = {(name, "ours"): compiled(case) for name, case in CASES.items()}
    for peer in arguments.peers:
        name, _, path = peer.partition("=")
        case, _, whose = name.partition(":")
        cubins[case, whose] = Path(path)
    rows = []
    for (name, whose), cubin in sorted(
        cubins.items(), key=lambda one: list(CASES).index(one[0][0])
    ):
        case = CASES[name]
        row = {"case": f"{name}, {whose}"} | {
            role: stage_of(arguments.nvdisasm, cubin, role, count)
            for role, count in (("mma", case.mmas), ("load", case.loads))
        }
        print(row)
        rows.append(row)
    if arguments.record:
        measured = {
            "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "nvrtc": "{}.{}".format(*nvrtc_version()),
            "peers": arguments.versions,
        }
        print(write_section(PATH, Section(measured, rows)))


if __name__ == "__main__":
    main()
