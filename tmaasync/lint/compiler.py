"""Findings from the compiler's log and its counts of registers: lost speed, spills, a hang."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tmaasync._hardware import WARPGROUP_THREADS
from tmaasync._source.compile import Entry
from tmaasync.lint.finding import Finding
from tmaasync.lint.ptx import Function, Instruction

SETMAXNREG = "setmaxnreg-ignored"
CLAIM = "claim-never-fits"
SERIALISED = "wgmma-serialised"
SPILL = "spill"
ARRAY = "local-array"

_NUMBERED = re.compile(r"\(C\d+\)\s*(?:Potential Performance Loss:\s*)?(.*)")
_IN_FUNCTION = re.compile(r" in (?:the )?function '([^']+)'")
# A line of the PTX, which the user does not see.
_SPOT = re.compile(r" in (?:around line \d+|(?:the )?function '[^']+')")
_IN_LINE = re.compile(r"line (\d+)")

# By a word of the remark: what it is about, the rule and the remedy.
_RULES = {
    "setmaxnreg": (
        "setmaxnreg",
        SETMAXNREG,
        "Declare __launch_bounds__, and ask for counts of registers that RegisterSplit finds.",
    ),
    "wgmma": (
        "wgmma.mma_async",
        SERIALISED,
        "Touch no register of a wgmma from fence to wait, and index accumulators by constants.",
    ),
}


def advice(function: Function, log: str) -> Iterator[Finding]:
    """Yield the assembler's numbered remarks on this kernel."""
    for line in log.splitlines():
        remark = _NUMBERED.search(line)
        if remark is None:
            continue
        named = _IN_FUNCTION.search(line)
        if named is not None and named[1] != function.name:
            continue
        for word, (opcode, rule, remedy) in _RULES.items():
            at = _meant(function, opcode, line)
            if word in line and at is not None:
                remark_text = _SPOT.sub("", remark[1]).rstrip(".")
                yield _finding(function, rule, at, f"the assembler reports: {remark_text}.", remedy)


def _meant(function: Function, opcode: str, remark: str) -> Instruction | None:
    """Return the instruction that a remark is about: the last of its kind up to its line."""
    own = function.find(lambda one: one.opcode.startswith(opcode))
    line = _IN_LINE.search(remark)
    before = [one for one in own if line is not None and one.line <= int(line[1])]
    return next(iter([*before[-1:], *own]), None)


def claims(function: Function, entry: Entry, log: str) -> Iterator[Finding]:
    """Claims of more registers than a warpgroup gets when all others have released the most.

    The assembler says nothing of them, and ``setmaxnreg.inc`` waits for ever.
    """
    threads = function.max_threads
    if threads is None or any(one.rule == SETMAXNREG for one in advice(function, log)):
        return
    others = threads // WARPGROUP_THREADS - 1
    released = [
        int(one.operands[0]) for one in function.find(lambda one: one.has("setmaxnreg", "dec"))
    ]
    kept = min([entry.registers, *released])
    most = entry.registers + others * (entry.registers - kept)
    for one in function.find(lambda one: one.has("setmaxnreg", "inc")):
        if int(one.operands[0]) > most:
            yield _finding(
                function,
                CLAIM,
                one,
                f"the claim of {one.operands[0]} registers a thread waits for ever: by "
                f"__launch_bounds__ {threads} threads start with {entry.registers}, and where the "
                f"others keep {kept}, {most} are left for a warpgroup.",
                "Ask for counts of registers that RegisterSplit finds, and declare "
                "__launch_bounds__(threads, 1).",
            )


def memory(function: Function, entry: Entry) -> Iterator[Finding]:
    """Registers spilled to local memory, and arrays that the compiler put there."""
    if entry.spill_bytes:
        yield _finding(
            function,
            SPILL,
            function.instructions[0],
            f"{entry.spill_bytes} bytes of spilled registers go through local memory; the kernel "
            f"has {entry.registers} registers a thread.",
            "Keep fewer values alive (smaller tiles, more warps), or allow more registers through "
            "__launch_bounds__ or setmaxnreg.",
        )
    accesses = function.find(_is_local_access)
    if entry.stack_bytes and accesses and not function.calls:
        yield _finding(
            function,
            ARRAY,
            accesses[0],
            f"an array lies in local memory; the stack has {entry.stack_bytes} bytes a thread.",
            "Index it by constants alone (unroll the loops over it), or put it into shared memory.",
        )


def _is_local_access(instruction: Instruction) -> bool:
    return instruction.opcode.startswith(("ld.local", "st.local"))


def _finding(function: Function, rule: str, at: Instruction, reason: str, remedy: str) -> Finding:
    return Finding(rule, function.name, at.location, reason, remedy)
