"""A paged KV cache without a GPU: what is refused, and how blocks of keys are cut."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from fake_arrays import Cupy, CupyArray

from tmaasync import ArgumentError, ArrayTypeError, ops
from tmaasync.ops._flash.config import Variant
from tmaasync.ops._flash.cost_model import rows_per_load, tile_shapes

Q = np.zeros((12, 2, 64), np.float16)
PAGES = np.zeros((4, 16, 2, 64), np.float16)
TABLE = np.zeros((2, 3), np.int32)


def refused(error: type[Exception], said: str, **changes: Any) -> None:
    given = {
        "q": Q, "k": PAGES, "v": PAGES, "cu_seqlens_q": [0, 5, 12], "cu_seqlens_k": [0, 48, 50],
        "page_table": TABLE, **changes,
    }  # fmt: skip
    with pytest.raises(error, match=said):
        ops.varlen_attention(**given)


def apart(rows: int, more_bytes: int = 0) -> Any:
    """Return pages that are a number of rows of two heads, 256 bytes, apart, and more bytes."""
    memory = np.zeros((8 * rows, 2, 64), np.float16)
    strides = (rows * 256 + more_bytes, *memory.strides)
    return np.lib.stride_tricks.as_strided(memory, (4, 16, 2, 64), strides)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"page_table": TABLE[:1]}, r"page_table\.shape is \(1, 3\); it must be \[2, pages_"),
        ({"page_table": TABLE[0]}, r"page_table\.shape is \(3,\)"),
        ({"page_table": TABLE[:, ::2]}, r"page_table's last stride is 8; .* contiguous\. Copy"),
        ({"page_table": TABLE[:, :2]}, r"page_table\.shape\[1\] is 2; .* 48 keys .*, which are 3"),
        ({"max_seqlen_k": 49}, r"may have 49 keys \(max_seqlen_k\), which are 4 pages of 16"),
        ({"k": PAGES[:, :12], "v": PAGES[:, :12]}, r"k\.shape\[1\] is 12; .* a multiple of 8 rows"),
        ({"k": PAGES[:, :0], "v": PAGES[:, :0]}, r"k\.shape\[1\] is 0; .* a multiple of 8 rows"),
        ({"k": PAGES[:0], "v": PAGES[:0]}, r"k\.shape\[0\] is 0; there is one page or more"),
        ({"k": PAGES[0], "v": PAGES[0]}, r"k\.shape is .* \[pages, page_size, heads, head_dim\]"),
        ({"page_table": None}, r"k\.shape is .* \[rows, heads, head_dim\]"),
        ({"v": PAGES[:, :8]}, r"v\.shape is \(4, 8, 2, 64\); k has shape \(4, 16, 2, 64\)"),
        ({"k": apart(20, more_bytes=16)}, r"k's stride 0 is 5136 bytes; pages must lie whole rows"),
        ({"v": apart(8)}, r"v's stride 0 is 2048 bytes; pages must lie whole rows of 256 .* 16 or"),
        ({"v": apart(20)}, r"v's pages is 20 rows apart; pages of k are 16 rows apart"),
        ({"out": Q}, "out overlaps q"),
        ({"cu_seqlens_k": [0, 48]}, "cu_seqlens_k is of 1 sequences"),
    ],
)  # fmt: skip
def test_pages_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    refused(ArgumentError, said, **changes)


def test_a_table_on_another_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    table: Any = CupyArray(TABLE)

    refused(
        ArgumentError,
        r"page_table's device is cuda:0; a kernel reads it, and the arrays lie on the host\. Copy",
        page_table=table,
    )


@pytest.mark.parametrize("table", [TABLE.astype(np.int64), TABLE.astype(np.float32), [[0], [0]]])
def test_tables_of_other_types_are_refused(table: Any) -> None:
    refused(ArrayTypeError, "page_table", page_table=table)


@pytest.mark.parametrize("size", [8, 16, 32, 48, 64, 128, 256, 1024])
@pytest.mark.parametrize("variant", [{}, {"has_right": True}, {"has_softcap": True}], ids=str)
def test_every_page_is_cut_into_whole_loads(variant: dict[str, bool], size: int) -> None:
    for head_dim in range(8, 264, 8):
        found = tile_shapes(head_dim, Variant(is_packed=True, page_size=size, **variant))

        rows = {rows_per_load(size, block_n) for _, block_n in found}
        assert len(rows) == 1
        assert all(size % each == 0 and each % 8 == 0 for each in rows)


@pytest.mark.parametrize(
    ("head_dim", "size", "rows"), [(64, 128, 128), (256, 64, 64), (96, 64, 64)]
)
def test_blocks_are_chosen_that_take_few_loads(head_dim: int, size: int, rows: int) -> None:
    found = tile_shapes(head_dim, Variant(is_packed=True, page_size=size))

    assert {rows_per_load(size, block_n) for _, block_n in found} == {rows}
