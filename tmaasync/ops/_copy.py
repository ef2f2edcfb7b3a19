"""ops.copy: copies by the driver for contiguous memory on a GPU, else by TMA (copy.cu)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, is_contiguous
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._tile.cut import covering_tile, layout_violations
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.kernel import Backend, BoundCall, Kernel, Launch
from tmaasync.ops._allocation import empty
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._extents import check_extents
from tmaasync.ops._layouts import Layout, is_apart, refuse_overlap, with_merged_dims
from tmaasync.ops._operation import LaunchSequence, Operation, shipped_kernel
from tmaasync.tile import BulkTile, TMATensorTile, create_tma_tile

_CALLS = CallCache()


# Barriers, including the alignment of shared memory to 1024 bytes.
BARRIERS_BYTES = 1024


@dataclass(frozen=True, slots=True)
class CopyPipeline:
    """The pipeline of a block: tile size, stages, loads in flight, and tiles per block."""

    tile_bytes: int
    stages: int
    loads_ahead: int
    tiles_per_block: int

    def within(self, shared_bytes: int) -> CopyPipeline:
        """Return the pipeline, with fewer stages if ``shared_bytes`` of memory require it."""
        room = (shared_bytes - BARRIERS_BYTES) // self.tile_bytes
        return self if self.stages <= room else replace(self, stages=room)


# Fastest of about ninety settings for 1 GiB on an H200 (benchmarks/bench_copy.py, 2026-11-20).
BULK_PIPELINE = CopyPipeline(tile_bytes=32768, stages=4, loads_ahead=2, tiles_per_block=2)
TILED_PIPELINE = CopyPipeline(tile_bytes=16384, stages=2, loads_ahead=1, tiles_per_block=1)


def copy(source: Any, target: Any = None, *, stream: object = None) -> Any:
    """Copy an array: with TMA if it is strided, with the driver if both arrays are contiguous.

    In host memory the emulator copies; contiguous arrays that start at multiples of 16 bytes use
    bulk copies.

    Contiguous arrays may have any size. A side of a strided array may be up to 2^31 - 2^18
    (2,147,221,504).

    Args:
        source: An array of any rank; contiguous, or accepted by `create_tma_tile` after merging
            mergeable dimensions.
        target: The destination, an array of the same shape and element type that does not
            overlap the source. By default a new array of the source's framework.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The target.

    Raises:
        ArgumentError: Shapes or types differ, the arrays overlap, or the target is read-only.
        TensorMapError: A strided array breaks TMA's rules, or rows of the target end inside a
            16-byte sector that holds other data: TMA stores whole sectors.
    """
    if target is not None and _CALLS.run((source, target), None, stream) is not None:
        return target
    view = _arrays.view(source, argument="source")
    if target is None:
        if not is_contiguous(view):
            check_sides(with_merged_dims(view)[0])
        target = empty(view, view.shape, view.element)
    target_view = checked_target(target, view)
    operation = _CALLS.operation(Copy, Layout.of(view), Layout.of(target_view))
    operation.run(view, target_view, stream)
    if operation.is_bindable:
        frameworks = (view.framework, target_view.framework)
        _CALLS.remember((source, target), None, operation, frameworks, view.device)
    return target


def checked_target(target: Any, source: ArrayView) -> ArrayView:
    """Check the target against the source, and return a view of it."""
    view = _arrays.view(target, argument="target")
    _arrays.require_writable(view, "target")
    refuse_overlap("target", view, {"source": source}, remedy="Copy through a third array")
    _check_layouts(Layout.of(source), Layout.of(view))
    return view


# --- the operation ----------------------------------------------------------------------------

_MUST_EQUAL = ("shape", "element")


class CopyArguments(NamedTuple):
    read: TMATensorTile | BulkTile
    write: TMATensorTile | BulkTile
    tile_grid: bytes


class Copy(Operation):
    def __init__(self, source: Layout, target: Layout) -> None:
        super().__init__(source.device)
        self._size_bytes = math.prod(source.shape) * source.element.itemsize
        self._is_contiguous = is_contiguous(source) and is_contiguous(target)
        self._in_bulk = source.is_packed and target.is_packed
        self._spans = (source.span_bytes, target.span_bytes)

    def run(self, source: ArrayView, target: ArrayView, stream: object) -> None:
        if self._size_bytes == 0:
            return
        launch = self.prepared(lambda: self._prepare(source, target))
        handle = self.ordered((source, target), stream)
        launch.launch_at((source.address, target.address), handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`. Addresses: source, target."""
        if self._launch is None or not is_apart(1, addresses, self._spans):
            return None
        return self._launch, addresses

    def _prepare(self, source: ArrayView, target: ArrayView) -> Launch:
        # Bulk copies need addresses that are multiples of 16 bytes; else the driver copies.
        in_bulk = self._in_bulk and not self.backend.copies_contiguous_memory
        if self._is_contiguous and not in_bulk:
            return _DriverCopy(self.backend, 0, self._size_bytes)
        tail_bytes = self._size_bytes % TMA_ALIGNMENT if self._in_bulk else 0
        body_bytes = self._size_bytes - tail_bytes
        launches: list[Launch] = []
        if body_bytes:
            launches.append(self._prepare_kernel(source, target))
        if tail_bytes:
            launches.append(_DriverCopy(self.backend, body_bytes, tail_bytes))
        return LaunchSequence(*((launch, tuple) for launch in launches))

    def _prepare_kernel(self, source: ArrayView, target: ArrayView) -> Launch:
        make = _bulk_tiles if self._in_bulk else _tensor_tiles
        pipeline, read, write, tiles = make(source, target)
        pipeline = pipeline.within(self.backend.limits.shared_bytes)
        grid = -(-math.prod(tiles) // pipeline.tiles_per_block)
        kernel = copy_kernel(read.cuda_type, pipeline)
        launch = kernel.prepare(grid, 32, CopyArguments(read, write, tile_grid(tiles)))
        launch.release()
        return launch


def _check_layouts(source: Layout, target: Layout) -> None:
    for what in _MUST_EQUAL:
        expected, got = getattr(source, what), getattr(target, what)
        if expected != got:
            raise ArgumentError.broken(
                "target",
                f"{what} {got}",
                f"the source has {expected}",
                "Pass a target like the source, or none to get one",
                verb="has",
            )
    if source.device != target.device:
        raise ArgumentError.broken(
            "target",
            _arrays.where(target.device),
            f"the source lies {_arrays.where(source.device)}",
            "Pass a target there, or none to get one",
            verb="lies",
        )


def check_reach(source: ArrayView, target: ArrayView) -> None:
    """Check that TMA can access strided arrays, as `Copy` does when it prepares a launch."""
    layouts = Layout.of(source), Layout.of(target)
    if not source.is_empty and not all(map(is_contiguous, layouts)):
        # Use emulator tiles: the driver does not encode tensor maps of arrays that do not exist.
        _tensor_tiles(source._replace(device=None), target._replace(device=None))


@dataclass(frozen=True, slots=True)
class _DriverCopy:
    """A driver copy of contiguous memory on a GPU, or of fewer than 16 bytes.

    For contiguous memory TMA reaches 0.95 to 0.99 of the driver's bandwidth
    (benchmarks/bench_copy.py on an H200, 2026-11-20). TMA cannot store fewer than 16 bytes.
    """

    backend: Backend
    offset_bytes: int
    size_bytes: int

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        self.bind(addresses, stream)()

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        source, target = (address + self.offset_bytes for address in addresses)
        return self.backend.bound_copy(target, source, self.size_bytes, stream)


# --- tiles and the kernel ---------------------------------------------------------------------

_Tile = TMATensorTile | BulkTile
_Prepared = tuple[CopyPipeline, _Tile, _Tile, tuple[int, ...]]


def _bulk_tiles(source: ArrayView, target: ArrayView) -> _Prepared:
    read, write = (
        BulkTile(view, BULK_PIPELINE.tile_bytes, allow_tail=True) for view in (source, target)
    )
    return BULK_PIPELINE, read, write, (-(-read.size_bytes // BULK_PIPELINE.tile_bytes),)


def _tensor_tiles(source: ArrayView, target: ArrayView) -> _Prepared:
    check_rows({"source": source, "target": target})
    read_view, write_view = with_merged_dims(source, target)
    check_sides(read_view)
    check_sectors(
        write_view, "Copy rows of a multiple of 16 bytes, or contiguous arrays on both sides"
    )
    tile_shape = covering_tile(read_view, TILED_PIPELINE.tile_bytes)
    read, write = (create_tma_tile(view, tile_shape) for view in (read_view, write_view))
    return TILED_PIPELINE, read, write, read.tiles_per_side


def check_rows(views: Mapping[str, ArrayView]) -> None:
    TensorMapError.raise_for(
        replace(violation, argument=violation.argument.replace("array", name, 1))
        for name, view in views.items()
        for violation in layout_violations(view)
    )


def check_sectors(target: ArrayView, remedy: str) -> None:
    row_bytes = target.shape[-1] * target.element.itemsize
    over = -row_bytes % TMA_ALIGNMENT
    if over:
        name = f"target.shape[{len(target.shape) - 1}]"
        rule = (
            f"its rows are {row_bytes} bytes and TMA stores whole 16-byte sectors, so the {over} "
            "bytes after each row would be overwritten"
        )
        raise TensorMapError((Violation(name, target.shape[-1], rule, remedy),))


def check_sides(view: ArrayView) -> None:
    check_extents(**{f"side {dim}": extent for dim, extent in enumerate(view.shape)})


def tile_grid(tiles: Sequence[int]) -> bytes:
    """Return the kernel's tile counts per side; ``tiles`` is outermost first."""
    innermost_first = (*reversed(tiles), 1, 1, 1, 1)[:5]
    return np.array(innermost_first, np.int32).tobytes()


def copy_kernel(cuda_type: str, pipeline: CopyPipeline, name: str = "copy") -> Kernel:
    return shipped_kernel(
        "copy.cu",
        {"Tile": cuda_type},
        {"STAGES": pipeline.stages, "LOADS_AHEAD": pipeline.loads_ahead},
        name,
    )
