"""Run the notebooks of the documentation, and show them on the site.

``python tools/notebooks.py [NOTEBOOK]...`` runs all, or the named ones.

A notebook is kept with the text that its cells print, and without pictures. The site reads it as a
page of MyST Markdown; neither Jupyter nor a converter is needed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import linecache
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def rendered(notebook: dict[str, Any]) -> str:
    """The text of a notebook file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells, run in order in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [
        {**cell, "outputs": _outputs(_printed("".join(cell["source"]), cell["id"], names))}
        if cell["cell_type"] == "code"
        else cell
        for cell in notebook["cells"]
    ]
    return {**notebook, "cells": cells}


def _printed(source: str, file: str, names: dict[str, Any]) -> str:
    text = io.StringIO()
    # As in Jupyter: Triton and reports read the source of a cell.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    with contextlib.redirect_stdout(text):
        exec(compile(ast.parse(source), file, "exec"), names)  # noqa: S102
    return text.getvalue()


def _outputs(text: str) -> list[dict[str, Any]]:
    lines = text.splitlines(keepends=True)
    return [{"name": "stdout", "output_type": "stream", "text": lines}] if lines else []


def markdown(notebook: dict[str, Any]) -> str:
    """The notebook as a page of MyST Markdown."""
    return "\n\n".join(_cell(cell) for cell in notebook["cells"]) + "\n"


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    printed = "".join(line for output in cell["outputs"] for line in output["text"])
    shown = f"\n\n```text\n{printed.rstrip()}\n```" if printed else ""
    return f"```python\n{source}\n```{shown}"


def setup(app: Sphinx) -> dict[str, bool]:
    """Let Sphinx read notebooks."""
    # Sphinx and MyST are there only where the site is built.
    from myst_parser.parsers.sphinx_ import MystParser  # noqa: PLC0415

    class NotebookParser(MystParser):
        """Reads a notebook as the Markdown that it stands for."""

        supported = ("notebook",)

        def parse(self, inputstring: str, document: Any) -> None:
            super().parse(markdown(json.loads(inputstring)), document)

    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    for path in map(Path, sys.argv[1:] or NOTEBOOKS):
        path.write_text(rendered(executed(json.loads(path.read_text()))))


if __name__ == "__main__":
    main()
