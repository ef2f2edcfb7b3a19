"""Planted misuses of the structured layer: each is a compile error or a named report.

A misuse is an edit of a sound program. It is reported by the compiler, by a check of a debug build,
or by the emulator, which names the class (deadlock, race, fault) and the barrier, buffer or
argument.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from parity.structured_programs import PROGRAMS
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, without
from planted_choices import choices

from tmaasync import CompileError, Kernel, LaunchError, emulate

pytestmark = pytest.mark.chips("sm_90a", "sm_100a")

ORDERS: tuple[tuple[Any, int], ...] = (("round_robin", 0), ("adversarial", 0))


# The tests of rings run the others.
@pytest.mark.sampled(1)
@pytest.mark.parametrize("program", ["gemm", "move"])
def test_the_programs_without_misuse_are_right(program: str) -> None:
    source, run = PROGRAMS[program]

    for policy, seed in ORDERS:
        with emulate.scheduled(policy, seed=seed):
            run(source, False)


# --- what the compiler reports --------------------------------------------------------------------

# The kernel of the statements that the compiler reads.
STATEMENTS = """
#include <tmaasync/structured/dynamic_scheduler.cuh>
#include <tmaasync/structured/epilogue.cuh>
#include <tmaasync/structured/grouped_scheduler.cuh>
#include <tmaasync/structured/list_scheduler.cuh>
#include <tmaasync/structured/mainloop.cuh>
#include <tmaasync/structured/output_tiles.cuh>
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/structured/split_k.cuh>
#include <tmaasync/structured/static_scheduler.cuh>
#include <tmaasync/structured/store_ring.cuh>

using namespace tmaasync;

using Wide = TMATensorTile<float, Shape<32, 32>>;
using Narrow = TMATensorTile<float, Shape<1, 4>>;
using Half = TMATensorTile<float16, Shape<64, 64>, Box<64, 64>, Swizzle::k128B>;
using Deep = TMATensorTile<float16, Shape<64, 128>, Box<64, 64>, Swizzle::k128B>;
using Output = TMATensorTile<float, Shape<64, 32>, Box<64, 32>, Swizzle::k128B>;
using Flat = TMATensorTile<float, Shape<32, 32>, Box<32, 32>, Swizzle::k128B>;
using Operand = WgmmaOperand<Half, Major::kK>;
using SquareLoop = MainLoop<Operand, Operand, 64, 64>;
struct Stage { Wide::Shared a; };
struct Padded { Wide::Shared a; Narrow::Shared b; };
struct PaddedToo { Wide::Shared a; Narrow::Shared b; };
struct TooMany { static constexpr int kBytes = Wide::kBytes + 1; Wide::Shared a; };
struct Tile { int m, n; };
struct Started { __device__ void init() {} };
struct Bias { float apply(float value) const; };
struct OfTiles {
    template <typename Accumulators, typename Tile>
    __device__ void apply(Accumulators&, const Tile&) const {}
};
struct OfChunks {
    template <typename Chunk, typename Tile>
    __device__ void apply_chunk(Chunk&, const Tile&) const {}
};
using Stages = Ring<Stage, 4, ConsumerWarps<4>>;
using OneStage = Ring<Stage, 1, ConsumerWarps<4>>;
using Filled = Ring<Stage, 4, ConsumerWarps<4>, ProducerThreads<32>>;
using Stored = StoreRing<Stage, 4, 2>;
using Stores = Epilogue<Output, 64>;

extern "C" __global__ void use() {}
"""
# One statement, as if in a file of its own.
FUNCTION = """__device__ void misuse_{number}(
    Stages* ring, Filled* filled, Stored* stored, Stores::Shared* shared, const Output& output
) {{
#line 1 "misuse {number}"
    {statement}
}}
"""


def text_of(statements: Iterable[str]) -> str:
    functions = (FUNCTION.format(number=i, statement=one) for i, one in enumerate(statements))
    return STATEMENTS + "".join(functions)


# By part: what is wrong, a statement, and what the compiler says.
COMPILER: dict[str, tuple[tuple[str, str, str], ...]] = {
    "ring": (
        ("a producer's stage is copied",
         "auto p = ring->producer(); auto s = p.acquire(); auto copy = s;", "deleted"),
        ("a consumer's stage is copied",
         "auto c = ring->consumer(); auto s = c.acquire(); auto copy = s;", "deleted"),
        ("a stage is assigned",
         "auto c = ring->consumer(); auto s = c.acquire(); auto o = c.none(); o = s;", "deleted"),
        ("a producer is copied", "auto p = ring->producer(); auto copy = p;", "deleted"),
        ("a consumer is copied", "auto c = ring->consumer(); auto copy = c;", "deleted"),
        ("a producer releases", "auto p = ring->producer(); auto s = p.acquire(); s.release();",
         'no member "release"'),
        ("a consumer loads", "auto c = ring->consumer(); c.acquire().full();", 'no member "full"'),
        ("a stage of the loop by reference",
         "auto c = ring->consumer(); for (auto& s : c.consume(2)) {}", "initial value"),
        ("one stage and a deferred release",
         "reinterpret_cast<OneStage*>(ring)->consumer().none();", "needs another one after it"),
        ("no stage", "Ring<Stage, 0, ConsumerWarps<4>> none;", "a ring has at least one stage"),
        ("stages that no CTA has room for", "Ring<Stage, 64, ConsumerWarps<4>>::kStages;",
         "exceed the shared memory of a CTA"),
        ("no consumer", "Ring<Stage, 2, ConsumerWarps<0>>().init();", "a CTA has 1 to 32 warps"),
        ("multicast to no CTA", "Ring<Stage, 2, ConsumerWarps<1>, Multicast<0>>().init();",
         "has 1 to 16 CTAs"),
        ("multicast to more CTAs than a cluster has",
         "Ring<Stage, 2, ConsumerWarps<1>, Multicast<8, 4>>().init();", "has 1 to 16 CTAs"),
        ("a stage with padding", "Ring<Padded, 2, ConsumerWarps<4>>::kStages;",
         "the stage has padding"),
        ("more bytes than a stage has", "Ring<TooMany, 2, ConsumerWarps<4>>::kStages;",
         "exceeds the size of the stage"),
    ),
    "ring that threads fill": (
        ("TMA's producer", "auto p = filled->producer();",
         "ProducerThreads fill the ring: thread_producer()"),
        ("producer threads of a TMA ring", "auto p = ring->thread_producer();",
         "TMA loads fill the ring: producer(), or Producer"),
        ("a stage is copied",
         "auto p = filled->thread_producer(); auto s = p.acquire(); auto copy = s;", "deleted"),
        ("no thread", "Ring<Stage, 2, ConsumerWarps<1>, ProducerThreads<0>>().init();",
         "1 to 1024 threads"),
    ),
    "ring that stores drain": (
        ("more loads in flight than stages", "StoreRing<Stage, 2, 3>::kStages;",
         "loads in flight take 1 stage at least, and all"),
        ("no load in flight", "StoreRing<Stage, 2, 0>::kStages;",
         "loads in flight take 1 stage at least, and all"),
        ("a consumer", "auto c = stored->consumer();", 'has no member "consumer"'),
        ("its object is copied", "auto t = stored->transfers(); auto copy = t;", "deleted"),
        ("a stage with padding", "StoreRing<PaddedToo, 2, 1>::kStages;", "the stage has padding"),
    ),
    "roles": (
        ("registers in odd numbers", "WarpSpecialized<2, RegisterSplit<44, 232>>::kThreads;",
         "setmaxnreg takes multiples of 8 from 24 to 256"),
        ("more registers than a CTA has", "WarpSpecialized<2, RegisterSplit<40, 240>>::kThreads;",
         "the CTA does not have these registers, so that setmaxnreg.inc would wait for ever"),
        ("no consumer", "WarpSpecialized<0>::kThreads;", "1 to 7 consumer warpgroups"),
        ("more threads than a CTA has", "WarpSpecialized<8, RegisterSplit<0, 0>>::kThreads;",
         "1 to 7 consumer warpgroups"),
        ("a cluster that K does not split evenly",
         "WarpSpecialized<2, RegisterSplit<0, 0>, 3, SplitKExchange<ClusterShape<2>>>::kThreads;",
         "in groups of one size that share loads"),
        ("shared memory without init()", "WarpSpecialized<2>::run(*shared, [] {}, [](int) {});",
         'has no member "init"'),
        ("a consumer without its number",
         "Started memory; WarpSpecialized<2>::run(memory, [] {}, [] {});",
         "cannot be called with the given argument list"),
    ),
    "schedule": (
        ("a cluster of four for groups", "GroupedScheduler<128, 128, 4>::Cluster::kCtas;",
         "takes two tiles of the last row"),
        ("a matrix of four dimensions", "in_batch<4>(0, 0, 0);", "a matrix, or a batch"),
    ),
    "main loop": (
        ("rows of no instruction", "MainLoop<Operand, Operand, 96, 64>::kRowBlocks;",
         "an instruction has 64 rows"),
        ("accumulators of rows of no instruction",
         "MainLoop<Operand, Operand, 160, 64>::Accumulators unused;", "a warpgroup has 64 or 128"),
        ("operands of two depths",
         "MainLoop<Operand, WgmmaOperand<Deep, Major::kK>, 64, 64>::kDepth;",
         "a stage of A is as deep as one of B"),
        ("accumulators of another tile",
         "auto c = ring->consumer(); float few[1][8]; SquareLoop::multiply(c, few, 4);",
         "no instance of function template"),
        ("a stage without operands",
         "auto c = ring->consumer(); float all[1][32]; SquareLoop::multiply(c, all, 4);",
         'has no member "b"'),
    ),
    "epilogue": (
        ("a visitor of another signature",
         "float all[1][32]; Stores e(*shared, 0); e.store(all, output, Tile{}, Bias{});",
         "a visitor has apply(accumulators, tile) const or apply_chunk(chunk, tile) const"),
        ("visitors in another order than they are applied",
         "float s[1][32]; Stores(*shared, 0).store(s, output, Tile{}, OfChunks{}, OfTiles{});",
         "list them in this order"),
        ("a tile of half a chunk", "Epilogue<Output, 48>::kChunks;", "whole chunks of columns"),
        ("chunks of 32 rows", "Epilogue<Flat, 64>::kChunks;", "64 rows of one instruction"),
        ("an output whose other side is contiguous",
         "Epilogue<Output, 64, OutputMajor::kM>::kChunks;",
         "a chunk has the 64 rows of one instruction"),
        ("no buffer", "Epilogue<Output, 64, OutputMajor::kN, 0>::kChunks;",
         "staged in shared memory"),
        ("accumulators of another tile",
         "float few[1][16]; Stores e(*shared, 0); e.store(few, output, Tile{});",
         "no instance of function template"),
        ("it is copied", "Stores e(*shared, 0); auto copy = e;", "deleted"),
    ),
}  # fmt: skip


def test_the_compiler_reports() -> None:
    rows = [(part, *row) for part, rows in COMPILER.items() for row in rows]
    with pytest.raises(CompileError) as caught:
        Kernel(text_of(statement for _, _, statement, _ in rows), "use").compile()

    errors = re.split(r"(?m)^(?=.*\(\d+\): (?:error|warning))", caught.value.log)
    missed = [
        (part, name)
        for number, (part, name, _, says) in enumerate(rows)
        if not any(
            says in error and re.search(rf"\bmisuse {number}\b", error)
            for error in errors
            if ": error" in error
        )
    ]
    assert missed == []


# Values that nobody keeps.
WARNINGS = (
    "ring->producer();",
    "auto c = ring->consumer(); c.acquire();",
    "ring->consumer().consume(2);",
    "auto p = filled->thread_producer(); p.acquire();",
    "stored->transfers();",
    (
        "auto c = ring->consumer(); float sums[1]; "
        "issue_stages(c, 1, [](auto&) { return 0; }, [](int, bool) {}, sums);"
    ),
)


def test_the_compiler_warns() -> None:
    program = Kernel(text_of(WARNINGS), "use").compile()

    for number, statement in enumerate(WARNINGS):
        own = [one for one in program.warnings if f"misuse {number}(1)" in one]
        assert any("nodiscard" in warning for warning in own), statement


# --- what a debug build and the emulator report ---------------------------------------------------

_LOST = RACE + FAULT + DEADLOCK


def _of(part: str, *rows: tuple[Any, ...]) -> tuple[Defect, ...]:
    """Return misuses of rows: program, name, edit, classes, pattern, and what else is true."""
    return tuple(
        Defect(
            program, name, (edit,) if edit else (), reported, says, kind=part,
            debug="debug" in more, some_orders="some_orders" in more,
        )
        for program, name, edit, reported, says, *more in rows
    )  # fmt: skip


MISUSES = (
    *_of(
        "ring",
        ("copy", "fewer warps than declared",
         Edit("Ring<Stage, kStages, ConsumerWarps<kConsumerWarps>>",
              "Ring<Stage, kStages, ConsumerWarps<3>>"), DEADLOCK,
         r"ring\.empty\[0\].* 1 arrivals"),
        ("copy", "ordinary reads, released as if by wgmma",
         Edit("shared.ring.consumer()", "shared.ring.consumer<Proxy::kAsync>()"), _LOST,
         r"ring\.stages"),
        ("copy", "a read after the release", before("keep(stage->tile, out", "stage.release();"),
         FAULT, "stages held is 0", "debug"),
        ("copy", "a second release",
         Edit("if (stage.iteration() == 1) kept.take(stage);",
              "stage.release(); stage.release();"), FAULT,
         "the stage was released or taken; it must be 1", "debug"),
        ("copy", "a stage that is taken twice",
         Edit("if (stage.iteration() == 1) kept.take(stage);",
              "kept.take(stage); kept.take(stage);"), FAULT,
         "the stage was released or taken; it must be 1", "debug"),
        ("copy", "a second producer from the first stage on",
         Edit("for (auto stage : producer.produce(tiles - 1)) {",
              "auto second = shared.ring.producer(); for (auto stage : second.produce(tiles - "
              "1)) {"), _LOST, "ring"),
    ),
    *_of(
        "multicast ring",
        ("multicast", "released while wgmma reads", without("wgmma_wait_group<1>();"), _LOST,
         r"operands\.|accumulators"),
        ("multicast", "no drain()", without("producer.drain();"), FAULT, "cluster_sync"),
        ("multicast", "no cluster", (), FAULT, "CTAs of the cluster, with a multicast ring, is 1",
         "debug"),
    ),
    *_of(
        "ring that threads fill",
        ("gather", "fewer threads than declared",
         Edit("ProducerThreads<THREADS>", "ProducerThreads<THREADS + 32>"), DEADLOCK,
         r"ring\.full\[0\].* 32 arrivals"),
        ("gather", "cp.async committed as ordinary stores",
         Edit("thread_producer()", "thread_producer<Writes::kStores>()"), _LOST,
         r"ring\.stages\[\d\]\.row|cp\.async"),
        ("convert", "ordinary stores committed as cp.async",
         Edit("thread_producer<Writes::kStores>()", "thread_producer()"), _LOST,
         r"ring\.stages\[\d\]\.row"),
        ("gather", "a write after the commit",
         after("cp_async_gs<4>(&stage->row[i], row + i);", "stage.commit(); stage->row[0] = 0;"),
         FAULT, "stages held is 0; the stage was committed", "debug"),
        ("convert", "a second commit",
         Edit("if (row % 2) stage.commit();", "stage.commit(); stage.commit();"), FAULT,
         "stages held is 0; the stage was committed", "debug"),
        ("gathered gemm", "a TMA load that nobody expects",
         Edit("stage.expect(BTile::kBytes)", "shared.ring.full[stage.index()]"), _LOST,
         r"ring\.full\[\d\]"),
    ),
    *_of(
        "ring that stores drain",
        ("move", "no load", before("source.async_copy(", "if (index != 3)"), DEADLOCK,
         r"ring\.full\[0\].* 2048 bytes are"),
        ("move", "ordinary writes before the store",
         before("target.async_store(", "stage.tile.data()[0] = 0;"), RACE,
         r"ring\.stages\[\d\].*\n(.*\n)*.*fence_async_view_proxy"),
        ("move", "no init()", without("ring.init();"), FAULT,
         r"ring.* is used before mbarrier.init"),
        ("move", "a second object from the first stage on",
         Edit("transfers.run(4, tiles", "ring.transfers().run(4, tiles"), _LOST,
         r"ring\.(full|stages)\[\d\]"),
    ),
    *_of(
        "roles",
        ("gemm", "fewer consumers than launched", Edit("WarpSpecialized<2>", "WarpSpecialized<1>"),
         (LaunchError,),
         r"block is \(384, 1, 1\), 384 threads; gemm is declared with __launch_bounds__\(256\)"),
        ("gemm", "more consumers than launched", Edit("WarpSpecialized<2>", "WarpSpecialized<3>"),
         FAULT, "threads per CTA is 384; the roles need 512", "debug"),
        ("gemm", "a cluster that is not launched",
         Edit("WarpSpecialized<2>", "WarpSpecialized<2, DefaultRegisterSplit<2>, 2>"), FAULT,
         "CTAs per cluster is 1; the roles need 2", "debug"),
        ("gemm", "__syncthreads() in a role", before("Loop::multiply(", "__syncthreads();"),
         DEADLOCK, r"__syncthreads|bar\.sync|barrier 0"),
    ),
    *_of(
        "schedule",
        ("gemm", "another schedule for the producer",
         after("auto producer = shared.ring.producer();",
               "const StaticScheduler<Tiles> schedule(Tiles(m, n - kN));"), DEADLOCK,
         r"ring\.full\[\d\].* 1 arrivals"),
        ("gemm", "a dynamic scheduler in every role",
         Edit("const StaticScheduler<Tiles> schedule(Tiles(m, n));",
              "const DynamicScheduler<Tiles> schedule(Tiles(m, n), counter);"), _LOST,
         r"ring|lanes of which have ended|All 128 threads execute the instructions of wgmma"),
        ("gemm", "a list that names a tile too many",
         Edit("const StaticScheduler<Tiles> schedule(Tiles(m, n));",
              "if (threadIdx.x == 0) *counter = 3; __syncthreads(); const ListScheduler<Tiles> "
              "schedule( Tiles(m, n), reinterpret_cast<const i32*>(counter), 1 );"), FAULT,
         r"table\[wave\]\[cluster\] is 3; it must be below 3", "debug"),
    ),
    *_of(
        "main loop",
        ("gemm", "fewer blocks than the producer loads",
         Edit("accumulators, k_blocks, number", "accumulators, k_blocks - 1, number"), _LOST,
         r"ring\.(empty|full|stages)\[\d\]|is not equal"),
        ("gemm", "more blocks than the producer loads",
         Edit("accumulators, k_blocks, number", "accumulators, k_blocks + 1, number"), DEADLOCK,
         r"ring\.full\[\d\].* 1 arrivals"),
        ("gemm", "the warps of one consumer declared",
         Edit("ConsumerWarps<Roles::kConsumerWarps>", "ConsumerWarps<4>"), _LOST,
         r"ring\.(empty|full|stages)\[\d\]"),
        ("gemm", "rows that the tile does not have",
         Edit("k_blocks, number * 64);", "k_blocks, 64 + number * 64);"), FAULT,
         "row is 128; it must be at most 64", "debug"),
    ),
    *_of(
        "epilogue",
        ("gemm", "no drain()", without("epilogue.drain();"), FAULT,
         r"thread ends while TMA still reads its stores"),
        ("gemm", "the staging buffers of another consumer",
         Edit("epilogue(shared.epilogue[number],", "epilogue(shared.epilogue[0],"), _LOST,
         r"epilogue\[0\]"),
        ("gemm", "the named barrier of another consumer",
         Edit("epilogue[number], number, number", "epilogue[number], 0, number"), _LOST,
         r"epilogue\[\d\]|barrier", "some_orders"),
        ("gemm", "three of four warps", before("epilogue.store(", "if (warp_index() % 4 != 3)"),
         _LOST, r"barrier|epilogue"),
    ),
)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("misuse", MISUSES, ids=lambda misuse: f"{misuse.kind}: {misuse.name}")
def test_a_misuse_is_reported_whatever_the_order(misuse: Defect, chip: str) -> None:
    if "wgmma" in misuse.name and chip != "sm_90a":
        pytest.skip("without wgmma all reads are ordinary, and stages are released as after these")
    source, run = PROGRAMS[misuse.kernel]
    of_program = tuple(one for one in MISUSES if one.kernel == misuse.kernel)

    with choices(source, of_program).chosen(misuse) as text:
        reports = [outcome(misuse, run, text, order) for order in ORDERS]

    assert any(reports) if misuse.some_orders else all(reports)
    for report in filter(None, reports):
        assert isinstance(report, misuse.reported)
        assert re.search(misuse.says, str(report)), report


def outcome(
    misuse: Defect, run: Callable[[str, bool], None], source: str, order: tuple[Any, int]
) -> Exception | None:
    try:
        with emulate.scheduled(order[0], seed=order[1]):
            run(source, misuse.debug)
    except (*_LOST, LaunchError) as error:
        return error
    return None
