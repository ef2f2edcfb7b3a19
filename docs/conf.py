"""How Sphinx builds the documentation: `make docs`. Warnings are errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tmaasync

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

# Only now is its folder on the path.
import case_tables
import document_headers
import plot_results
import swizzle_explorer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "tmaasync"
release = tmaasync.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]

html_theme = "furo"
html_title = f"tmaasync {release}"
html_static_path = ["_static"]
html_logo = "_static/logo.svg"
html_favicon = "_static/favicon.svg"
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_show_copyright = False
html_show_sphinx = False
toc_object_entries_show_parents = "hide"
pygments_style = "friendly"
pygments_dark_style = "github-dark"
# The copy button of a block with prompts copies its commands, not what they print.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The ids of headings are GitHub's.
myst_heading_anchors = 3
# A page may come before or after its line in the index; a test asks for the line.
suppress_warnings = ["toc.not_included", "toc.not_readable"]

# Docstrings have names in single backticks.
default_role = "py:obj"
# Fields that a docstring describes are documented once, as fields.
napoleon_use_ivar = True
napoleon_attr_annotations = False
autodoc_default_options = {
    "members": True,
    "undoc-members": True,
    "special-members": "__call__, __getitem__",
}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
cpp_maximum_signature_line_length = 88

_HEADERS = ".. headers "
_INDEX = re.compile(r"^<!-- index: (.*) -->$", re.MULTILINE)
# Files of the repository's root that a page of the site includes.
_INCLUDED = {
    "README": "index",
    "CHANGELOG": "changelog",
    "CONTRIBUTING": "contributing",
    "ARCHITECTURE": "architecture",
}
# The picture is drawn with the site: the README has the figures alone.
_SPEEDS = (
    "<!-- picture of the speeds -->",
    "![Speed of each operation relative to its fastest peer](images/speed.svg)",
)
_LINK_TO_ROOT = re.compile(rf"\]\(((?:\.\./)*)({'|'.join(_INCLUDED)})\.md")
_LINK_TO_FILE = re.compile(r"\]\(((?:examples|benchmarks|kernels|tests)/[^)#]*|LICENSE)\)")


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill in generated parts of pages, and adapt links and docstrings to the site."""
    # From the folder of tools, too: pairs of pictures for light and dark pages; notebooks.
    app.setup_extension("theme_pictures")
    app.setup_extension("notebooks")
    app.connect("source-read", _write_headers)
    app.connect("source-read", _write_explorer)
    app.connect("source-read", _write_results)
    app.connect("source-read", _write_index)
    app.connect("source-read", _link_from_page)
    app.connect("builder-inited", lambda _: plot_results.draw())
    app.connect("include-read", _link_from_root)
    app.connect("autodoc-process-docstring", _keep_colons, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _write_headers(app: Sphinx, docname: str, source: list[str]) -> None:
    del docname
    for line in source[0].splitlines():
        if line.startswith(_HEADERS):
            name = line.removeprefix(_HEADERS)
            source[0] = source[0].replace(line, document_headers.reference(name))
            for path in document_headers.headers(name):
                app.env.note_dependency(path)


def _write_explorer(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the swizzle explorer, computed anew, where a page has its mark."""
    if swizzle_explorer.MARK not in source[0]:
        return
    block = f"`````{{raw}} html\n{swizzle_explorer.fragment()}`````"
    source[0] = source[0].replace(swizzle_explorer.MARK, block)
    for path in swizzle_explorer.SOURCES.iterdir():
        app.env.note_dependency(path)
    del docname


def _write_results(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the tables of every recorded case where a page has their mark."""
    del app, docname
    if case_tables.EVERY_CASE in source[0]:
        source[0] = source[0].replace(case_tables.EVERY_CASE, case_tables.every_case())


def _write_index(app: Sphinx, docname: str, source: list[str]) -> None:
    """Index the terms of comments: a search for one of them finds the page of the comment first."""
    del app, docname
    source[0] = _INDEX.sub(
        lambda found: "```{index} ! " + found[1].replace(", ", ", ! ") + "\n```", source[0]
    )


def _link_from_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Point links to the README, for example, to the page that includes it."""
    del app, docname
    source[0] = _LINK_TO_ROOT.sub(lambda found: _page_of(found, found[1][3:]), source[0])


def _link_from_root(app: Sphinx, path: Path, page: str, source: list[str]) -> None:
    """Point the links of an included file of the root to where the page finds their targets."""
    del app
    if page in _INCLUDED.values() and path.stem in _INCLUDED:
        text = source[0].replace("](docs/", "](").replace(*_SPEEDS)
        text = _LINK_TO_FILE.sub(r"](path:../\1)", text)
        source[0] = _LINK_TO_ROOT.sub(lambda found: _page_of(found, found[1]), text)


def _page_of(link: re.Match[str], folder: str) -> str:
    return f"]({folder}{_INCLUDED[link[2]]}.md"


def _keep_colons(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Hide the first line of a property from napoleon, which takes "A: b." for type and text."""
    del app, name, value, options
    if what in ("attribute", "property"):
        lines[:0] = ["..", ""]
