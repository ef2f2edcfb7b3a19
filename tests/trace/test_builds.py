"""Builds that leave a trace on the chip, and that others are what they were."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tmaasync import Kernel
from tmaasync._source.compile import Assembly, assemble
from tmaasync.kernel.recipe import TRACE_OPTIONS

RING = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
using Tile = BulkTile<float, 256>;
struct Shared { Tile::Shared tile; SharedMemBarrier full; SharedMemBarrier empty; };
extern "C" __device__ const int ring_shared_bytes = sizeof(Shared);
extern "C" __global__ void ring(const __grid_constant__ Tile tile) {
    auto& shared = dynamic_shared<Shared>();
    if (threadIdx.x != 0) return;
    shared.full.init(1);
    fence_barrier_init();
    shared.empty.wait(1);
    shared.full.expect_bytes(1024);
    tile.async_copy(shared.tile, shared.full, 0);
    shared.full.wait(0);
    shared.empty.arrive();
    tile.async_store(shared.tile, 0);
    commit_group();
    wait_group<0>();
    NamedBarrier<32>{1}.sync();
}
"""


@pytest.fixture(scope="module")
def builds() -> tuple[Assembly, Assembly]:
    """Of one source, without and with a trace."""
    source = Kernel(RING, "ring")._recipe.source
    traced = replace(source, options=TRACE_OPTIONS)
    return assemble(source, "sm_90a"), assemble(traced, "sm_90a")


def test_a_plain_build_notes_nothing(builds: tuple[Assembly, Assembly]) -> None:
    plain, traced = builds

    for words in ("tmaasync_trace", "%globaltimer", "%clock", "%smid", "activemask", "atom."):
        assert words in traced.ptx, words
        assert words not in plain.ptx, words


def test_every_instruction_is_in_both_builds(builds: tuple[Assembly, Assembly]) -> None:
    def instructions(assembly: Assembly) -> list[str]:
        return re.findall(r"(?:mbarrier|cp\.async|barrier)[.:\w]+", assembly.ptx)

    plain, traced = map(instructions, builds)

    assert {
        "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64",
        "cp.async.bulk.commit_group",
    } <= set(plain)
    # A traced wait looks once before it waits.
    looks = "mbarrier.test_wait.parity.acquire.cta.shared::cta.b64"
    assert [one for one in traced if one != looks] == plain
    assert traced.count(looks) == 2
