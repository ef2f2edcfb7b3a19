"""Launches between arrays of given layouts: everything but addresses, lengths and stream."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView, fingerprint
from tmaasync._driver import PreparedLaunch
from tmaasync._ragged.batch import on_host
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._plans import Layout, PlanCache, are_apart
from tmaasync.ops.ragged.lengths import Limits, Sums
from tmaasync.ops.ragged.tiles import (
    MAX_ROW_DIMS,
    PADDING_TILES,
    RAGGED_RING,
    SECTOR_BYTES,
    ragged_kernel,
    ragged_tiles,
)

__all__ = ["Plan", "launch", "launch_again"]


def launch(
    entry: str,
    packed: ArrayView,
    padded: ArrayView,
    sums: Sums,
    max_length: object,
    stream: object,
) -> None:
    """Pack or spread out, and keep how for arrays like these; ``max_length`` is the caller's."""
    on_granule = (packed.address | padded.address) % SECTOR_BYTES == 0
    plan = _plan(entry, Layout.of(packed), Layout.of(padded), on_granule)
    seen = fingerprint(sums.values) if sums.is_on_device else (0, None)
    frameworks = plan.run(packed, padded, sums, stream)
    if seen is not None:
        option = (entry, sums.name, seen[1], max_length)
        found = (plan, sums.is_direct)
        _KNOWN.remember((packed.owner, padded.owner), option, found, frameworks, packed.device)


def launch_again(
    entry: str,
    packed: object,
    padded: object,
    lengths: object,
    cu_seqlens: object,
    max_length: object,
    stream: object,
) -> bool:
    """The same as an earlier call with arrays like these; False if there was none.

    What else may be wrong with the arguments is for the caller to find out, who looks at them.

    Raises:
        ArgumentError: Lengths in host memory are no batch for these arrays.
    """
    name, values = ("lengths", lengths) if cu_seqlens is None else ("cu_seqlens", cu_seqlens)
    is_on_host = type(values) in _HOST_TYPES
    seen = (0, None) if is_on_host else fingerprint(values)
    is_plain = max_length is None or type(max_length) is int  # True and 1 are the same key
    if seen is None or not is_plain or (lengths is not None and cu_seqlens is not None):
        return False
    found = _KNOWN.find((packed, padded), (entry, name, seen[1], max_length), stream)
    if found is None:
        return False
    (plan, is_direct), addresses, handle = found
    sums = plan.checked(name, values) if is_on_host else Sums(name, values, plan.batch, True)
    if sums.batch != plan.batch or not are_apart(addresses, plan.spans):
        return False
    # On a stream of the caller's choice CuPy orders the sums behind the work that made them.
    place = seen[0] if is_direct and stream is None else None
    plan.start(addresses, sums, place, handle)
    return True


_HOST_TYPES = (list, tuple, np.ndarray)


@functools.lru_cache(maxsize=1024)
def _plan(entry: str, packed: Layout, padded: Layout, on_granule: bool) -> Plan:
    """All that a call costs once per pair of layouts; the same plan serves any addresses."""
    del on_granule  # part of the key
    return Plan(entry, packed, padded)


class Plan:
    """A launch between arrays of given layouts: everything but addresses, lengths and stream."""

    def __init__(self, entry: str, packed: Layout, padded: Layout) -> None:
        """Nothing is compiled or encoded before the first `run`."""
        self.batch, max_length = padded.shape[:2]
        self.spans = (packed.span_bytes, padded.span_bytes)
        self._entry = entry
        self._limits = Limits(max_length, packed.shape[0])
        self._device = packed.device
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._below_bytes = 0
        self._lock = threading.Lock()
        self._checked: tuple[object, Sums] | None = None
        self._uploaded: tuple[Sums, int, Any] | None = None

    def run(
        self, packed: ArrayView, padded: ArrayView, sums: Sums, stream: object
    ) -> tuple[str, ...]:
        """Pack or spread out; returns whose arrays they were."""
        frameworks = {packed.framework, padded.framework}
        if sums.is_on_device:
            frameworks.add(_arrays.view(sums.values).framework)
        handle = stream_of(frameworks, self._device, stream)
        wait_for_producers((packed, padded), handle)
        with self._lock:
            if self._launch is None:
                cu_seqlens = _arrays.view(sums.on(self._device, handle))
                self._launch = self._prepare(packed, padded, cu_seqlens)
        self.start((packed.address, padded.address), sums, None, handle)
        return tuple(frameworks)

    def start(self, addresses: Sequence[int], sums: Sums, place: int | None, stream: int) -> None:
        """The same between arrays like those of the last `run`; the sums may lie in place."""
        packed, padded = addresses
        if self._launch is None:
            raise RuntimeError("start() comes after run()")
        if place is None:
            # Alive until the launch is in the stream, which whoever has the memory next is too.
            array = self._placed(sums, stream)
            place = _arrays.view(array).address
        self._launch.launch_at((packed - self._below_bytes, padded, place), stream)

    def checked(self, name: str, values: object) -> Sums:
        """Sums in host memory, checked anew where they differ from the last ones.

        Raises:
            ArgumentError: They are no batch for these arrays.
        """
        array = on_host(values, name)
        key = (name, array.dtype, array.shape, array.tobytes())
        last = self._checked
        if last is not None and last[0] == key:
            return last[1]
        lengths, cu_seqlens = (values, None) if name == "lengths" else (None, values)
        sums = Sums.of(lengths, cu_seqlens, self._device, self._limits, check=False)
        self._checked = (key, sums)
        return sums

    def _placed(self, sums: Sums, handle: int) -> Any:
        """The sums where the arrays are; those of the last call are there already."""
        if sums.is_on_device or self._device is None:
            return sums.on(self._device, handle)
        last = self._uploaded
        if last is not None and last[0] is sums and last[1] == handle:
            return last[2]
        array = sums.on(self._device, handle)
        self._uploaded = (sums, handle, array)
        return array

    def _prepare(
        self, packed: ArrayView, padded: ArrayView, cu_seqlens: ArrayView
    ) -> PreparedLaunch | EmulatedLaunch:
        names = ("out", "padded") if self._entry == "ragged_store" else ("packed", "out")
        packed_map, padded_tile = ragged_tiles(packed, padded, RAGGED_RING, names)
        self._below_bytes = packed.address - packed_map.spec.address
        columns = padded_tile.tiles_per_side[2:]
        batch, max_length = padded.shape[:2]
        block_rows = packed_map.tile_shape[0] * RAGGED_RING.tiles_per_block
        total_rows = packed.shape[0]
        blocks = total_rows // block_rows + batch
        if self._entry == "ragged_load":
            blocks += batch * -(-max_length // (packed_map.tile_shape[0] * PADDING_TILES))
        innermost_first = (*reversed(columns), 1, 1)[:MAX_ROW_DIMS]
        kernel = ragged_kernel(
            self._entry, packed_map.cuda_type, padded_tile.cuda_type, RAGGED_RING
        )
        arguments = (
            packed_map,
            padded_tile,
            cu_seqlens,
            batch,
            total_rows,
            np.array(innermost_first, np.uint32).tobytes(),
        )
        launch = kernel.prepare(blocks * math.prod(columns), 32, arguments)
        launch.release()
        return launch


_KNOWN: PlanCache[tuple[Plan, bool]] = PlanCache()
