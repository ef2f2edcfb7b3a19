"""Planted misuses of the structured layer: each is a compile error or a named report.

A misuse is an edit of a sound program. It is reported by the compiler, by a check of a debug build,
or by the emulator, which names the class (deadlock, race, fault) and the barrier, buffer or
argument.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from parity import test_ring, test_thread_fed_rings
from parity.backends import Emulate

from tmaasync import (
    CompileError,
    EmulatedDeadlock,
    EmulatedFault,
    EmulatedRace,
    Kernel,
    LaunchError,
    Swizzle,
    create_tma_tile,
    emulate,
)

ORDERS: tuple[tuple[Any, int], ...] = (
    ("round_robin", 0),
    ("random", 0),
    ("adversarial", 0),
)

# --- sound programs -------------------------------------------------------------------------------

# Moves tiles by one thread, in two runs of one object.
MOVE = """
#include <tmaasync/shared.cuh>
#include <tmaasync/store_ring.cuh>
#include <tmaasync/warp.cuh>

using namespace tmaasync;

struct Stage {
    Tile::Shared tile;
};
struct SharedMemory {
    StoreRing<Stage, 3, 2> ring;
};
extern "C" __device__ const int move_shared_bytes = sizeof(SharedMemory);

extern "C" __global__ void move(
    const __grid_constant__ Tile source, const __grid_constant__ Tile target, int tiles
) {
    auto& ring = dynamic_shared<SharedMemory>().ring;
    if (!elect()) return;
    ring.init();
    const auto load = [&](const auto& stage, int index) {
        source.async_copy(stage->tile, stage.full(), {0, index * Tile::side(0)});
    };
    const auto store = [&](auto& stage, int index) {
        target.async_store(stage.tile, {0, index * Tile::side(0)});
    };
    auto transfers = ring.transfers();
    transfers.run(0, 4, load, store);
    transfers.run(4, tiles, load, store);
}
"""


@functools.cache
def kernel_of(source: str, name: str, types: tuple[tuple[str, str], ...], debug: bool) -> Kernel:
    return Kernel(source, name, types=dict(types), debug=debug)


def move(source: str, debug: bool) -> None:
    array = np.random.default_rng(0).random((11 * 16, 32), np.float32)
    moved = np.full_like(array, np.nan)
    tiles = [create_tma_tile(x, (16, 32)) for x in (array, moved)]
    kernel = kernel_of(source, "move", (("Tile", tiles[0].cuda_type),), debug)
    kernel(1, 32, (*tiles, 11))
    assert np.array_equal(moved, array)


# A GEMM whose consumers share a tile: roles, schedule, main loop and epilogue.
LAYERED = """
#include <tmaasync/epilogue.cuh>
#include <tmaasync/mainloop.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/shared.cuh>

using namespace tmaasync;

constexpr int kM = ATile::side(0), kN = BTile::side(0), kK = ATile::side(1);
using Roles = WarpSpecialized<2>;
using Tiles = OutputTiles<kM, kN>;
using Loop = MainLoop<WgmmaOperand<ATile, Major::kK>, WgmmaOperand<BTile, Major::kK>, 64, kN>;
using Output = Epilogue<CTile, kN>;

struct Stage {
    ATile::Shared a;
    BTile::Shared b;
};
struct SharedMemory {
    Ring<Stage, 3, ConsumerWarps<Roles::kConsumerWarps>> ring;
    Output::Shared epilogue[Roles::kConsumers];

    __device__ void init() { ring.init(); }
};
extern "C" __device__ const int gemm_shared_bytes = sizeof(SharedMemory);

struct Doubled {
    template <typename Accumulators, typename Tile>
    __device__ void apply(Accumulators& accumulators, const Tile&) const {
        for (auto& block : accumulators) {
            for (float& value : block) value *= 2;
        }
    }
};

extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) gemm(
    const __grid_constant__ ATile a,
    const __grid_constant__ BTile b,
    const __grid_constant__ CTile c,
    int m,
    int n,
    int k_blocks,
    u32* counter
) {
    auto& shared = dynamic_shared<SharedMemory>();
    const StaticScheduler<Tiles> schedule(Tiles(m, n));
    const auto produce = [&] {
        auto producer = shared.ring.producer();
        for (const auto tile : schedule) {
            for (auto stage : producer.produce(k_blocks)) {
                const int k = stage.iteration() * kK;
                a.async_copy(stage->a, stage.full(), {k, tile.m});
                b.async_copy(stage->b, stage.full(), {k, tile.n});
            }
        }
    };
    const auto consume = [&](int number) {
        auto consumer = shared.ring.consumer<Proxy::kAsync>();
        Output epilogue(shared.epilogue[number], number, number * 64);
        for (const auto tile : schedule) {
            Loop::Accumulators accumulators;
            Loop::multiply(consumer, accumulators, k_blocks, number * 64);
            epilogue.store(
                accumulators, c, tile, Doubled{},
                [](float value, int row, int column) { return value + row - column; }
            );
        }
        epilogue.drain();
    };
    Roles::run(shared, produce, consume, a, b, c);
}
"""


def gemm(source: str, debug: bool) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 264)).astype(np.float16) for rows in (128, 192))
    c = np.full((128, 192), np.nan, np.float32)
    tiles = {
        name: create_tma_tile(array, sides, swizzle=Swizzle.B128)
        for name, array, sides in (
            ("ATile", a, (128, 64)),
            ("BTile", b, (64, 64)),
            ("CTile", c, (64, 32)),
        )
    }
    types = tuple((name, tile.cuda_type) for name, tile in tiles.items())
    kernel_of(source, "gemm", types, debug)(
        1, 384, (*tiles.values(), *c.shape, 5, np.zeros(1, np.uint32))
    )
    rows, columns = np.indices(c.shape)
    assert np.array_equal(c, 2 * a.astype(np.float32) @ b.astype(np.float32).T + rows - columns)


def copy(source: str, debug: bool) -> None:
    got, wanted = test_ring.copied(Emulate(), 9 * test_ring.ROWS, source, debug=debug)
    assert np.array_equal(got, wanted)


def multicast(source: str, debug: bool) -> None:
    got, wanted = test_ring.multiplied(Emulate(), (300, 72, 328), source, ctas=2, alone=debug)
    assert np.array_equal(got, wanted)


def gather(source: str, debug: bool) -> None:
    got, wanted = test_thread_fed_rings.gathered(
        Emulate(), source, copies=True, threads=64, debug=debug
    )
    assert np.array_equal(got, wanted)


def convert(source: str, debug: bool) -> None:
    got, wanted = test_thread_fed_rings.gathered(
        Emulate(), source, copies=False, threads=64, debug=debug
    )
    assert np.array_equal(got, wanted)


def gathered_gemm(source: str, debug: bool) -> None:
    assert not debug
    got, wanted = test_thread_fed_rings.multiplied(Emulate(), source)
    assert np.array_equal(got, wanted)


# A statement that the compiler reads.
STATEMENT = """
#include <tmaasync/epilogue.cuh>
#include <tmaasync/mainloop.cuh>
#include <tmaasync/ring.cuh>
#include <tmaasync/roles.cuh>
#include <tmaasync/scheduler.cuh>
#include <tmaasync/store_ring.cuh>

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

extern "C" __global__ void use(
    Stages* ring, Filled* filled, Stored* stored, Stores::Shared* shared, const Output& output
) {
    STATEMENT
}
"""

PROGRAMS: dict[str, tuple[str, Callable[[str, bool], None]]] = {
    "copy": (test_ring.COPY, copy),
    "multicast": (test_ring.GEMM, multicast),
    "gather": (test_thread_fed_rings.GATHER, gather),
    "convert": (test_thread_fed_rings.GATHER, convert),
    "gathered gemm": (test_thread_fed_rings.GEMM, gathered_gemm),
    "move": (MOVE, move),
    "gemm": (LAYERED, gemm),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_without_misuse_are_right(program: str) -> None:
    source, run = PROGRAMS[program]

    for policy, seed in ORDERS:
        with emulate.scheduled(policy, seed=seed):
            run(source, False)


# --- what the compiler reports --------------------------------------------------------------------

COMPILER: dict[str, dict[str, tuple[str, str]]] = {
    "ring": {
        "a producer's stage is copied": (
            "auto p = ring->producer(); auto s = p.acquire(); auto copy = s;",
            "deleted",
        ),
        "a consumer's stage is copied": (
            "auto c = ring->consumer(); auto s = c.acquire(); auto copy = s;",
            "deleted",
        ),
        "a stage is assigned": (
            "auto c = ring->consumer(); auto s = c.acquire(); auto o = c.none(); o = s;",
            "deleted",
        ),
        "a producer is copied": ("auto p = ring->producer(); auto copy = p;", "deleted"),
        "a consumer is copied": ("auto c = ring->consumer(); auto copy = c;", "deleted"),
        "a producer releases": (
            "auto p = ring->producer(); auto s = p.acquire(); s.release();",
            'no member "release"',
        ),
        "a consumer loads": ("auto c = ring->consumer(); c.acquire().full();", 'no member "full"'),
        "a stage of the loop by reference": (
            "auto c = ring->consumer(); for (auto& s : c.consume(2)) {}",
            "initial value",
        ),
        "one stage and a deferred release": (
            "reinterpret_cast<OneStage*>(ring)->consumer().none();",
            "needs another one after it",
        ),
        "no stage": ("Ring<Stage, 0, ConsumerWarps<4>> none;", "a ring has at least one stage"),
        "stages that no CTA has room for": (
            "Ring<Stage, 64, ConsumerWarps<4>>::kStages;",
            "exceed the shared memory of a CTA",
        ),
        "no consumer": ("Ring<Stage, 2, ConsumerWarps<0>>().init();", "a CTA has 1 to 32 warps"),
        "multicast to no CTA": (
            "Ring<Stage, 2, ConsumerWarps<1>, Multicast<0>>().init();",
            "has 1 to 16 CTAs",
        ),
        "multicast to more CTAs than a cluster has": (
            "Ring<Stage, 2, ConsumerWarps<1>, Multicast<8, 4>>().init();",
            "has 1 to 16 CTAs",
        ),
        "a stage with padding": (
            "Ring<Padded, 2, ConsumerWarps<4>>::kStages;",
            "the stage has padding",
        ),
        "more bytes than a stage has": (
            "Ring<TooMany, 2, ConsumerWarps<4>>::kStages;",
            "exceeds the size of the stage",
        ),
    },
    "ring that threads fill": {
        "TMA's producer": (
            "auto p = filled->producer();",
            "ProducerThreads fill the ring: thread_producer()",
        ),
        "producer threads of a TMA ring": (
            "auto p = ring->thread_producer();",
            "TMA loads fill the ring: producer(), or Producer",
        ),
        "a stage is copied": (
            "auto p = filled->thread_producer(); auto s = p.acquire(); auto copy = s;",
            "deleted",
        ),
        "no thread": (
            "Ring<Stage, 2, ConsumerWarps<1>, ProducerThreads<0>>().init();",
            "1 to 1024 threads",
        ),
    },
    "ring that stores drain": {
        "more loads in flight than stages": (
            "StoreRing<Stage, 2, 3>::kStages;",
            "loads in flight take 1 stage at least, and all",
        ),
        "no load in flight": (
            "StoreRing<Stage, 2, 0>::kStages;",
            "loads in flight take 1 stage at least, and all",
        ),
        "a consumer": ("auto c = stored->consumer();", 'has no member "consumer"'),
        "its object is copied": ("auto t = stored->transfers(); auto copy = t;", "deleted"),
        "a stage with padding": ("StoreRing<Padded, 2, 1>::kStages;", "the stage has padding"),
    },
    "roles": {
        "registers in odd numbers": (
            "WarpSpecialized<2, RegisterSplit<44, 232>>::kThreads;",
            "setmaxnreg takes multiples of 8 from 24 to 256",
        ),
        "more registers than a CTA has": (
            "WarpSpecialized<2, RegisterSplit<40, 240>>::kThreads;",
            "the CTA does not have these registers, so that setmaxnreg.inc would wait for ever",
        ),
        "no consumer": ("WarpSpecialized<0>::kThreads;", "1 to 7 consumer warpgroups"),
        "more threads than a CTA has": (
            "WarpSpecialized<8, RegisterSplit<0, 0>>::kThreads;",
            "1 to 7 consumer warpgroups",
        ),
        "a cluster that K does not split evenly": (
            "WarpSpecialized<2, DefaultRegisterSplit<2>, 3, 2>::kThreads;",
            "the same number for every share of K",
        ),
        "shared memory without init()": (
            "WarpSpecialized<2>::run(*shared, [] {}, [](int) {});",
            'has no member "init"',
        ),
        "a consumer without its number": (
            "Started memory; WarpSpecialized<2>::run(memory, [] {}, [] {});",
            "cannot be called with the given argument list",
        ),
    },
    "schedule": {
        "a cluster of four for groups": (
            "GroupedScheduler<128, 128, 4>::Cluster::kCtas;",
            "takes two tiles of the last row",
        ),
        "a matrix of four dimensions": ("in_batch<4>(0, 0, 0);", "a matrix, or a batch"),
    },
    "main loop": {
        "rows of no instruction": (
            "MainLoop<Operand, Operand, 96, 64>::kRowBlocks;",
            "an instruction has 64 rows",
        ),
        "operands of two depths": (
            "MainLoop<Operand, WgmmaOperand<Deep, Major::kK>, 64, 64>::kDepth;",
            "a stage of A is as deep as one of B",
        ),
        "accumulators of another tile": (
            "auto c = ring->consumer(); float few[1][8]; SquareLoop::multiply(c, few, 4);",
            "no instance of function template",
        ),
        "a stage without operands": (
            "auto c = ring->consumer(); float all[1][32]; SquareLoop::multiply(c, all, 4);",
            'has no member "b"',
        ),
    },
    "epilogue": {
        "a visitor of another signature": (
            "float all[1][32]; Stores e(*shared, 0); e.store(all, output, Tile{}, Bias{});",
            "a visitor has apply(accumulators, tile) const or apply_chunk(chunk, tile) const",
        ),
        "visitors in another order than they are applied": (
            "float s[1][32]; Stores(*shared, 0).store(s, output, Tile{}, OfChunks{}, OfTiles{});",
            "list them in this order",
        ),
        "a tile of half a chunk": ("Epilogue<Output, 48>::kChunks;", "whole chunks of columns"),
        "chunks of 32 rows": ("Epilogue<Flat, 64>::kChunks;", "64 rows of one instruction"),
        "no buffer": (
            "Epilogue<Output, 64, OutputMajor::kN, 0>::kChunks;",
            "staged in shared memory",
        ),
        "accumulators of another tile": (
            "float few[1][16]; Stores e(*shared, 0); e.store(few, output, Tile{});",
            "no instance of function template",
        ),
        "it is copied": ("Stores e(*shared, 0); auto copy = e;", "deleted"),
    },
}


@pytest.mark.parametrize(
    ("part", "misuse"), [(part, misuse) for part, found in COMPILER.items() for misuse in found]
)
def test_the_compiler_reports(part: str, misuse: str) -> None:
    statement, report = COMPILER[part][misuse]

    with pytest.raises(CompileError) as caught:
        Kernel(STATEMENT.replace("STATEMENT", statement), "use").compile()

    assert report in caught.value.log


WARNINGS = {
    "a producer that nobody keeps": "ring->producer();",
    "a stage that nobody keeps": "auto c = ring->consumer(); c.acquire();",
    "a loop over stages that nobody runs": "ring->consumer().consume(2);",
    "a thread's stage that nobody keeps": "auto p = filled->thread_producer(); p.acquire();",
    "transfers that nobody keeps": "stored->transfers();",
    "the last stage of a main loop that nobody keeps": (
        "auto c = ring->consumer(); float sums[1]; "
        "issue_stages(c, 1, [](auto&) { return 0; }, [](int, bool) {}, sums);"
    ),
}


@pytest.mark.parametrize("misuse", WARNINGS)
def test_the_compiler_warns(misuse: str) -> None:
    program = Kernel(STATEMENT.replace("STATEMENT", WARNINGS[misuse]), "use").compile()

    assert any("nodiscard" in warning for warning in program.warnings)


# --- what a debug build and the emulator report ---------------------------------------------------

_LOST = (EmulatedRace, EmulatedFault, EmulatedDeadlock)


@dataclass(frozen=True)
class Misuse:
    """An edit of a program: ``old`` becomes ``new``; one of ``kinds`` is raised, with the report.

    ``debug`` is a debug build, whose checks report it. With ``some_orders`` the order of the
    threads decides whether anything goes wrong.
    """

    program: str
    old: str
    new: str
    kinds: tuple[type[Exception], ...]
    report: str
    debug: bool = False
    some_orders: bool = False


_KEPT = "if (stage.iteration() == 1) kept.take(stage);"
_READ = "keep(stage->tile, out"
_FIRST_LOAD = "tile.async_copy(stage->tile, stage.full(), {0, 0});"
_FILL = "cp_async_gs<4>(&stage->row[i], row + i);"
_B_LOAD = "stage.expect(BTile::kBytes)"

MISUSES: dict[str, dict[str, Misuse]] = {
    "ring": {
        "more bytes than come": Misuse(
            "copy",
            "producer.acquire()",
            "producer.acquire(Tile::kBytes + 512)",
            (EmulatedDeadlock,),
            r"ring\.full\[0\].* 512 bytes are",
        ),
        "no load": Misuse(
            "copy", _FIRST_LOAD, "", (EmulatedDeadlock,), r"ring\.full\[0\].* 1536 bytes are"
        ),
        "a load that credits another stage": Misuse(
            "copy",
            _FIRST_LOAD,
            _FIRST_LOAD.replace("stage.full()", "shared.ring.full[2]"),
            _LOST,
            r"ring\.full\[\d\]",
        ),
        "a producer that stops early": Misuse(
            "copy",
            "produce(tiles - 1)",
            "produce(tiles - 2)",
            (EmulatedDeadlock,),
            r"ring\.full\[2\].* 1 arrivals",
        ),
        "fewer warps than declared": Misuse(
            "copy",
            "Ring<Stage, kStages, ConsumerWarps<kConsumerWarps>>",
            "Ring<Stage, kStages, ConsumerWarps<3>>",
            (EmulatedDeadlock,),
            r"ring\.empty\[0\].* 1 arrivals",
        ),
        "ordinary reads, released as if by wgmma": Misuse(
            "copy",
            "shared.ring.consumer()",
            "shared.ring.consumer<Proxy::kAsync>()",
            _LOST,
            r"ring\.stages",
        ),
        "a read after the release": Misuse(
            "copy",
            _READ,
            f"stage.release();\n        {_READ}",
            (EmulatedFault,),
            "stages held is 0",
            debug=True,
        ),
        "a second release": Misuse(
            "copy",
            _KEPT,
            "stage.release();\n        stage.release();",
            (EmulatedFault,),
            "the stage was released or taken; it must be 1",
            debug=True,
        ),
        "a stage that is taken twice": Misuse(
            "copy",
            _KEPT,
            "kept.take(stage);\n        kept.take(stage);",
            (EmulatedFault,),
            "the stage was released or taken; it must be 1",
            debug=True,
        ),
        "a stage that is never released": Misuse(
            "copy",
            "if (stage.iteration() == 2) kept.release();",
            "",
            (EmulatedDeadlock,),
            r"ring\.empty\[1\].* 2 arrivals",
        ),
        "no init()": Misuse(
            "copy",
            "if (threadIdx.x == 0) shared.ring.init();",
            "",
            (EmulatedFault,),
            "mbarrier.init",
        ),
        "init() by every thread": Misuse(
            "copy",
            "if (threadIdx.x == 0) shared.ring.init();",
            "shared.ring.init();",
            _LOST,
            r"ring\.(full|empty)\[\d\]",
        ),
        "no barrier after init()": Misuse(
            "copy", "__syncthreads();", "", (EmulatedRace, EmulatedFault), "init"
        ),
        "a producer for every lane": Misuse(
            "copy", "if (elect()) produce", "produce", _LOST, r"ring\.(full|stages)"
        ),
        "a second producer from the first stage on": Misuse(
            "copy",
            "    for (auto stage : producer.produce(tiles - 1)) {",
            "    auto second = shared.ring.producer();\n"
            "    for (auto stage : second.produce(tiles - 1)) {",
            _LOST,
            "ring",
        ),
    },
    "multicast ring": {
        "released while wgmma reads": Misuse(
            "multicast", "wgmma_wait_group<1>();", "", _LOST, r"operands\.|accumulators"
        ),
        "no drain()": Misuse(
            "multicast", "producer.drain();", "", (EmulatedFault,), "cluster_sync"
        ),
        "one CTA does not load": Misuse(
            "multicast",
            "stage.async_multicast_load(",
            "if (Operands::MulticastGroup::rank() == 1) stage.async_multicast_load(",
            (EmulatedDeadlock,),
            r"operands\.full\[0\]",
        ),
        "a stage that nobody reads": Misuse(
            "multicast",
            "    producer.drain();",
            "    (void)producer.acquire(Operands::kStageBytes / 2);\n    producer.drain();",
            (EmulatedDeadlock,),
            r"operands\.\w+\[\d\]",
        ),
        "no cluster": Misuse(
            "multicast",
            "",
            "",
            (EmulatedFault,),
            "CTAs of the cluster, with a multicast ring, is 1",
            debug=True,
        ),
    },
    "ring that threads fill": {
        "fewer threads than declared": Misuse(
            "gather",
            "ProducerThreads<THREADS>",
            "ProducerThreads<THREADS + 32>",
            (EmulatedDeadlock,),
            r"ring\.full\[0\].* 32 arrivals",
        ),
        "one thread for all": Misuse(
            "gather",
            "if (threadIdx.x < THREADS) {",
            "if (threadIdx.x == 0) {",
            (EmulatedDeadlock,),
            r"ring\.full\[0\].* 63 arrivals",
        ),
        "cp.async committed as ordinary stores": Misuse(
            "gather",
            "thread_producer()",
            "thread_producer<Writes::kStores>()",
            _LOST,
            r"ring\.stages\[\d\]\.row|cp\.async",
        ),
        "ordinary stores committed as cp.async": Misuse(
            "convert",
            "thread_producer<Writes::kStores>()",
            "thread_producer()",
            _LOST,
            r"ring\.stages\[\d\]\.row",
        ),
        "a thread that skips a stage": Misuse(
            "gather",
            "producer.produce(rows)",
            "producer.produce(threadIdx.x ? rows : rows - 1)",
            (EmulatedDeadlock,),
            r"ring\.full\[1\].* 1 arrivals",
        ),
        "a write after the commit": Misuse(
            "gather",
            _FILL,
            f"{_FILL}\n        stage.commit();\n        stage->row[0] = 0;",
            (EmulatedFault,),
            "stages held is 0; the stage was committed",
            debug=True,
        ),
        "a second commit": Misuse(
            "convert",
            "if (row % 2) stage.commit();",
            "stage.commit();\n        stage.commit();",
            (EmulatedFault,),
            "stages held is 0; the stage was committed",
            debug=True,
        ),
        "a TMA load that nobody expects": Misuse(
            "gathered gemm",
            _B_LOAD,
            "shared.ring.full[stage.index()]",
            _LOST,
            r"ring\.full\[\d\]",
        ),
        "a TMA load that every thread expects": Misuse(
            "gathered gemm",
            "if (leads) b.async_copy",
            "if (leads || !stage.expect(BTile::kBytes).address()) b.async_copy",
            _LOST,
            r"ring\.full\[\d\]",
        ),
    },
    "ring that stores drain": {
        "fewer bytes than come": Misuse(
            "move",
            "run(0, 4, load, store);",
            "run(0, 4, load, store, [](int) { return Tile::kBytes / 2; });",
            _LOST,
            r"ring\.full\[\d\]",
        ),
        "no load": Misuse(
            "move",
            "source.async_copy(",
            "if (index != 3) source.async_copy(",
            (EmulatedDeadlock,),
            r"ring\.full\[0\].* 2048 bytes are",
        ),
        "ordinary writes before the store": Misuse(
            "move",
            "target.async_store(",
            "stage.tile.data()[0] = 0;\n        target.async_store(",
            (EmulatedRace,),
            r"ring\.stages\[\d\].*\n(.*\n)*.*fence_async_view_proxy",
        ),
        "every lane moves tiles": Misuse(
            "move", "if (!elect()) return;", "", _LOST, r"ring\.(full|stages)\[\d\]"
        ),
        "no init()": Misuse(
            "move", "ring.init();", "", (EmulatedFault,), r"ring.* is used before mbarrier.init"
        ),
        "a second object from the first stage on": Misuse(
            "move",
            "transfers.run(4, tiles",
            "ring.transfers().run(4, tiles",
            _LOST,
            r"ring\.(full|stages)\[\d\]",
        ),
    },
    "roles": {
        "fewer consumers than launched": Misuse(
            "gemm",
            "WarpSpecialized<2>",
            "WarpSpecialized<1>",
            (LaunchError,),
            r"block is \(384, 1, 1\), 384 threads; gemm is declared with __launch_bounds__\(256\)",
        ),
        "more consumers than launched": Misuse(
            "gemm",
            "WarpSpecialized<2>",
            "WarpSpecialized<3>",
            (EmulatedFault,),
            "threads per CTA is 384; the roles need 512",
            debug=True,
        ),
        "a cluster that is not launched": Misuse(
            "gemm",
            "WarpSpecialized<2>",
            "WarpSpecialized<2, DefaultRegisterSplit<2>, 2>",
            (EmulatedFault,),
            "CTAs per cluster is 1; the roles need 2",
            debug=True,
        ),
        "an init() that initialises nothing": Misuse(
            "gemm", "{ ring.init(); }", "{}", (EmulatedFault,), r"ring\..*mbarrier\.init"
        ),
        "__syncthreads() in a role": Misuse(
            "gemm",
            "Loop::multiply(",
            "__syncthreads();\n            Loop::multiply(",
            (EmulatedDeadlock,),
            r"__syncthreads|bar\.sync|barrier 0",
        ),
        "all lanes of the producer": Misuse(
            "gemm",
            "Roles::run(shared, produce, consume, a, b, c);",
            "Roles::run(shared, [] {}, [&](int number) {\n"
            "        if (number == 0) produce();\n        if (number == 1) consume(0);\n    });",
            _LOST,
            r"ring\.(full|empty|stages)\[\d\]",
        ),
    },
    "schedule": {
        "another schedule for the producer": Misuse(
            "gemm",
            "auto producer = shared.ring.producer();",
            "auto producer = shared.ring.producer();\n"
            "        const StaticScheduler<Tiles> schedule(Tiles(m, n - kN));",
            (EmulatedDeadlock,),
            r"ring\.full\[\d\].* 1 arrivals",
        ),
        "a dynamic scheduler in every role": Misuse(
            "gemm",
            "const StaticScheduler<Tiles> schedule(Tiles(m, n));",
            "const DynamicScheduler<Tiles> schedule(Tiles(m, n), counter);",
            _LOST,
            r"ring|All 128 threads execute the instructions of wgmma together",
        ),
        "a list that names a tile too many": Misuse(
            "gemm",
            "const StaticScheduler<Tiles> schedule(Tiles(m, n));",
            "if (threadIdx.x == 0) *counter = 3;\n    __syncthreads();\n"
            "    const ListScheduler<Tiles> schedule(\n"
            "        Tiles(m, n), reinterpret_cast<const i32*>(counter), 1\n    );",
            (EmulatedFault,),
            r"table\[wave\]\[cluster\] is 3; it must be below 3",
            debug=True,
        ),
    },
    "main loop": {
        "fewer blocks than the producer loads": Misuse(
            "gemm",
            "accumulators, k_blocks, number",
            "accumulators, k_blocks - 1, number",
            _LOST,
            r"ring\.(empty|full|stages)\[\d\]|is not equal",
        ),
        "more blocks than the producer loads": Misuse(
            "gemm",
            "accumulators, k_blocks, number",
            "accumulators, k_blocks + 1, number",
            (EmulatedDeadlock,),
            r"ring\.full\[\d\].* 1 arrivals",
        ),
        "the warps of one consumer declared": Misuse(
            "gemm",
            "ConsumerWarps<Roles::kConsumerWarps>",
            "ConsumerWarps<4>",
            _LOST,
            r"ring\.(empty|full|stages)\[\d\]",
        ),
        "rows that the tile does not have": Misuse(
            "gemm",
            "k_blocks, number * 64);",
            "k_blocks, 64 + number * 64);",
            (EmulatedFault,),
            "row is 128; it must be at most 64",
            debug=True,
        ),
    },
    "epilogue": {
        "no drain()": Misuse(
            "gemm",
            "epilogue.drain();",
            "",
            (EmulatedFault,),
            r"thread ends while TMA still reads its stores",
        ),
        "the staging buffers of another consumer": Misuse(
            "gemm",
            "epilogue(shared.epilogue[number],",
            "epilogue(shared.epilogue[0],",
            _LOST,
            r"epilogue\[0\]",
        ),
        "the named barrier of another consumer": Misuse(
            "gemm",
            "epilogue[number], number, number",
            "epilogue[number], 0, number",
            _LOST,
            r"epilogue\[\d\]|barrier",
            some_orders=True,
        ),
        "three of four warps": Misuse(
            "gemm",
            "epilogue.store(",
            "if (warp_index() % 4 != 3) epilogue.store(",
            _LOST,
            r"barrier|epilogue",
        ),
    },
}


def planted() -> list[Any]:
    return [
        pytest.param(misuse, id=f"{part}: {name}")
        for part, found in MISUSES.items()
        for name, misuse in found.items()
    ]


@pytest.mark.parametrize("misuse", planted())
def test_a_misuse_is_reported_whatever_the_order(misuse: Misuse) -> None:
    source, run = PROGRAMS[misuse.program]
    assert misuse.old in source
    edited = source.replace(misuse.old, misuse.new) if misuse.old else source

    reports = [outcome(misuse, run, edited, order) for order in ORDERS]

    assert any(reports) if misuse.some_orders else all(reports)
    for report in filter(None, reports):
        assert isinstance(report, misuse.kinds)
        assert re.search(misuse.report, str(report)), report


def outcome(
    misuse: Misuse, run: Callable[[str, bool], None], source: str, order: tuple[Any, int]
) -> Exception | None:
    try:
        with emulate.scheduled(order[0], seed=order[1]):
            run(source, misuse.debug)
    except (*_LOST, LaunchError) as error:
        return error
    return None


def test_the_table_has_a_hundred_misuses() -> None:
    compiled = sum(map(len, COMPILER.values())) + len(WARNINGS)

    assert compiled + len(planted()) > 100
