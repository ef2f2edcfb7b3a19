"""Where bytes of a tile lie and what reading them costs, in plain integers: an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MASKS = {"none": 0, "32B": 1, "64B": 3, "128B": 7}
_SPANS = {"32B": 32, "64B": 64, "128B": 128}


def place(mode: str, row: int, byte: int, rows: int, row_bytes: int) -> int:
    """Where a byte lies: boxes as wide as the span, and the XOR of address bits 7-9 into 4-6."""
    span = _SPANS.get(mode, row_bytes)
    linear = byte // span * rows * span + row * span + byte % span
    return linear ^ ((linear >> 7 & MASKS[mode]) << 4)


def words(addresses: Sequence[int], size: int) -> list[list[int]]:
    """Phase by phase, how many words are wanted of each bank."""
    lanes = 32 if size <= 4 else 128 // size
    phases = []
    for start in range(0, len(addresses), lanes):
        wanted = {
            (address + byte) // 4
            for address in addresses[start : start + lanes]
            for byte in range(size)
        }
        counts = Counter(word % 32 for word in wanted)
        phases.append([counts[bank] for bank in range(32)])
    return phases


def passes(addresses: Sequence[int], size: int) -> int:
    """Phase by phase, the most words that are wanted of one bank."""
    return sum(map(max, words(addresses, size)))


def read(pattern: str, rows: int, row_bytes: int, size: int) -> list[list[tuple[int, int]]]:
    """Row and byte that each lane reads, access by access, for the whole tile."""
    columns = range(0, row_bytes, size)
    if pattern.startswith("row"):
        runs = [[(row, byte) for row in range(rows) for byte in columns]]
    elif pattern.startswith("column"):
        runs = [[(row, byte) for row in range(rows)] for byte in columns]
    else:
        matrices = [(top, byte) for top in range(0, rows, 8) for byte in columns]
        runs = [[(top + row, byte) for top, byte in matrices for row in range(8)]]
    lanes = 8 if pattern == "core-matrix" else 32
    return [run[start : start + lanes] for run in runs for start in range(0, len(run), lanes)]
