"""1-D bulk copies: one instruction for a tile that is contiguous on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._tile.strided import strided_violations
from tmaasync.copy_plan import starts
from tmaasync.copy_plan.mechanism import ASKED, KERNEL, Chosen, Mechanism, Refusal, tma
from tmaasync.copy_plan.request import Request, is_row_major
from tmaasync.errors import TensorMapError, Violation
from tmaasync.tile import BulkTile, StridedTensor

_SOURCE = "PTX ISA, cp.async.bulk"
_TILE_SOURCE = "PTX ISA, cp.async.bulk, and docs/hardware.md"


def bulk(request: Request, refused: list[Refusal]) -> Chosen | None:
    """Return a bulk copy, if every tile is contiguous, aligned and inside of the array."""
    found = [*tma(request)]
    if request.options.cluster_mask:
        rule, remedy = "only a tensor load goes to several CTAs here", "Leave it out"
        mask = f"{request.options.cluster_mask:#x}"
        found.append((Violation("cluster_mask", mask, rule, remedy), ASKED))
    found += [(violation, _SOURCE) for violation in _layout(request)]
    found += [(violation, _TILE_SOURCE) for violation in _region(request)]
    found += [(violation, _SOURCE) for violation in _bounds(request)]
    found += [(violation, _SOURCE) for violation in _steps(request)]
    found += [(violation, KERNEL) for violation in strided_violations(request.view)]
    refused += [Refusal(Mechanism.BULK, *pair) for pair in found]
    return None if found else Chosen(Mechanism.BULK, StridedTensor(request.view))


def _layout(request: Request) -> Iterator[Violation]:
    cut = request.cut
    if is_row_major(cut):
        return
    boxes = "x".join(map(str, cut.box_shape))
    yield Violation(
        "the tile in shared memory",
        f"{cut.swizzle}, boxes of {boxes}",
        "a bulk copy keeps the order of bytes, which is row-major in the array",
        "Use Swizzle.NONE, and sides of at most 256 after the first",
    )


def _region(request: Request) -> tuple[Violation, ...]:
    """Return the rules of `BulkTile` that the memory of one tile breaks."""
    places = [max(start[0], 0) for start in request.starts]
    strides = request.view.strides_bytes
    offset = sum(place * stride for place, stride in zip(places, strides, strict=True))
    region = request.view._replace(
        address=request.view.address + offset, shape=request.cut.tile_shape
    )
    try:
        BulkTile(region, request.cut.tile_bytes, allow_tail=True)
    except TensorMapError as error:
        return error.violations
    return ()


def _bounds(request: Request) -> Iterator[Violation]:
    for dim, places, side, extent, _ in request.dimensions:
        over = starts.hanging_over(places, side, extent)
        if over is not None:
            yield Violation(
                f"starts[{dim}]",
                over,
                f"a tile of {side} reaches beyond the {extent} there are, and a bulk copy has no "
                "bounds",
                "Start where whole tiles fit, or choose a side that divides the extent",
            )


def _steps(request: Request) -> Iterator[Violation]:
    for dim, places, _, _, stride in request.dimensions:
        step = places.step * stride
        if len(places) > 1 and step % TMA_ALIGNMENT:
            yield Violation(
                f"starts[{dim}].step",
                places.step,
                f"copies start {step} bytes apart, and a bulk copy starts at multiples of "
                f"{TMA_ALIGNMENT}",
                f"Choose a tile, or starts, of a multiple of {TMA_ALIGNMENT} bytes",
            )
