"""``swizzle``: the shared-memory layout of a swizzled tile, and its bank conflicts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tmaasync import _driver
from tmaasync._elements import element
from tmaasync._hardware import MAX_SHARED_BYTES, SHARED_LINE_BYTES, SWIZZLE_CHUNK_BYTES
from tmaasync.cli._chunk_pictures import BANK_NAMES, COLOURS, Picture, save_png
from tmaasync.cli._chunk_pictures import svg as svg_of
from tmaasync.cli._chunks import CHUNKS_PER_LINE, Access, Chunk, Cost, Layout
from tmaasync.cli._gpu import why_not
from tmaasync.cli._swizzle_probe import Load, found_offsets, load_on_emulator, load_on_gpu
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError
from tmaasync.modes import Swizzle

_MATRIX_ROWS = 8
_LINES_SHOWN = 64
_MISPLACED_SHOWN = 32
_WORDS = {
    Access.ROW: "32 lanes read 16 bytes each along the rows",
    Access.ROW_ELEMENTS: "32 lanes read an element each along the rows",
    Access.COLUMN: "32 lanes read an element each down a column",
    Access.COLUMN_CHUNKS: "32 lanes read 16 bytes each, in 32 rows",
    Access.LDMATRIX: "ldmatrix reads four matrices of eight rows of 16 bytes",
    Access.CORE_MATRIX: "a core matrix of wgmma is eight rows of 16 bytes",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevices:
    """The devices that ``--probe`` loads a tile on: by default device 0 and the emulator.

    Attributes:
        why_no_gpu: The reason why there is no GPU to probe; None where there is one.
        gpu_name: The name of the GPU.
        load_on_gpu: Loads a tile there.
        load_on_emulator: Loads it on the emulator.
    """

    why_no_gpu: Callable[[], str | None] = why_not
    gpu_name: Callable[[], str] = lambda: _driver.device_limits(0).name
    load_on_gpu: Load = load_on_gpu
    load_on_emulator: Load = load_on_emulator


def swizzle(  # noqa: PLR0913 - the tile, the access, and where to draw
    ctx: typer.Context,
    mode_name: Annotated[str, typer.Option("--mode", help="none, 32B, 64B or 128B.")] = "128B",
    dtype: Annotated[str, typer.Option(help="Element type, as in bf16, fp16 or e4m3.")] = "float16",
    rows: Annotated[int, typer.Option(help="Rows of the tile.")] = 8,
    columns: Annotated[
        int | None, typer.Option(help="Elements of a row; by default one span of the swizzle.")
    ] = None,
    access: Annotated[Access, typer.Option(help="How a warp reads the tile.")] = Access.LDMATRIX,
    svg: Annotated[Path | None, typer.Option(help="Write the picture to this .svg file.")] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write it to this .png file; needs matplotlib.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Load the tile on the GPU and compare its layout.")
    ] = False,
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Probe the emulator instead of the GPU.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Draw where each 16-byte chunk of a tile lands in shared memory, and count bank conflicts."""
    if emulate and not probe:
        raise ArgumentError.broken(
            "--emulate", "set", "it chooses where to probe", "Pass --probe too"
        )
    layout = _layout(Swizzle.of(mode_name, "mode"), element(dtype).itemsize, rows, columns)
    if access.by_matrices and rows % _MATRIX_ROWS:
        raise ArgumentError.broken(
            "rows",
            rows,
            f"{access} reads eight at a time",
            "Pass a multiple of 8, or another --access",
        )
    chunks, cost = list(layout.chunks()), layout.cost(access)
    picture = _picture(layout, chunks, access)
    devices = ctx.ensure_object(ProbedDevices)
    probed = _probe(layout, chunks, devices, emulate=emulate) if probe else None
    files = _save(picture, svg, png)
    if as_json:
        report = _facts(layout, chunks, access, cost) | {"files": files}
        print_json(report if probed is None else report | {"probe": dataclasses.asdict(probed)})
    else:
        _show(picture, access, cost)
        if probed is not None:
            _show_probed(probed)
        for file in files:
            typer.echo(f"Written: {file}")
    if probed is not None and probed.wrong:
        raise typer.Exit(1)


def _picture(layout: Layout, chunks: Sequence[Chunk], access: Access) -> Picture:
    first = {offset // SWIZZLE_CHUNK_BYTES for offset in next(layout.accesses(access))}
    return Picture(
        chunks,
        {chunk for chunk in chunks if chunk.offset // SWIZZLE_CHUNK_BYTES in first},
        f"Swizzle {layout.swizzle.short_name}: {layout.rows} x {layout.columns} elements of "
        f"{layout.itemsize} bytes in shared memory",
        "a cell is row.chunk: 16 bytes in four banks; framed: read by the first access",
    )


def _layout(swizzle: Swizzle, itemsize: int, rows: int, columns: int | None) -> Layout:
    is_plain = swizzle is Swizzle.NONE
    span = SWIZZLE_CHUNK_BYTES if is_plain else swizzle.span_bytes
    wanted = (SHARED_LINE_BYTES if is_plain else span) // itemsize if columns is None else columns
    if wanted < 1 or wanted * itemsize % span:
        rule = f"rows must be a multiple of {span} bytes with {swizzle}"
        remedy = f"Pass a multiple of {span // itemsize}"
        raise ArgumentError.broken("columns", wanted, rule, remedy)
    if rows < 1 or rows * wanted * itemsize > MAX_SHARED_BYTES:
        rule = f"a tile has at least one, and at most {MAX_SHARED_BYTES} bytes"
        remedy = f"Pass 1 to {max(MAX_SHARED_BYTES // (wanted * itemsize), 1)}"
        raise ArgumentError.broken("rows", rows, rule, remedy)
    return Layout(rows, wanted, itemsize, swizzle)


# --- probe ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Misplaced:
    """A chunk, its offset in the drawing, and its offset found: None for none or several."""

    row: int
    number: int
    offset: int
    found: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Probed:
    """Result of the probe: the device, the number of chunks, and those at other offsets."""

    on: str
    chunks: int
    wrong: tuple[_Misplaced, ...]


def _probe(
    layout: Layout, chunks: Sequence[Chunk], devices: ProbedDevices, *, emulate: bool
) -> _Probed:
    if not emulate and (reason := devices.why_no_gpu()) is not None:
        typer.echo(
            f"error: there is nothing to probe: {reason}. Pass --emulate for the emulator.",
            err=True,
        )
        raise typer.Exit(2)
    load = devices.load_on_emulator if emulate else devices.load_on_gpu
    found = found_offsets(layout, load)
    wrong = tuple(
        _Misplaced(chunk.row, chunk.number, chunk.offset, offset)
        for chunk, offset in zip(chunks, found, strict=True)
        if chunk.offset != offset
    )
    where = "the emulator" if emulate else devices.gpu_name()
    return _Probed(where, len(found), wrong)


def _show_probed(probed: _Probed) -> None:
    right = probed.chunks - len(probed.wrong)
    typer.echo(f"On {probed.on} {right} of {probed.chunks} chunks lie where they are drawn.")
    if not probed.wrong:
        return
    shown = table("Elsewhere", ("row.chunk",), ("drawn at byte", "found at byte"))
    for one in probed.wrong[:_MISPLACED_SHOWN]:
        found = "-" if one.found is None else str(one.found)
        shown.add_row(f"{one.row}.{one.number}", str(one.offset), found)
    Console(highlight=False).print(shown)
    if len(probed.wrong) > _MISPLACED_SHOWN:
        typer.echo(f"... and {len(probed.wrong) - _MISPLACED_SHOWN} more; --json has all")


# --- output -----------------------------------------------------------------------------------


def _facts(layout: Layout, chunks: Sequence[Chunk], access: Access, cost: Cost) -> dict[str, Any]:
    return {
        "mode": layout.swizzle.name,
        "rows": layout.rows,
        "columns": layout.columns,
        "itemsize": layout.itemsize,
        "smem_alignment": layout.swizzle.alignment,
        "chunks": [dataclasses.asdict(chunk) for chunk in chunks],
        "access": {"pattern": access, **dataclasses.asdict(cost)},
    }


def _show(picture: Picture, access: Access, cost: Cost) -> None:
    console = Console(highlight=False)
    typer.echo(picture.title)
    typer.echo("cell: row.chunk, 16 bytes in four banks; * is read by the first access")
    by_position = {(chunk.line, chunk.column): chunk for chunk in picture.chunks}
    width = max(5, *(1 + len(chunk.name) for chunk in picture.chunks))
    banks = "".join(f" {banks:<{width}} " for banks in BANK_NAMES)
    console.print(f"{'bank':>7} {banks}", soft_wrap=True)
    for line in range(min(picture.lines, _LINES_SHOWN)):
        drawn = Text(f"{line * SHARED_LINE_BYTES:>7} ")
        for column in range(CHUNKS_PER_LINE):
            drawn.append_text(_cell(by_position.get((line, column)), picture.marked, width))
        console.print(drawn, soft_wrap=True)
    if picture.lines > _LINES_SHOWN:
        typer.echo(f"    ... {picture.lines - _LINES_SHOWN} lines more; --svg draws all")
    typer.echo(f"{_WORDS[access]}:")
    typer.echo(
        f"{cost.accesses} accesses read the tile in {cost.passes} passes over the banks, "
        f"{cost.conflicts} of them for conflicts (at most {cost.worst} in one access)."
    )


def _cell(chunk: Chunk | None, marked: Collection[Chunk], width: int) -> Text:
    if chunk is None:
        return Text(" " * (width + 2))
    name = f"{chunk.name}{'*' if chunk in marked else ''}"
    return Text(f" {name:<{width}} ", style=f"black on {COLOURS[chunk.number % len(COLOURS)]}")


def _save(picture: Picture, svg_path: Path | None, png_path: Path | None) -> list[str]:
    try:
        if svg_path is not None:
            svg_path.write_text(svg_of(picture), encoding="utf-8")
        if png_path is not None:
            save_png(png_path, picture)
    except OSError as error:
        raise ArgumentError(
            f"the picture cannot be written ({error}). Pass a file in a folder that exists."
        ) from None
    return [str(path) for path in (svg_path, png_path) if path is not None]
