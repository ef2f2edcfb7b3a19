"""The tables of docs/from_*.md: for each name of another library, the name here."""

from __future__ import annotations

import functools
import pkgutil
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from tmaasync._source.paths import include_dir

DOCS = Path(__file__).parents[2] / "docs"
_CODE = re.compile(r"`([^`]+)`")
# A line a row, in the order of the page: page, first name of the row, file::test.
_TESTS = DOCS.parent / "tests" / "data" / "row_tests.tsv"


class Row(NamedTuple):
    theirs: str
    here: str
    difference: str
    test: str = ""

    def __str__(self) -> str:
        return self.theirs or self.here

    @property
    def names(self) -> list[str]:
        """The names in the other library."""
        return _CODE.findall(self.theirs)

    @property
    def is_offered(self) -> bool:
        return bool(self.here)


def rows(document: str) -> list[Row]:
    """All rows but the heads of the tables, each with its test."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / document).read_text().splitlines()
        if line[:1] == "|"
    ]
    found = [Row(*row) for row in cells]
    tests = _tests(document)
    named = [row for row in found if row.here != "here" and set(row.theirs) != {"-"}]
    tested = [row._replace(test=tests[str(row)].pop(0) if tests[str(row)] else "") for row in named]
    assert not any(tests.values()), "these lines of row_tests.tsv are of no row"
    return tested


def _tests(document: str) -> dict[str, list[str]]:
    tests = defaultdict(list)
    for line in _TESTS.read_text().splitlines():
        page, row, test = line.split("\t")
        if page == document:
            tests[row].append(test)
    return tests


@functools.cache
def _headers() -> str:
    return "\n".join(path.read_text() for path in include_dir().rglob("*.cuh"))


def exists(name: str) -> bool:
    """Whether the package has this name, or the headers have it."""
    try:
        pkgutil.resolve_name(f"tmaasync.{name}")
    except (AttributeError, ImportError, ValueError):
        return all(re.search(rf"\b{part}\b", _headers()) for part in name.split("::"))
    return True


def check_names(row: Row) -> None:
    """Raise if a name of the row exists neither in the package nor in the headers."""
    assert [name for name in _CODE.findall(row.here) if not exists(name)] == []


def check_test(row: Row) -> None:
    """Raise if the row does not name one test, which exists."""
    path, name = row.test.split("::")

    assert f"def {name}(" in (DOCS.parent / "tests" / path).read_text()
