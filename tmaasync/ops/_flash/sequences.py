"""The checked sequences of packed attention: cumulative lengths of queries and keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tmaasync._arrays import ArrayView
from tmaasync._kinds import as_int, is_integer
from tmaasync._ragged.batch import MAX_ROWS, BatchNames
from tmaasync.errors import ArgumentError, Violation
from tmaasync.ops._extents import extent_violations
from tmaasync.ops._flash.config import Batch
from tmaasync.ops._flash.operands import LEAST_TILE_ROWS, Operands
from tmaasync.ops._sequence_lengths import CumulativeLengths, Limits


class Lengths(NamedTuple):
    """The arguments of a call that describe its sequences.

    ``cu_seqlens_k`` None means ``cu_seqlens_q``.
    """

    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    check: bool

    def of(
        self, operands: Operands, *, keys_are_packed: bool = True
    ) -> tuple[tuple[CumulativeLengths, CumulativeLengths], Batch]:
        """Return the cumulative lengths of q and k, and the number and maximum of the lengths."""
        if self.cu_seqlens_q is None:
            rule, remedy = "it has the cumulative lengths", "Pass a 0, then numpy.cumsum of lengths"
            raise ArgumentError.broken("cu_seqlens_q", None, rule, remedy)
        check_longest(self.max_seqlen_q, self.max_seqlen_k)
        max_q, max_k = as_int(self.max_seqlen_q), as_int(self.max_seqlen_k)
        cu_seqlens_k = self.cu_seqlens_k
        if cu_seqlens_k is None:
            cu_seqlens_k = self.cu_seqlens_q
            max_k = max_q if max_k is None else max_k
        rows_k = operands.k.shape[0] if keys_are_packed else None
        device, check = operands.q.device, self.check
        limits_q, limits_k = Limits(max_q, operands.q.shape[0]), Limits(max_k, rows_k)
        cumulative_q = _cumulative("q", self.cu_seqlens_q, limits_q, device, check=check)
        cumulative_k = _cumulative("k", cu_seqlens_k, limits_k, device, check=check)
        ArgumentError.raise_for(_batch_violations(cumulative_q, cumulative_k))
        longest_q = min(_longest("q", cumulative_q, max_q), operands.q.shape[0])
        longest_k = _longest("k", cumulative_k, max_k)
        if rows_k is not None:
            longest_k = min(longest_k, rows_k)
        batch = Batch(cumulative_q.batch, longest_q, longest_k)
        ArgumentError.raise_for(_extent_violations(batch, operands.q, rows_k))
        return (cumulative_q, cumulative_k), batch


def _cumulative(
    side: str, values: Any, limits: Limits, device: int | None, *, check: bool
) -> CumulativeLengths:
    names = BatchNames(
        cu_seqlens=f"cu_seqlens_{side}", max_length=f"max_seqlen_{side}", packed=side
    )
    return CumulativeLengths.of(None, values, device, limits, check=check, names=names)


def _longest(side: str, cumulative: CumulativeLengths, max_length: int | None) -> int:
    if max_length is not None:
        return max_length
    named = cumulative._replace(name=f"cu_seqlens_{side}")
    return named.known("longest", f"max_seqlen_{side}", "the longest sequence")


def check_longest(max_seqlen_q: object, max_seqlen_k: object) -> None:
    """Check the maximum lengths by themselves; None is one that the caller leaves out."""
    for side, value in (("q", max_seqlen_q), ("k", max_seqlen_k)):
        if value is not None and not (is_integer(value) and 0 <= value <= MAX_ROWS):
            rule = "it must be an integer of 0 or more, and fit 32 bits"
            remedy = "Pass the rows of the longest sequence"
            raise ArgumentError.broken(f"max_seqlen_{side}", repr(value), rule, remedy)


def _extent_violations(batch: Batch, q: ArrayView, rows_k: int | None) -> Iterator[Violation]:
    """Yield the extents that the kernels cannot count; ``rows_k`` is None for paged keys."""
    rows, heads, _ = q.shape
    keys = batch.max_keys if rows_k is None else min(batch.max_keys, rows_k)
    tiles = (max(rows, rows_k or 0) // LEAST_TILE_ROWS + batch.size) * heads
    yield from extent_violations({"tiles": tiles, "queries + max_seqlen_k": rows + keys})


def _batch_violations(
    cumulative_q: CumulativeLengths, cumulative_k: CumulativeLengths
) -> Iterator[Violation]:
    if cumulative_q.batch < 1:
        yield Violation("cu_seqlens_q", "of no sequence", "there is one or more", "Skip the call")
    if cumulative_k.batch != cumulative_q.batch:
        rule = f"cu_seqlens_q describes {cumulative_q.batch}"
        remedy = "Pass a sequence of keys, which may be empty, for each of queries"
        yield Violation("cu_seqlens_k", f"of {cumulative_k.batch} sequences", rule, remedy)
