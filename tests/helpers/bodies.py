"""One kernel for many bodies: a launch passes the number of the one to run."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["chosen"]


def chosen(bodies: Iterable[str], what: str = "what") -> str:
    """Return statements of which the variable ``what`` chooses one body, from 0."""
    return "\n".join(
        f"    if ({what} == {number}) {{\n{body}\n    }}" for number, body in enumerate(bodies)
    )
