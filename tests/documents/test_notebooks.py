"""The notebooks run, their outputs are current, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "notebooks.py"))
NEEDS = {"first_steps": "matplotlib", "check_triton": "triton"}
PAGES = pytest.mark.parametrize("path", TOOL["NOTEBOOKS"], ids=lambda path: path.stem)


def test_there_is_a_notebook() -> None:
    assert TOOL["NOTEBOOKS"] != []


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning")
@PAGES
def test_a_notebook_prints_what_it_shows(path: Path) -> None:
    pytest.importorskip(NEEDS[path.stem], reason=f"{NEEDS[path.stem]} is not installed")
    text = path.read_text()

    assert TOOL["rendered"](TOOL["executed"](json.loads(text))) == text, (
        "run python tools/notebooks.py"
    )


@PAGES
def test_the_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    text = re.sub("```.*?```", "", TOOL["markdown"](json.loads(path.read_text())), flags=re.DOTALL)
    links = re.findall(r"\]\((?:path:)?(?!https?:)([^)#]+)", text)

    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_a_page_has_the_cells_in_order_with_what_they_print() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Text"]},
        {"cell_type": "code", "id": "c", "source": ["print(1)\n", "2"], "outputs": []},
    ]

    run = TOOL["executed"]({"cells": cells})

    assert TOOL["markdown"](run) == (
        "# Title\nText\n\n```python\nprint(1)\n2\n```\n\n```text\n1\n```\n"
    )
