"""Instructions of chips that are emulated which the CPU refuses on every chip, and the reasons."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REFUSED", "Refused"]


@dataclass(frozen=True, slots=True)
class Refused:
    """Instructions that no row of the table has.

    Attributes:
        opcodes: The beginning of the opcodes, as a regular expression.
        example: One of them.
        reason: A predicate: why the CPU lacks them.
        remedy: What to use instead.
    """

    opcodes: str
    example: str
    reason: str
    remedy: str


REFUSED = (
    Refused(
        r"multimem\b",
        "multimem.ld_reduce.weak.global.add.f32",
        "is of NVLink multicast, which the CPU does not have",
        "Use ld and red of each rank's memory",
    ),
    Refused(
        r"mma\b.*\.sp(?:::\w+)?\b",
        "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
        "is of sparse matrices, which the CPU multiplies with a kind alone",
        "Use mma.sync with the zeros of A, or a kind of sm_120a",
    ),
    Refused(
        r"mma\b.*\.(?:b1|[us]4)\b",
        "mma.sync.aligned.m16n8k64.row.col.s32.u4.s4.s32",
        "is of integers of 1 and 4 bits, which the CPU does not multiply",
        "Use s8 or u8",
    ),
    Refused(
        r"(?:st|red)\.async\.mmio\b",
        "st.async.mmio.release.sys.global.b32",
        "is of memory-mapped devices, which the CPU does not have",
        "Use st.release.sys or red.release.sys",
    ),
)
