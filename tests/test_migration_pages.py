"""The four short pages for users of other libraries: their tables name what exists."""

from __future__ import annotations

import pytest
from mapping_tables import DOCS, Row, check_names, rows

PAGES = ["from_cuda_core.md", "from_cupy.md", "from_cute_dsl.md", "from_triton.md"]
ROWS = [row for page in PAGES for row in rows(page)]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_what_exists(row: Row) -> None:
    check_names(row)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_says_what_each_side_has_that_the_other_lacks(page: str) -> None:
    headings = [line for line in (DOCS / page).read_text().splitlines() if line[:3] == "## "]

    assert [heading.split()[1] for heading in headings] == ["Names", "One", "What", "What"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short(page: str) -> None:
    assert len((DOCS / page).read_text().split()) < 850
