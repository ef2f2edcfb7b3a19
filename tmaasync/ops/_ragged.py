"""ops.ragged_store and ops.ragged_load: copy between packed sequences and padded batches."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._kinds import as_int, check_flags, is_integer
from tmaasync._ragged.batch import MAX_ROWS, BatchNames, on_host
from tmaasync.errors import ArgumentError
from tmaasync.kernel import BoundCall, Launch
from tmaasync.ops._allocation import address_of, empty, fill
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._layouts import Layout, is_apart, refuse_overlap
from tmaasync.ops._operation import Operation, overridden
from tmaasync.ops._ragged_tiles import (
    MAX_ROW_DIMS,
    PADDING_TILES,
    RAGGED_PIPELINE,
    ragged_kernel,
    ragged_tiles,
)
from tmaasync.ops._report import ReportingLaunch, report_of
from tmaasync.ops._sequence_lengths import CumulativeLengths, Limits
from tmaasync.ragged import RaggedTensorMap
from tmaasync.tile import TMATensorTile

_CALLS = CallCache()


# The argument that sets max_length, for messages.
_NAMES_OF_STORE = BatchNames(max_length="padded.shape[1]")
_NAMES_OF_LOAD = BatchNames(max_length="out.shape[1]")

# Argument names of the packed and the padded array.
_NAMES = {"ragged_store": ("out", "padded"), "ragged_load": ("packed", "out")}


def ragged_store(
    padded: Any,
    lengths: Any = None,
    out: Any = None,
    *,
    cu_seqlens: Any = None,
    check: bool = False,
    stream: object = None,
) -> Any:
    """Pack the sequences of a padded batch back to back, without their padding.

    It runs on the arrays' GPU, or on the emulator for arrays in host memory.

    The packed array may have up to 2^31 - 2 rows, and a sequence nearly 2^31 (less a tile).

    Args:
        padded: An array of shape (batch, max_length, last), with up to two more dimensions (heads,
            groups) before the last. The contiguous part of a row is a multiple of 16 bytes.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            padded array's device.
        out: The output, of shape (total_rows, ...), with the row shape of ``padded``. Rows after
            the last sequence are not written. By default a new array of exactly the rows needed,
            which requires the lengths in host memory.
        cu_seqlens: Cumulative lengths instead of lengths: 0 first, the total last.
        check: Whether to check lengths on a device too, which waits for the device. Unchecked,
            sequences longer than ``max_length`` are cut, sequences outside ``out`` or after one
            that runs backwards may be dropped, and a later call reports it; with
            ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths do not match the arrays, or shapes, types or devices differ. Or
            an earlier call had invalid lengths on the device, unchecked.
        TensorMapError: TMA cannot access the rows; every broken rule is listed with a remedy.

    >>> import numpy as np
    >>> padded = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    >>> ragged_store(padded, [1, 2])[:, 0]
    array([ 0., 12., 16.], dtype=float32)
    """
    if _is_unchecked(check) and out is not None:
        option = ("ragged_store", None)
        if _was_made_again((out, padded), option, lengths, cu_seqlens, stream):
            return out
    view, cumulative, out, target = checked_store(padded, lengths, cu_seqlens, out, check=check)
    if not target.is_empty and not view.is_empty:
        _run("ragged_store", target, view, cumulative, None, stream)
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
    """Unpack sequences into a padded batch, with zeros after each sequence.

    It runs on the arrays' GPU, or on the emulator for arrays in host memory.

    The packed array may have up to 2^31 - 2 rows, and a sequence nearly 2^31 (less a tile).

    Args:
        packed: An array of shape (total_rows, last), with up to two more dimensions (heads, groups)
            before the last. The contiguous part of a row is a multiple of 16 bytes. Rows after
            the last sequence are not read.
        lengths: Rows of each sequence: ints or an array of integers, in host memory or on the
            packed array's device.
        out: The output, of shape (batch, max_length, ...), with the row shape of ``packed``. By
            default a new array.
        cu_seqlens: Cumulative lengths instead of lengths: 0 first, the total last.
        max_length: Rows of the padded array. By default ``out.shape[1]``, else the longest
            sequence, which requires the lengths in host memory.
        check: Whether to check lengths on a device too, which waits for the device. Unchecked,
            sequences longer than ``max_length`` are cut, sequences outside ``packed`` read as
            zeros, sequences after one that runs backwards may not be written, and a later call
            reports it; with ``TMAASYNC_DEBUG=1`` the kernel traps.
        stream: By default the current stream of the arrays' framework.

    Returns:
        ``out``.

    Raises:
        ArgumentError: The lengths do not match the arrays, or shapes, types or devices differ. Or
            an earlier call had invalid lengths on the device, unchecked.
        TensorMapError: TMA cannot access the rows; every broken rule is listed with a remedy.

    >>> import numpy as np
    >>> packed = np.ones((3, 4), np.float32)
    >>> ragged_load(packed, [1, 2])[:, :, 0]
    array([[1., 0.],
           [1., 1.]], dtype=float32)
    """
    if _is_unchecked(check) and out is not None:
        option = ("ragged_load", max_length)
        if _was_made_again((packed, out), option, lengths, cu_seqlens, stream):
            return out
    view, cumulative, out, target = checked_load(
        packed, lengths, cu_seqlens, out, max_length, check=check
    )
    if view.is_empty:
        fill(target, 0)
    elif not target.is_empty:
        _run("ragged_load", view, target, cumulative, max_length, stream)
    return out


def _run(
    entry: str,
    packed: ArrayView,
    padded: ArrayView,
    cumulative: CumulativeLengths,
    max_length: object,
    stream: object,
) -> None:
    """Pack or unpack, and cache the call; ``max_length`` is the caller's."""
    operation = _CALLS.operation(RaggedCopy, entry, Layout.of(packed), Layout.of(padded))
    frameworks = operation.run(packed, padded, cumulative, stream)
    if cumulative.is_on_device and not cumulative.is_direct:
        return
    arrays = (packed.owner, padded.owner, *([cumulative.values] if cumulative.is_on_device else []))
    option = (entry, max_length, cumulative.is_on_device)
    _CALLS.remember(arrays, option, operation, frameworks, packed.device)


def _is_unchecked(check: bool) -> bool:
    if check is not False:
        check_flags(check=check)
    return not check


def _was_made_again(
    arrays: tuple[Any, Any],
    option: tuple[str, object],
    lengths: object,
    cu_seqlens: object,
    stream: object,
) -> bool:
    """Repeat an earlier call with equal arguments, if any; the full path reports errors.

    The cache serves cumulative lengths on the device, and any lengths in host memory.
    """
    _, max_length = option
    is_plain = max_length is None or type(max_length) is int  # True and 1 are equal keys
    if not is_plain or (lengths is None) == (cu_seqlens is None):
        return False
    name, values = ("lengths", lengths) if cu_seqlens is None else ("cu_seqlens", cu_seqlens)
    if type(values) in _HOST_TYPES:
        array = on_host(values, name)
        numbers = (name, array.dtype, array.shape, array.tobytes())
        is_integer = array.dtype.kind in "iu"
        return is_integer and _CALLS.run(arrays, (*option, False), stream, numbers) is not None
    if name == "lengths" or stream is not None:
        # On an explicit stream the full path orders the launch after the lengths' producer.
        return False
    return _CALLS.run((*arrays, values), (*option, True), stream) is not None


_HOST_TYPES = (list, tuple, np.ndarray)


# --- checks of the arrays ---------------------------------------------------------------------


def checked_store(
    padded: Any, lengths: Any, cu_seqlens: Any, out: Any, *, check: bool = False
) -> tuple[ArrayView, CumulativeLengths, Any, ArrayView]:
    """Return a view of the padded array, the lengths, and the output with a view of it."""
    view = _arrays.view(padded, argument="padded")
    _check_rank("padded", view, 3)
    batch, max_length, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    if target is not None:
        _check_rank("out", target, 2)
    limits = Limits(max_length, target.shape[0] if target is not None else None)
    cumulative = CumulativeLengths.of(
        lengths, cu_seqlens, view.device, limits, check=check, names=_NAMES_OF_STORE
    )
    if cumulative.batch != batch:
        raise ArgumentError.broken(
            cumulative.name,
            f"{cumulative.batch} sequences",
            f"padded has {batch}",
            "Pass one per sequence",
            verb="describes",
        )
    if target is None:
        out = empty(view, (cumulative.known("total", "out", "rows"), *row), view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, (target.shape[0], *row))
    return view, cumulative, out, target


def checked_load(
    packed: Any,
    lengths: Any,
    cu_seqlens: Any,
    out: Any,
    max_length: int | None,
    *,
    check: bool = False,
) -> tuple[ArrayView, CumulativeLengths, Any, ArrayView]:
    """Return a view of the packed array, the lengths, and the output with a view of it."""
    view = _arrays.view(packed, argument="packed")
    _check_rank("packed", view, 2)
    rows, *row = view.shape
    target = None if out is None else _arrays.view(out, argument="out")
    names = BatchNames()
    if target is not None and max_length is None:
        _check_rank("out", target, 3)
        names, max_length = _NAMES_OF_LOAD, target.shape[1]
    if max_length is not None:
        check_max_length(max_length)
        max_length = as_int(max_length)
    limits = Limits(max_length, rows)
    cumulative = CumulativeLengths.of(
        lengths, cu_seqlens, view.device, limits, check=check, names=names
    )
    if max_length is None:
        max_length = cumulative.known("longest", "max_length", "the longest sequence")
    shape = (cumulative.batch, max_length, *row)
    if target is None:
        out = empty(view, shape, view.element)
        target = _arrays.view(out, argument="out")
    _check_output(target, view, shape)
    return view, cumulative, out, target


def check_reach(entry: str, packed: ArrayView, padded: ArrayView) -> None:
    """Check that TMA can access the rows, as `RaggedCopy` does when it prepares a launch."""
    if not (packed.is_empty or padded.is_empty):
        # Use emulator tiles: the driver does not encode tensor maps of arrays that do not exist.
        packed, padded = packed._replace(device=None), padded._replace(device=None)
        ragged_tiles(packed, padded, RAGGED_PIPELINE, _NAMES[entry])


def _check_rank(name: str, view: ArrayView, least: int) -> None:
    if view.ndim < least:
        leading = "(batch, max_length" if least == 3 else "(total_rows"
        rule = f"it must have the shape {leading}, ..., last): a row is at least one dimension"
        remedy = f"Reshape {name}, last dimension 16 bytes or more"
        raise ArgumentError.broken(f"{name}.shape", view.shape, rule, remedy)


def check_max_length(max_length: object) -> None:
    if not is_integer(max_length) or not 0 <= max_length <= MAX_ROWS:
        rule = "it must be an integer of 0 or more, and fit 32 bits"
        remedy = "Pass the rows of the longest sequence"
        raise ArgumentError.broken("max_length", repr(max_length), rule, remedy)


def _check_output(out: ArrayView, given: ArrayView, shape: tuple[int, ...]) -> None:
    _arrays.require_writable(out, "out")
    for what, wanted in {"shape": shape, "element": given.element}.items():
        if getattr(out, what) != wanted:
            raise ArgumentError.broken(
                "out",
                f"{what} {getattr(out, what)}",
                f"it must be {wanted}",
                f"Pass an array with that {what}, or leave out= out",
                verb="has",
            )
    if out.device != given.device:
        raise ArgumentError.broken(
            "out",
            _arrays.where(out.device),
            f"the other array lies {_arrays.where(given.device)}",
            "Pass an array there, or leave out= out",
            verb="lies",
        )
    refuse_overlap("out", out, {"the other array": given})


# --- the operation ----------------------------------------------------------------------------


class RaggedArguments(NamedTuple):
    packed: RaggedTensorMap
    padded: TMATensorTile
    cu_seqlens: ArrayView
    batch: int
    total_rows: int
    columns: bytes
    broken_sequence: Any


class RaggedPointers(NamedTuple):
    """The parameters of ragged.cu that change from call to call."""

    packed: int
    padded: int
    cu_seqlens: int


def _describe(call: str, sequence: int, *, names: BatchNames, packed: str) -> str:
    return (
        f"lengths or cu_seqlens of {call} is wrong about sequence {sequence}: it runs backwards, "
        f"is longer than {names.max_length} or is not within the rows of {packed}, and was cut or "
        "left out. Pass check=True to learn which."
    )


_DESCRIBE = {
    "ragged_store": functools.partial(_describe, names=_NAMES_OF_STORE, packed="out"),
    "ragged_load": functools.partial(_describe, names=_NAMES_OF_LOAD, packed="packed"),
}


class RaggedCopy(Operation):
    """Packing or unpacking between arrays of given layouts, for any values of the lengths."""

    def __init__(self, entry: str, packed: Layout, padded: Layout) -> None:
        """``entry`` names the kernel's function."""
        super().__init__(packed.device)
        self._entry = entry
        self._batch, max_length = padded.shape[:2]
        self._spans = (packed.span_bytes, padded.span_bytes)
        self._limits = Limits(max_length, packed.shape[0])
        self._names = _NAMES_OF_STORE if entry == "ragged_store" else _NAMES_OF_LOAD
        self._below_bytes = 0
        self._framework = ""  # framework of the last output
        self._checked: tuple[object, CumulativeLengths] | None = None
        self._uploaded: tuple[bytes, int, Any] | None = None

    def run(
        self, packed: ArrayView, padded: ArrayView, cumulative: CumulativeLengths, stream: object
    ) -> tuple[str, ...]:
        """Pack or unpack; return the arrays' frameworks."""
        views = [packed, padded]
        if cumulative.is_on_device:
            views.append(_arrays.view(cumulative.values))
        handle = self.ordered(views, stream)
        self._framework = (packed if self._entry == "ragged_store" else padded).framework
        # Kept alive until the launch is in the stream, which orders any reuse of the memory.
        array = self.on_device(cumulative, handle)
        cu_seqlens = _arrays.view(array)
        launch = self.prepared(lambda: self._prepare(packed, padded, cu_seqlens))
        pointers = self._pointers((packed.address, padded.address, cu_seqlens.address))
        launch.launch_at(pointers, handle)
        return tuple(view.framework for view in views)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`.

        Args:
            addresses: The packed array, the padded array, and cumulative lengths on the device.
            numbers: Argument name, type, shape and bytes of lengths in host memory.
        """
        if self._launch is None or not is_apart(0, addresses, self._spans):
            return None
        if not numbers:
            return self._launch, self._pointers(addresses)
        cumulative = self._checked_lengths(*numbers)
        if cumulative.batch != self._batch:
            return None
        return _LaunchWithUpload(self, self._launch, cumulative), self._pointers((*addresses, 0))

    def _pointers(self, addresses: Sequence[int]) -> RaggedPointers:
        packed, padded, cu_seqlens = addresses
        return RaggedPointers(packed - self._below_bytes, padded, cu_seqlens)

    def _checked_lengths(
        self, name: str, dtype: Any, shape: tuple[int, ...], data: bytes
    ) -> CumulativeLengths:
        """Return lengths in host memory, checked unless they equal the last ones."""
        key = (name, dtype, shape, data)
        last = self._checked
        if last is not None and last[0] == key:
            return last[1]
        values = np.frombuffer(data, dtype).reshape(shape)
        lengths, cu_seqlens = (values, None) if name == "lengths" else (None, values)
        device = self.backend.device
        cumulative = CumulativeLengths.of(
            lengths, cu_seqlens, device, self._limits, check=False, names=self._names
        )
        self._checked = (key, cumulative)
        return cumulative

    def on_device(self, cumulative: CumulativeLengths, stream: int) -> Any:
        """Return the cumulative lengths on the arrays' device; the last upload is reused."""
        if cumulative.is_on_device or self.backend.reads_host_memory:
            return cumulative.on(self.backend, self._framework, stream)
        data = cumulative.values.tobytes()
        last = self._uploaded
        if last is not None and last[:2] == (data, stream):
            return last[2]
        array = cumulative.on(self.backend, self._framework, stream)
        self._uploaded = (data, stream, array)
        return array

    def _prepare(self, packed: ArrayView, padded: ArrayView, cu_seqlens: ArrayView) -> Launch:
        pipeline = overridden(RAGGED_PIPELINE)
        is_loaded = self._entry == "ragged_store"
        packed_map, padded_tile = ragged_tiles(
            *(packed, padded, pipeline, _NAMES[self._entry]), is_loaded=is_loaded
        )
        self._below_bytes = packed.address - packed_map.spec.address
        columns = padded_tile.tiles_per_side[2:]
        batch, max_length = padded.shape[:2]
        block_rows = packed_map.tile_shape[0] * pipeline.tiles_per_block
        total_rows = packed.shape[0]
        blocks = total_rows // block_rows + batch
        if self._entry == "ragged_load":
            blocks += batch * -(-max_length // (packed_map.tile_shape[0] * PADDING_TILES))
        innermost_first = (*reversed(columns), 1, 1)[:MAX_ROW_DIMS]
        types = packed_map.cuda_type, padded_tile.cuda_type
        kernel = ragged_kernel(self._entry, *types, pipeline)
        report = report_of(self.backend, _DESCRIBE[self._entry])
        arguments = RaggedArguments(
            packed_map,
            padded_tile,
            cu_seqlens,
            batch=batch,
            total_rows=total_rows,
            columns=np.array(innermost_first, np.uint32).tobytes(),
            broken_sequence=report.argument,
        )
        launch = kernel.prepare(blocks * math.prod(columns), 32, arguments)
        launch.release()
        return ReportingLaunch(launch, report)


@dataclass(frozen=True, slots=True)
class _LaunchWithUpload:
    """A launch whose cumulative lengths are uploaded in stream order."""

    operation: RaggedCopy
    launch: Launch
    cumulative: CumulativeLengths

    def launch_at(self, addresses: Sequence[int], stream: int) -> None:
        array = self.operation.on_device(self.cumulative, stream)
        self.launch.launch_at((*addresses[:-1], address_of(array)), stream)

    def bind(self, addresses: Sequence[int], stream: int) -> BoundCall:
        """See `Launch`; the call keeps the cumulative lengths alive."""
        array = self.operation.on_device(self.cumulative, stream)
        call = self.launch.bind((*addresses[:-1], address_of(array)), stream)
        return functools.partial(_call_with, call, array)


def _call_with(call: BoundCall, kept: object) -> None:
    del kept
    call()
