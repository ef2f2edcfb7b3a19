"""Tensor loads, stores and multicasts, which use a tensor map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tmaasync.copy_plan.mechanism import ASKED, KERNEL, Chosen, Mechanism, Refusal, tma
from tmaasync.copy_plan.request import Request
from tmaasync.errors import TensorMapError, Violation
from tmaasync.tile import TMATensorTile, create_tma_tile

_MAP_SOURCE = "cuda.h, cuTensorMapEncodeTiled, and docs/hardware.md"
_MEASURED = "measured on an H200, docs/hardware.md"


def tensor(request: Request, refused: list[Refusal]) -> Chosen | None:
    """Choose a tensor copy if possible; a multicast if the caller names CTAs."""
    is_multicast = request.options.cluster_mask != 0
    mechanism = Mechanism.MULTICAST if is_multicast else Mechanism.TENSOR
    found = [*tma(request)]
    if is_multicast and request.is_store:
        rule, remedy = "a store has one source", "Leave it out, and let one CTA store"
        mask = f"{request.options.cluster_mask:#x}"
        found.append((Violation("cluster_mask", mask, rule, remedy), ASKED))
    tile = _tile(request)
    if isinstance(tile, TMATensorTile):
        found += [(violation, _MEASURED) for violation in _coordinates(request, tile)]
        if request.is_store:
            found += [(violation, _MEASURED) for violation in _store_hazards(request, tile)]
            found += [(violation, KERNEL) for violation in _overhang(request)]
    else:
        found += [(violation, _MAP_SOURCE) for violation in tile]
    refused += [Refusal(mechanism, *pair) for pair in found]
    return Chosen(mechanism, tile) if isinstance(tile, TMATensorTile) and not found else None


def _tile(request: Request) -> TMATensorTile | tuple[Violation, ...]:
    cut = request.cut
    try:
        return create_tma_tile(
            request.settled_view, cut.tile_shape, swizzle=cut.swizzle, box_shape=cut.box_shape
        )
    except TensorMapError as error:
        return error.violations


def _coordinates(request: Request, tile: TMATensorTile) -> dict[Violation, None]:
    """Return the coordinate rules broken by the first, second and last start of each dimension."""
    corners = (
        [places[0] for places in request.starts],
        [places[min(1, len(places) - 1)] for places in request.starts],
        [places[-1] for places in request.starts],
    )
    return {
        violation: None
        for corner in corners
        for violation in tile.spec.coordinate_violations(corner, store=request.is_store)
    }


def _store_hazards(request: Request, tile: TMATensorTile) -> tuple[Violation, ...]:
    """Return the hazards of a map that ends where the copies do: they overwrite nothing beyond."""
    reached = tuple(
        max(min(extent, places[-1] + side), 1) for _, places, side, extent, _ in request.dimensions
    )
    return replace(tile.spec, shape=reached).hazards()


def _overhang(request: Request) -> Iterator[Violation]:
    cut = request.cut
    for dim, (side, box) in enumerate(zip(cut.tile_shape, cut.box_shape, strict=True)):
        if side % box:
            yield Violation(
                f"tile_shape[{dim}]",
                side,
                f"boxes of {box} do not divide it, and a store moves whole boxes: what lies "
                "beyond the tile would be overwritten",
                f"Use a multiple of {box}",
            )
