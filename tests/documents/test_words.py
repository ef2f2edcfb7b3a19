"""The field's words, and sentences that can be read in one breath."""

from __future__ import annotations

import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
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


@pytest.mark.slow
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


def test_a_comment_begins_with_the_thing_that_it_is_about(tmp_path: Path) -> None:
    comments = {
        "a.hpp": "// Of a thread.\nint a;  // What it holds.\n/// That is new.\n",
        "b.py": '#: Those that wait.\nx = 1  # Of a row.\nTEXT = """\n// What it does.\n"""\n',
        "good.cu": "// A wait ends.\n// That is all.\n\nint b;  // the value\n// Whatever.\n",
        "good.py": 'URL = "https://What"\n# A row.\n# Of two rows, the first.\nx = "# What"\n#\n',
        "prose.md": "# What it does\n",
    }
    for name, text in comments.items():
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)

    tool = runpy.run_path(str(ROOT / "tools" / "retired_words.py"))

    found = [(path, line) for path, line, _, rule in tool["retired_in"](tmp_path)]
    assert found == [
        ("a.hpp", 1),
        ("a.hpp", 2),
        ("a.hpp", 3),
        ("b.py", 1),
        ("b.py", 2),
        ("b.py", 4),
    ]
