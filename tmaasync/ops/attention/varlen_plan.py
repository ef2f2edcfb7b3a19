"""All that attention over packed sequences costs once per layout of its arrays."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays, _driver, emulate
from tmaasync._arrays import ArrayView
from tmaasync._driver import PreparedLaunch
from tmaasync._elements import element
from tmaasync._ragged.batch import MAX_ROWS
from tmaasync._streams import stream_of
from tmaasync.emulate import EmulatedLaunch
from tmaasync.errors import ArgumentError
from tmaasync.kernel import wait_for_producers
from tmaasync.ops._copies import in_order
from tmaasync.ops._plans import Layout, is_apart
from tmaasync.ops._results import address_of, empty, maker
from tmaasync.ops.attention.arguments import Views, reachable
from tmaasync.ops.attention.kernel import (
    Blocking,
    Sizes,
    Variant,
    attention_kernel,
    choose_blocking,
    packed_maps,
    work_kernel,
)
from tmaasync.ops.attention.order import section
from tmaasync.ops.attention.pages import Pages, rows_of_pages
from tmaasync.ops.attention.pieces import parts_of_packed
from tmaasync.ops.attention.plan import problem, variant_of
from tmaasync.ops.attention.scores import Scores
from tmaasync.ops.attention.split_launch import maker_of_parts, prepared_merge
from tmaasync.ops.ragged.lengths import Sums

__all__ = ["Batch", "VarlenPlan", "varlen_plan_for"]

_OUT = 3  # among q, k, v, out
_Launch = PreparedLaunch | EmulatedLaunch
_INT32 = element(np.int32)
_LIST_HEAD_WORDS, _ITEM_WORDS, _PAGED_ITEM_WORDS = 4, 8, 12  # of the kernel's WorkList
_CUT_THREADS = 1024


class Batch(NamedTuple):
    """How many sequences, and how long they may be."""

    size: int
    max_queries: int
    max_keys: int


@functools.lru_cache(maxsize=1024)
def varlen_plan_for(
    operands: tuple[Layout, ...],
    out: Layout,
    batch: Batch,
    scores: Scores,
    pages: Pages | None,
    *,
    has_lse: bool,
) -> VarlenPlan:
    """All that attention costs once per layout; the same plan serves any addresses."""
    return VarlenPlan(operands, out, batch, scores, pages, has_lse=has_lse)


class VarlenPlan:
    """Attention over packed arrays of given layouts, and a batch of given size.

    A call is two launches: one cuts the sequences into a list of tiles, one works it off. The list
    is kept where running sums in host memory stay the same; not with pages, whose numbers it
    checks.
    """

    def __init__(
        self,
        operands: Sequence[Layout],
        out: Layout,
        batch: Batch,
        scores: Scores,
        pages: Pages | None = None,
        *,
        has_lse: bool,
        blocking: Blocking | None = None,
    ) -> None:
        """Nothing is compiled or encoded before the first `run`."""
        self.batch = batch
        self._q, self._k, _ = operands
        self._spans = tuple(layout.span_bytes for layout in (*operands, out))
        self._scores = scores
        self._pages = pages
        self._has_lse = has_lse
        self._device = out.device
        self._asked = blocking
        self._cut: _Launch | None = None
        self._attend: _Launch | None = None
        self._merge: _Launch | None = None
        self._new_parts: Callable[[], Any] | None = None
        self._below_bytes: tuple[int, ...] = ()
        self._broken = _host_word(self._device)
        self._kept: tuple[object, Any] | None = None
        self._new_list: Callable[[], Any] | None = None
        self._lock = threading.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether it was launched before."""
        return self._cut is not None and self._attend is not None

    def keeps_apart(self, addresses: Sequence[int]) -> bool:
        """Whether the output, the last of q, k, v and out, lies clear of the others."""
        return is_apart(_OUT, addresses, self._spans)

    def start(
        self, arrays: Sequence[int], sums: Sequence[int], table: int, lse: int, stream: int
    ) -> None:
        """Attend over arrays that look like those of the last `run`, if `is_ready`.

        Args:
            arrays: Addresses of q, k, v and the output.
            sums: Of the running sums of q and k, int32 on the device.
            table: Of the page table, or 0.
            lse: Of the log-sum-exp, or 0.
            stream: The current one of the arrays' framework, which memory is taken from.

        Raises:
            ArgumentError: As `run`.
        """
        cut, attend, new_list = self._cut, self._attend, self._new_list
        if cut is None or attend is None or new_list is None or self._kept is None:
            return
        with self._lock:
            self._refuse_broken("an earlier call")
            tiles = new_list()
            place = address_of(tiles)
            cut.launch_at((*sums, place, table), stream)
            self._start(attend, arrays, lse, place, stream)
            self._kept = (None, tiles)

    def run(
        self,
        views: Views,
        out: ArrayView,
        lse: ArrayView | None,
        sums: tuple[Sums, Sums],
        stream: object,
        page_table: ArrayView | None = None,
    ) -> None:
        """Attend.

        Raises:
            ArgumentError: Running sums on a device were no batch, or pages were not there: of an
                earlier call like this, or, on the emulator, of this one.
        """
        tables = () if page_table is None else (page_table,)
        frameworks = {one.framework for one in (*views, out, *tables)}
        frameworks |= {_arrays.view(one.values).framework for one in sums if one.is_on_device}
        handle = stream_of(frameworks, self._device, stream)
        wait_for_producers((*views, out, *tables), handle)
        if views.k.is_empty:  # no map can be made of nothing; of these no key will be loaded
            instead = views.q._replace(shape=(1, *views.k.shape[1:]))
            views = Views(views.q, instead, instead)
        arrays = (*views, out)
        ordered = in_order(out.framework, self._device, handle)
        with self._lock, _driver.on_device(self._device), ordered:
            tiles = self._tiles(arrays, sums, page_table, handle)
            if self._attend is None:
                self._attend = self._prepare_attend(arrays, lse, tiles)
            lse_address = 0 if lse is None else lse.address
            addresses = [view.address for view in arrays]
            self._start(self._attend, addresses, lse_address, address_of(tiles), handle)
            seen = _arrays.view(tiles)
            self._new_list = maker(seen, seen.shape, seen.element)

    def _start(
        self, attend: _Launch, arrays: Sequence[int], lse: int, tiles: int, stream: int
    ) -> None:
        """Work a list of tiles off; the maps start below their arrays."""
        starts = [*map(operator.sub, arrays, self._below_bytes)]
        if self._merge is None or self._new_parts is None:
            attend.launch_at((*starts, lse, 0, tiles), stream)
            return
        memory = self._new_parts()  # given back at once: in the order of the stream it is in use
        parts = address_of(memory)
        attend.launch_at((*starts, lse, parts, tiles), stream)
        self._merge.launch_at((starts[_OUT], lse, parts, tiles), stream)

    def _tiles(
        self,
        arrays: Sequence[ArrayView],
        sums: tuple[Sums, Sums],
        page_table: ArrayView | None,
        handle: int,
    ) -> Any:
        """The list of tiles, made anew unless the sums are the last ones.

        It stays alive until the next call, whose memory the stream hands out behind this one's use.
        """
        self._refuse_broken("an earlier call")
        key = _content(sums, handle) if page_table is None else None
        if self._kept is not None and key is not None and self._kept[0] == key:
            return self._kept[1]
        tiles = empty(arrays[0], (self._list_words,), _INT32)
        cu_seqlens = [
            _arrays.view(one.values if one.is_direct else one.on(self._device, handle))
            for one in sums
        ]
        given = (*cu_seqlens, _arrays.view(tiles))
        if self._cut is None:
            self._cut = self._prepare_cut(given, page_table)
        table_address = 0 if page_table is None else page_table.address
        self._cut.launch_at([*(view.address for view in given), table_address], handle)
        if self._device is None:
            self._refuse_broken("this call")
        self._kept = (key, tiles)
        return tiles

    def _refuse_broken(self, call: str) -> None:
        """Report what the kernel that cuts sequences found on the device."""
        sequence = int(self._broken[0])
        if sequence:
            self._broken[0] = 0
            paged = " or has pages in page_table that k lacks" if self._pages else ""
            raise ArgumentError(
                f"cu_seqlens_q or cu_seqlens_k of {call} is wrong about sequence {sequence - 1}: "
                f"it runs backwards, is longer than max_seqlen or leaves its array{paged}, and was "
                "left out. Pass check=True to learn which."
            )

    # --- made once ----------------------------------------------------------------------------

    @functools.cached_property
    def _blocking(self) -> Blocking:
        return self._asked or choose_blocking(
            self._typical, self._multiprocessors, self._variant(has_lse=self._has_lse)
        )

    @functools.cached_property
    def _parts(self) -> int:
        """In how many parts the keys of every tile are worked on."""
        return parts_of_packed(
            *(self._most_tiles_of_heads, self._typical, self._blocking),
            *(self._scores, self._multiprocessors),
        )

    @property
    def _multiprocessors(self) -> int:
        limits = emulate.LIMITS if self._device is None else _driver.require_device(self._device)
        return limits.multiprocessors

    @property
    def _typical(self) -> Sizes:
        """Sizes of sequences of the mean length; of keys in pages, of the longest."""
        size = self.batch.size
        return self._sizes(max(1, self._q.shape[0] // size), max(1, self._packed.keys // size))

    @property
    def _packed(self) -> Sizes:
        """Rows of all sequences; of keys in pages, which sequences may share, as many as can be."""
        keys = self._k.shape[0]
        if self._pages is not None:
            keys = min(self.batch.size * self.batch.max_keys, MAX_ROWS)
        return self._sizes(self._q.shape[0], keys)

    def _sizes(self, queries: int, keys: int) -> Sizes:
        heads, head_dim = self._q.shape[1:]
        per_kv_head = heads // self._k.shape[-2]
        return Sizes(queries, keys, heads, per_kv_head, self.batch.size, head_dim)

    @property
    def _most_tiles(self) -> int:
        """Whatever the lengths, for all heads that share tiles."""
        return self._q.shape[0] // self._blocking.positions + self.batch.size

    @property
    def _most_tiles_of_heads(self) -> int:
        return self._most_tiles * self._q.shape[1] // self._blocking.heads_per_tile

    @functools.cached_property
    def _list_words(self) -> int:
        item_words = _PAGED_ITEM_WORDS if self._pages else _ITEM_WORDS
        return _LIST_HEAD_WORDS + self._most_tiles * item_words

    def _variant(self, *, has_lse: bool) -> Variant:
        return variant_of(self._scores, is_packed=True, has_lse=has_lse, page_size=self._page_size)

    @property
    def _page_size(self) -> int:
        return 0 if self._pages is None else self._pages.size

    @property
    def _problem(self) -> bytes:
        page_step = 0 if self._pages is None else self._pages.step
        return problem(self._packed, self._scores, page_step)

    def _prepare_cut(self, given: Sequence[ArrayView], page_table: ArrayView | None) -> _Launch:
        table_step, pages = (self._pages.table_step, self._pages.total) if self._pages else (0, 0)
        launch = work_kernel(self._variant(has_lse=False), self._blocking).prepare(
            1,
            _CUT_THREADS,
            (
                *given,
                0 if page_table is None or page_table.is_empty else page_table,
                self._broken if self._device is None else int(self._broken.ctypes.data),
                self.batch.max_queries,
                self.batch.max_keys,
                *section(self._sizes(self.batch.max_queries, self.batch.max_keys), self._blocking),
                table_step,
                pages,
                self._problem,
            ),
            pdl=True,
        )
        launch.release()
        return launch

    def _prepare_attend(
        self, arrays: Sequence[ArrayView], lse: ArrayView | None, tiles: Any
    ) -> _Launch:
        blocking = replace(self._blocking, splits_keys=self._parts > 1)
        q, k, v, o = map(reachable, arrays)
        if self._pages is not None:
            k, v = rows_of_pages(k), rows_of_pages(v)
        maps = packed_maps(q, k, v, o, blocking, self._page_size)
        self._below_bytes = tuple(
            view.address - map_.spec.address for view, map_ in zip(arrays, maps, strict=True)
        )
        types = tuple(map_.cuda_type for map_ in maps)
        variant, most = self._variant(has_lse=self._has_lse), self._most_tiles_of_heads
        kernel = attention_kernel(types, variant, blocking)
        launch = kernel.prepare(
            min(most * self._parts, self._multiprocessors),
            blocking.threads,
            (*maps, 0 if lse is None else lse, 0, tiles, self._parts, self._problem),
            pdl=True,
        )
        launch.release()
        if blocking.splits_keys:
            self._new_parts = maker_of_parts(arrays[0], most * self._parts, blocking)
            arguments = (maps[_OUT], 0, 0, tiles, self._parts, self._problem)
            self._merge = prepared_merge(types, variant, blocking, most, arguments)
        return launch


def _content(sums: tuple[Sums, Sums], handle: int) -> object:
    """What the list of tiles depends on, where it is known: sums in host memory."""
    if any(one.is_on_device for one in sums):
        return None
    return (handle, *(one.values.tobytes() for one in sums))


def _host_word(device: int | None) -> Any:
    """An integer, 0, that the device can write and the host can read at any time."""
    if device is None:
        return np.zeros(1, np.int32)
    import cupy

    with cupy.cuda.Device(device):
        word = np.frombuffer(cupy.cuda.alloc_pinned_memory(_INT32.itemsize), np.int32, 1)
    word[0] = 0
    return word
