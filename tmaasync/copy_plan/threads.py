"""Copies by every thread of a block: cp.async, and ordinary loads and stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tmaasync._tile.strided import strided_violations
from tmaasync.copy_plan import starts
from tmaasync.copy_plan.mechanism import ASKED, KERNEL, Chosen, Mechanism, Refusal, bits_only
from tmaasync.copy_plan.request import Request
from tmaasync.errors import Violation
from tmaasync.tile import StridedTensor

_CP_ASYNC_SOURCE = "PTX ISA, cp.async"
_ACCESS_SOURCE = "CUDA C++ Programming Guide, device memory accesses"
_CP_ASYNC_WIDTHS = (16, 8, 4)
_LOOP_WIDTHS = (16, 8, 4, 2, 1)
_MOST_BYTES = 16


def cp_async(request: Request, refused: list[Refusal]) -> Chosen | None:
    """``cp.async``, if it is a load that starts at multiples of 4 bytes."""
    found = [*bits_only(request)]
    if request.is_store:
        rule, remedy = "cp.async reads global memory and never writes it", "Use TMA or a loop"
        found.append((Violation("the direction", "a store", rule, remedy), _CP_ASYNC_SOURCE))
    found += [(violation, KERNEL) for violation in strided_violations(request.view)]
    refused += [Refusal(Mechanism.CP_ASYNC, *pair) for pair in found]
    if found:
        return None
    return _by_width(Mechanism.CP_ASYNC, _CP_ASYNC_WIDTHS, _CP_ASYNC_SOURCE, request, refused)


def loop(request: Request, refused: list[Refusal]) -> Chosen | None:
    """Ordinary accesses, whatever the layout."""
    found = strided_violations(request.view)
    refused += [Refusal(Mechanism.LOOP, violation, KERNEL) for violation in found]
    if found:
        return None
    return _by_width(Mechanism.LOOP, _LOOP_WIDTHS, _ACCESS_SOURCE, request, refused)


def _by_width(
    mechanism: Mechanism,
    widths: tuple[int, ...],
    source: str,
    request: Request,
    refused: list[Refusal],
) -> Chosen | None:
    """Return the widest access that every copy of the request allows, or the one asked for."""
    for width in widths:
        found = [*_width_violations(request, width)]
        if not found:
            widest = Chosen(mechanism, StridedTensor(request.view), width)
            return _coalesced(widest, request, refused)
        refused += [Refusal(mechanism, violation, source, width) for violation in found]
    return None


def elements_of(request: Request, width: int) -> int:
    """Return the elements that an access of ``width`` bytes moves; 1 if it moves a part."""
    return max(width // request.view.element.itemsize, 1)


def _width_violations(request: Request, width: int) -> Iterator[Violation]:
    count = elements_of(request, width)
    if count > 1:
        yield from _unfit(request, count)
    yield from _unaligned(request, width, count)


def _unaligned(request: Request, width: int, count: int) -> Iterator[Violation]:
    """Addresses that are no multiples of the width: the first, and the steps between others."""
    address = request.view.address
    steps = []
    last = request.view.ndim - 1
    for dim, places, side, extent, stride in request.dimensions:
        is_vector = dim == last and count > 1
        # A vector starts at every `count`-th element of a tile; elsewhere every element counts.
        reach = starts.touched(places, side, extent, count if is_vector else 1)
        if reach is None:
            return  # nothing of the array is ever read or written
        address += reach.first * stride
        steps.append((dim, reach.step * stride))
    for dim, step in steps:
        if step % width:
            yield Violation(
                f"the distance of accesses along dimension {dim}",
                f"{step} bytes",
                f"each access must start at a multiple of {width}",
                f"Pad that dimension, or let tiles start at multiples of {width} bytes",
            )
    if address % width:
        yield Violation(
            f"the address of the {request.array}'s first copy",
            f"{address:#x}",
            f"it must be a multiple of {width}",
            f"Start at a multiple of {width} bytes",
        )


def _unfit(request: Request, count: int) -> Iterator[Violation]:
    """Yield why ``count`` elements are never one access, wherever the array lies."""
    view, cut, last = request.view, request.cut, request.view.ndim - 1
    itemsize = max(view.element.itemsize, cut.element.itemsize)
    if view.strides_bytes[last] != view.element.itemsize and view.shape[last] > 1:
        yield Violation(
            f"{request.array}.strides[{last}]",
            view.strides_bytes[last],
            f"{count} elements at once must lie {view.element.itemsize} bytes apart",
            "Copy the array so that its last dimension is contiguous",
        )
    if cut.tile_shape[last] % count or cut.box_shape[last] % count:
        yield Violation(
            f"tile_shape[{last}]",
            cut.tile_shape[last],
            f"{count} elements at once do not make up its rows",
            f"Use a multiple of {count}",
        )
    if count * itemsize > _MOST_BYTES:
        yield Violation(
            "the tile's element type",
            cut.element,
            f"{count} elements of {view.element} at once become {count * itemsize} bytes, and an "
            f"access has at most {_MOST_BYTES}",
            f"Keep {view.element} in shared memory",
        )
    straddling = starts.straddling(request.starts[last], cut.tile_shape[last], count)
    if straddling is not None:
        yield Violation(
            f"starts[{last}]",
            straddling,
            f"{count} elements at once would begin before the array and end within it",
            f"Start at multiples of {count}",
        )


def _coalesced(widest: Chosen, request: Request, refused: list[Refusal]) -> Chosen | None:
    """Narrow the access to the caller's element count, a divisor of the widest."""
    wanted = request.options.coalesced_width
    if wanted is None:
        return widest
    most = elements_of(request, widest.access_bytes)
    narrower = wanted * request.view.element.itemsize if most > 1 else widest.access_bytes
    if most % wanted:
        rule = f"{most} elements at once are possible, and it must divide that"
        violation = Violation("coalesced_width", wanted, rule, f"Use {most}, or leave it out")
    elif widest.mechanism is Mechanism.CP_ASYNC and narrower not in _CP_ASYNC_WIDTHS:
        rule = f"it makes accesses of {narrower} bytes, and cp.async has 16, 8 and 4"
        violation = Violation("coalesced_width", wanted, rule, "Leave it out")
    else:
        return replace(widest, access_bytes=narrower)
    refused.append(Refusal(widest.mechanism, violation, ASKED))
    return None
