"""Launches between arrays of given layouts: everything but addresses, lengths and stream."""

from __future__ import annotations

import functools
import math
import threading

import numpy as np

from tmaasync import _arrays, _driver
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops.ragged.lengths import Sums
from tmaasync.ops.ragged.tiles import (
    MAX_ROW_DIMS,
    RAGGED_RING,
    SECTOR_BYTES,
    ragged_kernel,
    ragged_tiles,
)

__all__ = ["Plan", "plan_for"]


def plan_for(entry: str, packed: ArrayView, padded: ArrayView) -> Plan:
    """The plan of a direction for arrays of these layouts."""
    on_granule = (packed.address | padded.address) % SECTOR_BYTES == 0
    return _plan(entry, packed[1:5], padded[1:5], on_granule)


@functools.lru_cache(maxsize=1024)
def _plan(entry: str, *layouts: object) -> Plan:
    """All that a call costs once per pair of layouts; the same plan serves any addresses."""
    del layouts  # the key: shapes, strides, element types, devices, alignment
    return Plan(entry)


class Plan:
    """A launch between arrays of given layouts: everything but addresses, lengths and stream."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._below_bytes = 0
        self._lock = threading.Lock()

    def run(self, packed: ArrayView, padded: ArrayView, sums: Sums, stream: object) -> None:
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
        innermost_first = (*reversed(columns), 1, 1)[:MAX_ROW_DIMS]
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
