"""Copies by TMA: contiguous memory in bulk, strided arrays box by box."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync._tile.cut import covering_tile
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.kernel import Kernel, wait_for_producers
from tmaasync.ops._plans import Layout, PlanCache, are_apart
from tmaasync.ops._results import copy_bytes, empty
from tmaasync.tile import BulkTile, TMATensorTile, create_tma_tile

__all__ = ["BULK_RING", "TILED_RING", "Ring", "copy", "copy_kernel", "merged"]

_GRANULE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Ring:
    """How a block keeps copies in flight, and how many tiles it copies before it ends."""

    tile_bytes: int
    stages: int
    loads_ahead: int
    tiles_per_block: int


# The fastest of some ninety settings on an H200, 1 GiB (benchmarks/bench_copy.py).
BULK_RING = Ring(tile_bytes=32768, stages=4, loads_ahead=2, tiles_per_block=2)
TILED_RING = Ring(tile_bytes=16384, stages=2, loads_ahead=1, tiles_per_block=1)


def copy(source: Any, target: Any = None, *, stream: object = None) -> Any:
    """Copy an array by TMA: on its GPU, or, in host memory, on the emulator.

    Args:
        source: An array of any rank. Contiguous memory is moved in bulk; otherwise the
            array must be one that `create_tma_tile` accepts once mergeable dimensions are merged.
        target: Where to; an array of the same shape and element type that does not overlap the
            source. By default a new one of the source's framework.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The target.

    Raises:
        ArgumentError: Shapes or types differ, the arrays overlap, or the target is read-only.
        TensorMapError: A strided array breaks TMA's rules, or rows of the target end within 16
            bytes that belong to somebody else: TMA stores whole 16-byte sectors.
    """
    if target is not None and (found := _PLANS.find((source, target), None, stream)):
        plan, addresses, handle = found
        if are_apart(addresses, plan.spans):
            plan.start(addresses, handle)
            return target
    view = _arrays.view(source, argument="source")
    if target is None:
        target = empty(view, view.shape, view.element)
    target_view = _arrays.view(target, argument="target")
    _arrays.require_writable(target_view, "target")
    _check_apart(view, target_view)
    on_granule = (view.address | target_view.address) % _GRANULE_BYTES == 0
    plan = _plan(Layout.of(view), Layout.of(target_view), on_granule)
    plan.run(view, target_view, stream)
    if plan.is_direct:
        frameworks = (view.framework, target_view.framework)
        _PLANS.remember((source, target), None, plan, frameworks, view.device)
    return target


def _check_apart(source: ArrayView, target: ArrayView) -> None:
    if _arrays.may_overlap(source, target):
        raise ArgumentError(
            f"target overlaps source (at {target.address:#x} and {source.address:#x}); the order "
            "of tiles is not defined. Copy through a third array."
        )


@functools.lru_cache(maxsize=1024)
def _plan(source: Layout, target: Layout, on_granule: bool) -> _Plan:
    """All that a copy costs once per pair of layouts; the same plan serves any addresses."""
    for what, expected, got in zip(Layout._fields, source, target, strict=True):
        if what != "strides_bytes" and expected != got:
            raise ArgumentError(
                f"target has {what} {got}; the source has {expected}. Pass a target like the "
                "source, or none to get one."
            )
    return _Plan(source, target, on_granule)


class _Plan:
    """A copy between arrays of given layouts: everything but their addresses and the stream."""

    def __init__(self, source: Layout, target: Layout, on_granule: bool) -> None:
        self._size_bytes = math.prod(source.shape) * source.element.itemsize
        self._in_bulk = on_granule and all(map(_arrays.is_contiguous, (source, target)))
        self._tail_bytes = self._size_bytes % _GRANULE_BYTES if self._in_bulk else 0
        self.spans = (source.span_bytes, target.span_bytes)
        self._device = source.device
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._lock = threading.Lock()

    @property
    def is_direct(self) -> bool:
        """Whether a copy is one launch on the arrays as they are, and was launched before."""
        return self._launch is not None

    def run(self, source: ArrayView, target: ArrayView, stream: object) -> None:
        """Copy."""
        device = self._device
        if self._size_bytes == 0:
            return
        if self._size_bytes > self._tail_bytes:
            with self._lock:
                if self._launch is None:
                    self._launch = self._prepare(source, target)
        handle = stream_of((source.framework, target.framework), device, stream)
        wait_for_producers((source, target), handle)
        self.start((source.address, target.address), handle)

    def start(self, addresses: Sequence[int], stream: int) -> None:
        """Copy between arrays that look like those of the last `run`."""
        if self._launch is not None:
            self._launch.launch_at(addresses, stream)
        if self._tail_bytes:
            # Fewer than 16 bytes, which TMA cannot store without writing beyond them.
            source, target = (a + self._size_bytes - self._tail_bytes for a in addresses)
            with _driver.on_device(self._device):
                copy_bytes(self._device, target, source, self._tail_bytes, stream)

    def _prepare(self, source: ArrayView, target: ArrayView) -> PreparedLaunch | EmulatedLaunch:
        make = _bulk_tiles if self._in_bulk else _tensor_tiles
        ring, read, write, tiles = make(source, target)
        grid = -(-math.prod(tiles) // ring.tiles_per_block)
        innermost_first = (*reversed(tiles), 1, 1, 1, 1)[:5]
        tile_grid = np.array(innermost_first, np.int32).tobytes()
        kernel = copy_kernel(read.cuda_type, ring)
        launch = kernel.prepare(grid, 32, (read, write, tile_grid))
        launch.release()
        return launch


_PLANS: PlanCache[_Plan] = PlanCache()

_Tile = TMATensorTile | BulkTile
_Parts = tuple[Ring, _Tile, _Tile, tuple[int, ...]]


def _bulk_tiles(source: ArrayView, target: ArrayView) -> _Parts:
    read, write = (BulkTile(view, BULK_RING.tile_bytes) for view in (source, target))
    return BULK_RING, read, write, (-(-read.size_bytes // BULK_RING.tile_bytes),)


# --- strided arrays ---------------------------------------------------------------------------


def _tensor_tiles(source: ArrayView, target: ArrayView) -> _Parts:
    read_view, write_view = merged(source, target)
    _check_sectors(write_view)
    tile_shape = covering_tile(read_view, TILED_RING.tile_bytes)
    read, write = (create_tma_tile(view, tile_shape) for view in (read_view, write_view))
    return TILED_RING, read, write, read.tiles_per_side


def merged(*views: ArrayView) -> tuple[ArrayView, ...]:
    """The views without dimensions of one element, neighbours merged where all allow it."""
    shape: list[int] = []
    strides: list[list[int]] = [[] for _ in views]
    for dim, extent in enumerate(views[0].shape):
        if extent == 1:
            continue
        steps = [view.strides_bytes[dim] for view in views]
        if shape and all(s[-1] == step * extent for s, step in zip(strides, steps, strict=True)):
            shape[-1] *= extent
            for s, step in zip(strides, steps, strict=True):
                s[-1] = step
        else:
            shape.append(extent)
            for s, step in zip(strides, steps, strict=True):
                s.append(step)
    return tuple(
        view._replace(shape=tuple(shape), strides_bytes=tuple(s))
        for view, s in zip(views, strides, strict=True)
    )


def _check_sectors(target: ArrayView) -> None:
    row_bytes = target.shape[-1] * target.element.itemsize
    over = -row_bytes % _GRANULE_BYTES
    if over:
        raise TensorMapError(
            (
                Violation(
                    f"target.shape[{len(target.shape) - 1}]",
                    target.shape[-1],
                    f"its rows are {row_bytes} bytes and TMA stores whole 16-byte sectors, so the "
                    f"{over} bytes after each row would be overwritten",
                    "Copy rows of a multiple of 16 bytes, or into a contiguous target",
                ),
            )
        )


# --- the kernel -------------------------------------------------------------------------------


@functools.cache
def copy_kernel(cuda_type: str, ring: Ring) -> Kernel:
    """The kernel for a type of tile and a ring."""
    return Kernel(
        "copy.cu",
        types={"Tile": cuda_type},
        constants={"STAGES": ring.stages, "LOADS_AHEAD": ring.loads_ahead},
    )
