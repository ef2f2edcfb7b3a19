"""Warp specialisation: who runs which role, in which order, and launches of another size."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from parity.backends import Emulate

from tmaasync import ArgumentError, EmulatedFault, Kernel, RegisterSplit, create_tma_tile

SOURCE = """
#include <tmaasync/structured/ring.cuh>
#include <tmaasync/structured/roles.cuh>
#include <tmaasync/shared.cuh>

using namespace tmaasync;

using Roles = WarpSpecialized<CONSUMERS, DefaultRegisterSplit<CONSUMERS>, CTAS>;

struct Stage {
    Tile::Shared tile;
};
struct SharedMemory {
    Ring<Stage, 2, ConsumerWarps<Roles::kConsumerWarps>, Multicast<CTAS>> ring;

    __device__ void init() { ring.init(); }
};
extern "C" __device__ const int sums_shared_bytes = sizeof(SharedMemory);

// Each thread adds up the rows r with r % CONSUMERS equal to its consumer's number.
extern "C" __global__ void __launch_bounds__(Roles::kThreads, 1) sums(
    const __grid_constant__ Tile tile, float* sums, int tiles
) {
    auto& shared = dynamic_shared<SharedMemory>();
    Roles::run(
        shared,
        [&] {
            auto producer = shared.ring.producer();
            for (const auto stage : producer.produce(tiles)) {
                const int row = stage.iteration() * Tile::side(0);
                stage.async_multicast_load(tile, stage->tile, {0, row});
            }
        },
        [&](int consumer) {
            auto ring = shared.ring.consumer();
            float sum = 0;
            for (const auto stage : ring.consume(tiles)) {
                for (int row = consumer; row < Tile::side(0); row += CONSUMERS) {
                    sum += stage->tile.data()[row * Tile::side(1) + thread_index() % 128];
                }
            }
            sums[blockIdx.x * Roles::kThreads + threadIdx.x] = sum;
        },
        tile
    );
}

extern "C" __global__ void fits(int* results, int* defaults) {
    DEFAULTS
    RESULTS
}
"""
ROWS, COLUMNS = 16, 128
COUNTS = range(1, 8)
SPLITS = [(0, 0), (24, 240), (40, 232), (32, 160), (40, 168), (24, 88), (24, 112), (56, 256)]


@functools.cache
def kernel(entry: str, tile: str, consumers: int, ctas: int, debug: bool = False) -> Kernel:
    results = "".join(
        f"results[{i}] = RegisterSplit<{producer}, {consumer}>::fits({count});\n"
        for i, (count, (producer, consumer)) in enumerate(
            (count, split) for count in COUNTS for split in SPLITS
        )
    )
    defaults = "".join(
        f"defaults[{2 * count}] = DefaultRegisterSplit<{count}>::kProducerRegisters;\n"
        f"defaults[{2 * count + 1}] = DefaultRegisterSplit<{count}>::kConsumerRegisters;\n"
        for count in COUNTS
    )
    text = SOURCE.replace("RESULTS", results).replace("DEFAULTS", defaults)
    constants = {"CONSUMERS": consumers, "CTAS": ctas}
    return Kernel(text, entry, types={"Tile": tile}, constants=constants, debug=debug)


def run(
    backend: Any,
    consumers: int,
    ctas: int,
    *,
    debug: bool = False,
    threads: int | None = None,
    cluster: int | None = None,
) -> tuple[Any, Any]:
    """Return the sums of the consumers of every CTA, and what they must be."""
    tiles, blocks = 5, 2 * ctas
    values = np.random.default_rng(ctas).integers(-9, 10, (tiles * ROWS, COLUMNS))
    held = backend.array(values.astype(np.float32))
    width = 128 * (1 + consumers)
    sums = backend.array(np.zeros((blocks, width), np.float32))
    tile = create_tma_tile(held, (ROWS, COLUMNS), box_shape=(ROWS // ctas, COLUMNS))

    kernel("sums", tile.cuda_type, consumers, ctas, debug)(
        blocks, threads or width, (tile, sums, tiles), cluster=cluster or ctas
    )

    wanted = [values[consumer::consumers].sum(axis=0) for consumer in range(consumers)]
    return backend.host(sums)[:, 128:].reshape(blocks, consumers, 128), [wanted] * blocks


@pytest.mark.sampled(1)
@pytest.mark.on_the_cpu(0, 5, 6)
@pytest.mark.parametrize("debug", [False, True], ids=["release", "debug"])
@pytest.mark.parametrize(("consumers", "ctas"), [(1, 1), (2, 1), (2, 2), (4, 4)])
def test_one_thread_produces_for_every_consumer_of_the_cluster(
    backend: Any, consumers: int, ctas: int, debug: bool
) -> None:
    got, wanted = run(backend, consumers, ctas, debug=debug)

    assert np.array_equal(got, wanted)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("launch", "report"),
    [
        ({"threads": 256}, "threads per CTA is 256; the roles need 384"),
        ({"cluster": 1}, "CTAs per cluster is 1; the roles need 2"),
    ],
)
def test_a_debug_build_reports_a_launch_of_another_size(
    launch: dict[str, int], report: str
) -> None:
    with pytest.raises(EmulatedFault) as caught:
        run(Emulate(), 2, 2, debug=True, **launch)

    assert caught.value.reason.startswith(report)


def is_accepted(consumers: int, producer: int, consumer: int) -> bool:
    try:
        RegisterSplit(1, consumers, producer, consumer)
    except ArgumentError:
        return False
    return True


def test_the_registers_that_fit_are_those_that_the_host_accepts() -> None:
    tile = "tmaasync::TMATensorTile<float, tmaasync::Shape<16, 128>, tmaasync::Box<16, 128>>"
    results = np.full(len(COUNTS) * len(SPLITS), -1, np.int32)
    defaults = np.zeros((max(COUNTS) + 1, 2), np.int32)

    kernel("fits", tile, 1, 1)(1, 1, (results, defaults))

    wanted = [is_accepted(count, *split) for count in COUNTS for split in SPLITS]
    assert results.tolist() == [int(accepted) for accepted in wanted]
    assert all(is_accepted(count, *map(int, defaults[count])) for count in COUNTS)
    assert defaults[1:4].tolist() == [[40, 232], [40, 232], [32, 160]]
