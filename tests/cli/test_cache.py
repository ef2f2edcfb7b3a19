"""``tmaasync cache``: what is kept, and that only what can be made again is removed."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import json_of, run

from tmaasync._source.cache_folder import cache_dir

A, B, C = (letter * 64 for letter in "abc")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with two kernels, a library of the emulator, a tuned GPU, and a stranger's file."""
    monkeypatch.setenv("TMAASYNC_CACHE_DIR", str(tmp_path))
    path = cache_dir("tuned").parent
    sizes = {"cubin": 100, "json": 10}
    files = {f"{A}.{end}": size for end, size in sizes.items()}
    files |= {f"{B}.cubin": 50, f"{C}.so": 7, f"{C}.json": 3, "tuned/gpu.json": 20, "mine.so": 9}
    for name, size in files.items():
        (path / name).write_bytes(b"x" * size)
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
    assert left == {"mine.so", "tuned/gpu.json"}
    assert json_of("cache", "--clear") == {"removed": 0, "bytes": 0}


def test_clearing_leaves_the_users_files(folder: Path, tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("a.o", "a.so", "a.json", f"{A}.cubin", "tuned")]
    for path in (*mine, folder / "notes.json", folder / f"{A}.txt"):
        path.touch()

    run("cache", "--clear")
    run("tune", "--clear")

    assert all(path.exists() for path in (*mine, folder / "notes.json", folder / f"{A}.txt"))


def test_clearing_removes_what_an_ended_process_was_writing(folder: Path) -> None:
    (folder / f"prefix-{A}.gch.k3_v9.new").touch()

    run("cache", "--clear")

    assert [path.name for path in folder.iterdir() if path.suffix == ".new"] == []


def test_a_folder_named_like_a_build_is_neither_counted_nor_in_the_way(folder: Path) -> None:
    (folder / f"{'d' * 64}.cubin").mkdir()

    assert json_of("cache")["kept"][0]["files"] == 2
    assert run("cache", "--clear").output == "3 files removed, 0.0 MiB.\n"


def test_a_link_in_the_cache_is_removed_and_its_target_stays(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.cubin"
    target.touch()
    (folder / f"{C}.cubin").symlink_to(target)

    run("cache", "--clear")

    assert target.exists()
    assert not (folder / f"{C}.cubin").is_symlink()


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
