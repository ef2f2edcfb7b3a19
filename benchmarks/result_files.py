"""Recorded results: a folder per GPU, a file per section, a row per line.

The first line of ``results/<gpu>/<section>.jsonl`` is the header: ``{"measured": {...}}`` with the
date, the driver and the versions. Every other line is a row; one that was measured at another time
has a "measured" of its own: what differs from the header. Keys are sorted and numbers keep every
digit, so that a new measurement changes the lines of its own rows only.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"

Row = dict[str, Any]


class Section(NamedTuple):
    """Rows, and the circumstances in which they were measured."""

    measured: dict[str, Any]
    rows: list[Row]

    def with_part(self, part: Section) -> Section:
        """Return the section with another's rows in place of its own of the same "case"."""
        own = {name: at for name, at in part.measured.items() if at != self.measured.get(name)}
        apart = {"measured": own} if own else {}
        fresh = {row["case"]: {**row, **apart} for row in part.rows}
        rows = [fresh.pop(row["case"], row) for row in self.rows]
        return Section(self.measured, [*rows, *fresh.values()])


def name_in_paths(gpu: str) -> str:
    """Return a GPU's name as folders and files have it: ``nvidia_h200``."""
    return gpu.lower().replace(" ", "_")


def write_section(path: Path, section: Section) -> Path:
    """Write a section, and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"measured": section.measured}, *section.rows]
    path.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    return path


def write_part(path: Path, part: Section) -> Path:
    """Put rows into a section's file, in place of its own of the same "case"."""
    return write_section(path, read_section(path).with_part(part) if path.exists() else part)


def peak_mib() -> int:
    """Return the most memory that this process had, in MiB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def circumstances_on_cpu() -> dict[str, Any]:
    """Return the date, the machine and the load that a section without a GPU is measured with."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
        "peak_memory_mib": peak_mib(),
    }


def read_section(path: Path) -> Section:
    """Read a section.

    Raises:
        ValueError: The first line is no header, or a line is no JSON object.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    if not lines or lines[0].keys() != {"measured"}:
        raise ValueError(f'{path} has no header; its first line must be {{"measured": ...}}.')
    return Section(lines[0]["measured"], lines[1:])


@contextmanager
def kept_rows(keep: Callable[[list[Row], bool], object]) -> Iterator[list[Row]]:
    """Hand the rows that the ``with`` adds to the list to ``keep``, and whether they are all.

    They are not where it is cut off: by an error, Ctrl-C, or SIGTERM, which `timeout` sends.
    """
    rows: list[Row] = []
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit("cut off by SIGTERM"))
    try:
        yield rows
    except BaseException:
        if rows:
            keep(rows, False)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)
    if rows:
        keep(rows, True)


def sections(results: Path = RESULTS) -> Iterator[tuple[str, str, Section]]:
    """Yield every recorded section with its GPU's folder and its name, in alphabetical order."""
    for path in sorted(results.glob("*/*.jsonl"), key=lambda path: (path.parent.name, path.stem)):
        yield path.parent.name, path.stem, read_section(path)
