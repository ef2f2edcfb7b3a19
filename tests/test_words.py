"""The field's words, and sentences that can be read in one breath."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MOST_WORDS = 45

_NO_PROSE = re.compile(
    r"^(`{3,}|~{3,}).*?^\1|<!-- measured.*?<!-- end measured -->|^\|.*?$|<[^>]*>",
    re.DOTALL | re.MULTILINE,
)
# An item of a list, a heading and a paragraph each end the sentence before them.
_BLOCK_ENDS = re.compile(r"\n\s*\n|\n\s*(?:[*+-]|\d+\.) |^#+ .*$|^:\s", re.MULTILINE)
_SENTENCE_ENDS = re.compile(r"[.:;?!](?:[)\"*_`]*)\s")


def sentences(text: str) -> Iterator[str]:
    for block in _BLOCK_ENDS.split(_NO_PROSE.sub("", text)):
        for sentence in _SENTENCE_ENDS.split(block):
            yield " ".join(sentence.split())


def test_retired_words_are_gone() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "retired_words.py"))

    found = [
        f"{path}:{number}: {expression!r} -> {rule.instead}"
        for path, number, expression, rule in tool["retired_in"](ROOT)
    ]

    assert found == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_is_too_long(path: Path) -> None:
    long = [one for one in sentences(path.read_text()) if len(one.split()) > MOST_WORDS]

    assert long == []


def test_a_retired_word_is_found_and_an_allowed_one_is_not() -> None:
    rules = runpy.run_path(str(ROOT / "tools" / "retired_words.py"))["RETIRED"]

    def found(line: str) -> list[str]:
        return [expression for rule in rules for expression in rule.found(line)]

    assert found("the product lies behind it") == ["product", "behind"]
    assert found("non-blocking, a dot product, os.walk(folder)") == []
