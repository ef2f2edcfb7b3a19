"""Batches of sequences of different lengths: packed one after the other, or spread out again."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import element
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError, TensorMapError, Violation
from tmaasync.kernel import Kernel, wait_for_producers
from tmaasync.ops._results import empty
from tmaasync.ops.copy import TILED_RING, Ring, merged
from tmaasync.ragged import RaggedTensorMap, create_ragged_tensor_map, running_sums
from tmaasync.ragged.batch import MAX_ROWS, one_of, refuse
from tmaasync.tile import TMATensorTile, create_tma_tile

__all__ = ["RAGGED_RING", "ragged_kernel", "ragged_load", "ragged_store", "ragged_tiles"]

# The fastest for strided arrays on an H200, which these are (benchmarks/bench_ragged.py --sweep).
RAGGED_RING = TILED_RING


def ragged_store(
    padded: Any,
    lengths: Any = None,
    out: Any = None,
    *,
    cu_seqlens: Any = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Pack the sequences of a padded batch one after the other, without what pads them.

    On the arrays' GPU, or, in host memory, on the emulator.

    Args:
        padded: An array of shape (batch, max_length, last), with up to two more dimensions (heads,
            groups) in front of the last. What lies contiguously in memory of a row takes a multiple
            of 16 bytes.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            padded array's device.
        out: Where to: an array of shape (total_rows, ...) whose rows are those of the padded one.
            Rows behind the last sequence are left alone. By default a new one of just the rows
            needed, for which the lengths have to be in host memory.
        cu_seqlens: In place of the lengths, their running sums: 0 first, the total last.
        check: Whether to check lengths on a device too, which waits for them. Unchecked, sequences
            longer than ``max_length`` are cut and those beyond the end of ``out`` dropped; with
            ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths describe no such batch, or shapes, types or devices differ.
        TensorMapError: TMA cannot reach the rows; every rule is listed with a remedy.

    >>> padded = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    >>> ragged_store(padded, [1, 2])[:, 0]
    array([ 0., 12., 16.], dtype=float32)
    """
    view = _arrays.view(padded, argument="padded")
    _check_rank("padded", view, 3)
    batch, max_length, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    limits = _Limits(max_length, target.shape[0] if target is not None else None)
    sums = _Sums.of(lengths, cu_seqlens, view.device, limits, check=check)
    if sums.batch != batch:
        raise ArgumentError(
            f"{sums.name} describes {sums.batch} sequences; padded has {batch}. Pass one per "
            "sequence."
        )
    if target is None:
        out = empty(view, (sums.known("total", "out", "rows"), *row), view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, (target.shape[0], *row))
    if not target.is_empty and not view.is_empty:
        _plan_for("ragged_store", target, view).run(target, view, sums, stream)
    return out


def ragged_load(
    packed: Any,
    lengths: Any = None,
    out: Any = None,
    *,
    cu_seqlens: Any = None,
    max_length: int | None = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Spread packed sequences out into a padded batch, with zeros behind each of them.

    On the arrays' GPU, or, in host memory, on the emulator.

    Args:
        packed: An array of shape (total_rows, last), with up to two more dimensions (heads, groups)
            in front of the last. What lies contiguously in memory of a row takes a multiple of 16
            bytes. Rows behind the last sequence are not looked at.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            packed array's device.
        out: Where to: an array of shape (batch, max_length, ...) whose rows are those of the packed
            one. By default a new one.
        cu_seqlens: In place of the lengths, their running sums: 0 first, the total last.
        max_length: Rows of the padded array. By default those of ``out``, else of the longest
            sequence, for which the lengths have to be in host memory.
        check: Whether to check lengths on a device too, which waits for them. Unchecked, sequences
            longer than ``max_length`` are cut, and those beyond the end of ``packed`` read as
            zeros; with ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths describe no such batch, or shapes, types or devices differ.
        TensorMapError: TMA cannot reach the rows; every rule is listed with a remedy.

    >>> packed = np.ones((3, 4), np.float32)
    >>> ragged_load(packed, [1, 2])[:, :, 0]
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    view = _arrays.view(packed, argument="packed")
    _check_rank("packed", view, 2)
    rows, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    if target is not None and max_length is None:
        _check_rank("out", target, 3)
        max_length = target.shape[1]
    _check_max_length(max_length)
    limits = _Limits(max_length, rows)
    sums = _Sums.of(lengths, cu_seqlens, view.device, limits, check=check)
    if max_length is None:
        max_length = sums.known("longest", "max_length", "the longest sequence")
    shape = (sums.batch, max_length, *row)
    if target is None:
        out = empty(view, shape, view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, shape)
    if view.is_empty:
        owner: Any = target.owner
        owner[...] = 0
    elif not target.is_empty:
        _plan_for("ragged_load", view, target).run(view, target, sums, stream)
    return out


# --- what the arrays must be ------------------------------------------------------------------


def _check_rank(name: str, view: ArrayView, least: int) -> None:
    if view.ndim < least:
        leading = "(batch, max_length" if least == 3 else "(total_rows"
        rule = f"it must have the shape {leading}, ..., last): a row is at least one dimension"
        raise ArgumentError(
            str(
                Violation(
                    f"{name}.shape",
                    view.shape,
                    rule,
                    f"Reshape {name}, last dimension 16 bytes or more",
                )
            )
        )


def _check_max_length(max_length: object) -> None:
    if max_length is None:
        return
    is_integer = hasattr(max_length, "__index__") and not isinstance(max_length, bool)
    if not is_integer or not 0 <= max_length <= MAX_ROWS:  # type: ignore[operator]
        rule = "it must be an integer of 0 or more, and fit 32 bits"
        remedy = "Pass the rows of the longest sequence"
        raise ArgumentError(str(Violation("max_length", repr(max_length), rule, remedy)))


def _check_output(out: ArrayView, given: ArrayView, shape: tuple[int, ...]) -> None:
    _arrays.require_writable(out, "out")
    expected = {"shape": shape, "element": given.element, "device": given.device}
    for what, wanted in expected.items():
        if getattr(out, what) != wanted:
            raise ArgumentError(
                f"out has {what} {getattr(out, what)}; it must be {wanted}. Pass such an array, or "
                "none to get one."
            )
    if _arrays.may_overlap(out, given):
        raise ArgumentError(
            f"out overlaps the other array (at {out.address:#x} and {given.address:#x}); the order "
            "of tiles is not defined. Pass an array of its own."
        )


# --- the lengths ------------------------------------------------------------------------------


class _Limits(NamedTuple):
    """What the arrays allow; None where the lengths decide."""

    max_length: int | None
    total_rows: int | None


class _Sums(NamedTuple):
    """Lengths or running sums: checked and in host memory, or as they are on the device."""

    name: str
    values: Any
    batch: int
    is_on_device: bool
    total: int | None = None
    longest: int | None = None

    @classmethod
    def of(
        cls, lengths: Any, cu_seqlens: Any, device: int | None, limits: _Limits, *, check: bool
    ) -> _Sums:
        name, values = one_of(lengths, cu_seqlens)
        view = None if isinstance(values, list | tuple) else _arrays.view(values, argument=name)
        is_on_device = view is not None and view.device is not None
        if view is not None and is_on_device:
            _check_on_device(name, view, device)
        if check or not is_on_device:
            most = MAX_ROWS if limits.max_length is None else limits.max_length
            sums = running_sums(lengths, cu_seqlens, max_length=most, total_rows=limits.total_rows)
            longest = int(np.diff(sums).max(initial=0))
            return cls(name, sums, sums.size - 1, False, int(sums[-1]), longest)
        size = view.shape[0] if view is not None else 0
        return cls(name, values, size - (name == "cu_seqlens"), True)

    def known(self, fact: str, argument: str, what: str) -> int:
        """The total or the longest, for which a device would have to be waited for."""
        value: int | None = getattr(self, fact)
        if value is None:
            raise ArgumentError(
                f"{argument} is None; {self.name} lies on a device, where {what} cannot be known "
                f"without waiting. Pass {argument}=, check=True, or {self.name} in host memory."
            )
        return value

    def on(self, device: int | None, stream: int) -> Any:
        """The running sums as 32-bit integers where the arrays are, in order on the stream."""
        if device is None:
            return self.values
        import cupy

        with cupy.cuda.Device(device), _current(cupy, stream):
            if not self.is_on_device:
                return cupy.asarray(self.values)
            values = cupy.from_dlpack(self.values)
            if self.name == "cu_seqlens":
                return cupy.ascontiguousarray(values.astype(cupy.int32, copy=False))
            sums = cupy.zeros(self.batch + 1, cupy.int32)
            sums[1:] = cupy.cumsum(values, dtype=cupy.int32)
            return sums


def _check_on_device(name: str, view: ArrayView, device: int | None) -> None:
    """What can be checked without reading them."""
    found = []
    if view.device != device:
        place = "the host" if device is None else f"cuda:{device}"
        remedy = "Move it there, or to host memory"
        rule = f"the arrays lie on {place}"
        found.append(Violation(f"{name}'s device", f"cuda:{view.device}", rule, remedy))
    if view.ndim != 1 or view.element.dtype.kind not in "iu":
        value = f"{view.element} {view.shape}"
        rule, remedy = "it must be a flat array of integers", "Pass int32 of one dimension"
        found.append(Violation(name, value, rule, remedy))
    elif view.is_empty and name == "cu_seqlens":
        rule = "it has one entry more than there are sequences"
        found.append(Violation(name, "empty", rule, "Put a 0 in front of the running sums"))
    refuse(found)


@contextlib.contextmanager
def _current(cupy: Any, stream: int) -> Iterator[None]:
    """Make a stream CuPy's current one, so that what it allocates and computes is in order."""
    if int(cupy.cuda.get_current_stream().ptr) == stream:
        yield
    else:
        with cupy.cuda.ExternalStream(stream):
            yield


# --- plans ------------------------------------------------------------------------------------


def _plan_for(entry: str, packed: ArrayView, padded: ArrayView) -> _Plan:
    on_granule = (packed.address | padded.address) % _SECTOR_BYTES == 0
    return _plan(entry, packed[1:5], padded[1:5], on_granule)


@functools.lru_cache(maxsize=1024)
def _plan(entry: str, *layouts: object) -> _Plan:
    """All that a call costs once per pair of layouts; the same plan serves any addresses."""
    del layouts  # the key: shapes, strides, element types, devices, alignment
    return _Plan(entry)


class _Plan:
    """A launch between arrays of given layouts: everything but addresses, lengths and stream."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._below_bytes = 0
        self._lock = threading.Lock()

    def run(self, packed: ArrayView, padded: ArrayView, sums: _Sums, stream: object) -> None:
        """Pack or spread out."""
        device = packed.device
        frameworks = {packed.framework, padded.framework}
        if sums.is_on_device:
            frameworks.add(_arrays.view(sums.values).framework)
        handle = stream_of(frameworks, device, stream)
        wait_for_producers((packed, padded), handle)
        with self._lock, _driver.on_device(device):
            cu_seqlens = _arrays.view(sums.on(device, handle))
            if self._launch is None:
                self._launch = self._prepare(packed, padded, cu_seqlens)
            places = (packed.address - self._below_bytes, padded.address, cu_seqlens.address)
            self._launch.aim(places, handle)
            self._launch()

    def _prepare(
        self, packed: ArrayView, padded: ArrayView, cu_seqlens: ArrayView
    ) -> PreparedLaunch | EmulatedLaunch:
        names = ("out", "padded") if self._entry == "ragged_store" else ("packed", "out")
        packed_map, padded_tile = ragged_tiles(packed, padded, RAGGED_RING, names)
        self._below_bytes = packed.address - packed_map.spec.address
        columns = padded_tile.tiles_per_side[2:]
        batch, max_length = padded.shape[:2]
        block_rows = packed_map.tile_shape[0] * RAGGED_RING.tiles_per_block
        blocks = batch * -(-max_length // block_rows)
        if self._entry == "ragged_store":
            blocks = packed.shape[0] // block_rows + batch
        innermost_first = (*reversed(columns), 1, 1)[:_MAX_ROW_DIMS]
        kernel = ragged_kernel(
            self._entry, packed_map.cuda_type, padded_tile.cuda_type, RAGGED_RING
        )
        arguments = (
            packed_map,
            padded_tile,
            cu_seqlens,
            batch,
            np.array(innermost_first, np.uint32).tobytes(),
        )
        launch = kernel.prepare(blocks * math.prod(columns), 32, arguments)
        launch.release()
        return launch


# --- tiles ------------------------------------------------------------------------------------

_SECTOR_BYTES = 16
_WORD = element(np.uint64)  # rows move as words, whatever they hold; zeros are zeros in any type
_MAX_BOX_SIDE = 256
_MIN_FOLDED_SIDE = 64
_MAX_ROW_DIMS = 3


def ragged_tiles(
    packed: ArrayView, padded: ArrayView, ring: Ring, names: tuple[str, str] = ("packed", "padded")
) -> tuple[RaggedTensorMap, TMATensorTile]:
    """The map and the tile that the kernel takes.

    Args:
        packed: (total_rows, ...).
        padded: (batch, max_length, ...), with the same rows.
        ring: Whose tiles they are.
        names: What to call the two in an error.
    """
    packed, padded = _in_words(packed, padded, names)
    left = ring.tile_bytes // _WORD.itemsize
    # In steps of two, so that a new max_length does not need a new kernel.
    rows = 1 << (padded.shape[1] - 1).bit_length()
    sides: list[int] = []
    for extent in reversed((rows, *padded.shape[2:])):
        sides.append(min(extent, _MAX_BOX_SIDE, left))
        left = max(1, left // sides[-1])
    tile_shape = tuple(reversed(sides))
    with _named(names[0]):
        packed_map = create_ragged_tensor_map(packed, tile_shape, max_length=padded.shape[1])
    with _named(names[1]):
        padded_tile = create_tma_tile(padded, (1, *tile_shape))
    return packed_map, padded_tile


def _in_words(
    packed: ArrayView, padded: ArrayView, names: tuple[str, str]
) -> tuple[ArrayView, ArrayView]:
    """The arrays with rows of words, in as few dimensions as they lie in."""
    rows = merged(_without(packed, 1), _without(padded, 2))
    found = [
        one for name, view in zip(names, rows, strict=True) for one in _row_violations(name, view)
    ]
    if found:
        raise TensorMapError(tuple(found))
    rows = tuple(map(_folded, map(_words, rows)))
    return _with_rows(packed, 1, rows[0]), _with_rows(padded, 2, rows[1])


def _without(view: ArrayView, dims: int) -> ArrayView:
    """One row; a single element keeps its dimension."""
    shape, strides = view.shape[dims:], view.strides_bytes[dims:]
    return view._replace(shape=shape, strides_bytes=strides)


def _with_rows(view: ArrayView, dims: int, row: ArrayView) -> ArrayView:
    return row._replace(
        shape=view.shape[:dims] + row.shape,
        strides_bytes=view.strides_bytes[:dims] + row.strides_bytes,
    )


def _row_violations(name: str, row: ArrayView) -> Iterator[Violation]:
    size = row.element.itemsize
    extent, stride = (row.shape[-1], row.strides_bytes[-1]) if row.shape else (1, size)
    if stride != size:
        rule = f"the last dimension must be contiguous, {size} bytes apart"
        yield Violation(f"{name}'s last stride", stride, rule, "Copy the array to have it so")
    elif extent * size % _SECTOR_BYTES:
        rule = "TMA moves rows in sectors of 16 bytes"
        remedy = "Pad the last dimension to a multiple of 16 bytes"
        yield Violation(f"{name}'s rows", f"{extent * size} bytes long", rule, remedy)
    if len(row.shape) > _MAX_ROW_DIMS:
        rule = "a row has at most three dimensions that do not lie in one piece"
        yield Violation(f"{name}'s rows", f"{row.shape}", rule, "Copy the array to merge some")


def _words(row: ArrayView) -> ArrayView:
    count = row.shape[-1] * row.element.itemsize // _WORD.itemsize
    return row._replace(
        shape=(*row.shape[:-1], count),
        strides_bytes=(*row.strides_bytes[:-1], _WORD.itemsize),
        element=_WORD,
    )


def _folded(row: ArrayView) -> ArrayView:
    """Long rows in two dimensions, so that one box holds whole rows."""
    *outer, count = row.shape
    if count <= _MAX_BOX_SIDE or len(outer) == _MAX_ROW_DIMS - 1:
        return row
    per_sector = _SECTOR_BYTES // _WORD.itemsize
    sides = range(_MAX_BOX_SIDE, _MIN_FOLDED_SIDE - 1, -per_sector)
    side = next((side for side in sides if count % side == 0), None)
    if side is None:
        return row
    return row._replace(
        shape=(*outer, count // side, side),
        strides_bytes=(*row.strides_bytes[:-1], side * _WORD.itemsize, _WORD.itemsize),
    )


_OF_ARRAY = re.compile(r"^array(?:\.|'s )")


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Call the array by its argument's name in errors."""
    try:
        yield
    except TensorMapError as error:
        raise TensorMapError(
            tuple(
                replace(one, argument=f"{name}'s {_OF_ARRAY.sub('', one.argument)}")
                for one in error.violations
            )
        ) from None


# --- the kernel -------------------------------------------------------------------------------


@functools.cache
def ragged_kernel(entry: str, packed_type: str, padded_type: str, ring: Ring) -> Kernel:
    """The kernel of a direction for types of map and tile, and a ring."""
    return Kernel(
        "ragged.cu",
        entry,
        types={"Packed": packed_type, "Padded": padded_type},
        constants={
            "STAGES": ring.stages,
            "LOADS_AHEAD": ring.loads_ahead,
            "TILES": ring.tiles_per_block,
        },
    )
