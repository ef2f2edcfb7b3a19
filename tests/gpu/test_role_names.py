"""On a GPU, hang reports and timelines name roles, rings and stages too."""

from __future__ import annotations

import numpy as np
import pytest
from emulate.test_names import DEFECTS, SOURCE, THREADS

from tmaasync import HangError, Kernel, create_tma_tile, trace

cupy = pytest.importorskip("cupy")

TILES = 7


def run(defect: str, *, debug: bool) -> None:
    tile = create_tma_tile(cupy.ones((8 * TILES, 16), np.float32), (8, 16))
    out = cupy.zeros(THREADS, np.float32)
    kernel = Kernel(SOURCE, "pair", types={"Tile": tile}, debug=debug, budget_seconds=0.3)
    kernel(1, THREADS, (tile, out, TILES, DEFECTS.index(defect)))
    cupy.cuda.Device().synchronize()


def test_a_hang_names_the_role_the_ring_and_the_stage() -> None:
    with pytest.raises(HangError) as caught:
        run("a stage is kept", debug=True)

    waits = {wait.role: wait for wait in caught.value.waits}
    assert waits.keys() == {"producer", "consumer 0", "consumer 1"}
    assert waits["producer"].barrier_name == "pipes.ring_v.empty[1]"
    for role in ("consumer 0", "consumer 1"):
        assert (waits[role].ring, waits[role].stage) == ("pipes.ring_v", 1)
        assert waits[role].barrier_name == "pipes.ring_v.full[1]"
    assert "producer (thread 0 of block (0, 0, 0)) in " in str(caught.value)
    assert "the producer has not filled stage 1 of pipes.ring_v" in str(caught.value)


@pytest.mark.parametrize("debug", [False, True])
def test_a_timeline_has_the_roles(debug: bool) -> None:
    with trace.record() as kept:
        run("none", debug=debug)

    (launch,) = kept.launches
    assert launch.roles == {(0, 0, 0): "producer", (0, 0, 1): "consumer 0", (0, 0, 2): "consumer 1"}
    pipelines = trace.find_pipelines(launch, block=0)
    assert {pipeline.name for pipeline in pipelines} == {"pipes.ring_k", "pipes.ring_v"}
