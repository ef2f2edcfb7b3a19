"""The most likely missing step between racing accesses of two devices."""

from __future__ import annotations

from collections.abc import Set

from tmaasync.errors import EmulatedAccess

_STORES = ("TMA store", "TMA reduction")
_ATOMIC = "atomic operation"


def cause_between_devices(first: EmulatedAccess, second: EmulatedAccess, known: Set[str]) -> str:
    """Return the most likely missing step; ``known`` holds the detector's facts."""
    operations = (first.operation, second.operation)
    is_plain_write = "ordinary write" in operations
    if operations == (_ATOMIC, _ATOMIC):
        return _NOT_ATOMIC
    if _ATOMIC in operations and is_plain_write:
        return _RESET
    if first.is_write and "is_known" in known:
        return _NO_READER_FENCE if "lacks_reader_fence" in known else _NO_WRITER_FENCE
    if first.operation in _STORES and "is_stored" not in known:
        return _NOT_STORED
    if second.is_write and not first.is_write:
        return _STILL_READING
    return _ADDS_AND_STORES if "TMA reduction" in operations and is_plain_write else _NO_ORDER


BETWEEN_STREAMS = (
    "two launches in different streams of one device access it in no order. The first one calls "
    "Signals.post() after its access, and the second one Signals.wait() before its own; before a "
    "buffer is written again, its readers post a second signal, and the writer waits for it"
)
"""The missing step between launches of one device."""

_NOT_ATOMIC = (
    "both are atomic for their own device alone. Use operations at system scope: Signals, "
    "atomicAdd_system(), thread_scope_system, or .sys in PTX"
)
_RESET = (
    "an ordinary write sets a flag that a peer posts or polls. Let no rank reset a signal: post "
    "epochs that grow, with Signals.post()"
)
_NO_READER_FENCE = (
    "the signal was seen by ordinary loads, and TMA may not see what it announces. The reading "
    "thread calls ptx::fence_proxy_async_global() after it, as Signals.wait() does"
)
_NO_WRITER_FENCE = (
    "the write was not made visible to TMA at the peer. Every writing thread calls "
    "ptx::fence_proxy_async_global() after it and before the signal"
)
_NOT_STORED = (
    "the store may not have reached the peer's memory when the peer is signalled. Call "
    "wait_group<0>() before post(); wait_group_read frees shared memory and nothing else"
)
_STILL_READING = (
    "the peer may still be reading. Let the reader post a second signal when its reads are done, "
    "and let the writer wait for it, in a later launch too. If the reader reads too early, it "
    "calls Signals.wait() first or synchronises with the thread that waits, by __syncthreads()"
)
_ADDS_AND_STORES = (
    "one rank adds and another one stores, in no order. Let the rank that stores post, and those "
    "that add wait for it first; or let all add"
)
_NO_ORDER = (
    "no release and acquire at system scope lie between them. The first rank calls Signals.post() "
    "after the access, the second one Signals.wait() for an epoch of its own before its access; "
    "its other threads synchronise with the one that waits by __syncthreads(). "
    "Relaxed flags, __threadfence() and an epoch that was used before order nothing between devices"
)
