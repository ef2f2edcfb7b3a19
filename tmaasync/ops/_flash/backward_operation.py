"""The operation of ops.attention_backward and ops.varlen_attention_backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._hardware import HOPPER
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import Allocator, address_of, allocator, fill, in_order
from tmaasync.ops._call_cache import Binding
from tmaasync.ops._flash.backward import (
    Addresses,
    BackwardConfig,
    BackwardVariant,
    Maps,
    Workspace,
    backward_problem,
    backward_steps,
    choose_backward_config,
    count_key_tiles,
    heads_on_sms,
    maps_over,
)
from tmaasync.ops._flash.config import Batch, Sizes
from tmaasync.ops._flash.gradients import GRADIENTS, INPUTS, Gradients
from tmaasync.ops._flash.launches import PackedLaunch, describe_sequence
from tmaasync.ops._flash.operands import Scores, reachable
from tmaasync.ops._layouts import Layout, is_apart
from tmaasync.ops._operation import LaunchSequence, Operation, overridden
from tmaasync.ops._report import report_of
from tmaasync.ops._sequence_lengths import CumulativeLengths

_FLOAT32 = element(np.float32)
_SEQUENCES = ("cu_seqlens_q", "cu_seqlens_k")


class BackwardOperation(Operation):
    """The attention backward over arrays of given layouts, in three launches.

    ``layouts`` are in the order of `Maps`. ``batch`` describes packed sequences; None means padded
    arrays.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        batch: Batch | None,
        scores: Scores,
        *,
        is_deterministic: bool,
    ) -> None:
        q, k = layouts[:2]
        super().__init__(q.device)
        self.backend.require_shared_memory("the attention backward")
        heads, head_dim = q.shape[-2:]
        self._is_packed = batch is not None
        self._sizes = Sizes(
            queries=q.shape[-3],
            keys=k.shape[-3],
            heads=heads,
            heads_per_kv_head=heads // k.shape[-2],
            batch=q.shape[0] if batch is None else batch.size,
            head_dim=head_dim,
        )
        self._longest = q.shape[-3] if batch is None else batch.max_queries
        self._spans = [layout.span_bytes for layout in layouts]
        self._scores = scores
        self._variant = BackwardVariant.of(
            scores, is_packed=self._is_packed, is_deterministic=is_deterministic
        )
        chosen = choose_backward_config(
            head_dim,
            self._variant,
            shares_kv_heads=self._sizes.heads_per_kv_head > 1,
            heads_on_sms=heads_on_sms(
                k.shape[-3] if batch is None else batch.max_keys, self.backend.limits.sms
            ),
        )
        if self.backend.limits.compute_capability != HOPPER:
            # More queries spill registers where warps multiply with mma.sync instead of wgmma.
            chosen = replace(chosen, block_m=64)
        self._config: BackwardConfig = overridden(chosen)
        self._workspace = Workspace.of(self._sizes, self._config, is_packed=self._is_packed)
        self._below_bytes = [0] * len(layouts)
        self._report = report_of(self.backend, describe_sequence)

    def run(
        self,
        gradients: Gradients,
        stream: object,
        cumulative: Sequence[CumulativeLengths] = (),
    ) -> None:
        """Launch on these arrays.

        Raises:
            ArgumentError: Cumulative lengths on a device were invalid, in an earlier call like
                this, or, on the emulator, in this one.
        """
        q = gradients.views["q"]
        views = [gradients.views[name] for name in (*INPUTS, *GRADIENTS)]
        on_device = [_arrays.view(one.values) for one in cumulative if one.is_on_device]
        handle = self.ordered([*views, *on_device], stream)
        if q.is_empty and not self._is_packed:
            with in_order(q.framework, q.device, handle):
                fill(gradients.views["dk"], 0)
                fill(gradients.views["dv"], 0)
            return
        with self.backend.current(), in_order(q.framework, q.device, handle):
            # Freed at once: in stream order it stays in use until the launches end.
            memory = self.workspace(q)()
            read = [
                one.values if one.is_direct else one.on(self.backend, q.framework, handle)
                for one in cumulative
            ]
            lengths = [*map(_arrays.view, read)]
            launch = self.prepared(lambda: self._prepare(gradients.views))
            named = {name: view.address for name, view in gradients.views.items()}
            named |= {name: view.address for name, view in zip(_SEQUENCES, lengths, strict=False)}
            addresses = self._addresses(workspace=address_of(memory), **named)
            launch.launch_at(addresses, handle)

    def bind_named(self, named: dict[str, int]) -> Binding | None:
        """Return the launches for these addresses; None if a gradient overlaps another array."""
        if self._launch is None:
            return None
        moved = [named[name] for name in Maps._fields]
        first = len(moved) - len(GRADIENTS)
        if not all(is_apart(index, moved, self._spans) for index in range(first, len(moved))):
            return None
        return self._launch, self._addresses(**named)

    def workspace(self, like: ArrayView) -> Allocator:
        return allocator(like, (self._workspace.elements,), _FLOAT32)

    def _addresses(
        self,
        *,
        workspace: int,
        cu_seqlens_q: int = 0,
        cu_seqlens_k: int | None = None,
        **named: int,
    ) -> Addresses:
        """Without ``cu_seqlens_k`` the keys have the lengths of the queries."""
        for name, below in zip(Maps._fields, self._below_bytes, strict=True):
            named[name] -= below
        return Addresses(
            **named,
            workspace=workspace,
            statistics=workspace + self._workspace.statistics_at,
            turns=workspace + self._workspace.turns_at,
            tile_counter=workspace + self._workspace.counter_at,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k,
        )

    # --- made once ------------------------------------------------------------------------------

    def _prepare(self, views: Mapping[str, ArrayView]) -> Launch:
        arrays = [views[name] for name in Maps._fields]
        filled = [reachable(_with_a_row(view, views)) for view in arrays]
        maps = maps_over(filled, self._config, is_packed=self._is_packed)
        if self._is_packed:
            self._below_bytes = [
                view.address - map_.spec.address for view, map_ in zip(filled, maps, strict=True)
            ]
        steps = backward_steps(
            maps,
            self._variant,
            self._config,
            backward_problem(
                *(self._sizes, self._scores, self._config, self._longest),
                is_packed=self._is_packed,
            ),
            tiles=(self._workspace.tiles, count_key_tiles(self._sizes, is_packed=self._is_packed)),
            sms=self.backend.limits.sms,
            broken_sequence=self._report.argument,
        )
        if not self._is_packed:
            return LaunchSequence(*steps)
        return PackedLaunch(steps[0], LaunchSequence(*steps[1:]), self._report)


def _with_a_row(view: ArrayView, views: Mapping[str, ArrayView]) -> ArrayView:
    """Return a view with at least one row for the map; an empty array gets a row never copied."""
    if not view.is_empty:
        return view
    other = views["k" if views["q"].is_empty else "q"]
    shape = tuple(max(size, 1) for size in view.shape)
    return other._replace(shape=shape)
