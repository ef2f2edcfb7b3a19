"""Device headers include only lower layers, and never themselves through others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tmaasync._source.paths import include_dir

# The headers that only include others.
DOORS = {"tmaasync.cuh", "structured.cuh", "attention.cuh", "tensor_memory.cuh"}
PRIMITIVES = "."
# The folders of tmaasync/, each with those that it may include. All may include their own folder.
BELOW = {
    "operands": set[str](),
    "ptx": {"operands"},
    "instrument": {"operands", "ptx"},
    PRIMITIVES: {"operands", "ptx", "instrument"},
    "copy": {"operands", "ptx", PRIMITIVES},
    "structured": {"operands", "ptx", PRIMITIVES},
    "attention": {"operands", "ptx", PRIMITIVES, "structured"},
    "tensor_memory": {"operands", "ptx", PRIMITIVES, "structured"},
}
ROOT = include_dir() / "tmaasync"
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.rglob("*.cuh")}


def included_by(text: str) -> set[str]:
    return set(re.findall(r"#include <tmaasync/([^>]+)>", text))


def folder_of(header: str) -> str:
    return str(Path(header).parent)


def upward(texts: Mapping[str, str]) -> list[str]:
    """The includes that point to a header of the same or a higher layer."""
    return [
        f"{header} includes {other}"
        for header, text in texts.items()
        if header not in DOORS
        for other in sorted(included_by(text))
        if other in DOORS or folder_of(other) not in BELOW[folder_of(header)] | {folder_of(header)}
    ]


def test_every_folder_of_headers_has_its_layer() -> None:
    assert {folder_of(header) for header in TEXTS} == set(BELOW)


def test_headers_include_lower_layers_alone() -> None:
    assert upward(TEXTS) == []


@pytest.mark.parametrize(
    ("header", "other"),
    [
        ("barrier.cuh", "structured/ring.cuh"),
        ("structured/ring.cuh", "attention/softmax.cuh"),
        ("structured/ring.cuh", "structured.cuh"),
        ("copy/copy.cuh", "structured/ring.cuh"),
        ("ptx/mbarrier.cuh", "barrier.cuh"),
    ],
)
def test_an_include_of_a_higher_layer_is_found(header: str, other: str) -> None:
    texts = {**TEXTS, header: f"{TEXTS[header]}#include <tmaasync/{other}>\n"}

    assert upward(texts) == [f"{header} includes {other}"]


def test_no_header_includes_itself_through_others() -> None:
    graph = {header: included_by(text) for header, text in TEXTS.items()}
    sorter = TopologicalSorter(graph)

    sorter.prepare()

    with pytest.raises(CycleError):
        TopologicalSorter(
            {**graph, "warp.cuh": {"tile.cuh", "barrier.cuh"}, "check.cuh": {"warp.cuh"}}
        ).prepare()


def test_a_door_includes_other_headers_and_declares_nothing() -> None:
    for door in DOORS:
        lines = re.sub(r"//.*", "", TEXTS[door]).split("\n")
        assert {line for line in lines if line and not line.startswith("#include <tmaasync/")} == {
            "#pragma once"
        }


@pytest.mark.parametrize("folder", ["structured", "attention", "tensor_memory"])
def test_the_door_of_a_folder_includes_all_of_it(folder: str) -> None:
    inside = {header for header in TEXTS if folder_of(header) == folder}

    assert inside <= included_by(TEXTS[f"{folder}.cuh"])
