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
from planted import Defect, Edit, defects
from planted_choices import choices

from tmaasync import EmulatedFault, Kernel
from tmaasync.ops._flash import launches
from tmaasync.ops._flash.config import TileConfig, Variant
from tmaasync.ops._operation import tile_configs

__all__ = ["one_build"]  # the fixture, for this file too

DEFECTS = defects(
    "attention.cu",
    ("pages go to each other's places",
     Edit("column_box * Boxes::kRowBoxes + row_box",
          "column_box * Boxes::kRowBoxes + (row_box + 1) % Boxes::kRowBoxes"), (AssertionError,)),
    ("a page is read one entry too far", Edit("key / kPageSize]", "key / kPageSize + 1]"),
     (AssertionError,)),
    ("the rest of the last page gets in",
     Edit("min(max(length - first, 0), kPageSize)", "first < length ? kPageSize : 0"),
     (AssertionError,)),
    ("every page starts at its first row", Edit(": key % kPageSize;", ": 0;"), (AssertionError,)),
)  # fmt: skip
NO_LIMIT = Defect(
    "attention.cu", "a page that does not exist would be read",
    (Edit("min(static_cast<u32>(page), static_cast<u32>(count - 1))", "page"),), (EmulatedFault,),
    r"sequence\.start is -\d+; it must be at least 0",
)  # fmt: skip
PROBLEM = replace(
    draw_paged(0, 16, small=True), queries=(3, 67), keys=(300, 131), heads=2, kv_heads=1
)


def plant(monkeypatch: pytest.MonkeyPatch, defect: Defect | None) -> None:
    found = choices(whole_text("attention.cu"), (*DEFECTS, NO_LIMIT))

    def kernel(types: tuple[str, ...], variant: Variant, config: TileConfig) -> Kernel:
        names: Any = zip(("QTile", "KTile", "VTile", "OTile"), types, strict=True)
        constants = {**config.constants, **variant.constants}
        return found.kernel(defect, "attention", dict(names), constants)

    monkeypatch.setattr(launches, "attention_kernel", kernel)


def check_with(monkeypatch: pytest.MonkeyPatch, defect: Defect | None, size: int) -> None:
    plant(monkeypatch, defect)
    mask, softcap = KINDS[size]
    problem = replace(PROBLEM, mask=mask, softcap=softcap)
    check_pages(Emulate(), problem, paged_from(problem, size))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_shows(monkeypatch: pytest.MonkeyPatch, defect: Defect) -> None:
    # Where a page is larger than a block, rows within it matter; else parts of a block.
    size = 256 if defect.name.startswith("every") else 16

    with pytest.raises(defect.reported):
        check_with(monkeypatch, defect, size)


def test_a_page_that_does_not_exist_would_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, NO_LIMIT)

    with (
        tile_configs(in_splits(3, consumers=1)),
        pytest.raises(NO_LIMIT.reported, match=NO_LIMIT.says),
    ):
        check_wrong_pages(DECODE, -(1 << 20))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [16, 256])
def test_without_a_defect_there_is_none(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    check_with(monkeypatch, None, size)
