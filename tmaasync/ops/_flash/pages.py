"""The paged KV cache, and its page table with the pages of each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._ragged.batch import on_host
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._flash.config import Batch
from tmaasync.ops._flash.operands import Operands, reachable

_INT32_BYTES = 4
_SWIZZLE_ROWS = 8  # period of a swizzle


class Pages(NamedTuple):
    """The layout of the pages in the arrays of keys and values, and of the page table.

    Attributes:
        size: Rows per page; 0 if the keys are not paged.
        step: Rows from one page to the next: more than ``size`` if there are gaps.
        total: Number of pages in the arrays.
        table_step: Entries of the table from one sequence to the next.
    """

    size: int = 0
    step: int = 0
    total: int = 0
    table_step: int = 0


class PageTable(NamedTuple):
    """The page table as the kernel takes it, checked except for its entries."""

    view: ArrayView
    pages: Pages

    @classmethod
    def of(cls, table: Any, operands: Operands, batch: Batch) -> PageTable:
        view = _arrays.view(table, argument="page_table")
        if view.element.dtype != np.int32:
            raise ArrayTypeError.broken(
                "page_table",
                view.element,
                "pages are numbered in int32",
                "Convert it with astype",
                verb="holds",
            )
        ArgumentError.raise_for(
            [*_table_violations(view, operands.q, batch.size), *_page_violations(operands)]
        )
        count, size = operands.k.shape[:2]
        step = _page_step(reachable(operands.k))
        entries, wanted = view.shape[1], -(-batch.max_keys // size)
        if wanted > entries:
            raise ArgumentError.broken(
                "page_table.shape[1]",
                entries,
                f"the longest sequence may have {batch.max_keys} keys (max_seqlen_k), which are "
                f"{wanted} pages of {size}",
                f"Pass {wanted} entries per sequence, or a smaller max_seqlen_k",
            )
        return cls(view, Pages(size, step, count, view.strides_bytes[0] // _INT32_BYTES))


def check_pages(
    table: PageTable, queries: npt.NDArray[np.int32], keys: npt.NDArray[np.int32]
) -> None:
    """Check the entries that sequences with queries use; this waits for the device.

    ``queries`` and ``keys`` are cumulative lengths in host memory.
    """
    entries = on_host(table.view.owner, "page_table")
    used = np.where(np.diff(queries) > 0, -(-np.diff(keys) // table.pages.size), 0)
    is_used = np.arange(entries.shape[1]) < used[:, None]
    wrong = np.argwhere(is_used & ((entries < 0) | (entries >= table.pages.total)))
    if wrong.size:
        sequence, column = map(int, wrong[0])
        more = f" ({len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        rule = f"k has {table.pages.total} pages, numbered from 0{more}"
        remedy = "Pass the numbers of pages that it has"
        argument = f"page_table[{sequence}, {column}]"
        ArgumentError.raise_for([Violation(argument, int(entries[sequence, column]), rule, remedy)])


def rows_of_pages(view: ArrayView) -> ArrayView:
    """Return an array of pages as an array of rows, including any rows between the pages.

    The array does not own the rows between its pages, so checks must not compare the view with it:
    the view is leased.
    """
    view = reachable(view)
    count, size, *row = view.shape
    rows = (count - 1) * _page_step(view) + size
    lease = (view.owner, view.lease)
    return view._replace(shape=(rows, *row), strides_bytes=view.strides_bytes[1:], lease=lease)


def _page_step(view: ArrayView) -> int:
    """Return the rows from one page to the next; the view is from `reachable`."""
    count, size = view.shape[:2]
    return size if count == 1 else view.strides_bytes[0] // view.strides_bytes[1]


def _table_violations(view: ArrayView, q: ArrayView, batch: int) -> Iterator[Violation]:
    if view.device != q.device:
        rule = f"a kernel reads it, and the arrays lie on {q.location}"
        yield Violation("page_table's device", view.location, rule, "Copy it there")
    if view.ndim != 2 or view.shape[0] != batch:
        rule = f"it must be [{batch}, pages_per_sequence], as cu_seqlens describes {batch}"
        yield Violation("page_table.shape", view.shape, rule, "Pass a row for each sequence")
    elif view.shape[1] > 1 and view.strides_bytes[1] != _INT32_BYTES:
        rule = "the pages of a sequence must be contiguous"
        yield Violation("page_table's last stride", view.strides_bytes[1], rule, "Copy it")
    elif view.strides_bytes[0] % _INT32_BYTES:
        rule = "rows must be whole entries apart"
        yield Violation("page_table's first stride", view.strides_bytes[0], rule, "Copy it")


def _page_violations(operands: Operands) -> Iterator[Violation]:
    count, size = operands.k.shape[:2]
    if size == 0 or size % _SWIZZLE_ROWS:
        rule = f"a page has a multiple of {_SWIZZLE_ROWS} rows, after which TMA's swizzle repeats"
        yield Violation("k.shape[1]", size, rule, "Use pages of 16, 32, 64, 128, ... rows")
        return
    if count == 0:
        yield Violation("k.shape[0]", 0, "there is one page or more", "Pass an array with pages")
        return
    yield from extent_violations({"k's rows": rows_of_pages(operands.k).shape[0]})
    for name, view in operands.named[1:]:
        page, row = reachable(view).strides_bytes[:2]
        if count > 1 and (page % row or page < size * row):
            rule = f"pages must lie whole rows of {row} bytes apart, {size} or more"
            yield Violation(f"{name}'s stride 0", f"{page} bytes", rule, "Copy the array")
    steps = [_page_step(reachable(view)) for view in (operands.k, operands.v)]
    if steps[0] != steps[1]:
        rule = f"pages of k are {steps[0]} rows apart, and one table serves both"
        remedy = "Copy v so that it lies as k does"
        yield Violation("v's pages", f"{steps[1]} rows apart", rule, remedy)
