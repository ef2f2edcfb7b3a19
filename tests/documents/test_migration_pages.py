"""The four short pages for users of other libraries: their tables name what exists."""

from __future__ import annotations

import re

import pytest
from mapping_tables import DOCS, exists

PAGES = ["from_cuda_core.md", "from_cupy.md", "from_cute_dsl.md", "from_triton.md"]
ROWS = [
    (page, line.split("|")[2])
    for page in PAGES
    for line in (DOCS / page).read_text().splitlines()
    if line[:3] == "| `"
]


def test_there_are_rows_for_every_page() -> None:
    assert {page for page, _ in ROWS} == set(PAGES)


@pytest.mark.parametrize(("page", "here"), ROWS)
def test_a_row_names_what_exists(page: str, here: str) -> None:
    names = re.findall(r"`([^`]+)`", here)

    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_each_side_has_that_the_other_lacks(page: str) -> None:
    headings = [line for line in (DOCS / page).read_text().splitlines() if line[:3] == "## "]

    assert [heading.split()[1] for heading in headings] == ["Names", "One", "What", "What"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().split()) < 850
