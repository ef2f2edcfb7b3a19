"""Defects to plant in the shipped kernels, and what the emulator reports of each.

`Defect.kernel` is the job of `test_mutations` that launches the kernel. The patterns call barriers
by the names of the source: ``ring.full[0]``, ``ring.empty[2]``. A race is one that only the race
detector finds, in every order; some orders end in a deadlock before.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, without

Job = Literal["gemm", "pair", "ping_pong", "tiled"]
FILES: dict[str, str] = {**dict.fromkeys(get_args(Job), "gemm.cu"), "tiled": "copy.cu"}

EITHER = DEADLOCK + FAULT

_PRODUCER_WAIT = "empty[state.index].wait(state.phase, location);"
_CONSUMER_WAIT = "full[state.index].wait(state.phase, location);"
_ACQUIRE, _WAIT = "Ring::producer_acquire", "Ring::consumer_wait"
_LANE = "if (lane == 0) empty[stage].arrive();"
_LANES = "if (lane < Group::kCtas) { empty[stage].arrive_cluster_relaxed(...); }"
_LOOP = "for (int block = 0; block < k_blocks; ++block, consumer.step())"
_SYNC, _WRITES = "barrier_.sync();", "write_row_block"
_STORED = "ring_.full[stored_.index].wait(stored_.phase);"

# The report of one defect depends on the order of the threads.
_ARMED_AGAIN = r"full\[\d\] gets 1 arrival in phase \d, which counts 1 and waits for no more"
_NEVER_ARMED = r"full\[\d\], phase \d: 1 arrivals and 0 bytes are missing"
_NEVER_FREED = r"empty\[\d\], phase \d: \d+ arrivals and 0 bytes are missing"
_MISSED = r"(full|empty)\[\d\] completed phase \d while this thread was still waiting"
_UNWRITTEN = r"which nothing has written"
_UNREAD = r"no thread has waited for phase \d of (ring\.)?full\[\d\], in which a TMA load .*landed"
_ANY_ORDER = f"{_ARMED_AGAIN}|{_NEVER_ARMED}|{_MISSED}"
_CHUNKS = r"race on epilogue\[\d\]\.chunks\[\d\]"
_OPERANDS = r"race on ring\.stages\[\d\]\.[ab] .*\n"
_ACCUMULATORS = r"race on the accumulators .*\n"


def _consumers_of(block: int) -> str:
    return rf"consumer 0 \(warps 4-7 of block \({block}, 0, 0\)\) at .*"


def _of(job: Job, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    """Return defects of rows: name, edit, classes, pattern, and whether some orders are silent."""
    return tuple(
        Defect(job, name, (edit,), reported, says, some_orders=bool(more))
        for name, edit, reported, says, *more in rows
    )


BYTES_AND_ARRIVALS = _of(
    "gemm",
    ("too many bytes expected", Edit("bytes);", "bytes + 1024);", _ACQUIRE), DEADLOCK,
     r"full\[0\], phase 0: 0 arrivals and 1024 bytes are missing"),
    ("one warp never arrives",
     Edit(_LANE, "if (lane == 0 && threadIdx.x / 32 != 5) empty[stage].arrive();"), DEADLOCK,
     r"empty\[0\], phase 0: 1 arrivals and 0 bytes are missing"),
)  # fmt: skip

WAITS = _of(
    "gemm",
    ("the producer does not wait", without(_PRODUCER_WAIT, _ACQUIRE), EITHER, _ANY_ORDER),
    ("the consumer leaves a block early", Edit(_LOOP, _LOOP.replace("block <", "block + 1 <")),
     FAULT, f"ends while a TMA load to shared offset 0 .* is in flight|{_UNREAD}"),
)  # fmt: skip

ROLES = _of(
    "gemm",
    ("one warp does not multiply",
     before("consume(warpgroup - 1);", "if (warp_index() != 6)"), EITHER,
     (r"threads 128-191, 224-255 at .*: wgmma.wait_group|"
     r"of warp (4|6) and \d+ times by thread \d+ of warp (4|6), which belong to one warpgroup")),
    ("lanes give wgmma other rows", after("row + row_block * 64", "+ lane_index() % 2 * 8"), FAULT,
     r"threads (128 and 129|256 and 257) of a warpgroup give wgmma.mma_async different"),
    ("two sizes of one named barrier", Edit(_SYNC, "NamedBarrier<256>{1}.sync();", _WRITES, 2),
     FAULT, r"barrier 1 is used for (256 and for 128|128 and for 256) threads at once", True),
    ("a warp skips the named barrier", before(_SYNC, "if (warp_index() % 4 != 3)", _WRITES, 1),
     DEADLOCK, r"consumer 0 \(warps 4-6 of .*: barrier 1: 32 arrivals are missing"),
    ("a lane skips stmatrix's warp",
     after("Chunk::write(staged(i), chunk, before);",
           "if (lane_index() == 3) elect(); else __syncwarp();"), FAULT,
     r"lanes of one warp are at (__syncwarp|elect.sync) \(.*\) and at (elect.sync|__syncwarp)"),
)  # fmt: skip

INIT = _of(
    "gemm",
    ("nobody waits for init", without("__syncthreads();"), FAULT,
     r"(full|empty)\[0\] is used before mbarrier.init"),
)  # fmt: skip

COORDINATES_AND_STORES = _of(
    "gemm",
    ("the output starts left of the matrix",
     Edit("send(staged(i), row, (first + i)", "send(staged(i), row, (first + i - 1)"), FAULT,
     r"starts at \(-32, \d+\), coordinate 0 below 0"),
)  # fmt: skip

PAIR = _of(
    "pair",
    ("multicast to CTA 0 alone", Edit("((1u << kCtas) - 1) << first_rank()", "1"), DEADLOCK,
     _consumers_of(1) + r"full\[0\], phase 0: 0 arrivals and 8192 bytes"),
    ("both load the first share", Edit("Group::rank()", "0", "ProducerStage"), RACE,
     r"race on ring\.stages\[\d\]\.b .*\n.*TMA load\n.*TMA load\ntwo loads write"),
    ("a CTA expects its own share only",
     Edit("bytes);", "ATile::kBytes + BTile::kBytes / CLUSTER);", _ACQUIRE), DEADLOCK,
     r"full\[\d\], phase \d: .*\d+ bytes more than expected arrived"),
    ("all expect on CTA 0",
     Edit("expect_bytes(bytes)", "arrive_and_expect_bytes(bytes, 0)", _ACQUIRE), FAULT,
     r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more"),
    ("nobody waits for the peer's init",
     Edit("enter_cluster();", "__syncthreads();", "run_with_helpers"), RACE,
     r"race on ring\.(full|empty)\[\d\] .*\n.*init\n(.*\n)*.*cluster_sync\(\)"),
    ("a CTA leaves before its peer",
     without("if constexpr (...) cluster_sync();", "leave_cluster"), FAULT,
     r"CTA [01] of the cluster has ended.*cluster_sync\(\)", True),
)  # fmt: skip

TILED = _of(
    "tiled",
    ("a tile is loaded that nobody asks for",
     after("wait_group_read<0>();", "next = first; load_next();"), FAULT,
     rf"ends while a TMA load .* is in flight|{_UNREAD}"),
)  # fmt: skip

FOR_THE_RACE_DETECTOR = _of(
    "gemm",
    ("the consumer does not wait", without(_CONSUMER_WAIT), EITHER,
     f"{_ARMED_AGAIN}|{_NEVER_FREED}|{_UNREAD}|{_UNWRITTEN}"),
    ("a stage is released while wgmma reads it",
     Edit("wgmma_wait_group<1>", "wgmma_wait_group<2>"), RACE,
     _OPERANDS + r".*wgmma\n.*TMA load\n.*before the stage is released"),
    ("accumulators are read before wgmma is done",
     without("wgmma_wait_group<0>();", "finish_stages"), RACE,
     _ACCUMULATORS + r".*wgmma\n.*registers\n.*wgmma_wait_group"),
    ("no proxy fence", without("fence_async_view_proxy();", _WRITES), RACE,
     r"race on epilogue\[\d\]\.chunks.* .*\n.*write\n.*TMA store\n.*fence_async_view_proxy\(\)"),
    ("no fence after init", without("fence_barrier_init();"), RACE,
     r"race on ring\.full\[\d\] .*\n.*init\n.*TMA load\n.*fence_barrier_init\(\)"),
    ("no barrier before the store", without(_SYNC, _WRITES, 2), RACE,
     _CHUNKS + r" .*\n.*(write\n.*TMA store|TMA store\n.*write)\n"),
)  # fmt: skip

PING_PONG = _of(
    "ping_pong",
    ("no consumer waits for its turn", without("if (!has_turn) Order::wait(number);"), RACE, ""),
    ("the other consumer's stages are not skipped",
     without("consumer.skip(k_blocks);", "multiply_tiles_pingpong", 1), EITHER, ""),
)  # fmt: skip

AT_THE_END_OR_ADVERSARIAL = _of(
    "gemm",
    ("try_wait's answer is taken for granted",
     Edit(_PRODUCER_WAIT, "empty[state.index].try_wait(state.phase);", _ACQUIRE), EITHER,
     _ANY_ORDER, True),
    ("the empty barriers are invalidated early",
     before("multiply_and_store<Loop>(",
            "if (threadIdx.x == 128) shared.ring.empty[0].invalidate();", "multiply_tiles"), FAULT,
     r"empty\[0\] is used after mbarrier.inval|empty\[0\] is invalidated while 1 threads wait"),
)  # fmt: skip

MUTATIONS = (
    *BYTES_AND_ARRIVALS, *WAITS, *ROLES, *INIT, *COORDINATES_AND_STORES, *PAIR, *TILED,
    *FOR_THE_RACE_DETECTOR, *PING_PONG, *AT_THE_END_OR_ADVERSARIAL,
)  # fmt: skip
