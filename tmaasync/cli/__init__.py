"""The command line: ``python -m tmaasync COMMAND``. Each command is a module of the same name."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import tmaasync
from tmaasync.cli.demo import demo
from tmaasync.cli.lint import lint
from tmaasync.cli.tune import tune
from tmaasync.errors import TMAError

__all__ = ["app", "main"]


class _Commands(TyperGroup):
    """Says what went wrong in the error's own words, without a traceback, and exits with 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TMAError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tmaasync {tmaasync.__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Python for the Tensor Memory Accelerator of NVIDIA Hopper GPUs."""


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False)
app.callback()(_options)
app.command()(demo)
app.command()(lint)
app.command()(tune)


def main() -> None:
    """Run the command that the arguments name."""
    app(prog_name="tmaasync")
