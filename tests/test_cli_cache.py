"""``tmaasync cache``: what is kept, and that only what can be made again is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import json_of, run


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with two kernels, a library of the emulator, a tuned GPU, and a stranger's file."""
    path = tmp_path / "cache"
    (path / "tuned").mkdir(parents=True)
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(path))
    sizes = {"a.cubin": 100, "a.json": 10, "b.cubin": 50, "c.so": 7, "c.json": 3, "mine.txt": 9}
    for name, size in sizes.items():
        (path / name).write_bytes(b"x" * size)
    (path / "tuned/gpu.json").write_bytes(b"x" * 20)
    return path


def test_files_and_bytes_are_counted_by_what_they_hold(folder: Path) -> None:
    document = json_of("cache")

    assert document["folder"] == str(folder)
    assert [(kept["files"], kept["bytes"]) for kept in document["kept"]] == [
        (2, 160),
        (1, 10),
        (1, 20),
    ]


def test_the_table_names_the_folder(folder: Path) -> None:
    output = run("cache").output

    assert str(folder) in output
    assert ["kernels", "for", "the", "GPU", "2", "0.0", "MiB"] in map(
        str.split, output.splitlines()
    )


def test_clearing_keeps_tuned_tile_configs_and_other_files(folder: Path) -> None:
    assert run("cache", "--clear").output == "3 files removed, 0.0 MiB.\n"

    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"mine.txt", "tuned/gpu.json"}
    assert json_of("cache", "--clear") == {"removed": 0, "bytes": 0}


def test_a_cache_that_cannot_be_made_is_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(file / "below"))

    ran = run("cache")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: the kernel cache")
    assert ran.stderr.count("\n") == 1
