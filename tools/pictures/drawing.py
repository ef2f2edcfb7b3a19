"""A picture as SVG text, for light pages and for dark ones."""

from __future__ import annotations

from dataclasses import dataclass, field

# Dark text stays readable on all of them.
COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip
# Colours that a theme chooses: a fill for what matters less, no fill but a frame.
QUIET, FRAME = "quiet", "frame"
_ON_COLOUR = "#1f2328"
_THEMES = {
    # Ink, lines, quiet fills, frames
    False: ("#1f2328", "#8c959f", "#e6e9ed", "#cf222e"),
    True: ("#e6edf3", "#656d76", "#363c44", "#ff3b3b"),
}


@dataclass
class Drawing:
    """SVG text, element by element; colours that depend on the page are classes."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **more: str) -> None:
        """A filled rectangle; ``fill`` is a colour, `QUIET` or `FRAME`."""
        kind = {"class": fill} if fill in (QUIET, FRAME) else {"fill": fill}
        self._add("rect", x=x, y=y, width=width, height=height, **kind, **more)

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, **{"class": "line"})

    def text(
        self, x: float, y: float, text: str, size: int = 13, *, on_colour: bool = False, **more: str
    ) -> None:
        """A line of text whose baseline is ``y``, on the page or on one of the colours."""
        attributes = _attributes(
            x=x, y=y, font_size=size, **{"class": "on" if on_colour else "ink"}, **more
        )
        self.elements.append(f"<text {attributes}>{_escaped(text)}</text>")

    def _add(self, name: str, **attributes: object) -> None:
        self.elements.append(f"<{name} {_attributes(**attributes)}/>")

    def svg(self, *, dark: bool = False) -> str:
        """The whole file; the light one has a white background, the dark one has none."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif" role="img">'
        )
        title = f"<title>{_escaped(self.title)}</title>"
        page = [] if dark else ['<rect width="100%" height="100%" fill="#ffffff"/>']
        lines = (head, title, _style(dark=dark), *page, *self.elements, "</svg>", "")
        return "\n".join(lines)


def _style(*, dark: bool) -> str:
    ink, line, quiet, frame = _THEMES[dark]
    return (
        f"<style>.ink {{ fill: {ink} }} .on {{ fill: {_ON_COLOUR} }} .line {{ stroke: {line} }} "
        f".quiet {{ fill: {quiet} }} .frame {{ fill: none; stroke: {frame} }}</style>"
    )


def _attributes(**attributes: object) -> str:
    pairs = ((name.replace("_", "-"), _number(value)) for name, value in attributes.items())
    return " ".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
