"""ops.reduce_add: copy.cu with TMA reductions instead of stores; reduce_stack.cu for stacks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._hardware import MAX_BOX_SIDE, TMA_ALIGNMENT
from tmaasync._tile.cut import covering_tile
from tmaasync.errors import ArgumentError, ArrayTypeError
from tmaasync.kernel import Kernel, Launch
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._copy import (
    BARRIERS_BYTES,
    TILED_PIPELINE,
    check_rows,
    check_sectors,
    check_sides,
    copy_kernel,
    tile_grid,
)
from tmaasync.ops._extents import check_extents
from tmaasync.ops._layouts import Layout, is_apart, refuse_overlap, with_merged_dims
from tmaasync.ops._operation import LaunchSequence, Operation, shipped_kernel
from tmaasync.tile import TMATensorTile, create_tma_tile

_CALLS = CallCache()

# PTX ISA, cp.reduce.async.bulk.tensor: .add uses the tensor map's type. It lacks s64; u64 gives the
# same bits.
_READ_AS = {
    **{name: name for name in ("float16", "bfloat16", "float32", "float64")},
    **{name: name for name in ("int32", "uint32", "uint64")},
    "int64": "uint64",
}


def reduce_add(target: Any, source: Any, *, stream: object = None) -> Any:
    """Add an array to another in place, ``target += source``, by TMA reduction.

    The L2 cache adds atomically: several launches, on one or several streams, may add to one target
    concurrently. The order of the additions to an element is undefined, so the last bits of
    floating-point results may differ from run to run.

    The arrays of a stack are first summed on the SMs, 16-bit floats in float32.

    A side of the arrays may be up to 2^31 - 2^18 (2,147,221,504); a contiguous array may have any
    size.

    Args:
        target: The array to update: float16, bfloat16, float32, float64, or 32-bit or 64-bit
            integers, on a GPU, or in host memory for the emulator. A contiguous array, and each row
            of other arrays, must be a multiple of 16 bytes.
        source: An array of the same shape and type, on the same device; or a stack of arrays of
            that shape along an additional first dimension, which are all added.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The target.

    Raises:
        ArgumentError: The shapes or devices do not match, the arrays overlap, or the target is
            read-only.
        ArrayTypeError: The types differ, or TMA cannot add them.
        TensorMapError: An array breaks TMA's rules, such as a stride that is not a multiple of 16
            bytes, or rows of the target that end inside a 16-byte sector.

    Source: PTX ISA, ``cp.reduce.async.bulk.tensor``.
    """
    if _CALLS.run((source, target), None, stream) is not None:
        return target
    view = _arrays.view(source, argument="source")
    target_view = checked_target(target, view)
    operation = _CALLS.operation(ReduceAdd, Layout.of(view), Layout.of(target_view))
    operation.run(view, target_view, stream)
    if operation.is_bindable:
        frameworks = (view.framework, target_view.framework)
        _CALLS.remember((source, target), None, operation, frameworks, view.device)
    return target


def checked_target(target: Any, source: ArrayView) -> ArrayView:
    """Check the target against the source, and return a view of it."""
    view = _arrays.view(target, argument="target")
    _arrays.require_writable(view, "target")
    refuse_overlap("target", view, {"source": source}, remedy="Add a copy of the source")
    _check_layouts(Layout.of(source), Layout.of(view))
    return view


class ReduceArguments(NamedTuple):
    source: TMATensorTile
    target: TMATensorTile
    tile_grid: bytes


@dataclass(frozen=True, slots=True)
class StackPipeline:
    """The kernel's pipeline, and the number of blocks per SM."""

    tile_bytes: int
    stages: int
    consumer_warps: int
    blocks_per_sm: int

    def within(self, shared_bytes: int) -> StackPipeline:
        """Return the pipeline, with fewer stages if ``shared_bytes`` of memory require it."""
        room = (shared_bytes - BARRIERS_BYTES) // self.tile_bytes - 1  # one tile holds the sum
        return self if self.stages <= room else replace(self, stages=room)


# A block's single tile fills one of three stages; the other two limit an SM to four blocks, not
# six: 0.970 to 0.994 of torch's add_, not 0.956 to 0.983 (256 and 1024 MiB, H200, 2026-11-23).
ADD_PIPELINE = replace(TILED_PIPELINE, stages=3)
STACK_PIPELINE = StackPipeline(tile_bytes=16384, stages=6, consumer_warps=4, blocks_per_sm=2)


class ReduceAdd(Operation):
    def __init__(self, source: Layout, target: Layout) -> None:
        super().__init__(source.device)
        self._is_stack = len(source.shape) > len(target.shape)
        self._is_empty = 0 in source.shape
        self._spans = (source.span_bytes, target.span_bytes)

    def run(self, source: ArrayView, target: ArrayView, stream: object) -> None:
        if self._is_empty:
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
        prepare = self._prepare_stack if self._is_stack else self._prepare_kernel
        parts = _parts_of(source, target)
        return LaunchSequence(*((prepare(read, write), part.moved) for part, read, write in parts))

    def _prepare_kernel(self, source: ArrayView, target: ArrayView) -> Launch:
        pipeline = ADD_PIPELINE.within(self.backend.limits.shared_bytes)
        read, write = _tiles(source, target, pipeline.tile_bytes)
        tiles = read.tiles_per_side
        kernel = copy_kernel(read.cuda_type, pipeline, "reduce_add")
        grid = -(-math.prod(tiles) // pipeline.tiles_per_block)
        return _prepared(kernel, grid, 32, ReduceArguments(read, write, tile_grid(tiles)))

    def _prepare_stack(self, source: ArrayView, target: ArrayView) -> Launch:
        limits = self.backend.limits
        pipeline = STACK_PIPELINE.within(limits.shared_bytes)
        read, write = _stack_tiles(source, target, pipeline.tile_bytes)
        tiles = read.tiles_per_side
        kernel = stack_kernel(read.cuda_type, pipeline)
        grid = min(math.prod(tiles), limits.sms * pipeline.blocks_per_sm)
        threads = 32 * (pipeline.consumer_warps + 1)
        return _prepared(kernel, grid, threads, ReduceArguments(read, write, tile_grid(tiles)))


def check_reach(source: ArrayView, target: ArrayView) -> None:
    """Check that TMA can access the arrays, as `ReduceAdd` does when it prepares a launch."""
    make, tile_bytes = _tiles, ADD_PIPELINE.tile_bytes
    if source.ndim > target.ndim:
        make, tile_bytes = _stack_tiles, STACK_PIPELINE.tile_bytes
    if not source.is_empty:
        # Use emulator tiles: the driver does not encode tensor maps of arrays that do not exist.
        for _, read, write in _parts_of(source._replace(device=None), target._replace(device=None)):
            make(read, write, tile_bytes)


def _tiles(
    source: ArrayView, target: ArrayView, tile_bytes: int
) -> tuple[TMATensorTile, TMATensorTile]:
    tile_shape = covering_tile(source, tile_bytes)
    return create_tma_tile(source, tile_shape), create_tma_tile(target, tile_shape)


def _stack_tiles(
    source: ArrayView, target: ArrayView, tile_bytes: int
) -> tuple[TMATensorTile, TMATensorTile]:
    tile_shape = (1, *covering_tile(_first(source), tile_bytes))
    return create_tma_tile(source, tile_shape), create_tma_tile(target, tile_shape)


def _parts_of(source: ArrayView, target: ArrayView) -> list[tuple[_Part, ArrayView, ArrayView]]:
    """Return views of both arrays, one pair per launch.

    If the source is a stack, the views are stacks too; the target's view holds one array.
    """
    check_rows({"source": source, "target": target})
    kind = element(_READ_AS[target.element.name])
    source, target = source._replace(element=kind), target._replace(element=kind)
    is_stack, count, step = source.ndim > target.ndim, source.shape[0], source.strides_bytes[0]
    read, write = with_merged_dims(_first(source) if is_stack else source, target)
    parts = [(part, part.of(read), part.of(write)) for part in _parts(read)]
    for _, of_source, of_target in parts:
        check_sides(of_source)
        check_sectors(of_target, "Pad the rows of both arrays to a multiple of 16 bytes")
    if not is_stack:
        return parts
    check_extents(arrays=count)
    return [(part, _stacked(a, count, step), _stacked(b, 1)) for part, a, b in parts]


def stack_kernel(cuda_type: str, pipeline: StackPipeline) -> Kernel:
    constants = {"STAGES": pipeline.stages, "CONSUMER_WARPS": pipeline.consumer_warps}
    return shipped_kernel("reduce_stack.cu", {"Tile": cuda_type}, constants)


def _prepared(kernel: Kernel, grid: int, threads: int, arguments: ReduceArguments) -> Launch:
    launch = kernel.prepare(grid, threads, arguments)
    launch.release()
    return launch


def _check_layouts(source: Layout, target: Layout) -> None:
    if source.element is not target.element or target.element.name not in _READ_AS:
        raise ArrayTypeError.broken(
            "target",
            f"{target.element} and source {source.element}",
            f"both must hold the same of {', '.join(_READ_AS)}",
            "Convert one of them",
            verb="holds",
        )
    if target.shape not in (source.shape, source.shape[1:]) or not target.shape:
        raise ArgumentError.broken(
            "target",
            target.shape,
            f"the source has {source.shape}",
            "They must be equal, or the source a stack of arrays like the target. Pass "
            "arrays of one dimension or more",
            verb="has shape",
        )
    if source.device != target.device:
        raise ArgumentError.broken(
            "target",
            f"{_arrays.where(target.device)} and source {_arrays.where(source.device)}",
            "one launch works on one device",
            "Move one of them",
            verb="lies",
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of both arrays: an address offset and a shape; shape None means the whole array."""

    shape: tuple[int, ...] | None
    offset_bytes: int

    def of(self, view: ArrayView) -> ArrayView:
        """Return the part's layout at the array's start address; `moved` adds the offset."""
        if self.shape is None:
            return view
        itemsize = view.element.itemsize
        strides = (self.shape[-1] * itemsize, itemsize)[-len(self.shape) :]
        return view._replace(shape=self.shape, strides_bytes=strides)

    def moved(self, addresses: Sequence[int]) -> Sequence[int]:
        return [address + self.offset_bytes for address in addresses]


def _parts(merged: ArrayView) -> list[_Part]:
    """Split a contiguous array into rows as long as the longest box, and a remainder.

    In one dimension a box has at most 256 elements.
    """
    if len(merged.shape) != 1 or merged.shape[0] <= MAX_BOX_SIDE:
        return [_Part(None, 0)]
    rows, rest = divmod(merged.shape[0], MAX_BOX_SIDE)
    parts = [_Part((rows, MAX_BOX_SIDE), 0)]
    if rest:
        parts.append(_Part((rest,), rows * MAX_BOX_SIDE * merged.element.itemsize))
    return parts


def _first(stack: ArrayView) -> ArrayView:
    return stack._replace(shape=stack.shape[1:], strides_bytes=stack.strides_bytes[1:])


def _stacked(view: ArrayView, count: int, step: int | None = None) -> ArrayView:
    """Return a stack of ``count`` arrays like the view; a single one may have any legal stride."""
    if step is None:
        low, high = view.byte_bounds
        step = -(-(high - low) // TMA_ALIGNMENT) * TMA_ALIGNMENT
    return view._replace(shape=(count, *view.shape), strides_bytes=(step, *view.strides_bytes))
