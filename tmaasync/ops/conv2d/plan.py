"""All that a convolution costs once per layout of its arrays."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._streams import stream_of
from tmaasync._tile.window import Window
from tmaasync.emulate import EmulatedLaunch
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._copies import contiguous_copy, in_order
from tmaasync.ops._epilogue import Epilogue
from tmaasync.ops._launches import Aim
from tmaasync.ops._plans import Layout, is_apart
from tmaasync.ops._results import empty_rows, padded_row_bytes
from tmaasync.ops.conv2d.arguments import GRANULE_BYTES, Place, Views
from tmaasync.ops.conv2d.kernel import choose_blocking, conv2d_kernel, conv2d_tiles
from tmaasync.ops.copy import merged

__all__ = ["Plan", "plan_for"]

_MAX_STRIDE_BYTES = 1 << 40
_OUT = 2  # among the kernel's parameters


@functools.lru_cache(maxsize=1024)
def plan_for(
    operands: tuple[Place, ...], out: Place, is_new: bool, window: Window, epilogue: Epilogue
) -> Plan:
    """All that a convolution costs once per layout; the same plan serves any addresses."""
    spans = [place.layout.span_bytes for place in operands]
    return Plan(spans, out.layout, window, epilogue, owns_padding=is_new)


class Plan:
    """A convolution of arrays of given layouts: everything but their addresses and the stream."""

    def __init__(
        self,
        spans: Sequence[int],
        out: Layout,
        window: Window,
        epilogue: Epilogue,
        *,
        owns_padding: bool,
    ) -> None:
        self._spans = (*spans[:_OUT], out.span_bytes, *spans[_OUT:])
        self._device = out.device
        self._window = window
        self._epilogue = epilogue
        self._owns_padding = owns_padding
        self._launch: PreparedLaunch | EmulatedLaunch | None = None
        self._lock = threading.Lock()
        self.is_direct = False
        """Whether it is one launch on the arrays as they are, and was launched before."""

    def run(self, views: Views, out: ArrayView, stream: object) -> None:
        """Convolve."""
        if out.is_empty:
            return
        handle = stream_of((*views.frameworks, out.framework), out.device, stream)
        wait_for_producers((*views.given.values(), out), handle)
        rows = _rows_of(out, owns_padding=self._owns_padding)
        if rows is not None and all(map(_is_reachable, views.given.values())):
            self._run_on(views, rows, handle)
            self.is_direct = True
            return
        with in_order(out.framework, out.device, handle):
            self._run_on_copies(views, out, handle)

    def aim(self, addresses: Sequence[int]) -> Aim | None:
        """The convolution of arrays there that look like those of the last `run`.

        The addresses are those of images, filters, bias if there is one, and output. None if the
        output meets another, or if nothing was launched before on a GPU.
        """
        launch = self._launch
        images, filters, *bias, out = addresses
        places = (images, filters, out, *bias)
        if not isinstance(launch, PreparedLaunch) or not is_apart(_OUT, places, self._spans):
            return None
        return launch, places

    def _run_on_copies(self, views: Views, out: ArrayView, handle: int) -> None:
        """Of what TMA cannot reach."""
        copied = Views(
            _reached(views.images),
            _reached(views.filters),
            None if views.bias is None else _reached(views.bias),
        )
        rows = _rows_of(out, owns_padding=self._owns_padding)
        if rows is not None:
            self._run_on(copied, rows, handle)
            return
        staged = empty_rows(out, out.shape, out.element)
        staged_rows = _rows_of(_arrays.view(staged), owns_padding=True)
        if staged_rows is not None:
            self._run_on(copied, staged_rows, handle)
        owner: Any = out.owner
        owner[...] = staged

    def _run_on(self, views: Views, out: ArrayView, handle: int) -> None:
        with self._lock:
            if self._launch is None:
                self._launch = self._prepare(views, out)
        operands = (views.images, views.filters, out, views.bias)
        self._launch.launch_at([view.address for view in operands if view is not None], handle)

    def _prepare(self, views: Views, out: ArrayView) -> PreparedLaunch | EmulatedLaunch:
        m, k = out.shape
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        blocking = choose_blocking(m, k, limits.multiprocessors)
        tiles = conv2d_tiles(views.images, views.filters, out, self._window, blocking)
        bias = views.bias
        bias_type = (views.images if bias is None else bias).element.cuda_type
        kernel = conv2d_kernel(
            *(tile.cuda_type for tile in tiles), bias_type, self._epilogue, blocking
        )
        clusters, at_once = blocking.clusters(m, k), limits.multiprocessors // blocking.cluster
        launch = kernel.prepare(
            min(clusters, at_once) * blocking.cluster,
            blocking.threads,
            (*tiles, 0 if bias is None else bias, m, k, tiles[0].matrix_shape[1]),
            cluster=blocking.cluster if blocking.cluster > 1 else None,
            pdl=blocking.starts_early(clusters, at_once),
        )
        launch.release()
        return launch


def _is_reachable(view: ArrayView) -> bool:
    """Whether the kernel can read an operand as it lies."""
    *outer, last = view.strides_bytes
    is_dense = last == view.element.itemsize or view.shape[-1] == 1
    is_aligned = view.address % GRANULE_BYTES == 0
    return (
        is_dense
        and is_aligned
        and all(0 <= stride < _MAX_STRIDE_BYTES and stride % GRANULE_BYTES == 0 for stride in outer)
    )


def _reached(view: ArrayView) -> ArrayView:
    """The operand, or a copy that the kernel can read."""
    return view if _is_reachable(view) else _arrays.view(contiguous_copy(view))


def _rows_of(out: ArrayView, *, owns_padding: bool) -> ArrayView | None:
    """The output as a matrix with a row per pixel, if TMA can store that.

    Stores write whole sectors of 16 bytes (measured on an H200), so that rows that end within one
    need padding behind them that is nobody else's.
    """
    columns, item_bytes = out.shape[3], out.element.itemsize
    row_bytes = padded_row_bytes(columns, out.element)
    (pixels,) = merged(out._replace(shape=out.shape[:3], strides_bytes=out.strides_bytes[:3]))
    if len(pixels.shape) > 1 or (columns > 1 and out.strides_bytes[3] != item_bytes):
        return None
    pitch = pixels.strides_bytes[0] if pixels.shape else row_bytes
    ends_on_sector = columns * item_bytes % GRANULE_BYTES == 0
    if pitch < row_bytes or pitch % GRANULE_BYTES or out.address % GRANULE_BYTES:
        return None
    if not (ends_on_sector or owns_padding):
        return None
    shape = (math.prod(out.shape[:3]), columns)
    return out._replace(shape=shape, strides_bytes=(pitch, item_bytes))
