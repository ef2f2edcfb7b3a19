"""``lint``: what the assembler reports of kernels, by source line, with no GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from tmaasync._source.compile import Source
from tmaasync.cli._scripts import run_script
from tmaasync.cli._shipped_kernels import is_shipped, kernels_of
from tmaasync.errors import ArgumentError, CompileError, TMAError
from tmaasync.kernel.observed import SeenKernel, observe
from tmaasync.kernel.source import arch_without_device, source_of
from tmaasync.lint import Finding, check


def lint(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.cu|SCRIPT.py",
            help="A CUDA source, a shipped one such as gemm.cu, or a script that builds kernels.",
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the script; options after --."),
    ] = None,
    entry: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check only this __global__ function.")
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
    """Report lost speed, spills and impossible claims of registers, by source line.

    A script runs on the CPU, and every kernel that it builds is checked.

    A shipped source has the types and constants of the operations by default.

    The exit code is 0 without findings, 1 with findings, 2 if it cannot check.
    """
    try:
        job = _job(file, arguments or [], _names("type", types), _names("constant", constants))
        job = job.only(file, entry)
        found = _findings(job)
    except CompileError as error:
        raise _failed(_in_options(error)) from None
    except TMAError as error:
        raise _failed(str(error)) from None
    if as_json:
        typer.echo(json.dumps(_document(file, job, found)))
    else:
        _show(file, job, found)
    if job.exit_code or found:
        raise typer.Exit(2 if job.exit_code else 1)


class _Compiled(NamedTuple):
    """A source for one architecture, and the function to check; None for all."""

    source: Source
    arch: str
    entry: str | None


class _Job(NamedTuple):
    """The kernels to check, whether each is known by name, and the exit code of the script."""

    compiled: tuple[_Compiled, ...]
    are_named: bool = False
    exit_code: int = 0

    def only(self, file: str, entry: str | None) -> _Job:
        """Return the job for one function.

        Raises:
            ArgumentError: No kernel has this name.
        """
        if entry is None:
            return self
        if not self.are_named:
            return self._replace(compiled=tuple(one._replace(entry=entry) for one in self.compiled))
        chosen = tuple(one for one in self.compiled if one.entry == entry)
        if not chosen:
            known = ", ".join(dict.fromkeys(str(one.entry) for one in self.compiled))
            raise ArgumentError.broken(
                "--entry", f"{entry!r}", f"{file} builds no kernel of that name", f"It has: {known}"
            )
        return self._replace(compiled=chosen)


# --- subjects ---------------------------------------------------------------------------------


def _job(
    file: str, arguments: Sequence[str], types: Mapping[str, str], constants: Mapping[str, str]
) -> _Job:
    is_script = Path(file).suffix.lower() == ".py"
    if arguments and not is_script:
        raise ArgumentError.broken(
            "arguments",
            repr(" ".join(arguments)),
            f"{file} is no script, and takes none",
            "Leave them out",
            verb="are",
        )
    if is_script:
        return _of_script(file, arguments)
    if is_shipped(file) and not types and not constants:
        return _Job(tuple(map(_compiled, kernels_of(file))), are_named=True)
    return _of_source(file, types, constants)


def _of_script(file: str, arguments: Sequence[str]) -> _Job:
    with observe() as observer:
        code = run_script(Path(file), arguments, quietly=True, wanted="a Python script")
    if not observer.kernels:
        why = f"it ended with exit code {code}" if code else "it ended"
        raise ArgumentError.broken(
            "file", f"{file!r}", f"{why} without a Kernel", "Pass a script that builds one"
        )
    return _Job(tuple(map(_compiled, observer.kernels)), are_named=True, exit_code=code)


def _compiled(kernel: SeenKernel) -> _Compiled:
    return _Compiled(kernel.source, kernel.arch or arch_without_device(kernel.source), kernel.name)


def _of_source(file: str, types: Mapping[str, str], constants: Mapping[str, str]) -> _Job:
    numbers = {name: _number(name, text) for name, text in constants.items()}
    try:
        source = source_of(Path(file), types=types, constants=numbers)
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError.broken(
            "file", file, f"it cannot be read ({error})", "Pass another"
        ) from None
    return _Job((_Compiled(source, arch_without_device(source), None),))


def _names(option: str, given: Sequence[str] | None) -> dict[str, str]:
    return dict(_pair(option, one) for one in given or ())


def _pair(option: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip():
        raise ArgumentError.broken(
            f"--{option}", f"{text!r}", "it must be NAME=VALUE", "Write one equals sign"
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
        raise ArgumentError.broken(
            f"--constant {name}",
            f"{text!r}",
            "it must be true, false or a number",
            "Pass other things through --type",
        ) from None


# --- findings ---------------------------------------------------------------------------------


def _findings(job: _Job) -> list[Finding]:
    """Return the findings of all kernels; tile configs of one source share most of theirs."""
    kernels = track(
        job.compiled,
        "compiling",
        console=Console(stderr=True),
        transient=True,
        disable=len(job.compiled) == 1,
    )
    return [*dict.fromkeys(found for one in kernels for found in check(*one))]


def _failed(sentence: str) -> typer.Exit:
    typer.echo(f"error: {sentence}", err=True)
    return typer.Exit(2)


def _in_options(error: CompileError) -> str:
    """Return the message; for names that the source leaves open, the options that give them."""
    if not error.undefined:
        return str(error)
    lines = [line for line in error.log.splitlines() if "is undefined" in line]
    first = str(error).partition("\n")[0].rstrip(":")
    sentence = (
        f"{first}; the source does not define {', '.join(error.undefined)}. Pass --type NAME=C++ "
        "or --constant NAME=VALUE for each, or lint the script that builds the kernel: "
        "tmaasync lint SCRIPT.py."
    )
    return "\n".join((sentence, *dict.fromkeys(lines)))


def _show(file: str, job: _Job, found: Sequence[Finding]) -> None:
    for one in found:
        typer.echo(str(one))
    number = len(job.compiled)
    kernels = f"{number} kernel{'' if number == 1 else 's'} of " if job.are_named else ""
    typer.echo(f"{len(found)} finding{'' if len(found) == 1 else 's'} in {kernels}{file}.")
    if job.exit_code:
        typer.echo(
            f"error: {file} ended with exit code {job.exit_code}; only kernels built before are "
            "checked.",
            err=True,
        )


def _document(file: str, job: _Job, found: Sequence[Finding]) -> dict[str, Any]:
    kernels = [{"source": one.source.name, "entry": one.entry} for one in job.compiled]
    return {
        "file": file,
        **({"kernels": kernels} if job.are_named else {}),
        "findings": [_facts(one) for one in found],
    }


def _facts(finding: Finding) -> dict[str, Any]:
    facts = asdict(finding)
    line = facts.pop("location") or {"file": None, "line": None}
    return {**line, **facts}
