"""Plant every defect of tests/emulate/planted and count, by kind, which launches report it.

    python tools/count_planted_defects.py [--workers 2] [--kinds fence sync] [--markdown]

Each is launched without an option, with ``races=True``, and, where both are silent, under a few
schedules.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

# Only now is their folder on the path.
from emulate.planted.defects import DEFECTS  # noqa: E402
from emulate.planted.outcomes import Outcome, outcome, schedules  # noqa: E402

from tmaasync.emulate import scheduled  # noqa: E402

COLUMNS = (
    "kind", "planted", "without option", "races=True", "with schedules", "class", "line", "remedy",
    "silently wrong", "silently right",
)  # fmt: skip


@dataclass(frozen=True)
class Count:
    """What became of one defect, or of several, in the order of `COLUMNS`."""

    planted: int = 0
    plain: int = 0
    races: int = 0
    schedules: int = 0
    has_class: int = 0
    has_line: int = 0
    has_words: int = 0
    wrong: int = 0
    right: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def counted(number: int) -> tuple[int, Count]:
    """Launch a kernel with one defect."""
    defect = DEFECTS[number]
    plain = outcome(defect)
    with scheduled(races=True):
        searched = outcome(defect)
    found = plain if plain.is_found else searched
    if not found.is_found:
        found = _scheduled(number)
    return number, Count(
        1, plain.is_found, searched.is_found, found.is_found, found.has_class, found.has_line,
        found.has_words, not found.is_found and not plain.is_right,
        not found.is_found and plain.is_right,
    )  # fmt: skip


def _scheduled(number: int) -> Outcome:
    for schedule in schedules():
        with scheduled(races=True, **schedule):
            found = outcome(DEFECTS[number])
        if found.is_found:
            break
    return found


def main() -> None:
    """Count, and print a row per kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", default=[])
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    numbers = [
        number
        for number, defect in enumerate(DEFECTS)
        if not options.kinds or defect.kind in options.kinds
    ]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        results = dict(pool.imap_unordered(counted, numbers))
    for line in _table(results, options.markdown):
        print(line)
    for number, count in sorted(results.items()):
        defect = DEFECTS[number]
        if not (count.has_class and count.has_line and count.has_words):
            print(f"  {defect.key}: {count}")


def _table(results: dict[int, Count], markdown: bool) -> Iterable[str]:
    rows: dict[str, Count] = {}
    for number, count in results.items():
        kind = DEFECTS[number].kind
        rows[kind] = rows.get(kind, Count()) + count
    total = sum(rows.values(), Count())
    ordered = [*sorted(rows.items()), ("all", total)]
    if markdown:
        yield "| " + " | ".join(COLUMNS) + " |"
        yield "|---" + "|---:" * (len(COLUMNS) - 1) + "|"
        yield from (
            f"| {name} | " + " | ".join(map(str, astuple(row))) + " |" for name, row in ordered
        )
    else:
        yield "  ".join(COLUMNS)
        yield from (f"{name:22}" + "".join(f"{n:7}" for n in astuple(row)) for name, row in ordered)


if __name__ == "__main__":
    main()
