"""The GEMM of the tutorial's step 11 over clusters that it cancels: right, and defects are found.

A warp asks for the next tile, and the other roles iterate over the answers. Compiled by ptxas and
emulated; not run on a chip.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from planted import DEADLOCK, FAULT, RACE, Defect, Edit, after, before, defects, edited, without
from planted_choices import choices

from tmaasync import Kernel, Swizzle, create_tma_tile, emulate

ROOT = Path(__file__).parents[3]
# In each CTA the thread that loads and the warps that store; the pair's thread that multiplies.
READERS = "CTAS * (1 + Roles::kConsumerWarps) + 1"
EDITS = (
    before(
        "#include <tmaasync/tensor_memory.cuh>",
        "#include <tmaasync/structured/cluster_launch_scheduler.cuh>\n",
    ),
    after(
        "using Roles = WarpSpecialized<1, RegisterSplit<0, 0>, CTAS>;",
        f"using Clusters = ClusterRequests<2, {READERS}, CTAS>;",
    ),
    after("Accumulators accumulators;", "Clusters clusters;", "SharedMemory"),
    after("accumulators.init();", "clusters.init();"),
    Edit(
        "const StaticScheduler schedule(OutputTiles<kM, kN, Cluster>(m, n));",
        "const OutputTiles<kM, kN, Cluster> tiles(m, n); const ClusterLaunchScheduler<"
        "OutputTiles<kM, kN, Cluster>, Clusters> schedule(tiles, shared.clusters);",
    ),
    before(
        "if (helper != 0",
        "if (helper == 1 && block_rank_in_cluster() == 0 && elect()) shared.clusters.ask();",
    ),
    Edit("tile : schedule) output", "tile : schedule.by_warps()) output"),
)
SOURCE = edited((ROOT / "examples/11_tensor_memory_gemm.cu").read_text(encoding="utf-8"), EDITS)
CLUSTERS = ROOT / "kernels/include/tmaasync/structured"
HEADER = (CLUSTERS / "cluster_launch_scheduler.cuh").read_text(encoding="utf-8")
# The header in the text, so that defects are planted in it too.
TEXT = SOURCE.replace(
    "#include <tmaasync/structured/cluster_launch_scheduler.cuh>\n",
    HEADER.replace("#pragma once\n", ""),
)
COLUMNS, DEPTH = 64, 64


@functools.cache
def built(text: str, ctas: int) -> Kernel:
    def tile(shape: tuple[int, int], dtype: type) -> object:
        return create_tma_tile(np.zeros((512, 512), dtype), shape, swizzle=Swizzle.B128)

    types = {
        "ATile": tile((128, DEPTH), np.float16),
        "BTile": tile((COLUMNS // ctas, DEPTH), np.float16),
        "CTile": tile((128, 32), np.float32),
    }
    return Kernel(text, "gemm", types=types, constants={"STAGES": 2, "CTAS": ctas}, arch="sm_100a")


def multiply(text: str, ctas: int, m: int, n: int, k: int, what: Defect | None = None) -> None:
    rng = np.random.default_rng(m + n)
    a, b = (rng.integers(-3, 4, (rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    kernel = built(text, ctas)
    if what is not None:
        TEXTS.choose(kernel, what)
    tiles = [
        create_tma_tile(array, shape, swizzle=Swizzle.B128)
        for array, shape in ((a, (128, DEPTH)), (b, (COLUMNS // ctas, DEPTH)), (c, (128, 32)))
    ]
    clusters = -(-m // (128 * ctas)) * -(-n // COLUMNS)
    kernel(clusters * ctas, 256, (*tiles, m, n, k), cluster=ctas)
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b.astype(np.float64).T)


DEFECTS = defects(
    "gemm",
    ("nothing asks", without("shared.clusters.ask();"), DEADLOCK + FAULT,
     r"clusters|answered"),
    ("one reader more is counted", Edit(READERS, f"{READERS} + 1"), DEADLOCK, r"taken|answered"),
    ("every lane of a warp gives the answer back",
     Edit("if (!kByWarps || lane_index() == 0) requests->release(state.index);",
          "requests->release(state.index);"), FAULT + RACE + DEADLOCK, r"taken|answered|arriv"),
    ("the answer is never given back",
     without("if (!kByWarps || lane_index() == 0) requests->release(state.index);"), DEADLOCK,
     r"taken|answered"),
    ("a request after a known failure",
     Edit("if (!request.wait(state.phase ^ 1).exists) return;",
          "if (!request.wait(state.phase ^ 1).exists && state.count > 7) return;"),
     FAULT + DEADLOCK, r"another try_cancel follows|taken"),
    ("the answer is overwritten before all have read it",
     without("taken[state.index].template wait_acquire<kScope>(state.phase);"),
     RACE + FAULT + DEADLOCK, r"response of try_cancel|answered|expect|taken"),
    ("only the first CTA expects the answer",
     Edit("cta < kCtas; ++cta", "cta < 1; ++cta"), FAULT + DEADLOCK, r"answered"),
    ("both CTAs ask", Edit("helper == 1 && block_rank_in_cluster() == 0 && elect()",
     "helper == 1 && elect()"), FAULT + RACE + DEADLOCK, r"clusters|answered|taken"),
)  # fmt: skip
TEXTS = choices(TEXT, DEFECTS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ctas", [1, 2])
def test_every_tile_is_computed_once_in_every_order(ctas: int) -> None:
    for seed in range(4):
        with emulate.scheduled("adversarial" if seed % 2 else "random", seed=seed, races=True):
            multiply(TEXT, ctas, 500, 200, 136)


def test_it_compiles_without_spills() -> None:
    program = built(SOURCE, 2).compile("sm_100a")

    assert program.entries["gemm"].spill_bytes == 0
    assert "warning" not in program.log


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda one: one.name)
def test_a_defect_is_reported(defect: Defect) -> None:
    """Whether a request succeeds is drawn by the seed: some show a defect after a few answers."""
    text = TEXTS.text_with(defect)
    with pytest.raises(defect.reported, match=defect.says):  # noqa: PT012 - the first of the seeds
        for seed in range(12):
            with emulate.scheduled("random", seed=seed, races=True):
                multiply(text, 2, 1024, 256, 64, defect)
