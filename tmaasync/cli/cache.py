"""``cache``: files kept between processes, and their folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tmaasync._source.cache_folder import builds, cache_dir, leftovers, remove
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.ops._gemm.tuned import files as tuned_files


@dataclass(frozen=True, slots=True)
class _Kept:
    """Files of one kind; the files of their facts count as bytes only."""

    files: tuple[Path, ...]
    with_facts: bool = True

    @property
    def all_files(self) -> tuple[Path, ...]:
        facts = (path.with_suffix(".json") for path in self.files if self.with_facts)
        return (*self.files, *(path for path in facts if path.is_file()))

    @property
    def size_bytes(self) -> int:
        return sum(map(_size_bytes, self.all_files))


def cache(
    clear: Annotated[
        bool,
        typer.Option("--clear", help="Remove compiled files; tuned tile configs stay."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the folder and size of compiled kernels, emulator libraries and tuned tile configs."""
    folder = cache_dir()
    compiled = {
        "kernels for the GPU": _Kept(tuple(builds(folder, ".cubin"))),
        "libraries of the emulator": _Kept(
            tuple(path for suffix in (".so", ".o", ".gch") for path in builds(folder, suffix))
        ),
    }
    if clear:
        for path in leftovers(folder):
            remove(path)
        _clear(tuple(compiled.values()), as_json)
        return
    kept = {
        **compiled,
        "tuned tile configs, by GPU": _Kept(tuned_files(), with_facts=False),
    }
    if as_json:
        rows = [
            {"what": what, "files": len(of.files), "bytes": of.size_bytes}
            for what, of in kept.items()
        ]
        print_json({"folder": str(folder), "kept": rows})
        return
    made = table(None, ("what",), ("files", "size"))
    for what, of in kept.items():
        made.add_row(what, str(len(of.files)), f"{of.size_bytes / 2**20:.1f} MiB")
    typer.echo(folder)
    Console(highlight=False).print(made)


def _size_bytes(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # another process removed it
        return 0


def _clear(compiled: Sequence[_Kept], as_json: bool) -> None:
    files, size = (
        sum(len(of.files) for of in compiled),
        sum(of.size_bytes for of in compiled),
    )
    for path in (path for of in compiled for path in of.all_files):
        remove(path)
    if as_json:
        print_json({"removed": files, "bytes": size})
    else:
        typer.echo(f"{files} file{'' if files == 1 else 's'} removed, {size / 2**20:.1f} MiB.")
