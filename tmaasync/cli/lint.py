"""``lint``: what a kernel's PTX and its compiler's log give away, with no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tmaasync.errors import ArgumentError, TMAError
from tmaasync.kernel.source import arch_for, source_of
from tmaasync.lint import Finding, check

__all__ = ["lint"]


def lint(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .cu file, or a shipped kernel.")],
    entry: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one __global__ function to look at.")
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="NAME=C++", help="A type that the source leaves open."),
    ] = None,
    constants: Annotated[
        list[str] | None,
        typer.Option("--constant", metavar="NAME=VALUE", help="A constant that it leaves open."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document instead of sentences.")
    ] = False,
) -> None:
    """Compile a CUDA source and look for mistakes with TMA that no compiler reports.

    Exits with 0 where there are none, with 1 where there are, with 2 where it cannot look.
    """
    try:
        found = _check(file, entry, types or [], constants or [])
    except TMAError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps({"file": file, "findings": [_facts(one) for one in found]}))
    else:
        for one in found:
            typer.echo(str(one))
        typer.echo(f"{len(found)} finding{'' if len(found) == 1 else 's'} in {file}.")
    if found:
        raise typer.Exit(1)


def _check(
    file: str, entry: str | None, types: Iterable[str], constants: Iterable[str]
) -> list[Finding]:
    try:
        source = source_of(
            Path(file),
            types=dict(_pair("type", one) for one in types),
            constants={
                name: _number(name, text)
                for name, text in (_pair("constant", one) for one in constants)
            },
        )
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"file is {file}; it cannot be read ({error}). Pass another.") from None
    return check(source, arch_for(source, (9, 0)), entry)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ArgumentError(
            f"--{option} is {text!r}; it must be NAME=VALUE. Write one equals sign."
        )
    return name.strip(), value.strip()


def _number(name: str, text: str) -> bool | int | float:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(
            f"--constant {name} is {text!r}; it must be true, false or a number. Pass other "
            "things through --type."
        ) from None


def _facts(finding: Finding) -> dict[str, Any]:
    facts = asdict(finding)
    place = facts.pop("place") or {"file": None, "line": None}
    return {**place, **facts}
