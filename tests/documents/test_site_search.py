"""A search of the site finds a topic's own page first, whichever words of the topic are typed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCORER = ROOT / "docs" / "search_scorer.js"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")])
_RANK = """
const points = index.docnames.map((page) => [pointsOfWords(query, page, index), page]);
const most = Math.max(...points.map(([one]) => one));
console.log(JSON.stringify(points.filter(([one]) => one === most).map(([, page]) => page)));
"""


def best_pages(query: str, index: dict[str, object]) -> list[str]:
    """The pages to which the scorer gives the most points, by Node."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    constants = f"const index = {json.dumps(index)}, query = {json.dumps(query)};\n"
    script = SCORER.read_text() + constants + _RANK
    ran = subprocess.run([node, "-"], input=script, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(ran.stdout)
    return found


@pytest.fixture(scope="module")
def site() -> dict[str, object]:
    """The titles and index entries of the pages, in the form of Sphinx's index."""
    texts = [page.read_text() for page in PAGES]
    entries: dict[str, list[list[object]]] = {}
    for number, text in enumerate(texts):
        for line in re.findall(r"^<!-- index: (.*) -->$", text, re.MULTILINE):
            for term in line.lower().split(", "):
                entries.setdefault(term, []).append([number, "", True])
    return {
        "docnames": [page.relative_to(ROOT / "docs").with_suffix("").as_posix() for page in PAGES],
        "titles": [(re.findall(r"^# (.*)$", text, re.MULTILINE) or [""])[0] for text in texts],
        "indexentries": entries,
    }


@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("tma multicast", "clusters"),
        ("multicast TMA", "clusters"),
        ("swizzle 128B", "layouts"),
        ("fused epilogue", "structured_kernels"),
        ("mbarrier hang", "hangs"),
        ("kernel hangs", "hangs"),
        ("paged kv", "attention"),
        ("wgmma descriptor", "wgmma"),
        ("batched gemm", "cookbook/batched_gemm"),
        ("tma", "what_tma_is"),
    ],
)
def test_words_find_the_page_of_their_topic(query: str, page: str, site: dict[str, object]) -> None:
    assert best_pages(query, site) == [page]


def test_a_part_of_a_word_is_not_the_word() -> None:
    index: dict[str, object] = {
        "docnames": ["changes", "hangs"],
        "titles": ["Changelog", "Hangs"],
        "indexentries": {"unchanged": [[0, "", True]], "hang": [[1, "", True]]},
    }

    assert best_pages("hang", index) == ["hangs"]
