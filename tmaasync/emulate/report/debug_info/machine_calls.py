"""Calls in machine code, which debug information lists only with variable tracking."""

from __future__ import annotations

import re
from collections.abc import Iterator


def calls_of_x86(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end and the target of each ``call``, relative to the start of the code."""
    for found in re.finditer(rb"\xe8(?=(.{4}))", code, re.DOTALL):
        end = found.start() + 5
        yield end - 1, end + int.from_bytes(found[1], "little", signed=True)


def calls_of_arm(code: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end and the target of each ``bl``, relative to the start of the code."""
    for at in range(0, len(code) - 3, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        if word >> 26 == 0b100101:
            words = (word & (1 << 26) - 1 ^ 1 << 25) - (1 << 25)
            yield at + 3, at + 4 * words


CALLS_OF = {"EM_X86_64": calls_of_x86, "EM_AARCH64": calls_of_arm}
