"""``tune``: measure the fastest tile config of `ops.matmul` for a GEMM, and keep it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tmaasync._elements import element
from tmaasync.cli._gpu import why_not
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError
from tmaasync.ops._gemm import tuned
from tmaasync.ops._gemm.config import TileConfig
from tmaasync.ops._gemm.tuned import Winner
from tmaasync.ops._tuning import DeviceGemm, Request, steps
from tmaasync.ops._tuning import tune as fastest


def tune(
    sides: Annotated[
        list[int] | None, typer.Argument(metavar="M N K", help="The sides of A [M, K] @ B [K, N].")
    ] = None,
    dtype: Annotated[str, typer.Option(help="bf16 or fp16.")] = "bfloat16",
    layout: Annotated[
        str, typer.Option(help="For A and B: n as written, t stored transposed; nt is A @ B.T.")
    ] = "nt",
    file: Annotated[
        Path | None, typer.Option(help="Lines of M N K, and dtype and layout where they differ.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the tile configs kept.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Delete the tile configs kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the candidate tile configs of GEMMs on this GPU and keep the fastest.

    ops.matmul takes it from then on, in new processes, for the same shapes, types and layouts.
    """
    console = Console(highlight=False)
    if clear:
        _clear(console, as_json)
    elif show:
        _show(console, as_json)
    else:
        requests = list(_requests(sides or [], dtype, layout, file))
        if (reason := why_not()) is not None:
            typer.echo(f"error: there is nothing to measure on: {reason}.", err=True)
            raise typer.Exit(2)
        _measure(console, requests, as_json)


# --- requests ----------------------------------------------------------------------------


def _requests(
    sides: Sequence[int], dtype: str, layout: str, file: Path | None
) -> Iterator[Request]:
    if file is not None and not sides:
        lines = _lines(file)
    elif file is None and len(sides) == 3:
        lines = [" ".join(map(str, sides))]
    else:
        raise ArgumentError.broken(
            f"{len(sides)} sides",
            f"given{(' and a file' if file else '')}",
            "a GEMM has three",
            "Pass M N K, or --file",
            verb="are",
        )
    for line in lines:
        yield _request(line.split(), dtype, layout)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError.broken(
            "file", file, f"it cannot be read ({error})", "Pass another"
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    found = [line for line in lines if line]
    if not found:
        raise ArgumentError.broken(
            "file", file, "it has no line of M N K", "Write one for each GEMM"
        )
    return found


def _request(words: Sequence[str], dtype: str, layout: str) -> Request:
    try:
        m, n, k = map(int, words[:3])
        kind, order = (*words[3:], *(dtype, layout)[len(words[3:]) :])
        request = Request(m, n, k, element(kind).name, order)
    except ValueError:
        raise ArgumentError.broken(
            "a line",
            f"{' '.join(words)!r}",
            "it must be three integers, and may end in a type and a layout",
            "Write 4096 4096 4096 bfloat16 nt",
        ) from None
    request.check()
    return request


# --- commands ---------------------------------------------------------------------------------


def _measure(console: Console, requests: Sequence[Request], as_json: bool) -> None:
    winners: list[Winner] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        whole = progress.add_task("GEMMs", total=len(requests))
        for request in requests:
            gemm = DeviceGemm(request)
            task = progress.add_task(_name(request), total=steps(gemm))
            winners.append(fastest(gemm, lambda task=task: progress.advance(task)))  # type: ignore[misc]
            # Kept one by one: an interrupt loses only the rest.
            path = tuned.keep(gemm.gpu, winners[-1:])
            progress.remove_task(task)
            progress.advance(whole)
    if as_json:
        gemms = [
            {**request._asdict(), **_facts(winner)}
            for request, winner in zip(requests, winners, strict=True)
        ]
        print_json({"gpu": gemm.gpu, "file": str(path), "gemms": gemms})
        return
    shown = _winners(gemm.gpu, "GEMM")
    for request, winner in zip(requests, winners, strict=True):
        shown.add_row(_name(request), *_cells(winner))
    console.print(shown)
    console.print(f"Kept in {path}.", soft_wrap=True)


def _show(console: Console, as_json: bool) -> None:
    winners, ignored = tuned.kept()
    if as_json:
        facts = {
            gpu: [{"problem": winner.problem._asdict(), **_facts(winner)} for winner in of_gpu]
            for gpu, of_gpu in winners.items()
        }
        print_json({"gpus": facts, "ignored": ignored})
        return
    for gpu, of_gpu in winners.items():
        shown = _winners(gpu, "GEMM of the kernel")
        for winner in of_gpu:
            shown.add_row(_problem_name(winner), *_cells(winner))
        console.print(shown)
    for name, reason in ignored.items():
        console.print(f"{name} is ignored: {reason}.", soft_wrap=True)
    if not winners and not ignored:
        console.print("Nothing is kept; run tmaasync tune M N K.")


def _clear(console: Console, as_json: bool) -> None:
    files = tuned.clear()
    if as_json:
        print_json({"files": files})
    else:
        console.print(f"{files} file{'' if files == 1 else 's'} removed.")


# --- output -----------------------------------------------------------------------------------


def _winners(title: str, first: str) -> Table:
    return table(title, (first, "fastest tile config"), ("time", "model's", "gain"))


def _name(request: Request) -> str:
    return f"{request.m} {request.n} {request.k} {request.dtype} {request.layout}"


def _problem_name(winner: Winner) -> str:
    problem = winner.problem
    return f"{problem.m} {problem.n} {problem.k} {problem.operands} {problem.layout}"


def _cells(winner: Winner) -> tuple[str, ...]:
    return (
        _config_name(winner.config),
        f"{winner.microseconds:.1f} us",
        f"{winner.default_microseconds:.1f} us",
        f"{100 * (winner.gain - 1):.1f} %",
    )


def _config_name(config: TileConfig) -> str:
    side = " side by side" if config.side_by_side else ""
    pairs = f", pairs{side}" if config.cluster == 2 else ""
    split = f", split-K {config.split_k}" if config.split_k > 1 else ""
    split += " over the grid" if config.over_grid else ""
    form = ", ping-pong" if config.ping_pong else ""
    size = f"{config.block_m}x{config.block_n}"
    return f"{size}{pairs}{split}{form}, groups of {config.group_m}"


def _facts(winner: Winner) -> dict[str, Any]:
    facts = dataclasses.asdict(winner)
    config = facts.pop("config")
    del facts["problem"]
    chosen = {name: config[name] for name in tuned.CHOSEN}
    return {"tile_config": chosen, **facts, "gain": winner.gain}
