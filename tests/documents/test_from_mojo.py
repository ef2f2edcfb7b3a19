"""Every row of docs/from_mojo.md names what exists, and a test that exists."""

from __future__ import annotations

import pytest
from mapping_tables import Row, check_names, check_test, rows

ROWS = rows("from_mojo.md")


def test_there_is_a_row_for_everything() -> None:
    assert len(ROWS) > 80


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_what_exists(row: Row) -> None:
    check_names(row)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_row_names_a_test_that_exists(row: Row) -> None:
    check_test(row)
