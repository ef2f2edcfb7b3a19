"""Output of the commands: tables, and the option for one JSON document instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


def table(title: str | None, words: tuple[str, ...], numbers: tuple[str, ...] = ()) -> Table:
    """Return a plain table: columns of words on the left, of numbers on the right.

    On a narrow terminal words wrap and numbers do not. Without column names it has no header.
    """
    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE,
        collapse_padding=True,
        show_header=any((*words, *numbers)),
    )
    for column in words:
        made.add_column(column, overflow="fold")
    for column in numbers:
        made.add_column(column, justify="right", no_wrap=True)
    return made


def print_json(facts: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(facts))
