# ruff: noqa: E501 - a row a defect
"""Defects to plant in the kernels of this folder: what replaces what, and what must be reported.

``says`` is a pattern for the words that lead to the defect: the remedy, the barrier or the rule.
``line`` is part of a line of the changed text that the report names. A defect that
nothing reports says why in ``missed``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from emulate.planted.kernels import Job

from tmaasync import create_tma_tile

Reported = Literal["race", "deadlock", "fault", "timeout", "compile", "argument"]


@dataclass(frozen=True, slots=True)
class Defect:
    """One defect. ``reported`` has two classes where the order of the threads decides."""

    kernel: str
    kind: str
    name: str
    old: str
    new: str
    reported: tuple[Reported, ...]
    says: str
    line: str = ""
    missed: str = ""
    host: Callable[[Job], Any] | None = None  # a mistake in the launch instead of the text
    times: int = 1  # that the old text occurs, everywhere to be replaced

    @property
    def key(self) -> str:
        return f"{self.kernel}: {self.name}"


RACE, DEADLOCK, FAULT = ("race",), ("deadlock",), ("fault",)
COMPILE, ARGUMENT = ("compile",), ("argument",)
EITHER: tuple[Reported, ...] = ("deadlock", "fault")
RACE_OR_FAULT: tuple[Reported, ...] = ("race", "fault")
RACE_OR_DEADLOCK: tuple[Reported, ...] = ("race", "deadlock")
ANY: tuple[Reported, ...] = ("race", "deadlock", "fault")

PROXY = r"fence_async_view_proxy\(\)"
IN_FLIGHT = r"TMA load to these bytes is in flight"
UNWRITTEN = r"which nothing has written"
OUTSIDE = r"none of the launch's arrays|outside every array"


def _options(**options: Any) -> Callable[[Job], Any]:
    return lambda job: job.options.update(options)


def _argument(index: int, value: Any) -> Callable[[Job], Any]:
    def replace(job: Job) -> None:
        given = job.arguments[index]
        job.arguments = [*job.arguments]
        job.arguments[index] = value(given) if callable(value) else value

    return replace


def _without_last_argument(job: Job) -> None:
    job.arguments = job.arguments[:-1]


def _set(name: str, value: Any) -> Callable[[Job], Any]:
    return lambda job: setattr(job, name, value)


def _of(kernel: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    return tuple(Defect(kernel, *row) for row in rows)


def _host(kernel: str, name: str, host: Callable[[Job], Any], says: str, **more: Any) -> Defect:
    return Defect(
        kernel, "parameter", name, "", "", more.pop("reported", ARGUMENT), says, host=host, **more
    )


PIPE = _of(
    "pipe",
    ("fence", "the inits are not fenced", "        fence_barrier_init();\n", "", RACE,
     r"fence_barrier_init\(\)", "full[stage].init(1)"),
    ("fence", "no proxy fence before the store", "        fence_async_view_proxy();\n", "", RACE,
     PROXY, "2 * in.data()[i]"),
    ("fence", "the leader alone fences", "        fence_async_view_proxy();",
     "        if (leads) fence_async_view_proxy();", RACE, PROXY, "2 * in.data()[i]"),
    ("fence", "the fence of global memory", "fence_async_view_proxy();",
     "ptx::fence_proxy_async_global();", RACE, PROXY, "2 * in.data()[i]"),
    ("store groups", "the buffer is not waited for", "        if (leads) wait_group_read<1>();\n", "",
     RACE, r"wait_group_read", "target.async_store"),
    ("store groups", "one group too many pending", "wait_group_read<1>", "wait_group_read<2>", RACE,
     r"wait_group_read", "target.async_store"),
    ("store groups", "stores are not committed", "            commit_group();\n", "", RACE_OR_FAULT,
     r"commit"),
    ("store groups", "the kernel ends with stores in flight", "    if (leads) wait_group<0>();\n", "",
     FAULT, r"wait_group", ""),
    ("store groups", "another thread waits for the stores", "if (leads) wait_group<0>();",
     "if (threadIdx.x == 1) wait_group<0>();", FAULT, r"wait_group", ""),
    ("store groups", "another thread waits for the buffer", "if (leads) wait_group_read<1>();",
     "if (threadIdx.x == 32) wait_group_read<1>();", RACE, r"wait_group_read", "target.async_store"),
    ("phase", "the producer starts as a consumer", "State::for_producer()", "State::for_consumer()",
     DEADLOCK, r"empty\[0\], phase 0", "shared.empty[state.index].wait"),
    ("phase", "the consumer starts as a producer", "State::for_consumer()", "State::for_producer()",
     FAULT, IN_FLIGHT + r".*full\[0\]", "2 * in.data()[i]"),
    ("phase", "the consumer waits for phase 0 always", "full[state.index].wait(state.phase)",
     "full[state.index].wait(0)", ANY, r"full\[\d\]|empty\[\d\]", ""),
    ("phase", "the producer waits for phase 1 always", "empty[state.index].wait(state.phase)",
     "empty[state.index].wait(1)", ANY, r"full\[\d\]|empty\[\d\]|empty barrier", ""),
    ("phase", "one stage more in the state than there is",
     "using State = PipelineState<kStages>;", "using State = PipelineState<kStages + 1>;", ANY,
     r"full|empty|used before mbarrier.init", ""),
    ("arrivals", "empty counts a thread too many", "empty[stage].init(kConsumers)",
     "empty[stage].init(kConsumers + 1)", DEADLOCK, r"empty\[0\], phase 0: 1 arrivals", "wait"),
    ("arrivals", "empty counts half of the threads", "empty[stage].init(kConsumers)",
     "empty[stage].init(kConsumers / 2)", ANY, r"empty\[\d\]|full\[\d\]|empty barrier", ""),
    ("arrivals", "empty counts warps", "empty[stage].init(kConsumers)",
     "empty[stage].init(kConsumers / 32)", FAULT,
     r"empty\[0\]", ""),
    ("arrivals", "nobody arrives on empty", "        shared.empty[state.index].arrive();\n", "",
     DEADLOCK, r"empty\[0\], phase 0: 128 arrivals", "shared.empty[state.index].wait"),
    ("arrivals", "lane 0 alone arrives", "shared.empty[state.index].arrive();",
     "if (lane_index() == 0) shared.empty[state.index].arrive();", DEADLOCK,
     r"empty\[0\], phase 0: 124 arrivals", "shared.empty[state.index].wait"),
    ("arrivals", "two stages are released", "shared.empty[state.index].arrive();",
     "shared.empty[state.index].arrive();\n        shared.empty[(state.index + 1) % kStages].arrive();",
     ANY, r"empty|full", ""),
    ("bytes", "twice the bytes", "expect_bytes(Tile::kBytes)", "expect_bytes(2 * Tile::kBytes)",
     DEADLOCK, r"full\[0\], phase 0: 0 arrivals and 2048 bytes", "full[state.index].wait"),
    ("bytes", "elements instead of bytes", "expect_bytes(Tile::kBytes)",
     "expect_bytes(Tile::kElements)", ANY, r"full\[0\].* 1536 bytes|more than expect", ""),
    ("bytes", "bytes expected without an arrival", "full.expect_bytes(Tile::kBytes)",
     "full.expect_tx(Tile::kBytes)", DEADLOCK, r"full\[0\], phase 0: 1 arrivals and 0 bytes",
     "full[state.index].wait"),
    ("bytes", "no bytes expected", "full.expect_bytes(Tile::kBytes)", "full.arrive()", ANY,
     r"full\[0\]", ""),
    ("bytes", "expected after the copy",
     ("        full.expect_bytes(Tile::kBytes);\n        source.async_copy(shared.in[state.index], "
     "full, {0, tile * Tile::side(0)});"),
     "        source.async_copy(shared.in[state.index], full, {0, tile * Tile::side(0)});\n", DEADLOCK,
     r"full\[0\], phase 0: 1 arrivals", "full[state.index].wait"),
    ("missing wait", "the tile is not waited for",
     "        shared.full[state.index].wait(state.phase);\n", "", FAULT, IN_FLIGHT + r".*full\[0\]",
     "2 * in.data()[i]"),
    ("missing wait", "the consumer waits on the next stage",
     "shared.full[state.index].wait(state.phase);",
     "shared.full[(state.index + 1) % kStages].wait(state.phase);", ANY,
     IN_FLIGHT + r"|full\[\d\]", ""),
    ("missing wait", "the producer does not wait",
     "        shared.empty[state.index].wait(state.phase);\n", "", ANY,
     r"empty|full\[\d\]", ""),
    ("missing wait", "one thread waits for all", "shared.full[state.index].wait(state.phase);",
     "if (leads) shared.full[state.index].wait(state.phase);", FAULT, IN_FLIGHT + r".*full\[0\]",
     "2 * in.data()[i]"),
    ("early release", "released before it is read",
     "        for (int i = threadIdx.x; i < Tile::kElements; i += kConsumers) {",
     ("        shared.empty[state.index].arrive();\n"
     "        for (int i = threadIdx.x; i < Tile::kElements; i += kConsumers) {"), ANY,
     r"empty", ""),
    ("barrier", "no barrier before the buffer is written",
     "        consumers.sync();\n        shared.full", "        shared.full", RACE,
     r"wait_group_read|barrier", "target.async_store"),
    ("barrier", "no barrier before the store", "        consumers.sync();\n        if (leads) {",
     "        if (leads) {", RACE_OR_FAULT, r"barrier|" + UNWRITTEN, "target.async_store"),
    ("barrier", "an index beyond the barriers", "shared.full[state.index].wait(state.phase)",
     "shared.full[state.index + kStages].wait(state.phase)", ANY, r"empty\[\d\]|full", ""),
    ("barrier", "initialised by every thread", "if (threadIdx.x == 0) {\n        for (int stage",
     "{\n        for (int stage", RACE_OR_FAULT, r"full\[0\].*initialised again|two threads initialise the barrier", "full[stage].init(1)"),
    ("barrier", "written over", "        auto& out = shared.out[state.count % 2];",
     "        auto& out = shared.out[state.count % 3];", ANY, r"full\[\d\]|overwritten|out\[|beyond the shared memory", ""),
    ("named barrier", "half of the threads", "NamedBarrier<kConsumers> consumers{1}",
     "NamedBarrier<kConsumers / 2> consumers{1}", RACE_OR_FAULT, r"barrier|wait_group_read|out", ""),
    ("named barrier", "the producer's warp is counted", "NamedBarrier<kConsumers> consumers{1}",
     "NamedBarrier<kConsumers + 32> consumers{1}", DEADLOCK, r"barrier 1: 32 arrivals",
     "consumers.sync()"),
    ("named barrier", "number 16", "consumers{1}", "consumers{16}", FAULT,
     r"barriers are 0 to 15", "consumers.sync()"),
    ("named barrier", "__syncthreads in a role", "        consumers.sync();\n        if (leads) {",
     "        __syncthreads();\n        if (leads) {", ANY, r"barrier", ""),
    ("elect/shfl", "a whole warp loads", "} else if (elect()) {", "} else {", FAULT,
     r"full\[0\] gets 1 arrival in phase \d, which counts 1 and waits for no more", "full.expect_bytes"),
    ("elect/shfl", "nobody loads", "} else if (elect()) {", "} else if (threadIdx.x == 0) {",
     DEADLOCK, r"full\[0\], phase 0: 1 arrivals", "full[state.index].wait"),
    ("sync", "no barrier after the inits", "    __syncthreads();\n    if (threadIdx.x < kConsumers)",
     "    if (threadIdx.x < kConsumers)", RACE_OR_FAULT,
     r"(full|empty)\[0\]", ""),
    ("out of bounds", "a store above the array", "target.async_store(out, {0, tile * Tile::side(0)})",
     "target.async_store(out, {0, (tile - 1) * Tile::side(0)})", FAULT,
     r"coordinate 1 below 0", "target.async_store"),
    ("out of bounds", "shared memory beyond the tile", "i < Tile::kElements; i += kConsumers",
     "i <= Tile::kElements; i += kConsumers", ANY, r"out|in\[|shared", ""),
    ("alignment", "an innermost coordinate off 16 bytes",
     "source.async_copy(shared.in[state.index], full, {0, tile * Tile::side(0)})",
     "source.async_copy(shared.in[state.index], full, {tile, tile * Tile::side(0)})", FAULT,
     r"multiple of 16", "source.async_copy"),
    ("alignment", "shared memory from 64 on", "auto& shared = dynamic_shared<SharedMemory>();",
     ("auto& shared = *reinterpret_cast<SharedMemory*>("
     "reinterpret_cast<char*>(&dynamic_shared<SharedMemory>()) + 64);"), FAULT, r"128", ""),
    ("uninitialised", "half of the output", "i < Tile::kElements; i += kConsumers",
     "i < Tile::kElements / 2; i += kConsumers", FAULT, UNWRITTEN, "target.async_store"),
    ("tensormap", "a parameter that is no __grid_constant__",
     "const __grid_constant__ Tile target", "const Tile target", ("fault", "argument", "compile"),
     r"__grid_constant__", ""),
    ("tensormap", "a map copied to a variable", "        source.async_copy(",
     "        const Tile copied = source;\n        copied.async_copy(", FAULT,
     r"map.*(variable|local|parameter)", "copied.async_copy"),
    ("parameter", "one tile too many", "tile < tiles; tile += gridDim.x, state.step()) {\n        auto& full",
     "tile <= tiles; tile += gridDim.x, state.step()) {\n        auto& full", ANY,
     r"full\[\d\]|in flight", ""),
)  # fmt: skip

STEAL = _of(
    "steal",
    ("sync", "the index is read before it is there", "        __syncthreads();\n        const int row",
     "        const int row", RACE_OR_FAULT, r"next", "shared.next"),
    ("sync", "the sum is read before it is complete",
     "        __syncthreads();\n        if (threadIdx.x == 0) sums[row]",
     "        if (threadIdx.x == 0) sums[row]", RACE, r"sum|next", ""),
    ("sync", "a barrier in a branch", "        __syncthreads();\n        if (threadIdx.x == 0) sums[row]",
     "        if (threadIdx.x < 32) __syncthreads();\n        if (threadIdx.x == 0) sums[row]",
     ANY, r"sum|barrier|next", ""),
    ("sync", "every thread takes a row", "        if (threadIdx.x == 0) {\n            shared.next",
     "        {\n            shared.next", RACE, r"next", "shared.next"),
    ("missing wait", "the row is not waited for", "        shared.full.wait(phase);\n", "", FAULT,
     IN_FLIGHT, "atomicAdd(&shared.sum"),
    ("phase", "the phase does not toggle", "phase ^= 1) {", "phase ^= 0) {", ANY,
     r"full|" + IN_FLIGHT, ""),
    ("global race", "rows are counted without atomics", "shared.next = atomicAdd(counter, 1);",
     "shared.next = counter[0]++;", RACE, r"counter|global", "counter[0]++"),
    ("global race", "both blocks write one sum", "sums[row] = shared.sum", "sums[0] = shared.sum",
     RACE, r"sums|global", "sums[0]"),
    ("global race", "added without atomics", "atomicAdd(&shared.sum, shared.row[threadIdx.x]);",
     "shared.sum += shared.row[threadIdx.x];", RACE, r"sum", "shared.sum +="),
    ("bytes", "a row too few elements", ("tma_load_1d(values + row * kColumns, shared.full, shared.row, "
     "sizeof(shared.row));"), "tma_load_1d(values + row * kColumns, shared.full, shared.row, kColumns);",
     DEADLOCK, r"full, phase 0: 0 arrivals and 192 bytes", "shared.full.wait"),
    ("out of bounds", "one row too many", "if (row >= rows) break;", "if (row > rows) break;", FAULT,
     OUTSIDE, "tma_load_1d"),
    ("out of bounds", "a sum beyond the array", "sums[row] = shared.sum", "sums[row + 1] = shared.sum",
     FAULT, OUTSIDE, "sums[row + 1]"),
    ("alignment", "a bulk copy off 16 bytes", "values + row * kColumns, shared.full",
     "values + row * kColumns + 1, shared.full", FAULT, r"16", "tma_load_1d"),
    ("alignment", "a bulk size off 16 bytes", "shared.row, sizeof(shared.row));",
     "shared.row, sizeof(shared.row) - 4);", FAULT, r"16", "tma_load_1d"),
    ("uninitialised", "the sum starts with anything", "            shared.sum = 0;\n", "", FAULT,
     UNWRITTEN, "atomicAdd(&shared.sum"),
    ("barrier", "used without init", "        shared.full.init(1);\n", "", FAULT,
     r"full.*used before", "shared.full.expect_bytes"),
    ("parameter", "an endless loop", "if (row >= rows) break;", "if (row < 0) break;",
     ("fault", "timeout"), OUTSIDE, "tma_load_1d"),
)  # fmt: skip

MULTICAST = _of(
    "multicast",
    ("cluster", "no cluster barrier before the first load", "    cluster_sync();\n    auto consumer",
     "    __syncthreads();\n    auto consumer", RACE_OR_FAULT, r"(full|empty)\[\d\]|cluster", ""),
    ("cluster", "a CTA leaves early", "    cluster_sync();\n}", "}", FAULT, r"cluster_sync\(\)", ""),
    ("cluster", "only the own CTA is released",
     "for (int rank = 0; rank < kCtas; ++rank) shared.empty[consumer.index].arrive_cluster(rank);",
     "shared.empty[consumer.index].arrive(kCtas);", ANY, r"empty|full|two loads write the same bytes", ""),
    ("cluster", "the peer alone is released",
     "for (int rank = 0; rank < kCtas; ++rank) shared.empty[consumer.index].arrive_cluster(rank);",
     "shared.empty[consumer.index].arrive_cluster(1 - block_rank_in_cluster());", DEADLOCK,
     r"empty\[0\], phase 0: 64 arrivals", "wait_acquire"),
    ("cluster", "the mask has the own CTA alone", "{0, row}, 0b11)",
     "{0, row}, static_cast<u16>(1 << rank))", DEADLOCK, r"full\[0\], phase 0: 0 arrivals and 1024",
     "full[consumer.index].wait"),
    ("cluster", "the mask has a CTA that is not there", "{0, row}, 0b11)", "{0, row}, 0b111)", FAULT,
     r"CTA 2|cluster of 2|mask", "async_multicast_load"),
    ("cluster", "rank 2 of 2 is released", "for (int rank = 0; rank < kCtas; ++rank)",
     "for (int rank = 1; rank <= kCtas; ++rank)", FAULT, r"cluster", "arrive_cluster(rank)"),
    ("bytes", "only the own half is expected", "expect_bytes(sizeof(Stage))",
     "expect_bytes(Half::kBytes)", ANY, r"full\[\d\]|" + IN_FLIGHT, ""),
    ("arrivals", "empty counts one CTA", "empty[stage].init(kCtas * kThreads)",
     "empty[stage].init(kThreads)", ANY, r"empty\[\d\]|full\[\d\]|two loads write", ""),
    ("early release", "released before the last half is read",
     "            for (int i = threadIdx.x; i < Half::kElements; i += kThreads) {",
     ("            if (half == 1) {\n                shared.empty[consumer.index].arrive_cluster(0);\n"
     "                shared.empty[consumer.index].arrive_cluster(1);\n            }\n"
     "            for (int i = threadIdx.x; i < Half::kElements; i += kThreads) {"), ANY,
     r"empty|two loads write", ""),
    ("early release", "released without release", "arrive_cluster(rank);", "arrive_cluster_relaxed(rank);",
     RACE, r"release|arrive", "sum += stage"),
    ("missing wait", "halves are not waited for",
     "        shared.full[consumer.index].wait(consumer.phase);\n", "", FAULT, IN_FLIGHT, "sum += stage"),
    ("missing wait", "the stage is not free", ("    shared.empty[state.index].wait_acquire<Scope::kCluster>"
     "(state.phase);\n"), "", ANY, r"empty|full\[\d\]", ""),
    ("global race", "added without atomics", "atomicAdd(&sums[blockIdx.x], sum);",
     "sums[blockIdx.x] += sum;", RACE, r"sums|global", "sums[blockIdx.x] +="),
    ("tensormap", "both CTAs load one half", "(tile * kCtas + rank) * Half::side(0)",
     "tile * kCtas * Half::side(0)", RACE, "", "", "a wrong row: indistinguishable but for the result"),
)  # fmt: skip

DSMEM = _of(
    "dsmem",
    ("cluster", "peers are read before they are done", "    cluster_sync();\n    if (thread < kOwn)",
     "    __syncthreads();\n    if (thread < kOwn)", RACE_OR_FAULT, r"partial|cluster", "map_shared_rank"),
    ("cluster", "a CTA leaves before its peers have read", "    cluster_sync();\n}", "}", FAULT,
     r"cluster_sync\(\) at the end", ""),
    ("cluster", "a rank that is not there", "map_shared_rank(shared.partial, peer)",
     "map_shared_rank(shared.partial, peer + 1)", FAULT, r"cluster", "map_shared_rank(shared.partial"),
    ("cluster", "the pushed total is not waited for",
     "        shared.pushed.wait_acquire<Scope::kCluster>(0);\n", "", ANY,
     r"total|pushed|" + UNWRITTEN, "totals["),
    ("cluster", "arrived before it is written",
     ("        *map_shared_rank(&shared.total[thread], next) = total;\n"
     "        shared.pushed.arrive_cluster(next);\n"),
     ("        shared.pushed.arrive_cluster(next);\n"
     "        *map_shared_rank(&shared.total[thread], next) = total;\n"), ANY,
     r"total|" + UNWRITTEN, ""),
    ("cluster", "arrived without release", "pushed.arrive_cluster(next)",
     "pushed.arrive_cluster_relaxed(next)", ANY, r"total|release", ""),
    ("cluster", "waited without acquire", "wait_acquire<Scope::kCluster>(0)",
     "wait_relaxed<Scope::kCluster>(0)", ANY, r"total|acquire", ""),
    ("cluster", "the own barrier gets the arrival", "pushed.arrive_cluster(next)", "pushed.arrive()",
     ANY, r"total|" + UNWRITTEN, ""),
    ("arrivals", "all threads are counted", "pushed.init(kOwn)", "pushed.init(kColumns)", DEADLOCK,
     r"pushed, phase 0: 48 arrivals", "pushed.wait"),
    ("sync", "one column too many", "if (thread < kOwn) {", "if (thread <= kOwn) {", ANY,
     r"pushed|total", ""),
    ("out of bounds", "a total beyond its end", "totals[(next + kCtas - 2) % kCtas * kOwn + thread]",
     "totals[(next + kCtas - 2) * kOwn + thread]", FAULT, OUTSIDE, "totals["),
    ("uninitialised", "one column is never summed", "    shared.partial[thread] = sum;",
     "    if (thread < kColumns - 1) shared.partial[thread] = sum;", FAULT, UNWRITTEN,
     "map_shared_rank(shared.partial"),
)  # fmt: skip

TRANSPOSE = _of(
    "transpose",
    ("fence", "no proxy fence", "    fence_async_view_proxy();\n", "", RACE, PROXY, "shared.out.data()"),
    ("fence", "__threadfence instead of a proxy fence", "    fence_async_view_proxy();",
     "    __threadfence();", RACE, PROXY, "shared.out.data()"),
    ("fence", "inits not fenced", "        fence_barrier_init();\n", "", RACE, r"fence_barrier_init",
     "shared.full.init(1)"),
    ("sync", "no barrier before the store", "    __syncthreads();\n    if (threadIdx.x == 0) {\n        target",
     "    if (threadIdx.x == 0) {\n        target", RACE_OR_FAULT, r"barrier|" + UNWRITTEN,
     "target.async_store"),
    ("sync", "__syncwarp instead of __syncthreads",
     "    __syncthreads();\n    if (threadIdx.x == 0) {\n        target",
     "    __syncwarp();\n    if (threadIdx.x == 0) {\n        target", RACE_OR_FAULT,
     r"barrier|" + UNWRITTEN, "target.async_store"),
    ("sync", "no barrier after init", "    __syncthreads();\n    shared.full.wait(0);",
     "    shared.full.wait(0);", RACE_OR_FAULT, r"full", "shared.full.wait"),
    ("missing wait", "the load is not waited for", "    shared.full.wait(0);\n", "", FAULT, IN_FLIGHT,
     "shared.in.data()"),
    ("missing wait", "a phase that is over", "shared.full.wait(0)", "shared.full.wait(1)", FAULT,
     IN_FLIGHT, "shared.in.data()"),
    ("missing wait", "test_wait without a loop", "shared.full.wait(0)", "shared.full.test_wait(0)", FAULT,
     IN_FLIGHT, "shared.in.data()"),
    ("missing wait", "one warp waits", "shared.full.wait(0);", "if (threadIdx.x < 32) shared.full.wait(0);",
     FAULT, IN_FLIGHT, "shared.in.data()"),
    ("store groups", "not committed", "        commit_group();\n", "", FAULT, r"commit", ""),
    ("store groups", "not waited for", "        wait_group_read<0>();\n", "", FAULT, r"wait_group", ""),
    ("store groups", "waited before committed", "        commit_group();\n        wait_group_read<0>();",
     "        wait_group_read<0>();\n        commit_group();", FAULT, r"wait_group", ""),
    ("store groups", "every thread stores", "    if (threadIdx.x == 0) {\n        target",
     "    if (threadIdx.x < 2) {\n        target", RACE, r"store|global|target", "target.async_store"),
    ("bytes", "nothing is expected", "        shared.full.expect_bytes(Tile::kBytes);\n", "", DEADLOCK,
     r"full, phase 0: 1 arrivals", "shared.full.wait"),
    ("bytes", "another thread expects too", "    shared.full.wait(0);",
     "    if (threadIdx.x == 64) shared.full.expect_bytes(Tile::kBytes);\n    shared.full.wait(0);", ANY,
     r"full", ""),
    ("out of bounds", "a row too long in shared memory", "column * kSide + row] =",
     "column * (kSide + 1) + row] =", ANY, r"out|full|shared|" + UNWRITTEN, ""),
    ("register hazard", "the output is read again too early", "        wait_group_read<0>();\n    }\n}",
     "        shared.out.data()[0] = 0;\n        wait_group_read<0>();\n    }\n}", RACE, r"wait_group_read",
     "shared.out.data()[0] = 0"),
    ("tensormap", "x and y exchanged", "target.async_store(shared.out, {y, x})",
     "target.async_store(shared.out, {x, y})", RACE_OR_FAULT, "", "",
     "another tile of the same array: indistinguishable but for the result"),
)  # fmt: skip

WSGEMM = _of(
    "wsgemm",
    ("wgmma order", "no fence before wgmma", "        wgmma_fence();\n", "", RACE_OR_FAULT,
     r"wgmma_fence\(\)", "wgmma_tile<"),
    ("wgmma order", "not committed", "        wgmma_commit_group();\n", "", RACE_OR_FAULT,
     r"commit", ""),
    ("wgmma order", "not waited for", "        wgmma_wait_group<0>();\n", "", RACE,
     r"wgmma_wait_group|wgmma may still", ""),
    ("wgmma order", "one group pending", "wgmma_wait_group<0>()", "wgmma_wait_group<1>()", RACE,
     r"wait", ""),
    ("wgmma order", "released before wgmma has read",
     "        wgmma_wait_group<0>();\n        shared.empty[state.index].arrive();\n",
     "        shared.empty[state.index].arrive();\n        wgmma_wait_group<0>();\n", RACE,
     r"wait|empty", "wgmma_tile<"),
    ("wgmma order", "accumulators start with anything", "            block > 0\n", "            true\n",
     FAULT, r"accumulators that nothing has written", "wgmma_tile<"),
    ("wgmma order", "every block starts at zero", "            block > 0\n", "            false\n",
     RACE, "", "", "a wrong sum: indistinguishable but for the result"),
    ("register hazard", "accumulators are read in flight", "        wgmma_wait_group<0>();\n",
     "        sums[0][0][0] += 1;\n        wgmma_wait_group<0>();\n", RACE, r"wgmma_wait_group|wait",
     "sums[0][0][0] += 1"),
    ("register hazard", "accumulators are written before the fence", "        wgmma_fence();\n",
     "        wgmma_fence();\n        if (block > 0) sums[0][0][0] += 1;\n", RACE, r"wgmma_fence\(\)",
     "sums[0][0][0] += 1"),
    ("register hazard", "a thread leaves the warpgroup", "    for (int block = 0; block < k_blocks; ++block) {",
     "    if (threadIdx.x == 200) return;\n    for (int block = 0; block < k_blocks; ++block) {", ANY,
     r"128 threads|wgmma|ended|barrier|empty", ""),
    ("missing wait", "operands are not waited for",
     "        shared.full[state.index].wait(state.phase);\n", "", FAULT, IN_FLIGHT, "wgmma_tile<"),
    ("bytes", "A alone is expected", "expect_bytes(sizeof(Stage))", "expect_bytes(ATile::kBytes)", ANY,
     r"full\[\d\]|" + IN_FLIGHT, ""),
    ("uninitialised", "B is neither loaded nor expected",
     ("        full.expect_bytes(sizeof(Stage));\n        a.async_copy(stage.a, full, {block * kK, 0});\n"
     "        b.async_copy(stage.b, full, {block * kK, 0});\n"),
     "        full.expect_bytes(ATile::kBytes);\n        a.async_copy(stage.a, full, {block * kK, 0});\n",
     FAULT, r"reads B .*" + UNWRITTEN, "wgmma_tile<"),
    ("fence", "no proxy fence before the store", "    fence_async_view_proxy();\n", "", RACE, PROXY, ""),
    ("named barrier", "both warpgroups are counted", "NamedBarrier<128> warpgroup{1u + group}",
     "NamedBarrier<256> warpgroup{1u + group}", DEADLOCK, r"barrier 1: 128 arrivals", "warpgroup.sync()"),
    ("named barrier", "no barrier before the store", "    warpgroup.sync();\n", "", RACE_OR_FAULT,
     r"barrier|" + UNWRITTEN, "c.async_store"),
    ("setmaxnreg", "more than there is", "claim_registers<232>", "claim_registers<240>",
     ("fault", "deadlock"), r"registers", "claim_registers<240>"),
    ("setmaxnreg", "the producer releases nothing", "        release_registers<40>();\n", "",
     ("fault", "deadlock"), r"registers", "claim_registers<232>"),
    ("setmaxnreg", "one warp releases", "        release_registers<40>();",
     "        if (warp_index() == 0) release_registers<40>();", ("fault", "deadlock"),
     r"registers|setmaxnreg", ""),
    ("setmaxnreg", "one thread releases", ("        release_registers<40>();\n        if (threadIdx.x == 0) "
     "produce"), "        if (threadIdx.x == 0) release_registers<40>();\n        if (threadIdx.x == 0) produce",
     ("fault", "deadlock"), r"registers|setmaxnreg", ""),
    ("setmaxnreg", "no multiple of 8", "release_registers<40>", "release_registers<42>", COMPILE,
     r"multiple|8", ""),
    ("setmaxnreg", "claimed to release", "claim_registers<232>", "release_registers<232>",
     ("fault", "deadlock"), r"registers|setmaxnreg", ""),
    ("alignment", "the stages start at 512", "auto& shared = dynamic_shared<SharedMemory>();",
     ("auto& shared = *reinterpret_cast<SharedMemory*>("
     "reinterpret_cast<char*>(&dynamic_shared<SharedMemory>()) + 512);"), FAULT, r"1024|swizzle", ""),
    ("alignment", "a descriptor in the middle of a row", "OperandA::descriptor(stage.a, group * 64)",
     "OperandA::descriptor(stage.a, group * 64 + 4)", FAULT, r"pattern|row|multiple|align|1024", "wgmma_tile<"),
    ("arrivals", "the producer's warpgroup is counted too", "empty[stage].init(256)",
     "empty[stage].init(384)", DEADLOCK, r"empty\[0\], phase 0: 128 arrivals",
     "shared.empty[state.index].wait"),
    ("phase", "the consumer does not step", "        state.step();\n    }\n    store",
     "    }\n    store", ANY, r"full|empty", ""),
    ("early release", "a stage is never released", "shared.empty[state.index].arrive();",
     "if (block > 0) shared.empty[state.index].arrive();", DEADLOCK, r"empty\[0\], phase 0: 256 arrivals",
     "shared.empty[state.index].wait"),
    ("elect/shfl", "every thread of the warpgroup produces", "if (threadIdx.x == 0) produce",
     "if (threadIdx.x % 32 == 0) produce", FAULT, r"full\[0\]", ""),
    ("parameter", "__launch_bounds__ of one warpgroup", "__launch_bounds__(384, 1)",
     "__launch_bounds__(256, 1)", ("argument", "fault"), r"launch_bounds|384", ""),
)  # fmt: skip

REDUCE = _of(
    "reduce",
    ("fence", "no fence before the counter", "        __threadfence();\n        is_last", "        is_last",
     RACE, r"__threadfence", "partial[blockIdx.x] = sum"),
    ("fence", "no fence after the counter", "    __threadfence();\n    sum = threadIdx.x", "    sum = threadIdx.x",
     RACE, r"__threadfence", "partial[threadIdx.x]",
     "forgiven, as CUDA's own sample threadFenceReduction has none"),
    ("fence", "counted before it is written",
     ("        partial[blockIdx.x] = sum;\n        __threadfence();\n"
     "        is_last = atomicAdd(done, 1u) == gridDim.x - 1;"),
     ("        is_last = atomicAdd(done, 1u) == gridDim.x - 1;\n        __threadfence();\n"
     "        partial[blockIdx.x] = sum;"), RACE, r"partial|global|fence", "partial["),
    ("global race", "counted without an atomic", "atomicAdd(done, 1u) == gridDim.x - 1",
     "(*done)++ == gridDim.x - 1", RACE, r"done|global", "(*done)++"),
    ("global race", "every block writes the result", "    if (!is_last) return;\n", "", RACE,
     r"partial|result|global", ""),
    ("global race", "all blocks write one partial sum", "partial[blockIdx.x] = sum", "partial[0] = sum",
     RACE, r"partial|global", "partial[0] = sum"),
    ("sync", "the flag is read before it is written", "    __syncthreads();\n    if (!is_last)",
     "    if (!is_last)", RACE_OR_FAULT, r"is_last", ""),
    ("sync", "warps are summed before they are there",
     "    __syncthreads();\n    if (threadIdx.x >= 32) return 0;", "    if (threadIdx.x >= 32) return 0;",
     RACE_OR_FAULT, r"warps", "warps["),
    ("sync", "a barrier that one warp misses",
     "    __syncthreads();\n    if (threadIdx.x >= 32) return 0;",
     "    if (threadIdx.x >= 32) return 0;\n    __syncthreads();", ANY, r"warps|barrier|is_last", ""),
    ("elect/shfl", "half of the warp is named", "__shfl_down_sync(0xffffffff, value, distance);\n    }\n    if",
     "__shfl_down_sync(0xffff, value, distance);\n    }\n    if", FAULT, r"lane|mask|shfl", "__shfl_down_sync"),
    ("elect/shfl", "shuffled where lanes have left", "    for (int distance = 2; distance > 0; distance /= 2) {",
     "    if (threadIdx.x >= 8) return 0;\n    for (int distance = 2; distance > 0; distance /= 2) {", ANY,
     r"lane|shfl.sync", "__shfl_down_sync"),
    ("out of bounds", "values beyond the end", "i < count; i +=", "i <= count; i +=", FAULT,
     OUTSIDE, "sum += values[i]"),
    ("out of bounds", "a partial sum of each thread", "    if (threadIdx.x == 0) {\n        partial[blockIdx.x]",
     "    if (threadIdx.x == 0) {\n        partial[blockIdx.x + gridDim.x]", FAULT,
     OUTSIDE, "partial[blockIdx.x + gridDim.x]"),
    ("uninitialised", "more warps than there are", "threadIdx.x < kThreads / 32 ? warps",
     "threadIdx.x < kThreads / 16 ? warps", FAULT, r"warps|shared", "warps[threadIdx.x]"),
    ("uninitialised", "lane 1 writes the warp's sum", "if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32]",
     "if (threadIdx.x % 64 == 0) warps[threadIdx.x / 32]", FAULT, UNWRITTEN, "warps[threadIdx.x]"),
)  # fmt: skip

CHAIN = _of(
    "chain",
    ("fence", "no fence before the flag", "        __threadfence();\n        atomicExch", "        atomicExch",
     RACE, r"__threadfence", "= sum"),
    ("fence", "no fence after the flag", "            __threadfence();\n            ptx", "            ptx",
     RACE, r"__threadfence", "tma_load_1d",
     "forgiven, as CUDA's own sample threadFenceReduction has none"),
    ("fence", "no proxy fence of writers nor reader", "ptx::fence_proxy_async_global();",
     "fence_async_view_proxy();", RACE, r"fence_proxy_async_global", "= sum", "", None, 2),
    ("global race", "the flag is read once", "while (atomicAdd(&flags[row - 1], 0) == 0) __nanosleep(20);",
     "atomicAdd(&flags[row - 1], 0);", RACE, r"sums|global", "tma_load_1d"),
    ("global race", "nobody waits for the flag",
     "            while (atomicAdd(&flags[row - 1], 0) == 0) __nanosleep(20);\n", "", RACE, r"sums|global",
     "tma_load_1d"),
    ("global race", "the flag of the own row", "while (atomicAdd(&flags[row - 1], 0)",
     "while (atomicAdd(&flags[row], 0)", ("deadlock", "timeout"), r"atomic|poll|waits", ""),
    ("global race", "the flag set before the sums",
     "    sums[row * kColumns + column] = sum;\n",
     "    if (column == 0) atomicExch(&flags[row], 1);\n    sums[row * kColumns + column] = sum;\n", RACE,
     r"sums|global", "= sum"),
    ("global race", "the flag is never set", "        atomicExch(&flags[row], 1);\n", "",
     ("deadlock", "timeout"), r"atomic|poll|waits", ""),
    ("sync", "the flag set before all have written", "    __syncthreads();\n    if (column == 0) {\n        __threadfence",
     "    if (column == 0) {\n        __threadfence", RACE, r"sums|global", "= sum"),
    ("missing wait", "the row is not waited for", "        shared.full.wait(0);\n", "", FAULT, IN_FLIGHT,
     "shared.before[column]"),
    ("out of bounds", "the row before the first", "    if (row > 0) {", "    {", FAULT,
     OUTSIDE, ""),
)  # fmt: skip

PDL = _of(
    "pdl",
    ("pdl", "no wait", "    wait_for_previous_grids();\n", "", FAULT, r"wait_for_previous_grids\(\)", ""),
    ("pdl", "read before the wait", "    const float added = bias[i];\n    wait_for_previous_grids();",
     "    const float added = bias[i] + 0 * scaled[i];\n    wait_for_previous_grids();", FAULT,
     r"wait_for_previous_grids\(\)", "scaled[i];"),
    ("pdl", "loaded before the wait", "    wait_for_previous_grids();\n    __syncthreads();",
     "    __syncthreads();", FAULT, r"wait_for_previous_grids\(\)", "tma_load_1d"),
    ("pdl", "waited after the load", "    wait_for_previous_grids();\n    __syncthreads();\n    if (threadIdx.x == 0) {",
     "    __syncthreads();\n    if (threadIdx.x != 0) wait_for_previous_grids();\n    if (threadIdx.x == 0) {",
     FAULT, r"wait_for_previous_grids\(\)", "tma_load_1d"),
    ("pdl", "one warp waits, the other reads", "    wait_for_previous_grids();\n    __syncthreads();",
     ("    __syncthreads();\n    if (threadIdx.x < 32) wait_for_previous_grids();\n"
     "    const float early = scaled[i];\n    out[i] = early;"), FAULT,
     r"wait_for_previous_grids\(\)", "early = scaled[i]"),
    ("fence", "inits not fenced", "        fence_barrier_init();\n", "", RACE, r"fence_barrier_init",
     "shared.full.init(1)"),
    ("out of bounds", "a thread too far", "const int i = blockIdx.x * kThreads + threadIdx.x;\n    if",
     "const int i = blockIdx.x * kThreads + threadIdx.x + 1;\n    if", FAULT, OUTSIDE,
     "bias[i]"),
)  # fmt: skip

RAGGED = _of(
    "ragged",
    ("bytes", "whole chunks are loaded", "tma_load_1d(packed + at, shared.full, shared.in, bytes)",
     "tma_load_1d(packed + at, shared.full, shared.in, kChunk * 4)", ANY,
     r"full|outside every array|none of the launch's arrays", ""),
    ("bytes", "whole chunks are stored", "tma_store_1d(halved + at, shared.out, bytes)",
     "tma_store_1d(halved + at, shared.out, kChunk * 4)", ANY,
     r"none of the launch's arrays|global|halved|" + UNWRITTEN, "tma_store_1d"),
    ("bytes", "elements are expected", "expect_bytes(bytes)", "expect_bytes(count)", ANY, r"full", ""),
    ("store groups", "the buffer is not waited for", "            wait_group_read<0>();\n", "", RACE,
     r"wait_group_read", "tma_store_1d"),
    ("store groups", "the end is not waited for", "    if (thread == 0) wait_group<0>();\n", "", FAULT,
     r"wait_group", ""),
    ("store groups", "each warp's lane 0 stores", "        if (thread == 0) {\n            tma_store_1d",
     "        if (thread % 32 == 0) {\n            tma_store_1d", RACE_OR_FAULT,
     r"store|global|wait_group|halved", ""),
    ("fence", "no proxy fence", "        fence_async_view_proxy();\n", "", RACE, PROXY, "shared.out[thread] ="),
    ("fence", "those who write nothing fence", "        fence_async_view_proxy();",
     "        if (thread >= count) fence_async_view_proxy();", RACE, PROXY, "shared.out[thread] ="),
    ("sync", "no barrier before the store", "        __syncthreads();\n        if (thread == 0) {\n            tma_store",
     "        if (thread == 0) {\n            tma_store", RACE_OR_FAULT, r"barrier|" + UNWRITTEN, "tma_store_1d"),
    ("phase", "the phase starts at 1", "int phase = 0;", "int phase = 1;", ANY, IN_FLIGHT + r"|full", ""),
    ("phase", "the phase of another sequence", "at += kChunk, phase ^= 1", "at += kChunk, phase = 1 - blockIdx.x % 2",
     ANY, r"full|" + IN_FLIGHT, ""),
    ("out of bounds", "a chunk beyond the last", "at < end; at += kChunk", "at <= end; at += kChunk", ANY,
     r"none of the launch's arrays|0 bytes|full", ""),
    ("out of bounds", "the sequence after the last", "starts[blockIdx.x + 1]", "starts[blockIdx.x + 2]",
     RACE_OR_FAULT, OUTSIDE + r"|global|halved", ""),
    ("alignment", "sequences off 16 bytes", "int at = starts[blockIdx.x];", "int at = starts[blockIdx.x] + 1;",
     FAULT, r"16", "tma_load_1d"),
    ("uninitialised", "fewer elements than are stored", "if (thread < count) shared.out",
     "if (thread < count - 1) shared.out", FAULT, UNWRITTEN, "tma_store_1d"),
    ("uninitialised", "more elements than were loaded", "if (thread < count) shared.out", "if (thread >= 0) shared.out",
     FAULT, UNWRITTEN, "shared.in[thread]"),
    ("global race", "sequences overlap", "end = starts[blockIdx.x + 1]", "end = starts[blockIdx.x + 1] + 4",
     RACE_OR_FAULT, r"global|halved|none of", "tma_"),
    ("missing wait", "the chunk is not waited for", "        shared.full.wait(phase);\n", "", FAULT, IN_FLIGHT,
     "shared.in[thread]"),
    ("early release", "the next load before all have read",
     "        fence_async_view_proxy();\n        __syncthreads();\n",
     "        fence_async_view_proxy();\n        NamedBarrier<32>{1 + thread / 32u}.sync();\n", ANY,
     r"barrier|in|out|" + UNWRITTEN, ""),
)  # fmt: skip

RING = _of(
    "ring",
    ("fence", "no proxy fence before the push", "    fence_async_view_proxy();\n", "", RACE, PROXY,
     "shared.parts[rank][thread]"),
    ("cluster", "pushed before the neighbour is ready", "    cluster_sync();\n    for (int step",
     "    __syncthreads();\n    for (int step", RACE_OR_FAULT, r"received|cluster", ""),
    ("cluster", "a CTA leaves early", "    cluster_sync();\n}", "}", FAULT, r"cluster_sync\(\)", ""),
    ("cluster", "a neighbour that is not there", "right = (rank + 1) % kCtas", "right = rank + 1", FAULT,
     r"cluster", "tma_store_cluster"),
    ("cluster", "pushed to itself", "sizeof(part), right)", "sizeof(part), rank)", ANY, r"received|part", ""),
    ("bytes", "nothing is expected", ("            if (part != rank) shared.received[part].expect_bytes"
     "(sizeof(shared.parts[part]));"), "            if (part != rank) shared.received[part].arrive();", ANY,
     r"received|" + IN_FLIGHT, ""),
    ("bytes", "the own part is expected too", "if (part != rank) shared.received[part]", "shared.received[part]",
     FAULT, r"received\[\d\]", ""),
    ("missing wait", "passed on before it has come", "        if (step > 0) received.wait(0);\n", "", ANY,
     r"received|" + UNWRITTEN + r"|part", ""),
    ("missing wait", "the last part is not waited for", "    shared.received[right].wait(0);\n", "", ANY,
     IN_FLIGHT + r"|received", ""),
    ("missing wait", "another part is waited for", "    shared.received[right].wait(0);",
     "    shared.received[rank].wait(0);", DEADLOCK, r"received\[\d\], phase 0: 1 arrivals", "wait(0)"),
    ("sync", "pushed before all have written", "    cluster_sync();\n    for (int step",
     ("    if (thread == 0) tma_store_cluster(shared.parts[rank], shared.received[rank], shared.parts[rank], "
     "sizeof(shared.parts[0]), right);\n    cluster_sync();\n    for (int step"), ANY,
     r"barrier|received|" + UNWRITTEN, "tma_store_cluster(shared.parts[rank]"),
    ("register hazard", "the part is changed while it is pushed", "    shared.received[right].wait(0);",
     "    shared.parts[rank][thread] += 1;\n    shared.received[right].wait(0);", RACE,
     r"parts", "shared.parts[rank][thread] += 1"),
    ("out of bounds", "an element beyond the part", "sizeof(part), right)", "2 * sizeof(part), right)", ANY,
     r"received|shared|part", "tma_store_cluster"),
    ("alignment", "a push off 16 bytes", "tma_store_cluster(part, received, part,",
     "tma_store_cluster(part, received, part + 1,", FAULT, r"16", "tma_store_cluster"),
)  # fmt: skip

STENCIL = _of(
    "stencil",
    ("missing wait", "cp.async is not waited for", "        cp_async_wait<1>();\n", "", FAULT,
     r"cp.async to these bytes is in flight", "mine["),
    ("missing wait", "one group too many pending", "cp_async_wait<1>", "cp_async_wait<2>", FAULT,
     r"cp.async to these bytes is in flight", "mine["),
    ("missing wait", "committed only where there is a copy", "        }\n        cp_async_commit();\n",
     "            cp_async_commit();\n        }\n", ANY, r"cp.async|cp_async", ""),
    ("missing wait", "the first chunk is not committed", "    cp_async_commit();\n    for", "    for", ANY,
     r"cp.async", "mine["),
    ("sync", "no barrier after the wait", "        __syncthreads();\n        for", "        for", RACE_OR_FAULT,
     r"barrier|cp.async|" + UNWRITTEN, "mine["),
    ("sync", "the barrier before the wait", "        cp_async_wait<1>();\n        __syncthreads();",
     "        __syncthreads();\n        cp_async_wait<1>();", RACE_OR_FAULT,
     r"barrier|cp.async|" + UNWRITTEN, "mine["),
    ("sync", "the buffer is filled while others read", "        __syncthreads();\n    }\n}", "    }\n}", RACE,
     r"barrier|buffer", "cp_async_gs<16>(&next"),
    ("early release", "one buffer for both", "buffers[(chunk + 1) % 2]", "buffers[chunk % 2]", ANY,
     r"buffers|cp.async|barrier", ""),
    ("out of bounds", "a chunk too many is fetched", "if (chunk + 1 < chunks) {", "if (chunk < chunks) {", FAULT,
     OUTSIDE, "cp_async_gs<16>(&next"),
    ("out of bounds", "no clamp on the right", "mine[min(i + 1, kChunk - 1)]", "mine[i + 1 + kChunk]", ANY,
     r"buffers|shared|" + UNWRITTEN, "mine["),
    ("alignment", "a source off 16 bytes", "values + (chunk + 1) * kChunk + thread * 4",
     "values + (chunk + 1) * kChunk + thread * 4 - 1", FAULT, r"multiples of 16", "cp_async_gs<16>(&next"),
    ("alignment", "a buffer off 16 bytes", "&next[thread * 4]", "&next[thread * 4 + 1]", FAULT,
     r"multiples of 16", "cp_async_gs<16>(&next"),
    ("uninitialised", "every other element is fetched", ("cp_async_gs<16>(&buffers[0][thread * 4], values + "
     "thread * 4);"), "cp_async_gs<8>(&buffers[0][thread * 4], values + thread * 4);", FAULT, UNWRITTEN, "mine["),
)  # fmt: skip

SCAN = _of(
    "scan",
    ("sync", "no barrier before the warps' sums are read", "    __syncthreads();\n    if (warp == 0",
     "    if (warp == 0", RACE_OR_FAULT, r"warps", "warps["),
    ("sync", "no barrier before they are added", "    __syncthreads();\n    if (warp > 0)", "    if (warp > 0)",
     RACE, r"warps", "warps["),
    ("sync", "__syncwarp instead", "    __syncthreads();\n    if (warp > 0)", "    __syncwarp();\n    if (warp > 0)",
     RACE, r"warps", "warps["),
    ("sync", "a barrier inside of the branch", "        warps[lane] = total;\n    }\n    __syncthreads();",
     "        warps[lane] = total;\n        __syncthreads();\n    }", ANY, r"warps|barrier", ""),
    ("elect/shfl", "a full mask in a part of the warp", "__shfl_up_sync(0xf, total, distance)",
     "__shfl_up_sync(0xffffffff, total, distance)", FAULT, r"lane|mask", "__shfl_up_sync(0xffffffff, total"),
    ("elect/shfl", "a mask without the own lane", "__shfl_up_sync(0xf, total, distance)",
     "__shfl_up_sync(0x7, total, distance)", FAULT, r"lane|mask", "__shfl_up_sync(0x7"),
    ("elect/shfl", "every lane adds", "if (lane >= distance) sum += below;", "sum += below;", FAULT, "", "",
     "lanes without a lower one get their own value: indistinguishable but for the result"),
    ("uninitialised", "lane 31 of warp 0 alone", "if (lane == 31) warps[warp] = sum;",
     "if (thread == 31) warps[warp] = sum;", FAULT, UNWRITTEN, "int total = warps[lane]"),
    ("uninitialised", "all lanes take a warp", "if (warp == 0 && lane < kThreads / 32) {", "if (warp == 0) {", ANY,
     r"warps|shared|lane", ""),
    ("out of bounds", "the warp after the last", "warps[warp - 1]", "warps[warp + 1]", ANY, r"warps|shared",
     "warps[warp + 1]"),
    ("global race", "blocks write the same sums", "sums[blockIdx.x * kThreads + thread] = sum", "sums[thread] = sum",
     RACE, r"sums|global", "sums[thread] = sum"),
)  # fmt: skip

HISTOGRAM = _of(
    "histogram",
    ("sync", "counted before it is cleared", "own[bin] = 0;\n    __syncthreads();", "own[bin] = 0;", RACE_OR_FAULT,
     r"own", "own["),
    ("sync", "added before it is counted", "    }\n    __syncthreads();\n    for (int bin", "    }\n    for (int bin", RACE,
     r"own", "own["),
    ("global race", "counted without atomics", "atomicAdd(&own[data[i]], 1u);", "own[data[i]]++;", RACE, r"own",
     "own[data[i]]++"),
    ("global race", "added without atomics", "atomicAdd(&bins[bin], own[bin]);", "bins[bin] += own[bin];", RACE,
     r"bins|global", "bins[bin] +="),
    ("uninitialised", "never cleared",
     "    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) own[bin] = 0;\n", "", FAULT, UNWRITTEN,
     "own["),
    ("uninitialised", "half of the bins are cleared", "for (int bin = threadIdx.x; bin < kBins; bin += kThreads) own",
     "for (int bin = threadIdx.x; bin < kThreads; bin += kThreads) own", FAULT, UNWRITTEN, "own["),
    ("out of bounds", "data beyond the end", "i < count; i +=", "i < count + 1; i +=", FAULT,
     OUTSIDE, "data[i]"),
    ("out of bounds", "a bin too many", "bin < kBins; bin += kThreads) atomicAdd",
     "bin <= kBins; bin += kThreads) atomicAdd", FAULT, r"none of the launch's arrays|shared", "atomicAdd(&bins"),
    ("alignment", "four bytes at once", "atomicAdd(&own[data[i]], 1u);",
     "atomicAdd(&own[*reinterpret_cast<const unsigned*>(data + i) & 255], 1u);", FAULT, r"misaligned|none of",
     "reinterpret_cast"),
)  # fmt: skip

EDIT = _of(
    "edit",
    ("tensormap", "not acquired", "        tile.tensormap_fence_acquire();\n", "", RACE,
     r"tensormap_fence_acquire\(\)", ""),
    ("tensormap", "another map is acquired", "tile.tensormap_fence_acquire();",
     "tiles.at(0).tensormap_fence_acquire();", RACE, r"tensormap_fence_acquire\(\)", ""),
    ("tensormap", "edited in place without a release",
     ("        tile.replace_tensormap_global_address_in_shared_mem(shared.scratch, group);\n    }\n    __syncwarp();\n"
     "    if (threadIdx.x < 32) tile.tensormap_cp_fence_release(shared.scratch);\n"),
     "        tile.replace_tensormap_global_address_in_gmem(group);\n    }\n", RACE,
     r"tensormap_fence_acquire\(\)|release", ""),
    ("tensormap", "one lane copies the map", "if (threadIdx.x < 32) tile.tensormap_cp_fence_release",
     "if (threadIdx.x == 0) tile.tensormap_cp_fence_release", EITHER, r"lane|warp|tensormap", ""),
    ("tensormap", "no barrier before the acquire", "    __syncthreads();\n    if (threadIdx.x == 0) {\n        tile.tensormap",
     "    if (threadIdx.x == 0) {\n        tile.tensormap", RACE_OR_FAULT, r"full|barrier", ""),
    ("tensormap", "copied before it is edited", "    __syncwarp();\n", "", RACE_OR_FAULT,
     r"barrier|syncwarp|scratch|" + UNWRITTEN, ""),
    ("tensormap", "never initialised", "        tile.smem_tensormap_init(shared.scratch);\n", "", FAULT,
     r"map|" + UNWRITTEN, ""),
    ("tensormap", "all blocks edit one map", "tiles.at(blockIdx.x)", "tiles.at(0)", RACE,
     r"tensor|map|barrier|global|in flight", ""),
    ("tensormap", "a map beyond the array", "tiles.at(blockIdx.x)", "tiles.at(blockIdx.x + 1)", FAULT, r"tiles|index|trap",
     "tiles.at(blockIdx.x + 1)"),
    ("tensormap", "an address off 16 bytes", "shared.scratch, group)", "shared.scratch, group + 1)", FAULT, r"16", ""),
    ("out of bounds", "a group beyond the values", "starts[blockIdx.x] * Tile::side(1)",
     "starts[blockIdx.x] * 2 * Tile::side(1)", FAULT, OUTSIDE, "tile.async_copy",
     "a map may be moved to an array that no argument names"),
    ("missing wait", "the tile is not waited for", "    shared.full.wait(0);\n", "", FAULT, IN_FLIGHT,
     "shared.tile.data()[i]"),
)  # fmt: skip

HANDOFF = _of(
    "handoff",
    ("named barrier", "the buffer is filled before it is free",
     "            if (step >= 2) NamedBarrier<128>{3 + buffer}.sync();\n", "", RACE_OR_DEADLOCK, r"buffers|barrier",
     "buffers[buffer]"),
    ("named barrier", "taken before it is full", "            NamedBarrier<128>{1 + buffer}.sync();\n", "", ANY,
     r"buffers|" + UNWRITTEN, "buffers[buffer][kElements"),
    ("named barrier", "arrived before it is written",
     ("            buffers[buffer][thread] = values[step * kElements + thread];\n"
     "            NamedBarrier<128>{1 + buffer}.arrive();\n"),
     ("            NamedBarrier<128>{1 + buffer}.arrive();\n"
     "            buffers[buffer][thread] = values[step * kElements + thread];\n"), RACE_OR_FAULT, r"buffers",
     "buffers[buffer]"),
    ("named barrier", "one number for both buffers", "NamedBarrier<128>{1 + buffer}.sync()",
     "NamedBarrier<128>{1}.sync()", ANY, r"barrier|buffers", ""),
    ("named barrier", "half of the threads", "NamedBarrier<128>{1 + buffer}.sync()",
     "NamedBarrier<64>{1 + buffer}.sync()", ANY, r"barrier|buffers", ""),
    ("named barrier", "nobody frees the buffer", "            if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();\n",
     "", DEADLOCK, r"barrier [34]: 64 arrivals", ".sync()"),
    ("named barrier", "freed before it is read",
     ("            out[step * kElements + thread] = buffers[buffer][kElements - 1 - thread];\n"
     "            if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();\n"),
     ("            if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();\n"
     "            out[step * kElements + thread] = buffers[buffer][kElements - 1 - thread];\n"), RACE, r"buffers",
     "buffers[buffer]"),
    ("named barrier", "a lane does not arrive", "            NamedBarrier<128>{1 + buffer}.arrive();",
     "            if (thread != 5) NamedBarrier<128>{1 + buffer}.arrive();", ANY, r"barrier|lane|buffers", ""),
    ("sync", "warps of two roles", "threadIdx.x < kElements;", "threadIdx.x % 32 < 16;", ANY, r"barrier|warp|lane|buffers", ""),
    ("sync", "__syncthreads where roles part", "            NamedBarrier<128>{1 + buffer}.sync();",
     "            __syncthreads();", ANY, r"barrier|buffers|" + UNWRITTEN, ""),
)  # fmt: skip

STRIDED = _of(
    "strided",
    ("sync", "no __syncwarp before the row is read", "    __syncwarp();\n    const float turned", "    const float turned",
     RACE_OR_FAULT, r"rows|barrier", "rows[row]["),
    ("sync", "no __syncwarp before it is overwritten", "    __syncwarp();\n    rows[row][column] = turned",
     "    rows[row][column] = turned", RACE, r"rows|barrier", "rows[row]["),
    ("sync", "no __syncthreads", "    __syncthreads();\n", "", RACE, r"rows|barrier", "rows["),
    ("out of bounds", "a row too many", "other < kRows; ++other", "other <= kRows; ++other", FAULT,
     r"shared|rows|" + UNWRITTEN, "rows[other][column]"),
    ("out of bounds", "the pitch of another array", "(blockIdx.x * kRows + row) * pitch + column",
     "(blockIdx.x * kRows + row) * 2 * pitch + column", FAULT, OUTSIDE, "rows[row][column] ="),
    ("out of bounds", "an index below the array", "values[(blockIdx.x", "values[-1 + (blockIdx.x", FAULT,
     OUTSIDE, "values[-1"),
    ("global race", "rows overlap", "rotated[(blockIdx.x * kRows + row) * kColumns + column] = ",
     "rotated[(blockIdx.x * kRows + row) * (kColumns - 1) + column] = ", RACE, r"rotated|global", "rotated["),
    ("global race", "blocks share a column's maximum", "largest[blockIdx.x * kColumns + column] = most",
     "largest[column] = most", RACE, r"largest|global", "largest[column]"),
)  # fmt: skip


def _other_box(tile: Any) -> Any:
    return create_tma_tile(tile.array, (8, 32))


HOST = (
    _host("pipe", "a tile of another box", _argument(0, _other_box), r"Tile|type"),
    _host(
        "pipe",
        "an array for a tile",
        _argument(0, lambda tile: tile.array),
        r"tile|Tile|TMATensorTile",
    ),
    _host("pipe", "an argument too few", _without_last_argument, r"pipe takes 3"),
    _host("pipe", "more threads than __launch_bounds__", _set("block", 192), r"160|launch_bounds"),
    _host(
        "pipe",
        "too few threads",
        _set("block", 128),
        r"full\[0\]|consumers|arrivals",
        reported=EITHER,
    ),
    _host("steal", "values of another type", _argument(0, lambda x: x.astype("float64")), r"float"),
    _host(
        "steal",
        "a strided array",
        _argument(0, lambda x: x.repeat(2, 1)[:, ::2]),
        r"contiguous|stride",
    ),
    _host(
        "steal",
        "a read-only array",
        _argument(1, lambda x: x.setflags(write=False) or x),
        r"read-only|write",
    ),
    _host("steal", "counter of 64 bits", _argument(2, lambda x: x.astype("int64")), r"int"),
    _host(
        "steal",
        "too little shared memory",
        _options(shared_mem=64),
        r"shared",
        reported=("fault", "argument"),
    ),
    _host(
        "multicast",
        "no cluster",
        lambda job: job.options.clear(),
        r"cluster|CTA",
        reported=("fault", "argument"),
    ),
    _host("multicast", "a grid off the cluster", _set("grid", 3), r"cluster|multiple"),
    _host("dsmem", "a cluster of two", _options(cluster=2), r"cluster|CTA", reported=FAULT),
    _host(
        "wsgemm", "an unswizzled tile", _argument(0, lambda tile: _unswizzled(tile)), r"type|Tile"
    ),
    _host("wsgemm", "four warpgroups", _set("block", 512), r"384|launch_bounds"),
    _host("reduce", "count beyond the array", _argument(1, 1001), OUTSIDE, reported=FAULT),
    _host("histogram", "a text for a number", _argument(1, "2000"), r"int|number|str"),
    _host(
        "strided",
        "threads along x alone",
        _set("block", 256),
        r"shared|rows|none of",
        reported=RACE_OR_FAULT,
    ),
    _host("stencil", "a chunk too many", _argument(2, 6), OUTSIDE, reported=FAULT),
)


def _unswizzled(tile: Any) -> Any:
    return create_tma_tile(tile.array, (128, 64))


# Edits that keep a kernel sound: of its kernel, a name, and what replaces what. None may be blamed.
SOUND = (
    ("pipe", "the issuer fences after the barrier",
     "        fence_async_view_proxy();\n        consumers.sync();",
     "        consumers.sync();\n        fence_async_view_proxy();"),
    ("pipe", "another stage is released", "shared.empty[state.index].arrive();",
     "shared.empty[(state.index + 1) % kStages].arrive();"),
    ("dsmem", "cluster_sync publishes the inits", "        fence_barrier_init();\n", ""),
    ("reduce", "the sum is added up after the barrier before",
     "    __syncthreads();\n    sum = add_up(sum, warps);\n    if", "    sum = add_up(sum, warps);\n    if"),
    ("chain", "the writers alone fence for TMA", "            ptx::fence_proxy_async_global();\n", ""),
    ("chain", "the reader alone fences for TMA", "    ptx::fence_proxy_async_global();\n    __syncthreads();",
     "    __syncthreads();"),
    ("pdl", "the next grid starts before the results",
     "    scaled[i] = 2 * values[i];\n    launch_dependent_grids();",
     "    launch_dependent_grids();\n    scaled[i] = 2 * values[i];"),
    ("ragged", "the wait comes after the leader's own",
     "        __syncthreads();\n        if (thread < count)", "        if (thread < count)"),
    ("handoff", "an arrival that nobody waits for",
     "if (step + 2 < steps) NamedBarrier<128>{3 + buffer}.arrive();", "NamedBarrier<128>{3 + buffer}.arrive();"),
    ("multicast", "acquired from the own CTA, as CUTLASS does", "wait_acquire<Scope::kCluster>",
     "wait_acquire<Scope::kCta>"),
)  # fmt: skip

DEFECTS = (
    *PIPE, *STEAL, *MULTICAST, *DSMEM, *TRANSPOSE, *WSGEMM, *REDUCE, *CHAIN, *PDL, *RAGGED, *RING, *STENCIL,
    *SCAN, *HISTOGRAM, *EDIT, *HANDOFF, *STRIDED, *HOST,
)  # fmt: skip
