"""Structs that the host shares with the attention kernels, filled by name and passed as bytes.

Each dtype mirrors a device struct in name and fields; tests/ops/test_flash_abi.py compares both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 16


def _aligned(fields: list[tuple[str, Any]]) -> np.dtype[Any]:
    """Return the dtype of an ``alignas(16)`` struct, whose size is a multiple of 16."""
    size = np.dtype(fields, align=True).itemsize
    padding = -size % _ALIGNMENT
    return np.dtype([*fields, ("padding", f"V{padding}")] if padding else fields, align=True)


_INTEGERS = ("batch", "heads", "heads_per_kv_head", "queries", "keys", "left", "right")
PROBLEM = np.dtype(
    [
        *((name, "<i4") for name in (*_INTEGERS, "is_bottom_right")),
        *((name, "<f4") for name in ("scale", "scale_log2")),
        ("page_step", "<i4"),
        ("pages", "<i4"),
    ]
)
"""``Problem``: sizes, mask, scale and pages. ``page_step`` is rows from one to the next."""

# --- schedules for padded arrays ----------------------------------------------------------------

KEY_SPLIT = np.dtype([(name, "<i4") for name in ("first", "end", "slot")])
"""``KeySplit``: some of the blocks of a span's keys, and the workspace slot of its partial output;
negative where the span is not split."""

SCHEDULED_SPAN = np.dtype([("span", "<i4"), ("keys", KEY_SPLIT)])
"""``ScheduledSpan``: the work of a cluster in one wave; a negative ``span`` is no work."""

SPLIT_SPAN = _aligned([(name, "<i4") for name in ("span", "first_slot", "splits")])
"""``SplitSpan``: a span whose keys are split, the first of its slots, and how many."""

# --- the work list for packed arrays ------------------------------------------------------------

BATCH_LIMITS = np.dtype([(name, "<i4") for name in ("max_queries", "max_keys", "table_step")])
"""``BatchLimits``: the longest sequences, and entries of the page table from one to the next."""

RAGGED_SEQUENCE = np.dtype([("start", "<i4"), ("length", "<i4")], align=True)
"""``RaggedSequence``."""

PAGED_SEQUENCE = np.dtype([("start", "<i4"), ("length", "<i4"), ("pages", "<u8")], align=True)
"""``PagedSequence``: ``pages`` points at a row of the page table."""

ENTRY = np.dtype(
    [("index", "<i4"), ("queries", RAGGED_SEQUENCE), ("keys", RAGGED_SEQUENCE)], align=True
)
"""``EntryWith<RaggedSequence>``: an entry of a batch."""

PAGED_ENTRY = np.dtype(
    [("index", "<i4"), ("queries", RAGGED_SEQUENCE), ("keys", PAGED_SEQUENCE)], align=True
)
"""``EntryWith<PagedSequence>``: an entry of a batch whose keys are paged."""

WORK_LIST = _aligned([(name, "<i4") for name in ("count", "heads_at_once", "tile_counter")])
"""``WorkListWith`` up to its items."""

_OF_ITEM = [(name, "<i4") for name in ("position", "section", "section_size")]
WORK_ITEM = _aligned([("entry", ENTRY), *_OF_ITEM])
"""``WorkItem<RaggedSequence>``: a tile of queries, without regard to heads."""

PAGED_WORK_ITEM = _aligned([("entry", PAGED_ENTRY), *_OF_ITEM])
"""``WorkItem<PagedSequence>``, where keys are paged."""

# --- partial outputs ----------------------------------------------------------------------------

_GROUP_ROWS = 64


def partial_output(head_dim: int) -> np.dtype[Any]:
    """Return the dtype of ``PartialOutput``: a consumer's accumulators for one split-KV split."""
    row = ("<f4", (_GROUP_ROWS,))
    return np.dtype(
        [("accumulators", "<f4", (_GROUP_ROWS, head_dim)), ("row_max", *row), ("row_sum", *row)]
    )


# --- 8-bit operands -----------------------------------------------------------------------------

SCALE = np.dtype([("entry_step", "<i8"), ("head_step", "<i8"), ("number", "<f4")], align=True)
"""``Scale`` of an operand: a number, and strides of an array of one more per KV head."""

SCALES = np.dtype([(name, SCALE) for name in "qkv"])
"""``Scales`` of q, k and v."""

VALUE_SIZES = np.dtype([("keys", "<i4"), ("kv_heads", "<i4")])
"""``ValueSizes``."""


def record(dtype: npt.DTypeLike, **fields: Any) -> bytes:
    """Return one struct, filled by name."""
    filled = np.zeros((), dtype)
    for name, value in fields.items():
        filled[name] = value
    return filled.tobytes()
