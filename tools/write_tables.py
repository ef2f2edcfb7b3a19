"""Writes the measured tables of README.md and docs/benchmarks.md from benchmarks/results.

A table stands between ``<!-- measured: KIND -->`` and ``<!-- end measured -->``. KIND is ``short``
(copies and square products) or ``all`` (every section and row of every GPU).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from result_files import RESULTS, Row, sections

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
NOT_MEASURED = "Not measured yet: there is no file in `benchmarks/results/`."

_MARKED = re.compile(
    r"(<!-- measured: (?P<kind>short|all) -->\n).*?(<!-- end measured -->)", re.DOTALL
)
# What a row may hold, in the order of preference: its key, and the unit of the table.
_UNITS = {
    "tb_per_s": "TB/s, read + write",
    "read_tb_per_s": "TB/s, read",
    "tflop_per_s": "TFLOP/s",
    "us": "microseconds",
}
_RATIOS = ("speed_over_", "cost_over_")
_OURS = "tmaasync"
# The ratio in shorter slices, where it was measured too: see docs/benchmarks.md.
_SHORTER = ("interleaved", "burst")


def rewritten(text: str, results: Path = RESULTS) -> str:
    """The document with its tables made anew."""

    def replace(found: re.Match[str]) -> str:
        body = "\n".join(_tables(results, short=found["kind"] == "short")) or NOT_MEASURED
        return f"{found[1]}{body}\n{found[3]}"

    return _MARKED.sub(replace, text)


def _tables(results: Path, *, short: bool) -> Iterator[str]:
    for _, name, section in sections(results):
        timed = [row for row in section.rows if "us" in row]
        cases = [row for row in timed if "case" in row]
        groups = [row for row in timed if "group" in row]
        if short:
            cases, groups = [row for row in cases if _belongs_in_short(name, row)], []
        if not cases and not groups:
            continue
        if not short:
            yield f"### {name}\n"
        yield _circumstances(section.measured)
        if cases:
            yield from _race(name, cases)
        for row in groups:
            yield from _group(row)


def _belongs_in_short(section: str, row: Row) -> bool:
    is_cube = row.get("m") == row.get("n") == row.get("k") and row.get("dtype") == "bfloat16"
    return section == "copy" or (section == "matmul" and is_cube)


def _circumstances(measured: dict[str, Any]) -> str:
    return f"{measured['gpu']}, {measured['date'][:10]}, driver {measured['driver']}:\n"


def _race(name: str, rows: list[Row]) -> Iterator[str]:
    """Yield a table with a case a line and a candidate a column."""
    unit = next(key for key in _UNITS if key in rows[0])
    peers = _candidates(rows)
    shorter = [key for key in _SHORTER if any(key in row for row in rows)]
    titles = [f"{name} ({_UNITS[unit]})", *peers, _ratio_title(rows[0]), *shorter]
    yield _line(titles)
    yield _line(["---", *("---:" for _ in titles[1:])])
    for row in rows:
        figures = (_figure(row[unit].get(peer)) for peer in peers)
        more = (f"{row[key][_OURS]['median']:.3f}" if key in row else "" for key in shorter)
        yield _line([row["case"], *figures, _ratio(row), *more])
    yield ""
    yield f"Geometric mean of the speeds: {_geometric_mean(rows):.3f}.\n"


def _group(row: Row) -> Iterator[str]:
    """Yield a table with a candidate a line."""
    ratios = row[_ratio_key(row)]
    yield _line([row["group"], "microseconds", _ratio_title(row)])
    yield _line(["---", "---:", "---:"])
    for peer, microseconds in row["us"].items():
        yield _line([peer, _figure(microseconds), f"{ratios[peer]:.2f}"])
    yield ""


def _candidates(rows: Iterable[Row]) -> list[str]:
    """Return the candidates of all rows: ours first, then in alphabetical order."""
    names = {name for row in rows for name in row["us"]}
    return sorted(names, key=lambda name: (name != _OURS, name))


def _ratio_key(row: Row) -> str:
    return next(key for key in row if key.startswith(_RATIOS))


def _ratio_title(row: Row) -> str:
    return _ratio_key(row).replace("_", " ", 2)


def _ratio(row: Row) -> str:
    ours = row[_ratio_key(row)][_OURS]
    return f"{ours['median']:.3f} ({ours['min']:.3f} to {ours['max']:.3f})"


def _geometric_mean(rows: list[Row]) -> float:
    medians = [row[_ratio_key(row)][_OURS]["median"] for row in rows]
    return math.prod(medians) ** (1 / len(medians))


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in DOCUMENTS:
        path.write_text(rewritten(path.read_text()))


if __name__ == "__main__":
    main()
