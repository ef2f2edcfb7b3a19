"""``trace``: which warps wait on which, in the launches of a script or in a saved trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tmaasync import trace as traces
from tmaasync.cli._arguments import integers
from tmaasync.cli._scripts import run_script
from tmaasync.cli._tables import AsJson, print_json, table
from tmaasync.errors import ArgumentError, BackendError
from tmaasync.trace import Collector, Role, Share, Summary, Trace
from tmaasync.trace.lanes import warp_names
from tmaasync.trace.plot import check_target

_BLOCKS = 8
_WANTED = "a Python script, or a file that --save wrote"
_NOTES = 4096
_LAUNCHES_SHOWN = 20


def trace(  # noqa: PLR0913 - what a user may ask for
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SCRIPT.py|TRACE.json", help="A Python script, or a file that --save wrote."
        ),
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENTS]...", help="Arguments of the script; options after --."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the timeline of one CTA, or of one on each of several devices: warps and "
            "pipeline stages, as a .png or .svg file."
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Write a .json file for https://ui.perfetto.dev, which this command reads too."
        ),
    ] = None,
    launch: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="The launch to print; by default the longest."),
    ] = None,
    block: Annotated[
        str | None, typer.Option(metavar="X,Y,Z", help="The CTA of that launch that --plot draws.")
    ] = None,
    between: Annotated[
        str | None, typer.Option(metavar="BEGIN,END", help="The time span that --plot draws.")
    ] = None,
    blocks: Annotated[
        int, typer.Option(metavar="COUNT", help="CTAs of a launch in the file of --save.")
    ] = _BLOCKS,
    notes: Annotated[
        int, typer.Option(metavar="COUNT", help="Notes kept of each warp on a GPU.")
    ] = _NOTES,
    as_json: AsJson = False,
) -> None:
    """Run a Python script and report which warps wait on which, per launch, and for how long.

    Launches on NumPy arrays run on the CPU, others on the GPU.
    """
    picture = _Picture.of(plot, block, between)
    kept, code = _launches(Path(subject), arguments or [], notes, quietly=as_json)
    if code and not len(kept):
        raise typer.Exit(code)
    number = _chosen(subject, kept, launch)
    summaries = {index: one.summary() for index, one in enumerate(kept.launches) if len(one)}
    if save is not None:
        _write("--save", save, lambda: kept.save(save, blocks=blocks))
    if picture is not None:
        _write("--plot", picture.path, lambda: picture.draw(_together(kept.launches, number)))
    if as_json:
        print_json({"subject": subject, "launches": [*map(_facts, summaries.values())]})
    else:
        _show(kept.launches, summaries, number)
    raise typer.Exit(code)


# --- launches ---------------------------------------------------------------------------------


def _launches(
    subject: Path, arguments: list[str], notes: int, *, quietly: bool
) -> tuple[Collector, int]:
    """Return the launches, and the exit code of the script that made them."""
    if subject.suffix.lower() == ".json":
        if arguments:
            raise ArgumentError.broken(
                "arguments",
                repr(" ".join(arguments)),
                f"{subject} is a trace, which takes none",
                "Leave them out",
                verb="are",
            )
        return traces.load(subject), 0
    with traces.record(notes_per_warp=notes) as kept:
        code = run_script(subject, arguments, quietly=quietly, wanted=_WANTED)
    return kept, code


def _chosen(subject: str, kept: Collector, launch: int | None) -> int:
    """Return the number of the launch to show."""
    lengths = {index: one.end for index, one in enumerate(kept.launches) if len(one)}
    if not lengths:
        what = "launches no kernel of this library" if not kept.launches else "leaves no event"
        raise ArgumentError.broken(
            "file",
            f"{subject!r}",
            f"it {what}, so there is no trace",
            "Pass a script that launches kernels which load, store or wait; with Signals on "
            "GPUs, it calls Signals.synchronize",
        )
    number = max(lengths, key=lengths.__getitem__) if launch is None else launch
    if number not in lengths:
        raise ArgumentError.broken(
            "--launch",
            number,
            f"the launches with events are {', '.join(map(str, [*lengths][:8]))}",
            "Pass one of them",
        )
    return number


# --- files ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Picture:
    """The picture of --plot and the options that go with it."""

    path: Path
    block: tuple[int, ...] | None
    between: tuple[int, int] | None

    @classmethod
    def of(cls, path: Path | None, block: str | None, between: str | None) -> _Picture | None:
        """Return the picture, None without a path; refuse impossible ones before anything runs."""
        drawn = None if block is None else integers("--block", block, like="0,0,0")
        times = None if between is None else integers("--between", between, like="0,5000")
        if times is not None and len(times) != 2:
            raise ArgumentError.broken(
                "--between", f"{between!r}", "it must be two times", "Write it as 0,5000"
            )
        if path is None:
            return None
        try:
            check_target(path)
        except BackendError as error:
            raise ArgumentError(f"--plot is {str(path)!r}; {error}") from None
        return cls(path, drawn, None if times is None else (times[0], times[1]))

    def draw(self, launches: Sequence[Trace]) -> None:
        traces.plot(launches, self.path, block=self.block, between=self.between)


def _together(launches: Sequence[Trace], number: int) -> list[Trace]:
    """Return a launch, and of every other device or rank the kernel's launch of that number."""
    chosen = launches[number]
    if chosen.peer is None:
        return [chosen]
    of_peer: dict[int | None, list[Trace]] = {}
    for one in launches:
        is_alike = (one.kernel_name, one.unit) == (chosen.kernel_name, chosen.unit)
        if is_alike and one.peer is not None and len(one):
            of_peer.setdefault(one.peer, []).append(one)
    nth = [one is chosen for one in of_peer[chosen.peer]].index(True)
    return [mine[nth] for mine in of_peer.values() if nth < len(mine)]


def _write(option: str, path: Path, write: Any) -> None:
    try:
        write()
    except OSError as error:
        raise ArgumentError.broken(
            option,
            f"{str(path)!r}",
            f"it cannot be written ({error.strerror})",
            "Pass a file in a folder of yours",
        ) from None


# --- output -----------------------------------------------------------------------------------


def _facts(summary: Summary) -> dict[str, Any]:
    """Return the summary in what JSON has; activities by their names."""
    facts = dataclasses.asdict(summary)
    for role in facts["roles"]:
        for share in role["shares"]:
            share["activity"] = share["activity"].name.lower()
    return facts


def _show(launches: tuple[Trace, ...], summaries: dict[int, Summary], number: int) -> None:
    console = Console(highlight=False)
    if len(launches) > 1:
        _show_launches(console, launches, number)
    summary = summaries[number]
    unit = _UNITS[summary.unit]
    shown = table(
        f"{summary.kernel_name}: {summary.time} {unit}, {summary.blocks} blocks of "
        f"{summary.block_time:.0f} {unit}",
        ("warps", "activity", "waits for"),
        ("share", "times", "mean", "longest"),
    )
    shown.columns[1].no_wrap = True
    rows = [row for role in summary.roles for row in _rows(role)]
    for row in rows:
        shown.add_row(*row)
    # A role is not wrapped.
    lengths = (len(role) for row in rows for role in row[2].split(", "))
    shown.columns[2].min_width = max(lengths, default=0)
    console.print(shown)
    for sentence in _left_out(summary):
        console.print(sentence, soft_wrap=True)


_UNITS = {"step": "steps", "ns": "ns"}


def _show_launches(console: Console, launches: tuple[Trace, ...], number: int) -> None:
    shown = table(f"{len(launches)} launches", ("", "kernel", "grid"), ("number", "time", "events"))
    for index, launch in enumerate(launches[:_LAUNCHES_SHOWN]):
        shown.add_row(
            "*" if index == number else "",
            _named(launch),
            "x".join(map(str, launch.grid)),
            str(index),
            f"{launch.end} {_UNITS[launch.unit]}",
            str(len(launch)),
        )
    console.print(shown)
    if len(launches) > _LAUNCHES_SHOWN:
        console.print(f"... and {len(launches) - _LAUNCHES_SHOWN} more.")


def _named(launch: Trace) -> str:
    return f"{launch.peer_label}: {launch.kernel_name}" if launch.peer_label else launch.kernel_name


def _rows(role: Role) -> list[tuple[str, ...]]:
    """Return a row with the role's warps and its work, then a row for each activity."""
    numbers = [
        (f"{share.share:.1%}", str(share.count), f"{share.mean:.0f}", str(share.longest))
        for share in role.shares
    ]
    return [
        (_numbers([warp_names(role.warps)]), _title(role), "", "", "", "", ""),
        *(
            ("", f"  {_what(share)}", _waited_for(share), *row)
            for share, row in zip(role.shares, numbers, strict=True)
        ),
    ]


def _title(role: Role) -> str:
    """Return the role's name and its work."""
    work = ", ".join(role.deeds)
    return ": ".join(filter(None, [role.role, work]))


def _waited_for(share: Share) -> str:
    """Return the roles that arrive, as in ``consumer 0``, or the warps, ``warps 0, 4-7``."""
    named = dict.fromkeys(whom.partition(" (")[0] for whom in share.whom if "(" in whom)
    numbers = _numbers(whom for whom in share.whom if "(" not in whom)
    warps = numbers and f"{'warp' if numbers.isdecimal() else 'warps'} {numbers}"
    return ", ".join(filter(None, [*named, warps]))


def _numbers(roles: Iterable[str]) -> str:
    return ", ".join(role.removeprefix("warps ").removeprefix("warp ") for role in roles)


def _what(share: Share) -> str:
    """Return the activity, with the barriers by their name where they have one."""
    return f"waits on {share.on}" if share.on and share.activity.is_wait else share.activity.value


def _left_out(summary: Summary) -> list[str]:
    sentences = []
    if summary.dropped:
        sentences.append(
            f"{summary.dropped} notes had no room: what came later is left out. Ask for more with "
            "--notes."
        )
    if summary.blocks_left_out:
        sentences.append(
            f"{summary.blocks_left_out} blocks, the last of the grid, are left out: there is room "
            "for 256 MiB. Ask for fewer --notes."
        )
    return sentences
