"""A toctree names every page of the documentation, its reference every public name.

What the pages say is built by `make docs`; none of this needs Sphinx.
"""

from __future__ import annotations

import importlib
import importlib.util
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tmaasync
from tmaasync import emulate, ops, pipeline, swizzle, trace, wgmma

DOCS = Path(__file__).resolve().parents[2] / "docs"

_TOCTREE = re.compile(
    r"^(?:```\{toctree\}\n(?P<md>.*?)^```|\.\. toctree::\n(?P<rst>(?:   .*\n|\n)*))",
    re.DOTALL | re.MULTILINE,
)
_INDEXED = re.compile(r"^<!-- index: (.*) -->$", re.MULTILINE)
_DOCUMENTED = re.compile(r"^\.\. (?:auto\w+|py:data):: (tmaasync[\w.]*)", re.MULTILINE)


def _pages() -> list[Path]:
    return [path for path in DOCS.rglob("*") if path.suffix in (".md", ".rst")]


def _listed_pages() -> list[str]:
    """The pages in the toctrees of all pages, relative to the documentation's folder."""
    return [
        (page.parent.relative_to(DOCS) / line).as_posix()
        for page in _pages()
        for tree in _TOCTREE.finditer(page.read_text())
        for line in map(str.strip, (tree["md"] or tree["rst"]).splitlines())
        if line and line[0] != ":"
    ]


def _documented() -> list[str]:
    pages = sorted((DOCS / "reference").glob("*.rst"))
    return [name for page in pages for name in _DOCUMENTED.findall(page.read_text())]


def _public_names(module: ModuleType) -> Iterator[str]:
    """The names of a module, under the package's own name where that has them too."""
    for name in module.__all__:
        home = tmaasync if hasattr(tmaasync, name) else module
        is_same = getattr(home, name) is getattr(module, name)
        yield f"{home.__name__ if is_same else module.__name__}.{name}"


def test_every_page_is_in_a_toctree() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in _pages()}

    assert pages - {"index"} - set(_listed_pages()) == set(), "name these in a toctree"


def test_no_page_is_in_a_toctree_twice() -> None:
    pages = _listed_pages()

    assert len(pages) == len(set(pages)) > 0


@pytest.mark.parametrize(
    "module",
    [tmaasync, emulate, ops, pipeline, swizzle, trace, wgmma],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    missing = set(_public_names(module)) - set(_documented())

    assert missing == set(), "document these in a page of docs/reference"


def test_every_operator_of_torch_is_in_the_reference() -> None:
    pytest.importorskip("torch")
    module = importlib.import_module("tmaasync.torch")

    assert {f"tmaasync.torch.{name}" for name in module.__all__} - set(_documented()) == set()


def test_the_reference_has_names_that_exist_and_each_once() -> None:
    names = _documented()
    if importlib.util.find_spec("torch") is None:
        names = [name for name in names if not f"{name}.".startswith("tmaasync.torch.")]

    assert [name for name in names if pydoc.locate(name) is None] == []
    assert len(names) == len(set(names))


def test_a_term_of_the_index_leads_to_one_page() -> None:
    terms = [
        term
        for page in _pages()
        for line in _INDEXED.findall(page.read_text())
        for term in line.split(", ")
    ]

    assert sorted(terms) == sorted(set(terms))
    assert set(_SEARCHED_FOR) <= set(terms)


# Words that people type into the site's search; the comments make it find the right page first.
_SEARCHED_FOR = (
    *("gqa", "flash attention", "epilogue", "paged kv cache", "persistent kernel"),
    *("install", "swizzle", "mbarrier", "hang"),
)
