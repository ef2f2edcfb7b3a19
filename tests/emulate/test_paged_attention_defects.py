"""Defects planted in how attention loads pages show in its results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emulate.shipped import whole_text
from parity.backends import Emulate
from parity.paged_keys import KINDS, draw_paged, paged_from
from parity.test_attention import in_splits
from parity.test_paged_attention import DECODE, check_pages, check_wrong_pages, one_build

from tmaasync import EmulatedFault, Kernel
from tmaasync.ops._flash import launches
from tmaasync.ops._flash.config import TileConfig, Variant
from tmaasync.ops._operation import tile_configs

__all__ = ["one_build"]  # the fixture, for this file too

# Source text, and its replacement.
DEFECTS = {
    "pages go to each other's places": (
        "column_box * Boxes::kRowBoxes + row_box\n",
        "column_box * Boxes::kRowBoxes + (row_box + 1) % Boxes::kRowBoxes\n",
    ),
    "a page is read one entry too far": ("pages[key / kPageSize]", "pages[key / kPageSize + 1]"),
    "the rest of the last page gets in": (
        "min(max(length - first, 0), kPageSize)",
        "first < length ? kPageSize : 0",
    ),
    "every page starts at its first row": (": key % kPageSize;", ": 0;"),
}
PROBLEM = replace(
    draw_paged(0, 16, small=True), queries=(3, 67), keys=(300, 131), heads=2, kv_heads=1
)


def plant(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def kernel(types: tuple[str, ...], variant: Variant, config: TileConfig) -> Kernel:
        names: Any = zip(("QTile", "KTile", "VTile", "OTile"), types, strict=True)
        constants = {**config.constants, **variant.constants}
        return Kernel(text, "attention", types=dict(names), constants=constants)

    monkeypatch.setattr(launches, "attention_kernel", kernel)


def check_with(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    plant(monkeypatch, text)
    mask, softcap = KINDS[size]
    problem = replace(PROBLEM, mask=mask, softcap=softcap)
    check_pages(Emulate(), problem, paged_from(problem, size))


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_shows(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    old, new = DEFECTS[defect]
    text = whole_text("attention.cu")
    assert text.count(old) == 1
    # Where a page is larger than a block, rows within it matter; else parts of a block.
    size = 256 if defect.startswith("every") else 16

    with pytest.raises(AssertionError):
        check_with(monkeypatch, text.replace(old, new), size)


def test_a_page_that_does_not_exist_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    old = "min(static_cast<u32>(page), static_cast<u32>(count - 1))"
    text = whole_text("attention.cu")
    assert text.count(old) == 1
    plant(monkeypatch, text.replace(old, "page"))

    with (
        tile_configs(in_splits(3, consumers=1)),
        pytest.raises(EmulatedFault, match=r"sequence\.start is -\d+; it must be at least 0"),
    ):
        check_wrong_pages(DECODE, -(1 << 20))


@pytest.mark.parametrize("size", [16, 256])
def test_without_a_defect_there_is_none(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    check_with(monkeypatch, whole_text("attention.cu"), size)
