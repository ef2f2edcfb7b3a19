"""Recorded results: a section a file, a row a line, read back as they were written."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from result_files import (
    RESULTS,
    Row,
    Section,
    kept_rows,
    name_in_paths,
    read_section,
    sections,
    write_section,
)

DATA = Path(__file__).parents[1] / "data"
FILES = [*sorted(RESULTS.rglob("*.*")), DATA / "hardware_nvidia_h200.jsonl"]
HEADERS = {
    "compiled": {"date", "nvrtc", "peers"},
    "cpu": {"cores", "date", "load_average", "machine", "peak_memory_mib", "python"},
    "gpu": {
        *("cuda_driver_api", "cuda_runtime", "date", "driver", "gpu", "nvrtc"),
        *("packages", "python"),
    },
}


def file_name(path: Path) -> str:
    return "/".join(path.parts[-2:])


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_a_file_has_a_header_and_a_row_a_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    section = read_section(path)

    assert json.loads(lines[0]) == {"measured": section.measured}
    assert [json.loads(line) for line in lines[1:]] == section.rows
    assert section.rows
    assert all(section.rows)


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_a_header_says_when_and_with_what(path: Path) -> None:
    measured = read_section(path).measured

    assert measured.keys() == HEADERS.get(path.parent.name, HEADERS["gpu"])
    assert all(measured.values())
    if "gpu" in measured:
        gpu = name_in_paths(measured["gpu"])
        assert path.parent.name == gpu or path.stem == f"hardware_{gpu}"


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_writing_what_was_read_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    copy = write_section(tmp_path / path.name, read_section(path))

    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_every_row_has_a_name(path: Path) -> None:
    for row in read_section(path).rows:
        assert len({"case", "group", "probe"} & row.keys()) == 1


def test_sections_come_by_folder_and_name(tmp_path: Path) -> None:
    written = Section({"date": "2026-01-01"}, [{"case": "b", "us": 0.1}, {"case": "a", "us": 30.0}])
    for name in ("b/matmul_types", "b/matmul", "a/copy"):
        write_section(tmp_path / f"{name}.jsonl", written)

    assert list(sections(tmp_path)) == [
        ("a", "copy", written),
        ("b", "matmul", written),
        ("b", "matmul_types", written),
    ]


@pytest.mark.parametrize("text", ["", '{"case": "a"}\n', '{"measured": {}, "rows": []}\n'])
def test_a_file_without_a_header_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.jsonl"
    path.write_text(text)

    with pytest.raises(ValueError, match="first line must be"):
        read_section(path)


def test_every_probe_of_the_hardware_is_recorded_once() -> None:
    names = [row["probe"] for row in read_section(DATA / "hardware_nvidia_h200.jsonl").rows]

    assert len(set(names)) == len(names) == 252


@pytest.mark.parametrize("path", FILES, ids=file_name)
def test_no_two_rows_of_a_section_have_one_name(path: Path) -> None:
    names = Counter(
        row.get("case") or row.get("group") or row["probe"] for row in read_section(path).rows
    )

    assert [name for name, count in names.items() if count > 1] == []


def test_a_part_replaces_the_rows_of_its_own_cases() -> None:
    old = Section({"date": "1", "driver": "a"}, [{"case": "x", "us": 1}, {"case": "y", "us": 2}])
    part = Section({"date": "2", "driver": "a"}, [{"case": "y", "us": 3}, {"case": "z", "us": 4}])

    both = old.with_part(part)

    assert both.measured == old.measured
    assert both.rows == [
        {"case": "x", "us": 1},
        {"case": "y", "us": 3, "measured": {"date": "2"}},
        {"case": "z", "us": 4, "measured": {"date": "2"}},
    ]
    again = both.with_part(Section(old.measured, [{"case": "z", "us": 5}]))
    assert again.rows[-1] == {"case": "z", "us": 5}


def rows_kept(interrupt: Callable[[], object]) -> list[tuple[list[Row], bool]]:
    found: list[tuple[list[Row], bool]] = []
    with (
        contextlib.suppress(SystemExit),
        kept_rows(lambda rows, is_whole: found.append((rows, is_whole))) as rows,
    ):
        rows.append({"case": "first"})
        interrupt()
        rows.append({"case": "second"})
    return found


def test_a_run_that_ends_keeps_all_rows() -> None:
    assert rows_kept(lambda: None) == [([{"case": "first"}, {"case": "second"}], True)]


def test_a_run_that_is_terminated_keeps_the_rows_that_it_has() -> None:
    before = signal.getsignal(signal.SIGTERM)

    assert rows_kept(lambda: os.kill(os.getpid(), signal.SIGTERM)) == [([{"case": "first"}], False)]
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_in_a_measurement_keeps_the_rows_before_it() -> None:
    def measured() -> Iterator[Row]:
        yield {"case": "first"}
        raise ValueError("broken")

    found: list[tuple[list[Row], bool]] = []
    with contextlib.suppress(ValueError), kept_rows(lambda *kept: found.append(kept)) as rows:
        rows.extend(measured())

    assert found == [([{"case": "first"}], False)]


def test_a_run_without_a_row_keeps_none() -> None:
    found: list[tuple[list[Row], bool]] = []
    with kept_rows(lambda *kept: found.append(kept)):
        pass

    assert found == []
