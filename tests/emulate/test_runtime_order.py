"""The runtime's folders form an order, its headers have no cycle, and its files stay small."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import TopologicalSorter

from tmaasync.emulate.include_path import EMULATOR_DIR
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
    "verify",
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


def test_no_header_of_the_runtime_includes_itself_by_way_of_others() -> None:
    headers = {file: included(file) for file in FILES if file.endswith(".hpp")}

    assert len([*TopologicalSorter(headers).static_order()]) == len(headers)


def test_every_source_of_the_runtime_belongs_to_one_translation_unit() -> None:
    folders = [folder for unit in UNITS for folder in unit]
    of_sources = {file.split("/")[0] for file in FILES if file.endswith(".cpp") and file != PART}

    assert sorted(folders) == sorted(of_sources)


def test_no_file_of_the_runtime_is_long() -> None:
    assert not [file for file in FILES if len(text_of(file).splitlines()) > MOST_LINES]


def test_no_class_of_the_runtime_is_long() -> None:
    long = re.compile(
        rf"^(?:class|struct) \w+[^\n]*\{{\n(?:(?!\}};).*\n){{{MOST_LINES_OF_A_CLASS},}}",
        re.MULTILINE,
    )

    assert not [file for file in FILES if long.search(text_of(file))]
