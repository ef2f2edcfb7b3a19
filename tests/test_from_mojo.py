"""Every row of docs/from_mojo.md names what exists, and a test that exists."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import tmaasync
from tmaasync._sources import include_dir

DOCUMENT = Path(__file__).parents[1] / "docs" / "from_mojo.md"
_CODE = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"\[(test_\w+)\]\(([^)]+)\)")


class Row(NamedTuple):
    mojo: str
    python: str
    kernels: str
    difference: str
    test: str


def rows() -> list[Row]:
    lines = DOCUMENT.read_text().splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return [Row(*row) for row in cells if row[0] != "Mojo" and set(row[0]) != {"-"}]


ROWS = rows()


@functools.cache
def headers() -> str:
    return "\n".join(path.read_text() for path in include_dir().rglob("*.cuh"))


def test_there_is_a_row_for_everything() -> None:
    assert len(ROWS) > 80


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mojo or row.kernels)
def test_a_row_names_what_exists(row: Row) -> None:
    for name in _CODE.findall(row.python):
        found: object = tmaasync
        for part in name.split("."):
            found = getattr(found, part)
    for name in _CODE.findall(row.kernels):
        for part in name.split("::"):
            assert re.search(rf"\b{part}\b", headers()), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.mojo or row.kernels)
def test_a_row_names_a_test_that_exists(row: Row) -> None:
    (link,) = _LINK.findall(row.test)
    name, path = link

    assert f"def {name}(" in (DOCUMENT.parent / path).read_text()
