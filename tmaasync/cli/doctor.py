"""``doctor``: what will work on this machine, and what to do about the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.markup import escape

from tmaasync.cli import _probes
from tmaasync.cli._probes import TEST_KERNEL, Machine, Part
from tmaasync.cli._tables import AsJson, print_json, table

_GPU = ("driver", "device", "NVRTC", "driver and NVRTC")
_BUILD = ("tmaasync's headers", "CUDA's headers", "cache")
_ON_GPU, _ON_CPU = "run kernels on the GPU", "run kernels on the CPU"
_NEEDS = {
    "describe tiles, check and decode tensor maps": (),
    "compile kernels for the GPU": ("NVRTC", *_BUILD),
    _ON_GPU: (*_GPU, "GPU arrays", *_BUILD),
    "measure on the GPU (demo, bench, tune)": (*_GPU, "CuPy", *_BUILD),
    _ON_CPU: ("C++ compiler", *_BUILD, TEST_KERNEL),
    "draw timelines": ("matplotlib",),
}


@dataclass(frozen=True, slots=True)
class _Task:
    """A task of a user, and the parts that are missing for it."""

    name: str
    lacks: tuple[str, ...]


def doctor(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Say what works on this machine, why the rest does not, and what to do about that.

    Exits with 1 where kernels run neither on a GPU nor on the CPU.
    """
    parts = _probes.parts(ctx.ensure_object(Machine))
    tasks = [_Task(name, _lacking(needs, parts)) for name, needs in _NEEDS.items()]
    if as_json:
        print_json(
            {
                "parts": [dataclasses.asdict(part) for part in parts],
                "tasks": [
                    {"name": task.name, "works": not task.lacks, "lacks": task.lacks}
                    for task in tasks
                ],
            }
        )
    else:
        _show(Console(highlight=False), parts, tasks)
    if all(task.lacks for task in tasks if task.name in (_ON_GPU, _ON_CPU)):
        raise typer.Exit(1)


def _lacking(needs: Sequence[str], parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the parts that do not work; of several devices one is enough."""
    working = {_kind(part) for part in parts if part.works}
    failing = {_kind(part) for part in parts} - working
    return tuple(need for need in needs if need in failing)


def _kind(part: Part) -> str:
    return "device" if part.name.startswith("device") else part.name


def _show(console: Console, parts: Sequence[Part], tasks: Sequence[_Task]) -> None:
    found = table("Found", ("", "part", ""))
    for part in parts:
        found.add_row(_mark(part.works, part.is_needed), part.name, escape(part.found))
    console.print(found)
    works = table("What works", ("", "to", "lacks"))
    for task in tasks:
        works.add_row(_mark(not task.lacks), task.name, ", ".join(task.lacks))
    console.print(works)
    for part in parts:
        if part.remedy:
            console.print(f"{part.name}: {part.remedy}", markup=False, soft_wrap=True)


def _mark(works: bool, is_needed: bool = True) -> str:
    if works:
        return "[green]yes[/]"
    return "[red]no[/]" if is_needed else "-"
