"""Sphinx extension: serve each picture of a pair to the pages that it was drawn for.

`tools/pictures` and `plot_results.py` draw ``NAME.svg`` for light pages and ``NAME_dark.svg`` for
dark ones. A page names the first, ``![...](images/NAME.svg)``, or both in a ``<picture>``, which
GitHub shows by the reader's theme. On the site either becomes two images of furo's classes
``only-light`` and ``only-dark``, which follow the button of the theme.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
_PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
_IMG = re.compile(r"<img\b[^>]*>", re.DOTALL)


def dark_name(name: str) -> str | None:
    """The file name of the dark one of a pair; None for a picture that is alone."""
    dark = Path(name).with_stem(f"{Path(name).stem}_dark").name
    return dark if (FOLDER / dark).exists() else None


def attribute(tag: str, name: str) -> str:
    """The value of an attribute of an HTML tag, or nothing."""
    found = re.search(rf'\b{name}="([^"]*)"', tag)
    return found[1] if found else ""


class Pairs(SphinxTransform):
    """Replace a picture by both of its pair."""

    # Before Sphinx collects the images.
    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        del kwargs
        for raw in list(self.document.findall(nodes.raw)):
            if raw.get("format") == "html" and (found := _PICTURE.search(raw.astext())):
                raw.replace_self(_image_of(found[0]))
        for image in list(self.document.findall(nodes.image)):
            if dark := dark_name(image["uri"]):
                other = image.deepcopy()
                other["uri"] = str(Path(image["uri"]).with_name(dark))
                image["classes"].append("only-light")
                other["classes"].append("only-dark")
                parent = image.parent
                parent.insert(parent.index(image) + 1, other)


def _image_of(picture: str) -> nodes.paragraph:
    """The image that a ``<picture>`` shows by default, found from every page."""
    found = _IMG.search(picture)
    tag = found[0] if found else ""
    uri = f"/images/{Path(attribute(tag, 'src')).name}"
    return nodes.paragraph("", "", nodes.image(uri=uri, alt=attribute(tag, "alt")))


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the transform."""
    app.add_transform(Pairs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
