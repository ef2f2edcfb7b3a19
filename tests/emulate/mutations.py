"""Defects to plant in the shipped kernels, and what the emulator has to say of each.

A `Mutation` replaces one piece of a kernel's text. Its ``report`` is a pattern for the message, in
which barriers bear the names of the source: ``ring.full[0]``, ``ring.empty[2]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["deadlock", "fault", "either", "race"]
Job = Literal["gemm", "pair", "ping_pong", "split", "grouped", "bulk", "tiled"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect: in which job's kernel, what replaces what, and what must be reported.

    Of ``either`` the order of the threads decides whether it is a deadlock or a fault. ``race``
    stands for what only the race detector finds, in every order; some orders end in a deadlock
    before. With ``some_orders`` the defect bites in some orders only; else in every one.
    """

    name: str
    job: Job
    old: str
    new: str
    kind: Kind
    report: str = ""
    some_orders: bool = False

    @property
    def kernel(self) -> str:
        """The file."""
        files = {"grouped": "grouped_gemm.cu", "bulk": "copy.cu", "tiled": "copy.cu"}
        return files.get(self.job, "gemm.cu")


_EXPECT = "full[state.index].expect_bytes(bytes);"
_ARM = "full[loaded.index].expect_bytes(bytes(next));"
_PRODUCER_WAIT = (
    "empty[state.index].wait(state.phase, location);\n"
    f"        if constexpr (Group::kIsLoadedByTma) {_EXPECT}"
)
_CONSUMER_WAIT = "full[state.index].wait(state.phase, location);"
_COPY_WAIT = "ring_.full[stored_.index].wait(stored_.phase);"
_LANE_ARRIVES = "if (lane == 0) empty[stage].arrive();"
_LANES_ARRIVE = (
    "if (lane < Group::kCtas) {\n"
    "                empty[stage].arrive_cluster_relaxed(Group::first_rank() + lane);\n"
    "            }"
)
_PRODUCER_LOOP = "producer.produce(blocks.count)"
_PRODUCER_STATE = (
    "typename Ring::State state_ = Ring::State::for_producer();\n};\n\n// A consumer's way"
)
_PRODUCER_STEP = (
    "ring_.producer_acquire(state_, bytes, location);\n"
    "        const u32 index = state_.index;\n"
    "        state_.step();"
)
_CONSUMER_LOOP = (
    "for (int block = 0; block < k_blocks; ++block, consumer.step()) {\n        const auto prepared"
)
_RELEASE = "if (block > 0) consumer.release(previous);"
_LAST_RELEASE = "consumer.release(last);"
_EMPTY_COUNT = "Consumers::kWarps * Group::kCtas"
_EVERY_CTA = "((1u << kCtas) - 1) << first_rank()"
_SHARE = "Group::cta_mask(), Group::rank(), policy"
# A phase that ends early, as the boxes of a tile land one by one.
_MISCOUNTED = (
    r"full\[\d\], phase \d: \d+ bytes more than expected arrived|"
    r"full\[\d\] has \d+ bytes more than it expects|"
    r"ends while a TMA load to shared offset \d+ .* is in flight|"
    r"bytes to ring.stages\[\d\].*: wait for its phase of ring.full\[\d\] first"
)
_LOAD_B = "load_operand<Cluster::kM>(stage, stage->b, b, b_at(tile, k));"
_WRITE_ENDS = "Chunk::write(staged(i), chunk, before);\n            }"
_BARRIER = "NamedBarrier<128> barrier_;"
_BARRIER_NUMBER = "barrier_{1u + consumer}"
_CHUNKS_AT_ONCE = (
    "#pragma unroll\n            for (int i = 0; i < kAtOnce; ++i) {\n"
    "                const int column"
)
_FIRST_SYNC = f"barrier_.sync();\n{_CHUNKS_AT_ONCE}"
_STORE_BEGINS = "if (is_leader) {\n#pragma unroll\n                for"
_SECOND_SYNC = f"barrier_.sync();\n            {_STORE_BEGINS}"
_CONSUMER_STATE = "typename Ring::State state_ = Ring::State::for_consumer();"
_TILE_IS_DONE = (
    "Loop::multiply(consumer, accumulators, k_blocks, row);\n        store(accumulators, tile);"
)
_TILES = "const auto store = [&](Accumulators& accumulators"
_SEND = "send_slices(received, accumulators);"
_ADD_PEERS = "if (Cluster::split_rank() < kSlices) add_received(slice, received);"
_LAST_WAIT = "if (leads()) wait_group_read<0>();"
_ELECTED = "} else if (elect()) {"
_MULTIPLY = "consume(warpgroup - 1);"
_INIT_LOOP = "for (int stage = 0; stage < kStages; ++stage) {"
_CLUSTER_OPEN = "enter_cluster();\n        if (warpgroup == 0)"
_CLUSTER_CLOSE = "if constexpr (kClusterCtas > 1 && kSplitK == 1) cluster_sync();"
_SHARED = "auto& shared = dynamic_shared<SharedMemory>();"
_COPY_LOAD = "source.async_copy(*stage, stage.full(), tile_start<Tile>(grid, index));"
_REFILL = "loaded.step();"

# The report of one defect depends on the order of the threads.
_ARMED_AGAIN = r"full\[\d\] gets 1 arrival in phase \d, which counts 1 and waits for no more"
_NEVER_ARMED = r"full\[\d\], phase \d: 1 arrivals and 0 bytes are missing"
_NEVER_FREED = r"empty\[\d\], phase \d: \d+ arrivals and 0 bytes are missing"
_MISSED = r"(full|empty)\[\d\] completed phase \d while this thread was still waiting"
_UNWRITTEN = r"which nothing has written"
_UNREAD = r"no thread has waited for phase \d of (ring\.)?full\[\d\], in which a TMA load .*landed"


def _consumers_of(block: int) -> str:
    return rf"consumer 0 \(warps 4-7 of block \({block}, 0, 0\)\) at .*"


def _any(*reports: str) -> str:
    return "|".join(reports)


_BASE = (
    "auto& {0} = *reinterpret_cast<{1}*>("
    "reinterpret_cast<unsigned char*>(&dynamic_shared<{1}>()) + 16);"
)

MUTATIONS = (
    # --- GEMM: bytes and arrivals -----------------------------------------------------------------
    Mutation(
        "too many bytes expected",
        "gemm",
        _EXPECT,
        "full[state.index].expect_bytes(bytes + 1024);",
        "deadlock",
        r"full\[0\], phase 0: 0 arrivals and 1024 bytes are missing",
    ),
    Mutation(
        "too few bytes expected",
        "gemm",
        _EXPECT,
        "full[state.index].expect_bytes(bytes - 1024);",
        "deadlock",
        r"full\[0\], phase 0: 1024 bytes more than expected arrived",
    ),
    Mutation(
        "only the bytes of A expected",
        "gemm",
        _EXPECT,
        "full[state.index].expect_bytes(ATile::kBytes);",
        "either",
        _MISCOUNTED,
    ),
    Mutation(
        "no bytes expected",
        "gemm",
        _EXPECT,
        "full[state.index].arrive();",
        "either",
        r"full\[0\], phase 1: 49152 bytes more than expected arrived|"
        r"ends while a TMA load to shared offset 0 .* is in flight|"
        r"which nothing has written. A TMA load to these bytes is in flight, issued by producer "
        r"\(thread 0\) at .* bytes to ring.stages\[0\].*: wait for its phase of ring.full\[0\]",
    ),
    Mutation(
        "bytes expected without arriving",
        "gemm",
        _EXPECT,
        "full[state.index].expect_tx(bytes);",
        "deadlock",
        r"full\[0\], phase 0: 1 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "armed twice",
        "gemm",
        _EXPECT,
        _EXPECT + _EXPECT,
        "fault",
        r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more",
    ),
    Mutation(
        "B is never loaded",
        "gemm",
        _LOAD_B,
        "",
        "deadlock",
        r"full\[0\], phase 0: 0 arrivals and 8192 bytes are missing",
    ),
    Mutation(
        "B is loaded twice",
        "gemm",
        _LOAD_B,
        _LOAD_B + _LOAD_B,
        "either",
        _MISCOUNTED,
    ),
    Mutation(
        "full waits for two arrivals",
        "gemm",
        "full[stage].init(Group::kProducerThreads);",
        "full[stage].init(2);",
        "deadlock",
        r"full\[0\], phase 0: 1 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "empty waits for every thread",
        "gemm",
        _EMPTY_COUNT,
        "CONSUMERS * 128 * CLUSTER",
        "deadlock",
        r"empty\[0\], phase 0: 248 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "empty waits for one group",
        "gemm",
        _EMPTY_COUNT,
        "4",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED),
    ),
    Mutation(
        "a warp arrives twice",
        "gemm",
        _LANE_ARRIVES,
        "if (lane < 2) empty[stage].arrive();",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED, "wgmma.wait_group"),
    ),
    Mutation(
        "a warp arrives with two at once",
        "gemm",
        _LANE_ARRIVES,
        "if (lane == 0) empty[stage].arrive_cluster(0, 3);",
        "fault",
        r"empty\[0\] gets 3 arrivals in phase 0, which counts 8 and waits for 2",
    ),
    Mutation(
        "one warp never arrives",
        "gemm",
        _LANE_ARRIVES,
        "if (lane == 0 && threadIdx.x / 32 != 5) empty[stage].arrive();",
        "deadlock",
        r"empty\[0\], phase 0: 1 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "a stage is released one block late",
        "gemm",
        _RELEASE,
        _RELEASE.replace("block > 0", "block > 1"),
        "deadlock",
        r"empty\[0\], phase 0: 8 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "the last stage is not released",
        "gemm",
        _LAST_RELEASE,
        "",
        "deadlock",
        r"empty\[0\], phase 1: 8 arrivals and 0 bytes are missing",
    ),
    Mutation(
        "another stage is released",
        "gemm",
        _RELEASE,
        _RELEASE.replace("previous", "consumer.index()"),
        "deadlock",
        r"empty\[0\], phase 0: 8 arrivals and 0 bytes are missing",
    ),
    # --- GEMM: waits ------------------------------------------------------------------------------
    Mutation(
        "the producer starts with parity 0",
        "gemm",
        _PRODUCER_STATE,
        _PRODUCER_STATE.replace("for_producer", "for_consumer"),
        "deadlock",
        r"producer \(thread 0 of .*empty\[0\], phase 0: 8 arrivals",
    ),
    Mutation(
        "the producer does not wait",
        "gemm",
        _PRODUCER_WAIT,
        _EXPECT,
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED),
    ),
    Mutation(
        "the consumer waits on empty",
        "gemm",
        _CONSUMER_WAIT,
        "empty[state.index].wait(state.phase, location);",
        "deadlock",
        r"consumer 0 \(warps 4-7 of .*empty\[0\], phase 0: 8 arrivals",
    ),
    Mutation(
        "the consumer waits on the stage before",
        "gemm",
        _CONSUMER_WAIT,
        "full[(state.index + STAGES - 1) % STAGES].wait(state.phase);",
        "deadlock",
        r"consumer 0 \(warps 4-7 of .*full\[2\], phase 1: 1 arrivals",
    ),
    Mutation(
        "the consumer waits for parity 0 always",
        "gemm",
        _CONSUMER_WAIT,
        "full[state.index].wait(0);",
        "either",
        _any(_ARMED_AGAIN, _NEVER_FREED, _MISSED),
    ),
    Mutation(
        "the producer does not step",
        "gemm",
        _PRODUCER_STEP,
        _PRODUCER_STEP.removesuffix("state_.step();"),
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED),
    ),
    Mutation(
        "the consumer does not step",
        "gemm",
        _CONSUMER_LOOP,
        _CONSUMER_LOOP.replace(", consumer.step()", ""),
        "either",
        _any(_NEVER_FREED, _MISSED),
    ),
    Mutation(
        "the producer's pipeline has one stage fewer",
        "gemm",
        _PRODUCER_STEP,
        f"{_PRODUCER_STEP} if (state_.index == Ring::kStages - 1) state_.step();",
        "deadlock",
        r"full\[2\], phase 0: 1 arrivals and 0 bytes",
    ),
    Mutation(
        "the producer leaves a block early",
        "gemm",
        _PRODUCER_LOOP,
        "producer.produce(blocks.count - 1)",
        "deadlock",
        r"full\[0\], phase 2: 1 arrivals and 0 bytes",
    ),
    Mutation(
        "the consumer leaves a block early",
        "gemm",
        _CONSUMER_LOOP,
        _CONSUMER_LOOP.replace("block < k_blocks", "block + 1 < k_blocks"),
        "fault",
        _any("ends while a TMA load to shared offset 0 .* is in flight", _UNREAD),
    ),
    Mutation(
        "the consumer leaves after one tile",
        "gemm",
        _TILE_IS_DONE,
        f"{_TILE_IS_DONE}\n        break;",
        "deadlock",
        r"producer \(thread 0 of .*empty\[1\], phase 1: 8 arrivals",
    ),
    # --- GEMM: roles, warps and named barriers ----------------------------------------------------
    Mutation(
        "a whole warp produces",
        "gemm",
        _ELECTED,
        "} else {",
        "fault",
        r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more",
    ),
    Mutation(
        "nobody produces",
        "gemm",
        _ELECTED,
        "} else if (false) {",
        "deadlock",
        r"consumer 0 \(warps 4-7 of .*full\[0\], phase 0: 1 arrivals",
    ),
    Mutation(
        "one warp does not multiply",
        "gemm",
        _MULTIPLY,
        "if (warp_index() != 6) " + _MULTIPLY,
        "either",
        r"threads 128-191, 224-255 at .*: wgmma.wait_group|"
        r"of warp (4|6) and \d+ times by thread \d+ of warp (4|6), which belong to one warpgroup",
    ),
    Mutation(
        "lanes give wgmma other rows",
        "gemm",
        "OperandA::descriptor(stage.a, row + row_block * 64)",
        "OperandA::descriptor(stage.a, row + row_block * 64 + lane_index() % 2 * 8)",
        "fault",
        r"threads (128 and 129|256 and 257) of a warpgroup give wgmma.mma_async different",
    ),
    Mutation(
        "the named barrier counts two groups",
        "gemm",
        _BARRIER,
        _BARRIER.replace("128", "256"),
        "deadlock",
        r"consumer 0 \(warps 4-7 of .*: barrier 1: 128 arrivals are missing",
    ),
    Mutation(
        "the named barrier counts half a group",
        "gemm",
        _BARRIER,
        _BARRIER.replace("128", "64"),
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\]",
    ),
    Mutation(
        "there is no named barrier of this number",
        "gemm",
        _BARRIER_NUMBER,
        "barrier_{15u + consumer}",
        "fault",
        r"barrier 16 of 128 threads; barriers are 0 to 15",
    ),
    Mutation(
        "two sizes of one named barrier",
        "gemm",
        _SECOND_SYNC,
        f"NamedBarrier<256>{{1}}.sync();\n            {_STORE_BEGINS}",
        "fault",
        r"barrier 1 is used for (256 and for 128|128 and for 256) threads at once",
        some_orders=True,
    ),
    Mutation(
        "a warp skips the named barrier",
        "gemm",
        _FIRST_SYNC,
        f"if (warp_index() % 4 != 3) {_FIRST_SYNC}",
        "deadlock",
        r"consumer 0 \(warps 4-6 of .*: barrier 1: 32 arrivals are missing",
    ),
    Mutation(
        "a lane skips stmatrix's warp",
        "gemm",
        "Chunk::write(staged(i), chunk, before);",
        "Chunk::write(staged(i), chunk, before);\n"
        "        if (lane_index() == 3) elect(); else __syncwarp();",
        "fault",
        r"lanes of one warp are at (__syncwarp|elect.sync) \(.*\) and at (elect.sync|__syncwarp)",
    ),
    # --- GEMM: init -------------------------------------------------------------------------------
    Mutation(
        "the first barriers are not initialised",
        "gemm",
        _INIT_LOOP,
        "for (int stage = 1; stage < kStages; ++stage) {",
        "fault",
        r"(full|empty)\[0\] is used before mbarrier.init",
    ),
    Mutation(
        "the barriers are initialised for every tile",
        "gemm",
        "for (const auto tile : schedule) {\n        const auto blocks",
        "for (const auto tile : schedule) {\n        shared.ring.init();\n"
        "        const auto blocks",
        "fault",
        r"(full|empty)\[\d\] is initialised again (without mbarrier.inval|while in use)",
    ),
    Mutation(
        "nobody waits for init",
        "gemm",
        "__syncthreads();",
        "",
        "fault",
        r"(full|empty)\[0\] is used before mbarrier.init",
    ),
    Mutation(
        "shared memory ends before the epilogue's last buffer",
        "gemm",
        "gemm_shared_bytes = sizeof(SharedMemory)",
        "gemm_shared_bytes = sizeof(SharedMemory) - 1024",
        "fault",
        r"a write of 4 bytes .* beyond the shared memory of the CTA, which has 106496 bytes",
    ),
    Mutation(
        "shared memory starts at 16",
        "gemm",
        _SHARED,
        _BASE.format("shared", "SharedMemory"),
        "fault",
        r"a tile with a swizzle of 128 bytes lies at shared offset 16 ",
    ),
    Mutation(
        "a third epilogue buffer that is not there",
        "gemm",
        "(chunks_ + i) % kBuffers",
        "(chunks_ + i) % (kBuffers + 1)",
        "fault",
        r"a write of 4 bytes .* beyond the shared memory of the CTA, which has 107520 bytes",
    ),
    # --- GEMM: coordinates and stores -------------------------------------------------------------
    Mutation(
        "blocks instead of elements",
        "gemm",
        "load_rows(stage, a, tile, k, last_row(m));",
        "load_rows(stage, a, tile, stage.iteration(), last_row(m));",
        "fault",
        r"innermost coordinate is [123], or \d bytes of BFLOAT16; it must be a multiple of 16",
    ),
    Mutation(
        "the output starts left of the matrix",
        "gemm",
        "send(staged(i), row, (first + i) * kChunkColumns);",
        "send(staged(i), row, (first + i - 1) * kChunkColumns);",
        "fault",
        r"starts at \(-32, \d+\), coordinate 0 below 0",
    ),
    Mutation(
        "the output starts above the matrix",
        "gemm",
        "? tile.m + row : tile.n + column",
        "? tile.m - row : tile.n + column",
        "fault",
        r"starts at \(\d+, -64\), coordinate 1 below 0",
    ),
    Mutation(
        "stores are not committed",
        "gemm",
        "commit_group();\n            }\n        }",
        "}\n        }",
        "fault",
        r"thread ends while TMA still reads its stores.*wait_group_read<0>",
    ),
    Mutation(
        "the last stores are not waited for",
        "gemm",
        _LAST_WAIT,
        "",
        "fault",
        r"thread ends while TMA still reads its stores.*wait_group_read<0>",
    ),
    Mutation(
        "every warp stores",
        "gemm",
        "const bool is_leader = leads();",
        "const bool is_leader = lane_index() == 0;",
        "fault",
        r"thread ends while TMA still reads its stores.*wait_group_read<0>",
    ),
    # --- groups of rows -----------------------------------------------------------------------
    Mutation(
        "a group that ends after the arrays keeps its length",
        "grouped",
        "min(max(ends[group], start), total_rows)",
        "max(ends[group], start)",
        "fault",
        r"sequence\.length is \d+; it must be at most \d+",
    ),
    Mutation(
        "the producer leaves out a group",
        "grouped",
        "load_tiles(shared, a, b, GroupScheduler(groups, n), count_tiles(k, kBlockK));",
        "load_tiles(shared, a, b, GroupScheduler({ends, count - 1, total_rows}, n),"
        " count_tiles(k, kBlockK));",
        "deadlock",
        _NEVER_ARMED,
    ),
    Mutation(
        "the consumers leave out a group",
        "grouped",
        "GroupScheduler(groups, n), k_blocks, consumer",
        "GroupScheduler({ends, count - 1, total_rows}, n), k_blocks, consumer",
        "fault",
        _any(_UNREAD, r"ends while a TMA load to .* is in flight"),
    ),
    # --- a pair of CTAs -----------------------------------------------------------------------
    Mutation(
        "multicast to CTA 0 alone",
        "pair",
        _EVERY_CTA,
        "1",
        "deadlock",
        _consumers_of(1) + r"full\[0\], phase 0: 0 arrivals and 8192 bytes",
    ),
    Mutation(
        "multicast to itself alone",
        "pair",
        _SHARE,
        "1 << block_rank_in_cluster(), Group::rank(), policy",
        "deadlock",
        _consumers_of(1) + r"full\[0\], phase 0: 0 arrivals and 4096 bytes",
    ),
    Mutation(
        "multicast to a CTA too many",
        "pair",
        _EVERY_CTA,
        "((2u << kCtas) - 1) << first_rank()",
        "fault",
        r"mask 7; the cluster has 2",
    ),
    Mutation(
        "CTA 1 does not load its share",
        "pair",
        _LOAD_B,
        "if (block_rank_in_cluster() == 0) " + _LOAD_B,
        "deadlock",
        _consumers_of(0) + r"full\[0\], phase 0: 0 arrivals and 4096 bytes",
    ),
    Mutation(
        "both load the first share",
        "pair",
        _SHARE,
        "Group::cta_mask(), 0, policy",
        "race",
        r"race on ring\.stages\[\d\]\.b .*\n.*TMA load\n.*TMA load\ntwo loads write",
    ),
    Mutation(
        "a CTA expects its own share only",
        "pair",
        _EXPECT,
        "full[state.index].expect_bytes(ATile::kBytes + BTile::kBytes / CLUSTER);",
        "deadlock",
        r"full\[\d\], phase \d: .*\d+ bytes more than expected arrived",
    ),
    Mutation(
        "all expect on CTA 0",
        "pair",
        _EXPECT,
        "full[state.index].arrive_and_expect_bytes(bytes, 0);",
        "fault",
        r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more",
    ),
    Mutation(
        "all arrive at CTA 0",
        "pair",
        _LANES_ARRIVE,
        "if (lane < CLUSTER) empty[stage].arrive_cluster_relaxed(0);",
        "either",
        _any(
            r"producer \(thread 0 of block \(1, 0, 0\)\) at .*empty\[0\], phase 0: 16 arrivals",
            _ARMED_AGAIN,
            _MISSED,
        ),
    ),
    Mutation(
        "they arrive at themselves alone",
        "pair",
        _LANES_ARRIVE,
        "if (lane < 1) empty[stage].arrive();",
        "deadlock",
        r"producer \(thread 0 of block \(0, 0, 0\)\) at .*empty\[0\], phase 0: 8 arrivals",
    ),
    Mutation(
        "they arrive at a CTA that is not there",
        "pair",
        _LANES_ARRIVE,
        "if (lane < CLUSTER) empty[stage].arrive_cluster_relaxed(lane + 1);",
        "fault",
        r"mapa names CTA \d of a cluster of \d",
    ),
    Mutation(
        "empty counts one CTA",
        "pair",
        _EMPTY_COUNT,
        "Consumers::kWarps",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED),
    ),
    Mutation(
        "nobody waits for the peer's init",
        "pair",
        _CLUSTER_OPEN,
        "__syncthreads();\n        if (warpgroup == 0)",
        "race",
        r"race on ring\.(full|empty)\[\d\] .*\n.*init\n(.*\n)*.*cluster_sync\(\)",
    ),
    Mutation(
        "a CTA leaves before its peer",
        "pair",
        _CLUSTER_CLOSE,
        "",
        "fault",
        r"CTA [01] of the cluster has ended.*cluster_sync\(\)",
        some_orders=True,
    ),
    # --- copies -------------------------------------------------------------------------------
    Mutation(
        "the last tile is expected whole",
        "bulk",
        _ARM,
        "full[loaded.index].expect_bytes(Ring::kStageBytes);",
        "deadlock",
        r"block \(1, 0, 0\), thread 0 at .*full\[1\], phase 1: 0 arrivals and 976 bytes",
    ),
    Mutation(
        "16 bytes too few expected",
        "tiled",
        _ARM,
        "full[loaded.index].expect_bytes(bytes(next) - 16);",
        "deadlock",
        r"full\[0\], phase 0: 16 bytes more than expected arrived",
    ),
    Mutation(
        "a size that is no multiple of 16",
        "bulk",
        _COPY_LOAD,
        "const i64 at = tile_start<Tile>(grid, index);\n"
        "ptx::cp_async_bulk_load(ptx::shared_address(stage->bytes), "
        "source.global + at, source.bytes_at(at) - 8, stage.full().address(), 0);",
        "fault",
        r"a bulk load moves \d+ bytes; it must be a multiple of 16",
    ),
    Mutation(
        "an address that is no multiple of 16",
        "bulk",
        "return index * Tile::kElements;",
        "return index * Tile::kElements + 8;",
        "fault",
        r"bulk copy's global address is 0x\w+8 \(source\[\d+\]\); it must be a multiple of 16",
    ),
    Mutation(
        "coordinates outermost first",
        "tiled",
        "at.values[dim] =",
        "at.values[Tile::kRank - 1 - dim] =",
        "fault",
        r"innermost coordinate is \d+, or \d+ bytes of FLOAT32; it must be a multiple of 16",
    ),
    Mutation(
        "the steps of the other sides",
        "tiled",
        "Tile::tile_step(Tile::kRank - 1 - dim)",
        "Tile::tile_step(dim)",
        "fault",
        r"innermost coordinate is (5|10), or \d+ bytes of FLOAT32; it must be a multiple of 16",
    ),
    Mutation(
        "one copy barrier is initialised",
        "tiled",
        "for (auto& barrier : full) barrier.init(1);",
        "full[0].init(1);",
        "fault",
        r"full\[1\] is used before mbarrier.init",
    ),
    Mutation(
        "a copy's pipeline has one stage more",
        "tiled",
        "using State = PipelineState<kStageCount>;\n    using MulticastGroup = Multicast<1>;",
        "using State = PipelineState<kStageCount + 1>;\n    using MulticastGroup = Multicast<1>;",
        "fault",
        r"ring is used before mbarrier.init",
    ),
    Mutation(
        "32 threads copy",
        "tiled",
        "if (!elect()) return;",
        "",
        "fault",
        r"full\[0\] is initialised again (without mbarrier.inval|while in use)|"
        r"full\[\d\] gets 1 arrival in phase \d, which counts 1 and waits for no more",
    ),
    Mutation(
        "loads do not step",
        "tiled",
        _REFILL,
        "",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _UNWRITTEN),
    ),
    Mutation(
        "stores do not step",
        "tiled",
        "index += kStep, stored_.step())",
        "index += kStep)",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _UNWRITTEN),
    ),
    Mutation(
        "more loads than stages",
        "tiled",
        "ahead < Ring::kLoadsAhead",
        "ahead < Ring::kStages + 1",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _UNWRITTEN),
    ),
    Mutation(
        "the last tile is not loaded",
        "tiled",
        "if (next < end) {",
        "if (next + 1 < end) {",
        "deadlock",
        r"full\[1\], phase 2: 1 arrivals and 0 bytes",
    ),
    Mutation(
        "copies are not committed",
        "tiled",
        "commit_group();",
        "",
        "fault",
        r"thread ends while TMA still reads its stores.*wait_group_read<0>",
    ),
    Mutation(
        "the last copies are not waited for",
        "tiled",
        "wait_group_read<0>();",
        "",
        "fault",
        r"thread ends while TMA still reads its stores.*wait_group_read<0>",
    ),
    Mutation(
        "a copy's shared memory starts at 16",
        "tiled",
        "auto& shared = dynamic_shared<SharedMemory>();",
        _BASE.format("shared", "SharedMemory"),
        "fault",
        r"shared address is 0x\w*10|shared address is 0x\w*90",
    ),
    Mutation(
        "a copy's shared memory ends early",
        "tiled",
        "copy_shared_bytes = sizeof(SharedMemory)",
        "copy_shared_bytes = sizeof(SharedMemory) - sizeof(SharedMemBarrier) * STAGES - 1000",
        "fault",
        r"an mbarrier reaches shared bytes 1920 \(.*full\[0\]\) to 1928; the CTA has 1024",
    ),
    # --- for the race detector ----------------------------------------------------------------
    Mutation(
        "the consumer does not wait",
        "gemm",
        _CONSUMER_WAIT,
        "",
        "either",
        _any(_ARMED_AGAIN, _NEVER_FREED, _UNREAD, _UNWRITTEN),
    ),
    Mutation(
        "the consumer starts with parity 1",
        "gemm",
        _CONSUMER_STATE,
        _CONSUMER_STATE.replace("for_consumer", "for_producer"),
        "either",
        _any(_UNWRITTEN, _ARMED_AGAIN, _NEVER_FREED),
    ),
    Mutation(
        "the producer waits on full",
        "gemm",
        _PRODUCER_WAIT,
        f"{_CONSUMER_WAIT}\n        {_EXPECT}",
        "race",
        r"race on ring\.stages\[\d\]\.[ab] .*\n.*wgmma\n.*TMA load",
    ),
    Mutation(
        "a stage is released while wgmma reads it",
        "gemm",
        "wgmma_wait_group<1>();",
        "wgmma_wait_group<2>();",
        "race",
        r"race on ring\.stages\[\d\]\.[ab] .*\n.*wgmma\n.*TMA load\n.*before the stage is released",
    ),
    Mutation(
        "wgmma is not committed",
        "gemm",
        "issue(prepared, block > 0);\n        wgmma_commit_group();",
        "issue(prepared, block > 0);",
        "race",
        r"race on the accumulators .*\n.*wgmma\n.*registers\n.*wgmma_wait_group",
    ),
    Mutation(
        "accumulators are read before wgmma is done",
        "gemm",
        "wgmma_wait_group<0>();\n    (wgmma",
        "(wgmma",
        "race",
        r"race on the accumulators .*\n.*wgmma\n.*registers\n.*wgmma_wait_group",
    ),
    Mutation(
        "no wgmma fence",
        "gemm",
        "wgmma_fence();\n        issue(prepared",
        "issue(prepared",
        "race",
        r"race on the accumulators .*\n.*registers\n.*wgmma\n.*wgmma_fence\(\)",
    ),
    Mutation(
        "no proxy fence",
        "gemm",
        f"{_WRITE_ENDS}\n            fence_async_view_proxy();",
        _WRITE_ENDS,
        "race",
        r"race on epilogue\[\d\]\.chunks.* .*\n.*write\n.*TMA store\n.*fence_async_view_proxy\(\)",
    ),
    Mutation(
        "no fence after init",
        "gemm",
        "fence_barrier_init();",
        "",
        "race",
        r"race on ring\.full\[\d\] .*\n.*init\n.*TMA load\n.*fence_barrier_init\(\)",
    ),
    Mutation(
        "an epilogue buffer is not waited for",
        "gemm",
        "if (is_leader) wait_group_read<kBuffers / kAtOnce - 1>();",
        "",
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\] .*\n.*TMA store\n.*write\n.*wait_group_read",
    ),
    Mutation(
        "one epilogue buffer in place of two",
        "gemm",
        "(chunks_ + i) % kBuffers",
        "0",
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\] .*\n.*TMA store\n.*write\n.*wait_group_read",
    ),
    Mutation(
        "no barrier before the epilogue's writes",
        "gemm",
        _FIRST_SYNC,
        _CHUNKS_AT_ONCE,
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\] .*\n.*TMA store\n.*write\n",
    ),
    Mutation(
        "no barrier before the store",
        "gemm",
        _SECOND_SYNC,
        _STORE_BEGINS,
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\] .*\n.*(write\n.*TMA store|TMA store\n.*write)\n",
    ),
    Mutation(
        "both groups meet at one named barrier",
        "gemm",
        _BARRIER_NUMBER,
        "barrier_{1u}",
        "race",
        r"race on epilogue\[\d\]\.chunks\[\d\]",
        some_orders=True,
    ),
    Mutation(
        "two threads initialise",
        "gemm",
        "if (threadIdx.x == 0) {",
        "if (threadIdx.x < 2) {",
        "race",
        r"race on ring\.full\[\d\] .*\n.*init\n",
    ),
    Mutation(
        "a copy is not waited for",
        "tiled",
        _COPY_WAIT,
        "",
        "fault",
        _any(_ARMED_AGAIN, _UNREAD, _UNWRITTEN),
    ),
    Mutation(
        "a copy's other parity",
        "tiled",
        _COPY_WAIT,
        "ring_.full[stored_.index].wait(stored_.phase ^ 1);",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _UNWRITTEN),
    ),
    Mutation(
        "a load over what is being stored",
        "tiled",
        "wait_group_read<Ring::kStages - Ring::kLoadsAhead>();",
        "",
        "race",
        r"race on ring\.stages\[\d\] .*\n.*(TMA load\n.*TMA store|TMA store\n.*TMA load)\n",
    ),
    Mutation(
        "a load over the store before",
        "tiled",
        "wait_group_read<Ring::kStages - Ring::kLoadsAhead>();",
        "wait_group_read<Ring::kStages - Ring::kLoadsAhead + 1>();",
        "race",
        r"race on ring\.stages\[\d\] .*\n.*TMA store\n.*TMA load\n.*wait_group_read",
    ),
    # --- split-K over a cluster -----------------------------------------------------------------
    Mutation(
        "partial sums are sent before the stages are free",
        "split",
        f"cluster_sync();\n        {_SEND}",
        f"{_SEND}\n    cluster_sync();",
        "race",
        r"race on ring\.stages\[\d\]\.[ab] .*\n.*(wgmma|TMA load)\n.*ordinary write\n",
    ),
    Mutation(
        "partial sums are added before they have arrived",
        "split",
        f"cluster_sync();\n        {_ADD_PEERS}",
        f"{_ADD_PEERS}\n    cluster_sync();",
        "race",
        r"race on ring\.stages\[\d\]\.[ab] .*\n.*ordinary read\n.*ordinary write\n",
    ),
    Mutation(
        "two CTAs send to one address",
        "split",
        "rank < owner ? rank : rank - 1",
        "0",
        "race",
        r"race on ring\.stages\[\d\]\.[ab] .*\n.*ordinary write\n.*ordinary write\n",
    ),
    Mutation(
        "blocks of K that peers load are waited for",
        "split",
        "const int blocks = KRange::of<Cluster>(k_blocks).count",
        "const int blocks = k_blocks",
        "deadlock",
        r"full\[\d\], phase \d: 1 arrivals and 0 bytes are missing",
    ),
    # --- ping-pong consumers --------------------------------------------------------------------
    Mutation(
        "no consumer waits for its turn",
        "ping_pong",
        "if (!has_turn) Order::wait(number);",
        "",
        "race",
    ),
    Mutation(
        "the turn is not passed",
        "ping_pong",
        "if (!is_last) Order::release(1 - number);",
        "",
        "deadlock",
    ),
    Mutation(
        "the other consumer's stages are not skipped",
        "ping_pong",
        "        schedule.step();\n        consumer.skip(k_blocks);\n    }\n    while",
        "        schedule.step();\n    }\n    while",
        "either",
    ),
    # --- reports at the end of a launch, or by an adversarial policy ----------------------------
    Mutation(
        "try_wait's answer is taken for granted",
        "gemm",
        _PRODUCER_WAIT,
        f"empty[state.index].try_wait(state.phase);\n        {_EXPECT}",
        "either",
        _any(_ARMED_AGAIN, _NEVER_ARMED, _MISSED),
        some_orders=True,
    ),
    Mutation(
        "the barriers are initialised twice",
        "gemm",
        "shared.init();\n        }",
        "shared.init();\n            shared.init();\n        }",
        "fault",
        r"full\[0\] is initialised again without mbarrier.inval",
    ),
    Mutation(
        "a warp arrives no times",
        "gemm",
        _LANE_ARRIVES,
        "if (lane == 0) empty[stage].arrive_cluster(0, block_rank_in_cluster());",
        "fault",
        r"empty\[0\] gets 0 arrivals in phase 0; one instruction arrives 1 to 1048575 times",
    ),
    Mutation(
        "the empty barriers are invalidated early",
        "gemm",
        _TILES,
        f"if (threadIdx.x == 128) shared.ring.empty[0].invalidate();\n    {_TILES}",
        "fault",
        r"empty\[0\] is used after mbarrier.inval|empty\[0\] is invalidated while 1 threads wait",
    ),
    Mutation(
        "a tile is loaded that nobody asks for",
        "tiled",
        "    wait_group_read<0>();\n    }",
        "    wait_group_read<0>();\n        next = first;\n        load_next();\n    }",
        "fault",
        _any("ends while a TMA load .* is in flight", _UNREAD),
    ),
)
