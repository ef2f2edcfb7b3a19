"""Quote the lines of the kernel's source that a report names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tmaasync._source.compile import Source
from tmaasync.errors import TMAError

__all__ = ["quote"]


def quote(error: TMAError, sources: Iterable[Source]) -> None:
    """Add a note with the text of each line of these sources that the report names."""
    named = {one.name: one.text.splitlines() for one in sources}
    lines = "\n".join(dict.fromkeys(_quoted(str(error), named)))
    if lines:
        error.add_note(lines)


def _quoted(report: str, named: dict[str, list[str]]) -> Iterator[str]:
    names = "|".join(map(re.escape, named))
    for name, number in re.findall(rf"(?<![\w/.])({names}):(\d+)", report):
        if 0 < int(number) <= len(named[name]):
            yield f"  {name}:{number}: {' '.join(named[name][int(number) - 1].split())}"
