"""Defects to plant in the shipped kernels, and what the emulator reports of each.

`Defect.kernel` is the job of `test_mutations` that launches the kernel. The patterns call barriers
by the names of the source: ``ring.full[0]``, ``ring.empty[2]``. A race is one that only the race
detector finds, in every order; some orders end in a deadlock before.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, exchanged, without

Job = Literal["gemm", "pair", "ping_pong", "split", "grouped", "bulk", "tiled"]
FILES: dict[str, str] = {
    **dict.fromkeys(get_args(Job), "gemm.cu"),
    "grouped": "grouped_gemm.cu", "bulk": "copy.cu", "tiled": "copy.cu",
}  # fmt: skip

EITHER = DEADLOCK + FAULT

_EXPECT = "full[state.index].expect_bytes(bytes);"
_PRODUCER_WAIT = "empty[state.index].wait(state.phase, location);"
_CONSUMER_WAIT = "full[state.index].wait(state.phase, location);"
_ACQUIRE, _WAIT = "Ring::producer_acquire", "Ring::consumer_wait"
_LANE = "if (lane == 0) empty[stage].arrive();"
_LANES = "if (lane < Group::kCtas) { empty[stage].arrive_cluster_relaxed(...); }"
_LOOP = "for (int block = 0; block < k_blocks; ++block, consumer.step())"
_RELEASE = "if (block > 0) consumer.release(previous);"
_LOAD_B = "load_operand<Cluster::kM>(stage, stage->b, b, b_at(tile, k));"
_COUNT = "Consumers::kWarps * Group::kCtas"
_SYNC, _WRITES = "barrier_.sync();", "write_row_block"
_SHARED = "auto& shared = dynamic_shared<SharedMemory>();"
_FROM_16 = (
    "auto& shared = *reinterpret_cast<SharedMemory*>("
    "reinterpret_cast<unsigned char*>(&dynamic_shared<SharedMemory>()) + 16);"
)
_ARM = "full[loaded.index].expect_bytes(bytes(next));"
_STORED = "ring_.full[stored_.index].wait(stored_.phase);"
_OLD_STORES = "wait_group_read<Ring::kStages - Ring::kLoadsAhead>();"
_ALL_READ = "thread ends while TMA still reads its stores.*wait_group_read<0>"

# The report of one defect depends on the order of the threads.
_ARMED_AGAIN = r"full\[\d\] gets 1 arrival in phase \d, which counts 1 and waits for no more"
_NEVER_ARMED = r"full\[\d\], phase \d: 1 arrivals and 0 bytes are missing"
_NEVER_FREED = r"empty\[\d\], phase \d: \d+ arrivals and 0 bytes are missing"
_MISSED = r"(full|empty)\[\d\] completed phase \d while this thread was still waiting"
_UNWRITTEN = r"which nothing has written"
_UNREAD = r"no thread has waited for phase \d of (ring\.)?full\[\d\], in which a TMA load .*landed"
_ANY_ORDER = f"{_ARMED_AGAIN}|{_NEVER_ARMED}|{_MISSED}"
_LOST_STAGE = f"{_ARMED_AGAIN}|{_NEVER_ARMED}|{_UNWRITTEN}"
_TWICE = r"is initialised again (without mbarrier.inval|while in use)"
# A phase that ends early, as the boxes of a tile land one by one.
_MISCOUNTED = (
    r"full\[\d\], phase \d: \d+ bytes more than expected arrived|"
    r"full\[\d\] has \d+ bytes more than it expects|"
    r"full\[\d\] completed phase \d with \d+ bytes expected, and its copies deliver \d+|"
    r"ends while a TMA load to shared offset \d+ .* is in flight|"
    r"bytes to ring.stages\[\d\].*: wait for its phase of ring.full\[\d\] first"
)
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
    ("too few bytes expected", Edit("bytes);", "bytes - 1024);", _ACQUIRE), DEADLOCK,
     r"full\[0\], phase 0: 1024 bytes more than expected arrived"),
    ("only the bytes of A expected", Edit("bytes);", "ATile::kBytes);", _ACQUIRE), EITHER,
     _MISCOUNTED),
    ("no bytes expected", Edit("expect_bytes(...)", "arrive()", _ACQUIRE), EITHER,
     (r"full\[0\], phase 1: 49152 bytes more than expected arrived|"
     r"ends while a TMA load to shared offset 0 .* is in flight|"
     r"which nothing has written. A TMA load to these bytes is in flight, issued by producer "
     r"\(thread 0\) at .* bytes to ring.stages\[0\].*: wait for its phase of ring.full\[0\]")),
    ("bytes expected without arriving", Edit("expect_bytes", "expect_tx", _ACQUIRE), DEADLOCK,
     r"full\[0\], phase 0: 1 arrivals and 0 bytes are missing"),
    ("armed twice", after(_EXPECT, _EXPECT), FAULT,
     r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more"),
    ("B is never loaded", without(_LOAD_B), DEADLOCK,
     r"full\[0\], phase 0: 0 arrivals and 8192 bytes are missing"),
    ("B is loaded twice", after(_LOAD_B, _LOAD_B), EITHER, _MISCOUNTED),
    ("full waits for two arrivals", Edit("full[stage].init(...)", "full[stage].init(2)", "Ring"),
     DEADLOCK, r"full\[0\], phase 0: 1 arrivals and 0 bytes are missing"),
    ("empty waits for every thread", Edit(_COUNT, "CONSUMERS * 128 * CLUSTER"), DEADLOCK,
     r"empty\[0\], phase 0: 248 arrivals and 0 bytes are missing"),
    ("empty waits for one group", Edit(_COUNT, "4"), EITHER, _ANY_ORDER),
    ("a warp arrives twice", Edit(_LANE, "if (lane < 2) empty[stage].arrive();"), EITHER,
     f"{_ANY_ORDER}|wgmma.wait_group"),
    ("a warp arrives with two at once",
     Edit(_LANE, "if (lane == 0) empty[stage].arrive_cluster(0, 3);"), FAULT,
     r"empty\[0\] gets 3 arrivals in phase 0, which counts 8 and waits for 2"),
    ("one warp never arrives",
     Edit(_LANE, "if (lane == 0 && threadIdx.x / 32 != 5) empty[stage].arrive();"), DEADLOCK,
     r"empty\[0\], phase 0: 1 arrivals and 0 bytes are missing"),
    ("a stage is released one block late", Edit(_RELEASE, _RELEASE.replace("> 0", "> 1")), DEADLOCK,
     r"empty\[0\], phase 0: 8 arrivals and 0 bytes are missing"),
    ("the last stage is not released", without("consumer.release(last);"), DEADLOCK,
     r"empty\[0\], phase 1: 8 arrivals and 0 bytes are missing"),
    ("another stage is released",
     Edit(_RELEASE, _RELEASE.replace("previous", "consumer.index()")), DEADLOCK,
     r"empty\[0\], phase 0: 8 arrivals and 0 bytes are missing"),
)  # fmt: skip

WAITS = _of(
    "gemm",
    ("the producer starts with parity 0", Edit("for_producer", "for_consumer", "RingProducer"),
     DEADLOCK, r"producer \(thread 0 of .*empty\[0\], phase 0: 8 arrivals"),
    ("the producer does not wait", without(_PRODUCER_WAIT, _ACQUIRE), EITHER, _ANY_ORDER),
    ("the consumer waits on empty", Edit("full", "empty", _WAIT), DEADLOCK,
     r"consumer 0 \(warps 4-7 of .*empty\[0\], phase 0: 8 arrivals"),
    ("the consumer waits on the stage before",
     Edit(_CONSUMER_WAIT, "full[(state.index + STAGES - 1) % STAGES].wait(state.phase);"), DEADLOCK,
     r"consumer 0 \(warps 4-7 of .*full\[2\], phase 1: 1 arrivals"),
    ("the consumer waits for parity 0 always", Edit("wait(...)", "wait(0)", _WAIT), EITHER,
     f"{_ARMED_AGAIN}|{_NEVER_FREED}|{_MISSED}"),
    ("the producer does not step", without("state_.step();", "RingProducer::acquire_bytes"), EITHER,
     _ANY_ORDER),
    ("the consumer does not step", Edit(_LOOP, _LOOP.replace(", consumer.step()", "")), EITHER,
     f"{_NEVER_FREED}|{_MISSED}"),
    ("the producer's pipeline has one stage fewer",
     after("state_.step();", "if (state_.index == Ring::kStages - 1) state_.step();",
           "RingProducer::acquire_bytes"), DEADLOCK, r"full\[2\], phase 0: 1 arrivals and 0 bytes"),
    ("the producer leaves a block early",
     Edit("producer.produce(blocks.count)", "producer.produce(blocks.count - 1)"), DEADLOCK,
     r"full\[0\], phase 2: 1 arrivals and 0 bytes"),
    ("the consumer leaves a block early", Edit(_LOOP, _LOOP.replace("block <", "block + 1 <")),
     FAULT, f"ends while a TMA load to shared offset 0 .* is in flight|{_UNREAD}"),
    ("the consumer leaves after one tile",
     after("store(...);", "break;", "multiply_tiles_cooperative"), DEADLOCK,
     r"producer \(thread 0 of .*empty\[1\], phase 1: 8 arrivals"),
)  # fmt: skip

ROLES = _of(
    "gemm",
    ("a whole warp produces", Edit("else if (elect())", "else"), FAULT,
     r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more"),
    ("nobody produces", Edit("elect()", "false", "run_with_helpers"), DEADLOCK,
     r"consumer 0 \(warps 4-7 of .*full\[0\], phase 0: 1 arrivals"),
    ("one warp does not multiply",
     before("consume(warpgroup - 1);", "if (warp_index() != 6)"), EITHER,
     (r"threads 128-191, 224-255 at .*: wgmma.wait_group|"
     r"of warp (4|6) and \d+ times by thread \d+ of warp (4|6), which belong to one warpgroup")),
    ("lanes give wgmma other rows", after("row + row_block * 64", "+ lane_index() % 2 * 8"), FAULT,
     r"threads (128 and 129|256 and 257) of a warpgroup give wgmma.mma_async different"),
    ("the named barrier counts two groups",
     Edit("NamedBarrier<128> barrier_", "NamedBarrier<256> barrier_"), DEADLOCK,
     r"consumer 0 \(warps 4-7 of .*: barrier 1: 128 arrivals are missing"),
    ("the named barrier counts half a group",
     Edit("NamedBarrier<128> barrier_", "NamedBarrier<64> barrier_"), RACE, _CHUNKS),
    ("there is no named barrier of this number",
     Edit("1u + consumer", "15u + consumer", "Epilogue"), FAULT,
     r"barrier 16 of 128 threads; barriers are 0 to 15"),
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
    ("the first barriers are not initialised", Edit("stage = 0", "stage = 1", "Ring::init"), FAULT,
     r"(full|empty)\[0\] is used before mbarrier.init"),
    ("the barriers are initialised for every tile",
     after("for (const auto tile : schedule) {", "shared.ring.init();", "load_tiles"), FAULT,
     rf"(full|empty)\[\d\] {_TWICE}"),
    ("nobody waits for init", without("__syncthreads();"), FAULT,
     r"(full|empty)\[0\] is used before mbarrier.init"),
    ("shared memory ends before the epilogue's last buffer",
     after("gemm_shared_bytes = sizeof(SharedMemory)", "- 1024"), FAULT,
     r"a write of 4 bytes .* beyond the shared memory of the CTA, which has 106496 bytes"),
    ("shared memory starts at 16", Edit(_SHARED, _FROM_16), FAULT,
     r"a tile with a swizzle of 128 bytes lies at shared offset 16 "),
    ("a third epilogue buffer that is not there",
     Edit("(chunks_ + i) % kBuffers", "(chunks_ + i) % (kBuffers + 1)"), FAULT,
     r"a write of 4 bytes .* beyond the shared memory of the CTA, which has 107520 bytes"),
)  # fmt: skip

COORDINATES_AND_STORES = _of(
    "gemm",
    ("blocks instead of elements",
     Edit("load_rows(stage, part.a, rows, k, ",
          "load_rows(stage, part.a, rows, stage.iteration(), "), FAULT,
     r"innermost coordinate is [123], or \d bytes of BFLOAT16; it must be a multiple of 16"),
    ("the output starts left of the matrix",
     Edit("send(staged(i), row, (first + i)", "send(staged(i), row, (first + i - 1)"), FAULT,
     r"starts at \(-32, \d+\), coordinate 0 below 0"),
    ("the output starts above the matrix",
     Edit("? tile.m + row : tile.n + column", "? tile.m - row : tile.n + column"), FAULT,
     r"starts at \(\d+, -64\), coordinate 1 below 0"),
    ("stores are not committed", without("commit_group();", _WRITES), FAULT, _ALL_READ),
    ("the last stores are not waited for", without("if (leads()) wait_group_read<0>();"), FAULT,
     _ALL_READ),
    ("every warp stores", Edit("leads()", "lane_index() == 0", _WRITES), FAULT, _ALL_READ),
)  # fmt: skip

GROUPS = _of(
    "grouped",
    ("a group that ends after the arrays keeps its length",
     Edit("min(max(ends[group], start), total_rows)", "max(ends[group], start)"), FAULT,
     r"sequence\.length is \d+; it must be at most \d+"),
    ("the producer leaves out a group",
     Edit("groups", "{ends, count - 1, total_rows}", "grouped_gemm", 2), DEADLOCK, _NEVER_ARMED),
    ("the consumers leave out a group",
     Edit("groups", "{ends, count - 1, total_rows}", "grouped_gemm", 4), FAULT,
     rf"{_UNREAD}|ends while a TMA load to .* is in flight"),
)  # fmt: skip

PAIR = _of(
    "pair",
    ("multicast to CTA 0 alone", Edit("((1u << kCtas) - 1) << first_rank()", "1"), DEADLOCK,
     _consumers_of(1) + r"full\[0\], phase 0: 0 arrivals and 8192 bytes"),
    ("multicast to itself alone",
     Edit("Group::cta_mask()", "1 << block_rank_in_cluster()", "ProducerStage"), DEADLOCK,
     _consumers_of(1) + r"full\[0\], phase 0: 0 arrivals and 4096 bytes"),
    ("multicast to a CTA too many", Edit("1u << kCtas", "2u << kCtas"), FAULT,
     r"mask 7; the cluster has 2"),
    ("CTA 1 does not load its share", before(_LOAD_B, "if (block_rank_in_cluster() == 0)"),
     DEADLOCK, _consumers_of(0) + r"full\[0\], phase 0: 0 arrivals and 4096 bytes"),
    ("both load the first share", Edit("Group::rank()", "0", "ProducerStage"), RACE,
     r"race on ring\.stages\[\d\]\.b .*\n.*TMA load\n.*TMA load\ntwo loads write"),
    ("a CTA expects its own share only",
     Edit("bytes);", "ATile::kBytes + BTile::kBytes / CLUSTER);", _ACQUIRE), DEADLOCK,
     r"full\[\d\], phase \d: .*\d+ bytes more than expected arrived"),
    ("all expect on CTA 0",
     Edit("expect_bytes(bytes)", "arrive_and_expect_bytes(bytes, 0)", _ACQUIRE), FAULT,
     r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more"),
    ("all arrive at CTA 0",
     Edit(_LANES, "if (lane < CLUSTER) empty[stage].arrive_cluster_relaxed(0);"), EITHER,
     (r"producer \(thread 0 of block \(1, 0, 0\)\) at .*empty\[0\], phase 0: 16 arrivals|"
      f"{_ARMED_AGAIN}|{_MISSED}")),
    ("they arrive at themselves alone", Edit(_LANES, "if (lane < 1) empty[stage].arrive();"),
     DEADLOCK, r"producer \(thread 0 of block \(0, 0, 0\)\) at .*empty\[0\], phase 0: 8 arrivals"),
    ("they arrive at a CTA that is not there",
     Edit(_LANES, "if (lane < CLUSTER) empty[stage].arrive_cluster_relaxed(lane + 1);"), FAULT,
     r"mapa names CTA \d of a cluster of \d"),
    ("empty counts one CTA", Edit(_COUNT, "Consumers::kWarps"), EITHER, _ANY_ORDER),
    ("nobody waits for the peer's init",
     Edit("enter_cluster();", "__syncthreads();", "run_with_helpers"), RACE,
     r"race on ring\.(full|empty)\[\d\] .*\n.*init\n(.*\n)*.*cluster_sync\(\)"),
    ("a CTA leaves before its peer",
     without("if constexpr (...) cluster_sync();", "leave_cluster"), FAULT,
     r"CTA [01] of the cluster has ended.*cluster_sync\(\)", True),
)  # fmt: skip

BULK = _of(
    "bulk",
    ("the last tile is expected whole", Edit("bytes(next)", "Ring::kStageBytes"), DEADLOCK,
     r"block \(1, 0, 0\), thread 0 at .*full\[1\], phase 1: 0 arrivals and 976 bytes"),
    ("a size that is no multiple of 16",
     Edit("source.async_copy(*stage, stage.full(), tile_start<Tile>(grid, index));",
          "const i64 at = tile_start<Tile>(grid, index);"
          "ptx::cp_async_bulk_load(ptx::shared_address(stage->bytes), "
          "source.global + at, source.bytes_at(at) - 8, stage.full().address(), 0);"), FAULT,
     r"a bulk load moves \d+ bytes; it must be a multiple of 16"),
    ("an address that is no multiple of 16", after("return index * Tile::kElements", "+ 8"), FAULT,
     r"bulk copy's global address is 0x\w+8 \(source\[\d+\]\); it must be a multiple of 16"),
)  # fmt: skip

TILED = _of(
    "tiled",
    ("16 bytes too few expected", Edit(_ARM, _ARM.replace("(next)", "(next) - 16")), DEADLOCK,
     r"full\[0\], phase 0: 16 bytes more than expected arrived"),
    ("coordinates outermost first",
     Edit("at.values[dim] =", "at.values[Tile::kRank - 1 - dim] ="), FAULT,
     r"innermost coordinate is \d+, or \d+ bytes of FLOAT32; it must be a multiple of 16"),
    ("the steps of the other sides",
     Edit("Tile::tile_step(Tile::kRank - 1 - dim)", "Tile::tile_step(dim)"), FAULT,
     r"innermost coordinate is (5|10), or \d+ bytes of FLOAT32; it must be a multiple of 16"),
    ("one copy barrier is initialised",
     Edit("for (auto& barrier : full) barrier.init(1);", "full[0].init(1);"), FAULT,
     r"full\[1\] is used before mbarrier.init"),
    ("a copy's pipeline has one stage more",
     Edit("PipelineState<kStageCount>", "PipelineState<kStageCount + 1>", "StoreRing"), FAULT,
     r"ring is used before mbarrier.init"),
    ("32 threads copy", without("if (!elect()) return;"), FAULT,
     rf"full\[0\] {_TWICE}|{_ARMED_AGAIN}"),
    ("loads do not step", without("loaded.step();"), EITHER, _LOST_STAGE),
    ("stores do not step", Edit("index += kStep, stored_.step())", "index += kStep)"), EITHER,
     _LOST_STAGE),
    ("more loads than stages", Edit("ahead < Ring::kLoadsAhead", "ahead < Ring::kStages + 1"),
     EITHER, _LOST_STAGE),
    ("the last tile is not loaded", Edit("if (next < end) {", "if (next + 1 < end) {"), DEADLOCK,
     r"full\[1\], phase 2: 1 arrivals and 0 bytes"),
    ("copies are not committed", without("commit_group();"), FAULT, _ALL_READ),
    ("the last copies are not waited for", without("wait_group_read<0>();"), FAULT, _ALL_READ),
    ("a copy's shared memory starts at 16", Edit(_SHARED, _FROM_16), FAULT,
     r"shared address is 0x\w*10|shared address is 0x\w*90"),
    ("a copy's shared memory ends early",
     after("copy_shared_bytes = sizeof(SharedMemory)",
           "- sizeof(SharedMemBarrier) * STAGES - 1000"), FAULT,
     r"an mbarrier reaches shared bytes 1920 \(.*full\[0\]\) to 1928; the CTA has 1024"),
    ("a copy is not waited for", without(_STORED), FAULT, f"{_ARMED_AGAIN}|{_UNREAD}|{_UNWRITTEN}"),
    ("a copy's other parity", Edit(_STORED, _STORED.replace("phase", "phase ^ 1")), EITHER,
     _LOST_STAGE),
    ("a load over what is being stored", without(_OLD_STORES), RACE,
     r"race on ring\.stages\[\d\] .*\n.*(TMA load\n.*TMA store|TMA store\n.*TMA load)\n"),
    ("a load over the store before", Edit(_OLD_STORES, _OLD_STORES.replace(">()", " + 1>()")), RACE,
     r"race on ring\.stages\[\d\] .*\n.*TMA store\n.*TMA load\n.*wait_group_read"),
    ("a tile is loaded that nobody asks for",
     after("wait_group_read<0>();", "next = first; load_next();"), FAULT,
     rf"ends while a TMA load .* is in flight|{_UNREAD}"),
)  # fmt: skip

FOR_THE_RACE_DETECTOR = _of(
    "gemm",
    ("the consumer does not wait", without(_CONSUMER_WAIT), EITHER,
     f"{_ARMED_AGAIN}|{_NEVER_FREED}|{_UNREAD}|{_UNWRITTEN}"),
    ("the consumer starts with parity 1", Edit("for_consumer", "for_producer", "RingConsumer"),
     EITHER, f"{_UNWRITTEN}|{_ARMED_AGAIN}|{_NEVER_FREED}"),
    ("the producer waits on full", Edit("empty", "full", _ACQUIRE), RACE,
     _OPERANDS + r".*wgmma\n.*TMA load"),
    ("a stage is released while wgmma reads it",
     Edit("wgmma_wait_group<1>", "wgmma_wait_group<2>"), RACE,
     _OPERANDS + r".*wgmma\n.*TMA load\n.*before the stage is released"),
    ("wgmma is not committed", without("wgmma_commit_group();", "issue_stages"), RACE,
     _ACCUMULATORS + r".*wgmma\n.*registers\n.*wgmma_wait_group"),
    ("accumulators are read before wgmma is done",
     without("wgmma_wait_group<0>();", "finish_stages"), RACE,
     _ACCUMULATORS + r".*wgmma\n.*registers\n.*wgmma_wait_group"),
    ("no wgmma fence", without("wgmma_fence();", "issue_stages"), RACE,
     _ACCUMULATORS + r".*registers\n.*wgmma\n.*wgmma_fence\(\)"),
    ("no proxy fence", without("fence_async_view_proxy();", _WRITES), RACE,
     r"race on epilogue\[\d\]\.chunks.* .*\n.*write\n.*TMA store\n.*fence_async_view_proxy\(\)"),
    ("no fence after init", without("fence_barrier_init();"), RACE,
     r"race on ring\.full\[\d\] .*\n.*init\n.*TMA load\n.*fence_barrier_init\(\)"),
    ("an epilogue buffer is not waited for",
     without("if (is_leader) wait_group_read<...>();", _WRITES), RACE,
     _CHUNKS + r" .*\n.*TMA store\n.*write\n.*wait_group_read"),
    ("one epilogue buffer in place of two", Edit("(chunks_ + i) % kBuffers", "0"), RACE,
     _CHUNKS + r" .*\n.*TMA store\n.*write\n.*wait_group_read"),
    ("no barrier before the epilogue's writes", without(_SYNC, _WRITES, 1), RACE,
     _CHUNKS + r" .*\n.*TMA store\n.*write\n"),
    ("no barrier before the store", without(_SYNC, _WRITES, 2), RACE,
     _CHUNKS + r" .*\n.*(write\n.*TMA store|TMA store\n.*write)\n"),
    ("both groups meet at one named barrier", Edit("1u + consumer", "1u", "Epilogue"), RACE,
     _CHUNKS, True),
    ("two threads initialise", Edit("threadIdx.x == 0", "threadIdx.x < 2", "run_with_helpers"),
     RACE, r"race on ring\.full\[\d\] .*\n.*init\n"),
)  # fmt: skip

SPLIT_K = _of(
    "split",
    ("partial sums are sent before the stages are free",
     exchanged("Exchange::begin();", "send_slices(received, accumulators);"), RACE,
     _OPERANDS + r".*(wgmma|TMA load)\n.*ordinary write\n"),
    ("partial sums are added before they have arrived",
     exchanged("Exchange::end();",
               "if (Cluster::split_rank() < kSlices) add_received(slice, received);"), RACE,
     _OPERANDS + r".*ordinary read\n.*ordinary write\n"),
    ("two CTAs send to one address", Edit("rank < owner ? rank : rank - 1", "0"), RACE,
     _OPERANDS + r".*ordinary write\n.*ordinary write\n"),
    ("blocks of K that peers load are waited for",
     Edit("const int blocks = KRange::of<Cluster>(k_blocks).count", "const int blocks = k_blocks"),
     DEADLOCK, r"full\[\d\], phase \d: 1 arrivals and 0 bytes are missing"),
)  # fmt: skip

PING_PONG = _of(
    "ping_pong",
    ("no consumer waits for its turn", without("if (!has_turn) Order::wait(number);"), RACE, ""),
    ("the turn is not passed", without("if (!is_last) Order::release(1 - number);"), DEADLOCK, ""),
    ("the other consumer's stages are not skipped",
     without("consumer.skip(k_blocks);", "multiply_tiles_pingpong", 1), EITHER, ""),
)  # fmt: skip

AT_THE_END_OR_ADVERSARIAL = _of(
    "gemm",
    ("try_wait's answer is taken for granted",
     Edit(_PRODUCER_WAIT, "empty[state.index].try_wait(state.phase);", _ACQUIRE), EITHER,
     _ANY_ORDER, True),
    ("the barriers are initialised twice", after("shared.init();", "shared.init();"), FAULT,
     r"full\[0\] is initialised again without mbarrier.inval"),
    ("a warp arrives no times",
     Edit(_LANE, "if (lane == 0) empty[stage].arrive_cluster(0, block_rank_in_cluster());"), FAULT,
     r"empty\[0\] gets 0 arrivals in phase 0; one instruction arrives 1 to 1048575 times"),
    ("the empty barriers are invalidated early",
     before("multiply_and_store<Loop>(",
            "if (threadIdx.x == 128) shared.ring.empty[0].invalidate();", "multiply_tiles"), FAULT,
     r"empty\[0\] is used after mbarrier.inval|empty\[0\] is invalidated while 1 threads wait"),
)  # fmt: skip

MUTATIONS = (
    *BYTES_AND_ARRIVALS, *WAITS, *ROLES, *INIT, *COORDINATES_AND_STORES, *GROUPS, *PAIR, *BULK,
    *TILED, *FOR_THE_RACE_DETECTOR, *SPLIT_K, *PING_PONG, *AT_THE_END_OR_ADVERSARIAL,
)  # fmt: skip
