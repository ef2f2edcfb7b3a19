"""The command line: ``python -m tmaasync COMMAND``. Each command is a module of the same name."""

from __future__ import annotations

import io
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import tmaasync
from tmaasync.cli._wording import in_options
from tmaasync.cli.bench import bench
from tmaasync.cli.cache import cache
from tmaasync.cli.check import check
from tmaasync.cli.decode import decode
from tmaasync.cli.demo import demo
from tmaasync.cli.doctor import doctor
from tmaasync.cli.explain import explain
from tmaasync.cli.include import include
from tmaasync.cli.lint import lint
from tmaasync.cli.new import new
from tmaasync.cli.plan import plan
from tmaasync.cli.swizzle import swizzle
from tmaasync.cli.trace import trace
from tmaasync.cli.tune import tune
from tmaasync.cli.verify import verify
from tmaasync.errors import ArgumentError, ArrayTypeError, TMAError

__all__ = ["app", "main"]


# An unknown option, a missing argument, a word for a number. Typer hands it on under no name: it is
# click's own class, or the class of typer's copy of click.
_UsageError: Any = typer.BadParameter.__base__


class _Commands(TyperGroup):
    """Prints an error's message without a traceback, its remedies in options of the command.

    It exits with 2 for bad input, and with 1 where this machine lacks something.
    """

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types_of_flags(command.get_params(ctx))
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TMAError as error:
            is_input = isinstance(error, ArgumentError | ArrayTypeError)
            command = self.commands[ctx.invoked_subcommand]
            sentence = in_options(str(error), [str(one.name) for one in command.params])
            raise _failed(sentence, 2 if is_input else 1) from None
        except _UsageError as error:
            # Typer's words for a value that is not in an enum begin with the name of an exception.
            raise _failed(error.format_message().replace("Value error, ", ""), 2) from None


def _without_types_of_flags(options: list[Any]) -> list[Any]:
    """Let the help of a flag such as ``--json``, which takes no value, show no type."""
    for one in options:
        if getattr(one, "is_flag", False) and one.metavar is None:
            one.metavar = ""
    return options


def _failed(sentence: str, code: int) -> typer.Exit:
    typer.echo(f"error: {sentence}", err=True)
    return typer.Exit(code)


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
for _command in (
    doctor,
    demo,
    new,
    decode,
    explain,
    lint,
    check,
    verify,
    plan,
    swizzle,
    trace,
    tune,
    bench,
    cache,
    include,
):
    app.command()(_command)


def main() -> None:
    """Run the command that the arguments name."""
    for output in (sys.stdout, sys.stderr):
        # Where the locale lacks a character, such as a line of a table, a "?" stands for it.
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")
    app(prog_name="tmaasync")
