"""Writes the measured tables of README.md and docs/benchmarks.md from benchmarks/results/*.json.

A table stands between ``<!-- measured: KIND -->`` and ``<!-- end measured -->``. KIND is ``short``
(copies and square products) or ``all`` (every section and row of every results file).
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
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
# The ratio in shorter turns, where it was measured too: see docs/benchmarks.md.
_SHORTER = ("interleaved", "burst")


def rewritten(text: str, results: Path = RESULTS) -> str:
    """The document with its tables made anew."""

    def replace(found: re.Match[str]) -> str:
        body = "\n".join(_tables(results, short=found["kind"] == "short")) or NOT_MEASURED
        return f"{found[1]}{body}\n{found[3]}"

    return _MARKED.sub(replace, text)


def _tables(results: Path, *, short: bool) -> Iterator[str]:
    for path in sorted(results.glob("*.json")):
        for name, section in sorted(json.loads(path.read_text()).items()):
            rows = [row for row in _rows(section) if not short or _belongs_in_short(name, row)]
            groups = {} if short else _groups(section)
            if (rows or groups) and not short:
                yield f"### {name}\n"
            if rows or groups:
                yield _circumstances(section["measured"])
            if rows:
                yield from _race(name, rows)
            for group, row in groups.items():
                yield from _group(group, row)


def _rows(section: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a section with a case a row; others have none."""
    rows = section.get("rows")
    return [row for row in rows if {"case", "us"} <= row.keys()] if isinstance(rows, list) else []


def _groups(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the groups of a section by name, each a table of its own; other sections have none."""
    rows = section.get("rows")
    if not isinstance(rows, dict):
        return {}
    return {name: row for name, row in rows.items() if isinstance(row, dict) and "us" in row}


def _belongs_in_short(section: str, row: dict[str, Any]) -> bool:
    is_cube = row.get("m") == row.get("n") == row.get("k") and row.get("dtype") == "bfloat16"
    return section == "copy" or (section == "matmul" and is_cube)


def _circumstances(measured: dict[str, Any]) -> str:
    return f"{measured['gpu']}, {measured['date'][:10]}, driver {measured['driver']}:\n"


def _race(name: str, rows: list[dict[str, Any]]) -> Iterator[str]:
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


def _group(name: str, row: dict[str, Any]) -> Iterator[str]:
    """Yield a table with a candidate a line."""
    ratios = row[_ratio_key(row)]
    yield _line([name, "microseconds", _ratio_title(row)])
    yield _line(["---", "---:", "---:"])
    for peer, microseconds in row["us"].items():
        yield _line([peer, _figure(microseconds), f"{ratios[peer]:.2f}"])
    yield ""


def _candidates(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Return the candidates of all rows: ours first, then in alphabetical order."""
    names = {name for row in rows for name in row["us"]}
    return sorted(names, key=lambda name: (name != _OURS, name))


def _ratio_key(row: dict[str, Any]) -> str:
    return next(key for key in row if key.startswith(_RATIOS))


def _ratio_title(row: dict[str, Any]) -> str:
    return _ratio_key(row).replace("_", " ", 2)


def _ratio(row: dict[str, Any]) -> str:
    ours = row[_ratio_key(row)][_OURS]
    return f"{ours['median']:.3f} ({ours['min']:.3f} to {ours['max']:.3f})"


def _geometric_mean(rows: list[dict[str, Any]]) -> float:
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
