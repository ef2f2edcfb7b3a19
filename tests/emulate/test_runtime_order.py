"""The runtime's folders form an order, its headers have no cycle, and its files stay small."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tmaasync.emulate.include_path import EMULATOR_DIR, OWN_FOLDERS, toolkit_folders
from tmaasync.emulate.runtime_library import UNITS

RUNTIME = EMULATOR_DIR / "runtime"
LAYERS = (
    "abi.hpp",
    "reason.hpp",
    "rules.hpp",
    "host",
    "shared_memory",
    "policy",
    "tma",
    "tensor_cores",
    "races",
    "trace",
    "state",
    "schedule",
    "crash",
    "memory",
    "barriers",
    "warps",
    "copies",
    "wgmma",
    "tensor_memory",
    "signals",
    "report",
    "launch",
)
"""The folders from the lowest to the highest: a file includes its own folder's and lower ones'."""
FILES = sorted(str(path.relative_to(RUNTIME)) for path in RUNTIME.rglob("*.?pp"))
PART = "linked_into_kernels.cpp"
MOST_LINES = 500
MOST_LINES_OF_A_CLASS = 250
LANGUAGE = re.compile(r"^#include <(\w+)>$", re.MULTILINE)


def text_of(file: str) -> str:
    return (RUNTIME / file).read_text(encoding="utf-8")


def included(file: str) -> list[str]:
    return re.findall(r'^#include "(.+)"$', text_of(file), re.MULTILINE)


def upward(files: dict[str, list[str]]) -> Iterator[str]:
    """Every include of a file in a folder above the includer's own."""
    for file, names in files.items():
        for name in names:
            if LAYERS.index(name.split("/")[0]) > LAYERS.index(file.split("/")[0]):
                yield f"{file} includes {name}"


def test_a_file_of_the_runtime_includes_only_its_own_folder_and_lower_ones() -> None:
    files = {file: included(file) for file in FILES if file != PART}

    assert not [*upward(files)]


def test_an_include_of_a_higher_folder_would_be_noticed() -> None:
    found = [*upward({"races/clocks.hpp": ["abi.hpp", "state/cluster.hpp"]})]

    assert found == ["races/clocks.hpp includes state/cluster.hpp"]


def test_no_header_of_the_runtime_includes_itself_by_way_of_others() -> None:
    headers = {file: included(file) for file in FILES if file.endswith(".hpp")}

    assert len([*TopologicalSorter(headers).static_order()]) == len(headers)


def test_every_source_of_the_runtime_belongs_to_one_translation_unit() -> None:
    folders = [folder for unit in UNITS for folder in unit]
    of_sources = {file.split("/")[0] for file in FILES if file.endswith(".cpp") and file != PART}

    assert sorted(folders) == sorted(of_sources)


def test_a_source_includes_its_own_header_first() -> None:
    own = {file: file.replace(".cpp", ".hpp") for file in FILES if file.endswith(".cpp")}

    assert not [file for file in own if own[file] in FILES and included(file)[0] != own[file]]


def checked(compiler: str, folder: Path, prefix: str, files: list[str]) -> str:
    """Compile each file alone, after a prefix that is compiled once. Return the compiler's log."""
    folders = (RUNTIME, *OWN_FOLDERS, *toolkit_folders())
    options = ["-std=c++20", "-w", *(f"-I{one}" for one in folders)]
    start = folder / "start.hpp"
    start.write_text(prefix)
    units = [folder / f"{number}.cpp" for number in range(len(files))]
    for unit, file in zip(units, files, strict=True):
        unit.write_text(f'#include "{file}"\n')
    precompiled = ["-x", "c++-header", str(start), "-o", f"{start}.gch"]
    alone = ["-fsyntax-only", "-include", str(start), *map(str, units)]
    for arguments in (precompiled, alone):
        done = subprocess.run(
            [compiler, *options, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return done.stderr
    return ""


@pytest.mark.slow
def test_every_header_of_the_runtime_compiles_alone(compiler: str, tmp_path: Path) -> None:
    """Headers above the state include it, so it is compiled once for all of them."""
    headers = [file for file in FILES if file.endswith(".hpp")]
    state = LAYERS.index("state")
    low = [file for file in headers if LAYERS.index(file.split("/")[0]) <= state]
    language = sorted({name for file in FILES for name in LANGUAGE.findall(text_of(file))})
    for name in ("low", "high"):
        (tmp_path / name).mkdir()

    start = "".join(f"#include <{name}>\n" for name in language)
    assert not checked(compiler, tmp_path / "low", start, low)
    high = [file for file in headers if file not in low]
    assert not checked(compiler, tmp_path / "high", '#include "state/cluster.hpp"\n', high)


def test_no_file_of_the_runtime_is_long() -> None:
    assert not [file for file in FILES if len(text_of(file).splitlines()) > MOST_LINES]


def test_no_class_of_the_runtime_is_long() -> None:
    long = re.compile(
        rf"^(?:class|struct) \w+[^\n]*\{{\n(?:(?!\}};).*\n){{{MOST_LINES_OF_A_CLASS},}}",
        re.MULTILINE,
    )

    assert not [file for file in FILES if long.search(text_of(file))]
