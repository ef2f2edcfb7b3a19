"""ops.ring_attention: attention to the keys of all ranks, with ring_attention.cu."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._kinds import check_flags
from tmaasync.errors import ArgumentError, Violation
from tmaasync.kernel import backend_of
from tmaasync.ops._allocation import empty
from tmaasync.ops._flash.config import Variant, problem
from tmaasync.ops._flash.operands import Operands, Scores, reach_violations, reachable
from tmaasync.ops._flash.ring import (
    RingArguments,
    RingSizes,
    push_tile,
    ring_config,
    ring_kernel,
    ring_spans,
    ring_tiles,
    zigzag_schedule,
)
from tmaasync.ops._gemm.config import Occupancy
from tmaasync.ops._layouts import Layout, refuse_overlap
from tmaasync.ops._ranks import (
    RankedCall,
    RankedLaunches,
    Ranks,
    RepeatedCalls,
    Shards,
    Workspace,
    array_on,
    pinned,
    views_of,
)
from tmaasync.tile import Pointer, TMATensorTileArray

__all__ = ["ring_attention"]

_AXES = "[batch, length, heads, head_dim]"
_Views = Sequence[ArrayView]


def ring_attention(  # noqa: PLR0913 - the parameters of attention
    q: Sequence[Any],
    k: Sequence[Any],
    v: Sequence[Any],
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
    streams: Any = None,
) -> Any:
    """Compute attention of every rank's queries to the keys of all ranks (context parallelism).

    Each rank is a GPU, or a device of `emulate.devices`, and has an equal part of one sequence per
    batch entry. One kernel per rank pushes the rank's keys and values into buffers of its peers by
    TMA, over NVLink, head by head, while the tensor cores multiply what has arrived, the rank's own
    keys first. Each query attends to all its keys in fp32 registers, as in `attention`: there are
    no partial results to merge. (Ring Attention, Liu et al. 2023; zigzag order as in Llama 3.)

    With ``causal`` the sequence is cut into 2 P chunks along its positions, axis 1, and rank r of P
    holds chunk r, then chunk 2 P - 1 - r (zigzag), so that all ranks multiply equally much. A
    contiguous order is not accepted. Without a mask the order of positions does not matter.

    The call returns after the launches; results are complete in the order of each rank's stream.
    Call `enable_peer_access` once before. The first call of a size class allocates a buffer on each
    device for the keys and values of all ranks (rounded up to a power of two, and never freed) and
    waits for the GPUs; later calls do neither, and CUDA graphs can capture them. Calls on the same
    devices and streams must run in the same order on each.

    Args:
        q: One per rank, 1 to 8: [batch, length, heads, head_dim], bfloat16 or float16, on the
            rank's device, all of one shape and type; with ``causal`` an even length. head_dim is
            contiguous, a multiple of 8 and at most 256; other strides are multiples of 16 bytes.
        k: One per rank: [batch, length, kv_heads, head_dim], for the same positions as q. GQA/MQA:
            the number of query heads must be a multiple of the number of KV heads.
        v: As k.
        causal: Whether a query attends only to keys up to its own position.
        scale: Factor of the scores, from 2^-60 to 2^60; by default ``1 / sqrt(head_dim)``.
        return_lse: Whether to return the log-sum-exp of the scores too.
        out: The outputs, one per rank, arrays like q. They overlap no operand of their rank. By
            default new arrays.
        streams: One per rank; by default the current stream of each array's framework.

    Returns:
        The outputs, one per rank, for the rank's own queries; with ``return_lse`` the pair
        (outputs, log-sum-exps), each log-sum-exp float32 [batch, heads, length].

    Raises:
        ArgumentError: An array breaks a rule; all are listed, and nothing is launched.
        ArrayTypeError: A type that the kernel does not have.
        LaunchError: A device has no access to a peer's memory.
        HangError: In an earlier call a rank waited for longer than its budget.
        BackendError: A GPU is older than sm_90.
    """
    lists = (q, k, v, out)
    repeats = out is not None and return_lse is False and _is_plain(causal, scale)
    if repeats and _repeated(causal, scale).run(lists, streams):
        return list(out)
    check_flags(causal=causal, return_lse=return_lse)
    operands = RingOperands.of(q, k, v)
    ranks = Ranks.of("q", operands.q, streams)
    ArgumentError.raise_for(operand_violations(ranks, operands, causal))
    Operands.of(q[0], k[0], v[0], _AXES)
    scores = Scores.of(operands.q[0].shape[-1], bool(causal), scale, None, None)
    results = _Results(ranks, operands.q, out, return_lse=return_lse)
    named = operands._asdict()
    ArgumentError.raise_for(output_violations(ranks, "out", results.out, "q", named))
    if operands.q[0].is_empty:
        return results.returned
    done = attend(ranks, operands, operands.sizes(causal), scores, results.out, results.lse)
    if repeats:
        frameworks = [view.framework for view in operands.q]
        _repeated(causal, scale).remember(lists, *done, frameworks)
    return results.returned


@functools.cache
def _repeated(causal: bool, scale: float | None) -> RepeatedCalls:
    del causal, scale  # the key
    return RepeatedCalls()


def _is_plain(causal: object, scale: object) -> bool:
    return isinstance(causal, bool) and (scale is None or isinstance(scale, float))


class RingOperands(NamedTuple):
    """Views of q, k and v, one of each per rank."""

    q: _Views
    k: _Views
    v: _Views

    @classmethod
    def of(cls, q: Any, k: Any, v: Any) -> RingOperands:
        queries = views_of("q", q)
        return cls(queries, views_of("k", k, len(queries)), views_of("v", v, len(queries)))

    def sizes(self, causal: bool) -> RingSizes:
        batch, length, heads, head_dim = self.q[0].shape
        kv_heads = self.k[0].shape[2]
        return RingSizes(len(self.q), batch, length, heads, kv_heads, head_dim, 2 if causal else 1)


class _Results:
    """The outputs, the caller's or new arrays, and the log-sum-exps, if requested."""

    def __init__(self, ranks: Ranks, q: _Views, out: Any, *, return_lse: bool) -> None:
        pairs = list(zip(ranks.memories, q, strict=True))
        new = [array_on(memory, view, view.shape) for memory, view in pairs] if out is None else out
        self.out = views_of("out", new, len(q))
        arrays = []
        if return_lse:
            batch, length, heads, _ = q[0].shape
            shape, held = (batch, heads, length), element(np.float32)
            arrays = [memory.array(empty(view, shape, held)) for memory, view in pairs]
        self.lse = [_arrays.view(array) for array in arrays]
        self.returned: Any = (list(new), arrays) if return_lse else list(new)


# --- checks -----------------------------------------------------------------------------------


def operand_violations(ranks: Ranks, operands: RingOperands, causal: bool) -> Iterator[Violation]:
    """Yield the rules that operands break next to rank 0's, which `Operands` checks."""
    for name, views in operands._asdict().items():
        yield from ranks.misplaced(name, views, "q")
        first = views[0]
        for rank, view in enumerate(views):
            if view.ndim != _AXES.count(",") + 1:
                rule = f"it must be {_AXES}"
                yield Violation(f"{name}[{rank}]", f"of shape {view.shape}", rule, "Reshape it")
                continue
            if view.shape != first.shape or view.element is not first.element:
                rule = f"{name}[0] holds {first.element} of shape {first.shape}, and so do all"
                given = f"{view.element} of shape {view.shape}"
                remedy = "Give all ranks equally many positions; pad the sequence at its end"
                yield Violation(f"{name}[{rank}]", given, rule, remedy)
            yield from reach_violations(f"{name}[{rank}]", view)
    yield from length_violations([views[0] for views in operands], causal)


def length_violations(operands: _Views, causal: bool) -> Iterator[Violation]:
    """Yield the rules that the lengths of a rank's q, k and v break."""
    lengths = [view.shape[1] for view in operands if view.ndim == 4]
    if len(set(lengths)) > 1:
        rule = f"q has {lengths[0]} positions, and each has a key and a value"
        yield Violation("k.shape[1]", lengths[1], rule, "Pass the keys of the same positions")
    if causal and lengths[0] % 2:
        rule = "with causal=True a rank has two chunks of equal length"
        yield Violation("q.shape[1]", lengths[0], rule, "Pad the sequence to a multiple of 2 P")


def array_violations(
    ranks: Ranks, name: str, views: _Views, of: str, first: ArrayView
) -> Iterator[Violation]:
    """Yield the rules that arrays like ``first``, one per rank, break; ``of`` is its list."""
    yield from ranks.misplaced(name, views, "q")
    for rank, view in enumerate(views):
        if view.shape != first.shape or view.element is not first.element:
            rule = f"{of}[0] holds {first.element} of shape {first.shape}"
            given = f"{view.element} of shape {view.shape}"
            yield Violation(f"{name}[{rank}]", given, rule, "Pass an array like that")
        else:
            yield from reach_violations(f"{name}[{rank}]", view)


def output_violations(
    ranks: Ranks, name: str, views: _Views, of: str, inputs: Mapping[str, _Views]
) -> Iterator[Violation]:
    """Yield the rules that outputs like the inputs of a name break; refuse those that overlap."""
    broken = list(array_violations(ranks, name, views, of, inputs[of][0]))
    yield from broken
    for rank, view in enumerate(views):
        if view.read_only:
            rule, remedy = "it is written", "Pass a writable array"
            yield Violation(f"{name}[{rank}]", "a read-only array", rule, remedy)
        elif not broken:
            others = {f"{other}[{rank}]": each[rank] for other, each in inputs.items()}
            refuse_overlap(f"{name}[{rank}]", view, others, may_share_rows=True)


# --- the operation ----------------------------------------------------------------------------


def attend(
    ranks: Ranks, operands: RingOperands, sizes: RingSizes, scores: Scores, out: _Views, lse: _Views
) -> RankedCall:
    """Launch; return the call.

    Without ``lse`` the log-sum-exps are not stored.
    """
    workspace = Workspace.of(ranks, operands.q, sizes.pieces, 2 * sizes.kv_bytes, halves=1)
    every = [reachable(view) for view in (*itertools.chain(*operands), *out)]
    operation = workspace.calls.operation(
        RingAttention,
        *map(Layout.of, every),
        workspace=workspace,
        sizes=sizes,
        scores=scores,
        has_lse=bool(lse),
    )
    for rank, stream in enumerate(ranks.streams):
        own = every[rank :: len(ranks)]
        backend_of(own[0].device).wait_for_producers(own, stream)
    with workspace.lock:
        call = RankedCall(workspace, *operation.prepared(every, lse))
    call.run()
    return call


def chunks_of(view: ArrayView, sizes: RingSizes) -> list[ArrayView]:
    """Return the first and the last chunk of a rank's positions: one and the same, or two."""
    batch, _, heads, head_dim = view.shape
    shape = (batch, sizes.chunk_length, heads, head_dim)
    last_row = (sizes.chunks - 1) * sizes.chunk_length
    starts = (0, last_row * view.strides_bytes[1])
    return [reachable(pinned(view, view.address + start, shape=shape)) for start in starts]


def buffered_rows(
    workspace: Workspace, rank: int, sizes: RingSizes, held: Element, number: int, rows: slice
) -> ArrayView:
    """Return rows of one of the arrays [batch, keys, kv_heads, head_dim] in a rank's buffer."""
    row = sizes.kv_heads * sizes.head_dim
    strides = tuple(step * held.itemsize for step in (sizes.keys * row, row, sizes.head_dim, 1))
    whole = workspace.matrix(rank, 0, (1, row), held, number * sizes.kv_bytes)
    address = whole.address + rows.start * strides[1]
    shape = sizes.batch, rows.stop - rows.start, sizes.kv_heads, sizes.head_dim
    return pinned(whole, address, shape=shape, strides_bytes=strides)


class RingAttention:
    """The launches for operands and outputs of given layouts."""

    def __init__(
        self,
        *layouts: Layout,
        workspace: Workspace,
        sizes: RingSizes,
        scores: Scores,
        has_lse: bool,
    ) -> None:
        del layouts  # the key
        self._workspace, self._sizes, self._scores = workspace, sizes, scores
        self._variant = Variant.of(scores, has_lse=has_lse)
        self._launches: RankedLaunches | None = None

    def prepared(self, every: _Views, lse: _Views) -> tuple[RankedLaunches, list[list[int]]]:
        """Return the launches and their addresses; hold the workspace's lock.

        Args:
            every: Of all q, k, v and outputs, one after the other.
            lse: The log-sum-exps, if requested.
        """
        count = len(self._workspace.ranks)
        each = [self._moving(every[rank::count]) for rank in range(count)]
        if self._launches is None:
            self._launches = RankedLaunches.prepared(
                self._workspace,
                lambda rank: self._prepare(rank, each[rank], lse[rank] if lse else 0),
            )
        addresses = [[view.address for view in own] for own in each]
        for own, view in zip(addresses, lse, strict=False):
            own.append(view.address)
        return self._launches, addresses

    def _moving(self, own: _Views) -> list[ArrayView]:
        """Return what the first tiles of the kernel lie over: q in chunks, k, v, out in chunks."""
        q, k, v, out = own
        return [*chunks_of(q, self._sizes), k, v, *chunks_of(out, self._sizes)]

    def _prepare(self, rank: int, moving: _Views, lse: Any) -> tuple[Any, object]:
        workspace, sizes = self._workspace, self._sizes
        ranks, backend = workspace.ranks, backend_of(moving[0].device)
        config = ring_config(sizes, self._variant, backend.limits.sms, backend.limits.shared_bytes)
        buffered = self._buffered(rank, moving[0], sizes.buffered_keys(rank))
        tiles = ring_tiles(moving[:2], moving[2:4], moving[4:], buffered, config)
        targets = TMATensorTileArray(self._targets(rank, moving[2]))
        resident = Occupancy.of(backend).max_active_clusters(config.cluster) // ranks.sharing(rank)
        busy = max(ring_spans(sizes, config), -(-len(ranks) * sizes.pieces // config.cluster))
        clusters = min(max(1, resident), busy)
        schedule, waves, table = 0, 0, None
        if self._variant.has_right:
            listed = zigzag_schedule(sizes, rank, self._scores, config, clusters)
            table = backend.upload(listed.tobytes())
            schedule, waves = table.address, len(listed)
        shards = Shards((sizes.length,) * len(ranks), 0, 0)
        arguments = RingArguments(
            lse, tiles.buffered_k, tiles.buffered_v, targets, workspace.signals[rank],
            shards.argument(workspace.slots), Pointer(workspace.rounds[rank]),
            schedule, waves, problem(sizes.of_rank(), self._scores),
        )  # fmt: skip
        launch = ring_kernel(tiles, self._variant, config).prepare(
            clusters * config.cluster,
            config.threads,
            (*tiles[:6], *arguments),
            cluster=config.cluster if config.cluster > 1 else None,
            device=ranks.memories[rank].ordinal,
            stream=ranks.streams[rank],
        )
        return launch, (targets, table)

    def _buffered(self, rank: int, like: ArrayView, keys: int, first: int = 0) -> list[ArrayView]:
        """Return keys and values in a rank's buffer, ``keys`` rows from ``first`` on."""
        rows = slice(first, first + keys)
        return [
            buffered_rows(self._workspace, rank, self._sizes, like.element, number, rows)
            for number in range(2)
        ]

    def _targets(self, rank: int, like: ArrayView) -> list[Any]:
        """Return the tiles over a rank's chunks in all buffers: [peer][chunk][keys, values]."""
        sizes = self._sizes
        return [
            push_tile(view)
            for peer in range(sizes.ranks)
            for chunk in range(sizes.chunks)
            for view in self._buffered(
                peer,
                like,
                sizes.chunk_length,
                sizes.buffer_chunk(peer, rank, chunk) * sizes.chunk_length,
            )
        ]
