"""Checks of the pads of `Signals`, and of the arrays that a copy engine copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tmaasync import _arrays, emulate
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._kinds import is_sequence, shown
from tmaasync.errors import ArgumentError, Violation

MAX_RANKS = 16
"""As in kernels/include/tmaasync/instrument/signal.cuh."""


def views_of_pads(pads: Sequence[object]) -> list[ArrayView]:
    if not is_sequence(pads) or not 1 <= len(pads) <= MAX_RANKS:
        given = f"{len(pads)} arrays" if is_sequence(pads) else shown(pads)
        rule = f"it must be a list of 1 to {MAX_RANKS} arrays, one for each rank"
        raise ArgumentError.broken("pads", given, rule, "Pass a pad for each rank")
    views = [_arrays.view(pad, argument=f"pads[{rank}]") for rank, pad in enumerate(pads)]
    ArgumentError.raise_for(itertools.chain.from_iterable(map(_unfit, itertools.count(), views)))
    ArgumentError.raise_for(_unequal(views))
    return views


def _unfit(rank: int, pad: ArrayView) -> Iterator[Violation]:
    name = f"pads[{rank}]"
    if pad.element.name not in ("int32", "uint32"):
        remedy = "Make it with dtype int32 or uint32"
        yield Violation(name, f"an array of {pad.element}", "a signal is a 32-bit integer", remedy)
    if len(pad.shape) != 1 or not pad.shape[0] or not is_contiguous(pad):
        rule = "it must be one-dimensional and contiguous, with at least one signal"
        yield Violation(name, f"an array of shape {pad.shape}", rule, "Pass zeros(count)")
    if pad.read_only:
        yield Violation(name, "a read-only array", "ranks post to it", "Pass a writable array")


def _unequal(pads: Sequence[ArrayView]) -> Iterator[Violation]:
    first = pads[0]
    for rank, pad in enumerate(pads):
        if pad.shape != first.shape:
            rule = f"pads[0] has {first.shape[0]} signals, and all pads have the same number"
            given = f"an array of {pad.shape[0]}"
            yield Violation(f"pads[{rank}]", given, rule, "Pass pads of one length")
        if _kind_of_memory(pad) != _kind_of_memory(first):
            rule = f"pads[0] is {_kind_of_memory(first)}"
            remedy = "Make all pads in one kind of memory"
            yield Violation(f"pads[{rank}]", _kind_of_memory(pad), rule, remedy)
    bounds = sorted((pad.byte_bounds, rank) for rank, pad in enumerate(pads))
    for ((_, end), rank), ((start, _), other) in itertools.pairwise(bounds):
        if start < end:
            rule, remedy = f"it overlaps pads[{rank}]", "Pass an array of its own for each rank"
            yield Violation(f"pads[{other}]", f"at address {start:#x}", rule, remedy)


def _kind_of_memory(pad: ArrayView) -> str:
    world = emulate.current_world()
    if world is not None and world.device_of(pad.address) is not None:
        return "on an emulated device"
    return "in host memory" if pad.is_on_host else "on a GPU"


def uncopied(target: ArrayView, source: ArrayView) -> Iterator[Violation]:
    for name, one in (("target", target), ("source", source)):
        if not is_contiguous(one):
            rule = "a copy engine copies contiguous arrays"
            given, remedy = f"of strides {one.strides_bytes} bytes", "Pass a contiguous array"
            yield Violation(name, given, rule, remedy)
    if (target.shape, target.element) != (source.shape, source.element):
        given = f"{target.element} of shape {target.shape}"
        rule = f"source is {source.element} of shape {source.shape}"
        yield Violation("target", given, rule, "Pass arrays of one shape and type")
    if target.read_only:
        yield Violation("target", "a read-only array", "it is written", "Pass a writable array")
