"""``check``: run the kernels of a script on the CPU with races searched, or translate a module."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from tmaasync._searched import searched
from tmaasync._source.program import Entry, entries_of
from tmaasync.cli._scripts import run_script, text_of
from tmaasync.cli._tables import AsJson, print_json
from tmaasync.emulate.frontend.ptx import module_code, target_of
from tmaasync.emulate.launch.observed import observe_launches
from tmaasync.errors import ArgumentError, CompileError
from tmaasync.kernel.source import source_of

_WANTED = "a Python script, or a .ptx module"


def check(
    file: Annotated[
        str, typer.Argument(metavar="SCRIPT.py|KERNEL.ptx", help="A Python script or PTX module.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the script; options after --."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a script's kernels on the CPU, and report races, deadlocks and illegal accesses.

    Kernels of Triton, Numba, CuTe DSL, tilelang and Warp run on the CPU too. A PTX module is
    translated, and nothing is launched.

    The exit code is 1 for an error, 2 if there is nothing to check.
    """
    is_module = Path(file).suffix == ".ptx"
    if is_module:
        verdicts, code = _of_module(file, arguments or []), 0
    else:
        verdicts, code = _of_script(file, arguments or [], quietly=as_json)
    if as_json:
        print_json({"file": file, "kernels": [asdict(one) for one in verdicts]})
    else:
        for one in verdicts:
            typer.echo(one.line())
    raise typer.Exit(1 if any(one.error for one in verdicts) else code)


# --- scripts ----------------------------------------------------------------------------------


@dataclass
class _Launched:
    """The launches of one kernel, the rules that it broke, and its first error."""

    name: str
    launches: int = 0
    notes: list[str] = field(default_factory=list)
    error: str | None = None

    def line(self) -> str:
        count = f"{self.launches} launch{'' if self.launches == 1 else 'es'}"
        notes = "".join(f"; note: {one}" for one in self.notes)
        error = "no error" if self.error is None else f"error: {self.error}"
        return f"{self.name}: {count}, {error}{notes}"


class _Verdicts(logging.Handler):
    """Collects launches, and the notes that they log, by kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, _Launched] = {}

    def launched(self, name: str, error: Exception | None) -> None:
        one = self.kernels.setdefault(name, _Launched(name))
        one.launches += 1
        if error is not None and one.error is None:
            one.error = _in_one_line(error, name)

    def emit(self, record: logging.LogRecord) -> None:
        name = getattr(record, "kernel", None)
        if name is not None:
            text = record.getMessage().removeprefix(f"tmaasync: {name}: ")
            self.kernels.setdefault(name, _Launched(name)).notes.append(text)


def _of_script(file: str, arguments: Sequence[str], *, quietly: bool) -> tuple[list[Any], int]:
    """Return a verdict for each kernel, and the exit code of the script."""
    verdicts = _Verdicts()
    with searched(text_of(file)), observe_launches(verdicts.launched), _logged_to(verdicts):
        code = run_script(Path(file), arguments, quietly=quietly, wanted=_WANTED)
    if not verdicts.kernels and not code:
        raise ArgumentError.broken(
            "file",
            f"{file!r}",
            "it launches no kernel on the CPU",
            "Pass a script that launches kernels on NumPy arrays or CPU tensors, in its own thread",
        )
    return [*verdicts.kernels.values()], code


@contextlib.contextmanager
def _logged_to(handler: logging.Handler) -> Iterator[None]:
    log = logging.getLogger("tmaasync")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _in_one_line(error: Exception, name: str) -> str:
    return " ".join(str(error).removeprefix(f"{name}: ").split())


# --- modules ----------------------------------------------------------------------------------


@dataclass
class _Translated:
    """One entry of a module: the types of its parameters, and why the CPU refuses it."""

    name: str
    parameters: list[str]
    error: str | None

    def line(self) -> str:
        error = "runs on the CPU" if self.error is None else f"error: {self.error}"
        return f"{self.name}({', '.join(self.parameters)}): {error}"


def _of_module(file: str, arguments: Sequence[str]) -> list[_Translated]:
    if arguments:
        raise ArgumentError.broken(
            "arguments", f"{' '.join(arguments)!r}", "a module takes none", "Leave them out"
        )
    source = source_of(Path(file))
    entries = entries_of(source.text, "", "", "") if source.is_ptx else {}
    if not entries:
        rule = "it is no PTX module with an .entry"
        raise ArgumentError.broken("file", f"{file!r}", rule, f"Pass {_WANTED}")
    return [
        _Translated(one.name, _types(one), _refusal(source.text, source.name, one.name))
        for one in entries.values()
    ]


def _types(entry: Entry) -> list[str]:
    return [
        f"b8[{one.size_bytes}]" if one.is_struct else f"{one.kind}{8 * one.size_bytes}"
        for one in entry.parameters
    ]


def _refusal(text: str, source: str, entry: str) -> str | None:
    """Return the first thing of an entry that the emulator lacks, with its line."""
    try:
        module_code(text, source, entry, target_of(text))
    except CompileError as error:
        return _in_one_line(error, entry)
    return None
