"""ops.ring_attention_backward: gradients of ops.ring_attention, with the kernels of attention's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.kernel import Launch, backend_of
from tmaasync.ops._all_gather import prepared_gather
from tmaasync.ops._flash.backward import (
    MAX_HEAD_DIM,
    Addresses,
    BackwardVariant,
    Maps,
    backward_problem,
    backward_steps,
    choose_backward_config,
    count_key_tiles,
    heads_on_sms,
    maps_over,
)
from tmaasync.ops._flash.backward import Workspace as Scratch
from tmaasync.ops._flash.config import Sizes
from tmaasync.ops._flash.operands import Operands, Scores, reachable
from tmaasync.ops._flash.ring import RingSizes
from tmaasync.ops._layouts import Layout
from tmaasync.ops._operation import LaunchSequence, overridden
from tmaasync.ops._ranks import (
    RankedCall,
    RankedLaunches,
    Ranks,
    Workspace,
    array_on,
    as_rows,
    pinned,
    unmovable,
    views_of,
)
from tmaasync.ops._reduce_ranks import prepared_reduce
from tmaasync.ops._ring_attention import (
    RingOperands,
    array_violations,
    buffered_rows,
    chunks_of,
    operand_violations,
    output_violations,
)

__all__ = ["ring_attention_backward"]

_AXES = "[batch, length, heads, head_dim]"
_FLOAT32 = element(np.float32)
_OF = {"dout": "q", "out": "q", "dq": "q", "dk": "k", "dv": "k"}
"""Which operand each array is like."""

_GRADIENTS = ("dq", "dk", "dv")
_K, _V, _DK, _DV, _SCRATCH = range(5)  # the parts of a rank's buffer
_ALIGNMENT = 256  # of the scratch memory, as in an allocation of its own

_Views = Sequence[ArrayView]


def ring_attention_backward(  # noqa: PLR0913 - the parameters of attention_backward
    dout: Sequence[Any],
    q: Sequence[Any],
    k: Sequence[Any],
    v: Sequence[Any],
    out: Sequence[Any],
    lse: Sequence[Any],
    *,
    causal: bool = False,
    scale: float | None = None,
    deterministic: bool = False,
    dq: Any = None,
    dk: Any = None,
    dv: Any = None,
    streams: Any = None,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Compute the gradients of `ring_attention` with respect to q, k and v.

    Every rank gathers the keys and values of all, as `all_gather`, and computes with the kernels of
    `attention_backward` dQ of its own queries, and what these add to dK and dV of all keys. The
    owner of keys adds that up over the ranks, as `reduce_scatter`: in float32, in a fixed order.
    Each rank's part is rounded to the type of k before; with ``causal`` one rank's two chunks are
    added in that type. Nothing overlaps the transfers.

    The first call of a size class allocates a buffer on each device, which is never freed: four
    times the keys of all ranks, and ``4 * head_dim + 8`` bytes per head of a chunk's queries
    (head_dim rounded up to 64 or 128, the whole to a power of two). Order, streams, CUDA graphs and
    the limits of the log-sum-exp are as in `ring_attention` and `attention_backward`.

    Args:
        dout: Gradients of the outputs, one per rank, arrays like q.
        q: As in `ring_attention`; head_dim up to 128.
        k: As in `ring_attention`; the heads of a position are contiguous.
        v: As k.
        out: The outputs of `ring_attention`.
        lse: Its log-sum-exps: float32 [batch, heads, length], contiguous.
        causal: As in `ring_attention`.
        scale: As in `ring_attention`.
        deterministic: Whether to accumulate dq in a fixed order. dk and dv always are.
        dq: The outputs for dq, arrays like q, which overlap no operand of their rank; by default
            new arrays.
        dk: The same for dk, arrays like k; the heads of a position are contiguous.
        dv: The same for dv.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        dq, dk and dv: three lists, with an array per rank.

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        ArrayTypeError: A type that the kernels do not have.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90, or has less shared memory than an H100.
    """
    check_flags(causal=causal, deterministic=deterministic)
    operands = RingOperands.of(q, k, v)
    count = len(operands.q)
    ranks = Ranks.of("q", operands.q, streams)
    ArgumentError.raise_for(operand_violations(ranks, operands, causal))
    Operands.of(q[0], k[0], v[0], _AXES)
    scores = Scores.of(operands.q[0].shape[-1], False, scale, None, None)
    inputs = dict(operands._asdict())
    for name, arrays in (("dout", dout), ("out", out), ("lse", lse)):
        inputs[name] = views_of(name, arrays, count)
    ArgumentError.raise_for(_unfit(ranks, inputs))
    returned = {
        name: _new(ranks, inputs[_OF[name]]) if arrays is None else list(arrays)
        for name, arrays in zip(_GRADIENTS, (dq, dk, dv), strict=True)
    }
    outputs = {name: views_of(name, arrays, count) for name, arrays in returned.items()}
    ArgumentError.raise_for(_unfit_outputs(ranks, inputs, outputs))
    if not operands.q[0].is_empty:
        sizes = operands.sizes(causal)
        every = {name: list(map(_reachable, views)) for name, views in (inputs | outputs).items()}
        differentiate(ranks, sizes, scores, every, bool(deterministic))
    return returned["dq"], returned["dk"], returned["dv"]


def _new(ranks: Ranks, like: _Views) -> list[Any]:
    pairs = zip(ranks.memories, like, strict=True)
    return [array_on(memory, view, view.shape) for memory, view in pairs]


def _reachable(view: ArrayView) -> ArrayView:
    return reachable(view) if view.ndim == 4 else view  # all but the log-sum-exp


# --- checks -----------------------------------------------------------------------------------


def _unfit(ranks: Ranks, inputs: Mapping[str, _Views]) -> Iterator[Violation]:
    first = inputs["q"][0]
    batch, length, heads, head_dim = first.shape
    if head_dim > MAX_HEAD_DIM:
        rule = f"the backward has kernels for heads of up to {MAX_HEAD_DIM} columns"
        yield Violation("q.shape[-1]", head_dim, rule, "Use the backward of your framework")
    for name in ("dout", "out"):
        yield from array_violations(ranks, name, inputs[name], "q", first)
    yield from ranks.misplaced("lse", inputs["lse"], "q")
    for rank, view in enumerate(inputs["lse"]):
        shape = (batch, heads, length)
        if view.element is not _FLOAT32:
            rule, remedy = "ring_attention returns it as float32", "Pass that array"
            raise ArrayTypeError.broken(f"lse[{rank}]", view.element, rule, remedy, verb="holds")
        if view.shape != shape or not _arrays.is_contiguous(view):
            rule = f"ring_attention returns it for this q contiguous, in shape {shape}"
            given = f"of shape {view.shape}, strides {view.strides_bytes} bytes"
            remedy = "Pass what it returned with return_lse=True"
            yield Violation(f"lse[{rank}]", given, rule, remedy)
    yield from _scattered_heads(inputs, "kv")


def _unfit_outputs(
    ranks: Ranks, inputs: Mapping[str, _Views], outputs: Mapping[str, _Views]
) -> Iterator[Violation]:
    others = dict(inputs)
    for name, views in outputs.items():
        yield from output_violations(ranks, name, views, _OF[name], others)
        others[name] = views
    yield from _scattered_heads(outputs, ("dk", "dv"))


def _scattered_heads(arrays: Mapping[str, _Views], names: Sequence[str]) -> Iterator[Violation]:
    """Yield the arrays whose heads of a position TMA cannot move as one row."""
    for name in names:
        views = [view for view in arrays[name] if view.ndim == 4]
        yield from unmovable({name: [_entry(view, 0, slice(0, view.shape[1])) for view in views]})


def _entry(view: ArrayView, entry: int, rows: slice) -> ArrayView:
    """Return positions of a batch entry: [rows, heads, head_dim]."""
    address = view.address + entry * view.strides_bytes[0] + rows.start * view.strides_bytes[1]
    shape = (rows.stop - rows.start, *view.shape[2:])
    return pinned(view, address, shape=shape, strides_bytes=view.strides_bytes[1:])


# --- the operation ----------------------------------------------------------------------------


def differentiate(
    ranks: Ranks,
    sizes: RingSizes,
    scores: Scores,
    every: Mapping[str, _Views],
    deterministic: bool,
) -> list[RankedCall]:
    """Launch on checked arrays, by the names of the arguments; return the calls in order."""
    backends = [backend_of(view.device) for view in every["q"]]
    for backend in backends:
        backend.require_shared_memory("the attention backward")
    variant = BackwardVariant(has_right=sizes.chunks == 2, is_deterministic=deterministic)
    chosen = choose_backward_config(
        sizes.head_dim,
        variant,
        shares_kv_heads=sizes.per_kv_head > 1,
        heads_on_sms=heads_on_sms(sizes.keys, min(one.limits.sms for one in backends)),
    )
    config = overridden(chosen)
    scratch = Scratch.of(sizes.of_chunk(sizes.keys), config, is_packed=False)
    buffer_bytes = _SCRATCH * sizes.kv_bytes + _ALIGNMENT + 4 * scratch.elements
    workspace = Workspace.of(ranks, every["q"], 1, buffer_bytes, halves=1)
    operation = workspace.calls.operation(
        RingBackward,
        *(Layout.of(view) for views in every.values() for view in views),
        workspace=workspace,
        sizes=sizes,
        scores=scores,
        variant=variant,
        scratch=scratch,
    )
    for rank, (backend, stream) in enumerate(zip(backends, ranks.streams, strict=True)):
        backend.wait_for_producers([views[rank] for views in every.values()], stream)
    with workspace.lock:
        return operation.run(every)


class RingBackward:
    """The launches for arrays of given layouts.

    A rank's buffer has the keys and values of all ranks, and the gradients of them that come from
    its queries, each in the order of the sequence; and the scratch memory of attention_backward.
    """

    def __init__(
        self,
        *layouts: Layout,
        workspace: Workspace,
        sizes: RingSizes,
        scores: Scores,
        variant: BackwardVariant,
        scratch: Scratch,
    ) -> None:
        del layouts  # the key
        self._workspace, self._sizes, self._scores = workspace, sizes, scores
        self._variant, self._scratch = variant, scratch
        self._launches: RankedLaunches | None = None

    def run(self, every: Mapping[str, _Views]) -> list[RankedCall]:
        """Launch; hold the workspace's lock."""
        ranks = self._workspace.ranks
        # All are compiled before a kernel of another process can wait for one.
        own_queries = self._prepared(every)
        gathers = [
            prepared_gather(ranks, own, full, is_reversed=is_last)
            for number, name in ((_K, "k"), (_V, "v"))
            for own, full, is_last in self._exchanged(every[name], number)
        ]
        reduces = [
            prepared_reduce(
                ranks, full, own, tuple(view.shape[0] for view in own), is_reversed=is_last
            )
            for number, name in ((_DK, "dk"), (_DV, "dv"))
            for own, full, is_last in self._exchanged(every[name], number)
        ]
        for gather in gathers:
            gather.run()
        own_queries.launches.run(own_queries.addresses, ranks.streams)
        for reduce in reduces:
            reduce.run()
        return [*gathers, own_queries, *reduces]

    # --- keys of all ranks ---

    def _exchanged(
        self, arrays: _Views, number: int
    ) -> Iterator[tuple[list[ArrayView], list[ArrayView], bool]]:
        """Yield matrices of rows that ranks own, the rows of all in the buffers, and their order.

        The second chunks follow each other from the last rank to the first.
        """
        sizes = self._sizes
        length = sizes.ranks * sizes.chunk_length
        for chunk in range(sizes.chunks):
            of_all = slice(chunk * length, (chunk + 1) * length)
            full = [
                buffered_rows(self._workspace, rank, sizes, view.element, number, of_all)
                for rank, view in enumerate(arrays)
            ]
            own = [chunks_of(view, sizes)[-1 if chunk else 0] for view in arrays]
            for entry in range(sizes.batch):
                yield _rows(own, entry), _rows(full, entry), bool(chunk)

    # --- the rank's own queries ---

    def _prepared(self, every: Mapping[str, _Views]) -> RankedCall:
        """Return the launches of this process's ranks for their chunks, and their addresses."""
        workspace, group = self._workspace, self._workspace.ranks.group
        parts, addresses = {}, {}
        for rank in workspace.ranks.local:
            own = {name: views[rank] for name, views in every.items()}
            parts[rank] = self._parts(rank, own)
            addresses[rank] = [
                self._addresses(rank, chunk, arrays, own["lse"])
                for chunk, arrays in parts[rank].items()
            ]
        if self._launches is None:
            launches = {rank: self._sequence(rank, chunks) for rank, chunks in parts.items()}
            self._launches = RankedLaunches(launches, group)
        return RankedCall(workspace, self._launches, addresses)

    def _sequence(self, rank: int, parts: Mapping[int, Mapping[str, ArrayView]]) -> LaunchSequence:
        """Return the launches of the rank's chunks, the one with most keys first."""
        return LaunchSequence(
            *(
                (launch, functools.partial(_of_chunk, number, chosen))
                for number, (chunk, arrays) in enumerate(parts.items())
                for launch, chosen in self._prepare(rank, chunk, arrays)
            )
        )

    def _addresses(
        self, rank: int, chunk: int, arrays: Mapping[str, ArrayView], lse: ArrayView
    ) -> Addresses:
        sizes = self._sizes
        base = self._workspace.halves[rank][0].address + _SCRATCH * sizes.kv_bytes
        base += -base % _ALIGNMENT
        return Addresses(
            **{name: view.address for name, view in arrays.items()},
            lse=lse.address + chunk * sizes.chunk_length * _FLOAT32.itemsize,
            workspace=base,
            statistics=base + self._scratch.statistics_at,
            turns=base + self._scratch.turns_at,
            tile_counter=base + self._scratch.counter_at,
        )

    def _parts(self, rank: int, own: Mapping[str, ArrayView]) -> dict[int, dict[str, ArrayView]]:
        """Return the arrays of attention_backward for each chunk of the rank's queries."""
        sizes, found = self._sizes, {}
        for chunk in reversed(range(sizes.chunks)):
            # The last chunk's call also stores the zeros of keys that no query attends to.
            keys = sizes.keys if chunk == sizes.chunks - 1 else (rank + 1) * sizes.chunk_length
            part = {
                name: chunks_of(own[name], sizes)[-1 if chunk else 0]
                for name in ("q", "out", "dout", "dq")
            }
            for number, name in enumerate(("k", "v", "dk", "dv")):
                part[name] = buffered_rows(
                    self._workspace, rank, sizes, own["k"].element, number, slice(0, keys)
                )
            found[chunk] = part
        return found

    def _prepare(
        self, rank: int, chunk: int, arrays: Mapping[str, ArrayView]
    ) -> list[tuple[Launch, Callable[[Addresses], Sequence[int]]]]:
        sizes, config = self._sizes, self._scratch.config
        is_first = chunk == sizes.chunks - 1
        scores, variant = self._scores, self._variant
        if sizes.chunks == 2:
            position = (2 * sizes.ranks - 1 - rank if chunk else rank) * sizes.chunk_length
            scores = scores._replace(right=position, is_top_left=True)
        of_chunk: Sizes = sizes.of_chunk(arrays["k"].shape[1])
        problem = backward_problem(
            *(of_chunk, scores, config, sizes.chunk_length),
            is_packed=False,
            lse_rows=sizes.length,
        )
        ranks, limits = self._workspace.ranks, backend_of(arrays["q"].device).limits
        # In a fixed order of dQ CTAs wait for each other. So there are no more than find room next
        # to the CTAs of ranks on the same GPU that wait for this one.
        return backward_steps(
            maps_over([arrays[name] for name in Maps._fields], config, is_packed=False),
            replace(variant, adds_keys=not is_first),
            config,
            problem,
            tiles=(self._scratch.tiles, count_key_tiles(of_chunk, is_packed=False)),
            sms=max(1, limits.sms // ranks.sharing(rank)),
            stream=ranks.streams[rank],
        )


def _of_chunk(
    number: int, chosen: Callable[[Addresses], Sequence[int]], addresses: Sequence[Addresses]
) -> Sequence[int]:
    return chosen(addresses[number])


def _rows(views: _Views, entry: int) -> list[ArrayView]:
    """Return the positions of a batch entry as matrices."""
    return [as_rows(_entry(view, entry, slice(0, view.shape[1]))) for view in views]
