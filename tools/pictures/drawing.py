"""A picture as SVG text."""

from __future__ import annotations

from dataclasses import dataclass, field

INK, FAINT, PAPER = "#1f2328", "#8c959f", "#ffffff"
# Dark text stays readable on all of them.
COLOURS = (
    "#9ecae9", "#f4c95d", "#a6d8a8", "#f2a7a0", "#cdb4e3", "#e8c4a0", "#b8d8d4", "#f3bcd9",
)  # fmt: skip


@dataclass
class Drawing:
    """SVG text, element by element."""

    width: int
    height: int
    title: str
    elements: list[str] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **more: str) -> None:
        """A filled rectangle."""
        self._add("rect", x=x, y=y, width=width, height=height, fill=fill, **more)

    def line(self, x1: float, y1: float, x2: float, y2: float, **more: str) -> None:
        """A thin line."""
        self._add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=FAINT, **more)

    def text(self, x: float, y: float, text: str, size: int = 13, **more: str) -> None:
        """A line of text whose baseline is ``y``."""
        attributes = _attributes(x=x, y=y, font_size=size, fill=INK, **more)
        self.elements.append(f"<text {attributes}>{_escaped(text)}</text>")

    def _add(self, name: str, **attributes: object) -> None:
        self.elements.append(f"<{name} {_attributes(**attributes)}/>")

    def svg(self) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
            f'viewBox="0 0 {self.width} {self.height}" font-family="sans-serif" role="img">'
        )
        paper = f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>'
        title = f"<title>{_escaped(self.title)}</title>"
        return "\n".join((head, title, paper, *self.elements, "</svg>", ""))


def _attributes(**attributes: object) -> str:
    pairs = ((name.replace("_", "-"), _number(value)) for name, value in attributes.items())
    return " ".join(f'{name}="{_escaped(value)}"' for name, value in pairs)


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
