"""The most likely cause of a race in one kernel, from the two accesses and known facts."""

from __future__ import annotations

from dataclasses import dataclass

from tmaasync._hardware import WARP_THREADS
from tmaasync.emulate.report.tensor_causes import TENSOR_CAUSES
from tmaasync.errors import EmulatedAccess

_ATOMIC, _BLOCK_ATOMIC = "atomic operation", "atomic operation of one block"
_LOAD, _INIT, _REGISTERS = "TMA load", "mbarrier.init", "use of registers"
_MAP_READ = "TMA's read of a tensor map"
_RESPONSE = "response of try_cancel"
_EARLIER = EmulatedAccess.EARLIER
_THREAD_COPY = "cp.async"
_STORES = ("TMA store", "TMA reduction")
_PUSHES = ("TMA copy between CTAs", "TMA reduction between CTAs")


@dataclass(frozen=True, slots=True)
class RacingPair:
    """Two racing accesses, and the detector's facts about them."""

    first: EmulatedAccess
    second: EmulatedAccess
    memory: str
    known: frozenset[str]

    def holds(self, fact: str) -> bool:
        """Return whether a fact holds: the detector's, or one derived here."""
        first, second = self.first, self.second
        facts = {
            "is_global": self.memory == "global",
            "is_tensor": self.memory == "tensor",
            "first_writes": first.is_write,
            "both_write": first.is_write and second.is_write,
            "first_reads_memory": first.operation in ("ordinary read", "ldmatrix"),
            "second_reads_memory": second.operation in ("ordinary read", "ldmatrix"),
            "one_thread": (first.block, first.thread) == (second.block, second.thread),
            "one_block": first.block == second.block,
            "one_warp": self._is_of_one_warp(),
            "one_line": first.source is not None and first.source == second.source,
        }
        return fact in self.known or facts.get(fact, False)

    def _is_of_one_warp(self) -> bool:
        """Return whether a barrier of a warp may order the two; wgmma is of four warps."""
        first, second = self.first, self.second
        warps = {(one.block, one.thread // WARP_THREADS) for one in (first, second)}
        return len(warps) == 1 and "wgmma" not in (first.operation, second.operation)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule for the most likely missing step between two accesses; None matches every operation.

    All of ``needs`` must hold, and none of ``lacks``. In a cause ``{full}`` stands for the mbarrier
    on which a load completes, and ``{empty}`` for the mbarrier on which its stage is released.
    """

    before: str | None
    after: str | None
    cause: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def fits(self, pair: RacingPair) -> bool:
        return (
            self.before in (None, pair.first.operation)
            and self.after in (None, pair.second.operation)
            and all(map(pair.holds, self.needs))
            and not any(map(pair.holds, self.lacks))
        )


_SYNCHRONISE = (
    "synchronise: __syncthreads(), a named barrier, or cluster_sync() where they belong to two CTAs"
)
_OF_WARP = "__syncwarp(), or __syncthreads() where other warps use the bytes too"
_FLAG = (
    "calls __threadfence() and then sets a flag by an atomic operation; the other polls the flag "
    "by an atomic operation and then calls __threadfence()"
)

_READ_OF_ATOMIC = (
    "an ordinary read of what another thread changes by an atomic operation. A read that may come "
    "at any time is atomic too, or goes through a volatile pointer; if it has its place before or "
    "after the change"
)

# The first matching rule applies.
_RULES = (
    *(_Rule(one.before, one.after, one.cause, one.needs, one.lacks) for one in TENSOR_CAUSES),
    *(
        _Rule(
            before,
            after,
            "functions whose names end in _block, and instructions with the scope .cta, are atomic "
            "for the threads of one block, and another block uses the same bytes. Call the "
            "function without _block, or name a wider scope",
        )
        for before, after in (
            (_BLOCK_ATOMIC, _BLOCK_ATOMIC),
            (_BLOCK_ATOMIC, _ATOMIC),
            (_ATOMIC, _BLOCK_ATOMIC),
        )
    ),
    _Rule(
        _INIT,
        _INIT,
        "two threads initialise the barrier, and only one may. Call init() inside "
        "if (threadIdx.x == 0); in a block of two or three dimensions compare threadIdx.y and "
        "threadIdx.z too",
    ),
    _Rule(
        _INIT,
        None,
        "TMA may not see the barrier yet: the thread that calls init() must call "
        "fence_barrier_init() after it",
        ("lacks_fence",),
    ),
    _Rule(
        _INIT,
        None,
        "no barrier lies between init() and the use. Call __syncthreads() after it, or "
        "cluster_sync() where another CTA uses the barrier",
    ),
    _Rule(
        None,
        _REGISTERS,
        "registers are used before wgmma has finished. Commit the group and wait for it with "
        "wgmma_wait_group, or give the next values other registers",
    ),
    _Rule(
        _REGISTERS,
        None,
        "wgmma uses registers that the thread may still be writing. Call wgmma_fence() before it",
    ),
    _Rule(
        _EARLIER,
        _MAP_READ,
        "the map has changed since an earlier launch used it, or by one, and TMA may hold the old "
        "one. In every block, the thread that copies calls tensormap_fence_acquire() at system "
        "scope first, as tiles[i] of a TMATensorTileArray does; or pass the map as a const "
        "__grid_constant__ parameter",
    ),
    _Rule(
        None,
        _MAP_READ,
        "TMA may read the map as it was before the edit. The editing thread calls "
        "tensormap_fence_release() after it (a warp tensormap_cp_fence_release()), and the thread "
        "that copies then calls tensormap_fence_acquire(); edit_in_gmem and edit_in_shared_mem do "
        "both",
        ("lacks_fence",),
    ),
    _Rule(
        _MAP_READ,
        None,
        "a copy that uses the map may still be in flight. Wait for the barrier of its load, or "
        "with wait_group_read for its store, before the map is edited",
    ),
    _Rule(
        None,
        None,
        "the reader saw the flag by a relaxed operation, and the L1 cache of its SM may still hold "
        "the value from before the write, which was read there earlier. Call __threadfence() after "
        "the poll, or poll with an acquire: ld.acquire.gpu",
        ("lacks_acquire",),
    ),
    _Rule(
        None,
        _RESPONSE,
        "the response overwrites one that was read. Every reading thread calls "
        "fence_async_view_proxy() after the read and before the barrier, as ClusterRequest does",
        ("lacks_fence",),
    ),
    _Rule(
        None,
        _RESPONSE,
        "the next response may land before this one was read. Let every reading thread arrive at a "
        "barrier, and ask for the next cluster after it",
    ),
    _Rule(
        _RESPONSE,
        None,
        "the response is read before it has landed. Expect 16 bytes on its mbarrier, and wait for "
        "them",
    ),
    _Rule(
        None,
        None,
        "the write was not made visible to TMA. Every writing thread calls "
        "ptx::fence_proxy_async_global() after it and before the barrier or the flag",
        ("lacks_fence", "is_global"),
    ),
    _Rule(
        None,
        None,
        "the write was not made visible to TMA and wgmma. Every writing thread calls "
        "fence_async_view_proxy() after it and before the barrier",
        ("lacks_fence",),
    ),
    _Rule(
        _LOAD,
        _LOAD,
        "two loads write the same bytes. Give each its own stage or share, and wait for the first "
        "before the second",
    ),
    _Rule(
        _THREAD_COPY,
        _THREAD_COPY,
        "two copies write the same bytes. Give each its own, or wait for one before the next",
    ),
    _Rule(
        _THREAD_COPY,
        None,
        "the copy may not have landed. The thread that issued it waits with cp_async_wait<N>() and "
        "then synchronises with the others, or all arrive on an mbarrier with "
        "mbarrier_cp_async_arrive() and wait on it",
    ),
    _Rule(
        _LOAD,
        None,
        "the data may not have landed. Wait on {full} before the other access, or let its readers "
        "synchronise before the next load is issued",
        ("second_reads_memory",),
    ),
    _Rule(_LOAD, None, "the data may not have landed. Wait on {full} before the other access"),
    *(
        rule
        for store in _STORES
        for rule in (
            _Rule(
                store,
                None,
                "one store writes the same bytes twice: its tile overlaps itself in global memory. "
                "Give the array strides that are at least as long as its sides",
                ("is_one_copy", "first_writes"),
            ),
            *(
                _Rule(
                    store,
                    other,
                    "two stores write the same bytes. Let one thread of one block store each tile: "
                    "check the coordinates, and that tiles end where the next one begins",
                    ("first_writes",),
                    ("one_thread",),
                )
                for other in _STORES
            ),
            _Rule(
                store,
                None,
                "the store has completed, and nothing orders the other access after it. After "
                f"wait_group<0>() the storing thread {_FLAG}",
                ("first_writes", "is_stored"),
                ("one_block",),
            ),
            _Rule(
                store,
                None,
                "the store has completed, and nothing orders the other access after it. After "
                f"wait_group<0>() the two {_SYNCHRONISE}",
                ("first_writes", "is_stored"),
            ),
            _Rule(
                store,
                None,
                "the store may not have reached global memory. Wait with wait_group<0>() before "
                "the other access; wait_group_read is not enough. A thread of another block needs "
                "a flag too: the storing thread then calls __threadfence() and sets it",
                ("first_writes",),
                ("one_block",),
            ),
            _Rule(
                store,
                None,
                "the store may not have reached global memory. Wait with wait_group<0>() before "
                "the other access; wait_group_read is not enough",
                ("first_writes",),
            ),
            _Rule(
                store,
                None,
                "the store is issued before the write, which is the first to these bytes. Every "
                "writing thread calls fence_async_view_proxy() after it, and then they and the "
                f"storing thread {_SYNCHRONISE}",
                ("was_unwritten",),
            ),
            _Rule(
                store,
                None,
                "the store may still be reading its buffer. Wait with wait_group_read before the "
                "buffer is written again",
                ("one_thread",),
            ),
            _Rule(
                store,
                None,
                "the store may still be reading its buffer. Wait with wait_group_read in the "
                "storing thread; then it and the threads that write the buffer again "
                f"{_SYNCHRONISE}. If the store is to send this write, they synchronise before it",
            ),
        )
    ),
    *(
        _Rule(
            push,
            None,
            "the bytes may not have landed. Wait on the barrier that the copy credits",
            ("first_writes",),
        )
        for push in _PUSHES
    ),
    _Rule(
        _PUSHES[0],
        None,
        "the copy may still be reading its source. Let the receiver signal, after its wait on the "
        "barrier, before the source is written again",
    ),
    *(
        _Rule(
            None,
            push,
            "the memory is written before its readers are done. Let them arrive on a barrier of "
            "the pushing CTA, and let it wait there",
        )
        for push in _PUSHES
    ),
    _Rule(
        "wgmma",
        None,
        "wgmma is issued before the write, which is the first to these bytes. Every writing thread "
        "calls fence_async_view_proxy() after it, and then they and the threads that multiply "
        f"{_SYNCHRONISE}",
        ("was_unwritten",),
    ),
    _Rule(
        "wgmma",
        None,
        "wgmma may still be reading the stage. Wait for its group before the stage is released",
    ),
    _Rule(
        None,
        _LOAD,
        "nothing orders the write before the load, which another block issues. After the write, "
        f"each writing thread {_FLAG} and ptx::fence_proxy_async_global(), and then loads",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        _LOAD,
        "nothing orders the write before the load. Every writing thread calls "
        "ptx::fence_proxy_async_global() after it, and then they and the loading thread "
        f"{_SYNCHRONISE}",
        ("is_global",),
    ),
    _Rule(
        None,
        _LOAD,
        "the reader arrives on {empty} with a relaxed arrival, which orders no ordinary read "
        "before it. Arrive with arrive() or arrive_cluster()",
        ("has_relaxed_arrival", "first_reads_memory"),
    ),
    _Rule(
        None,
        _LOAD,
        "the buffer is loaded before its readers are done. Let them arrive on {empty}, and let the "
        "producer wait on it",
    ),
    _Rule(
        None,
        _THREAD_COPY,
        f"nothing orders the write before the copy. After the write, each writing thread {_FLAG}, "
        "and then copies",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        _THREAD_COPY,
        "the buffer is copied into before its readers are done. Let them synchronise with the "
        "copying threads first",
        (),
        ("is_global",),
    ),
    *(
        _Rule(before, after, f"{_READ_OF_ATOMIC}, {cause}", needs, lacks)
        for before, after, read in (
            (_ATOMIC, None, "second_reads_memory"),
            (None, _ATOMIC, "first_reads_memory"),
        )
        for cause, needs, lacks in (
            (f"the thread that comes first {_FLAG}", (read, "is_global"), ("one_block",)),
            (f"the two synchronise: {_OF_WARP}", (read, "one_warp"), ()),
            (f"the two {_SYNCHRONISE}", (read,), ()),
        )
    ),
    _Rule(
        None,
        None,
        "two threads write the same element. Check the index, so that each writes its own, or add "
        "with atomicAdd()",
        ("is_global", "both_write", "one_line"),
    ),
    _Rule(
        None,
        None,
        "no flag orders the two, and __syncthreads() does not reach another block. The thread that "
        f"comes first {_FLAG}. Where one thread sets or polls the flag for its block, the block "
        "synchronises before it sets, and after it has polled: __syncthreads()",
        ("is_global",),
        ("one_block",),
    ),
    _Rule(
        None,
        None,
        "no barrier orders the two, which belong to two CTAs of a cluster. Put cluster_sync() or "
        "an mbarrier between them: __syncthreads() and named barriers do not reach another CTA",
        (),
        ("one_block",),
    ),
    _Rule(
        None,
        None,
        f"no barrier orders the two, threads of one warp. Let them synchronise: {_OF_WARP}",
        ("one_warp",),
    ),
    _Rule(
        None,
        None,
        "no barrier orders the two. Put __syncthreads(), a named barrier or an mbarrier between "
        "them",
    ),
)


def cause_in_a_kernel(pair: RacingPair, empty: str | None) -> str:
    """Return the cause from the first matching rule.

    Args:
        pair: The two accesses.
        empty: The name of the mbarrier on which the stage is released, if any.
    """
    rule = next(rule for rule in _RULES if rule.fits(pair))
    return rule.cause.format(
        full=pair.first.barrier_name or "the barrier that the load credits",
        empty=empty or "an empty barrier",
    )
