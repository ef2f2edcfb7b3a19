"""sync_grid inside CUDA graphs, and in grids as large as the device holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity.test_grid_barrier import STEPS, expected, kernel

from tmaasync import LaunchError

cupy: Any = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu


def test_a_graph_of_two_cooperative_launches_runs_again() -> None:
    start = np.arange(16 * 64, dtype=np.int32) % 7
    values = cupy.asarray(np.concatenate([start, start]))
    stream = cupy.cuda.Stream(non_blocking=True)
    launch = kernel().prepare(16, 64, (values, STEPS), cooperative=True, stream=stream)
    launch()
    stream.synchronize()
    with stream:
        stream.begin_capture()
        launch()
        graph = stream.end_capture()

    for _ in range(5):
        values[:] = cupy.asarray(np.concatenate([start, start]))
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        result = values.get().reshape(2, -1)[STEPS % 2]
        assert np.array_equal(result, expected(start, 64))


def test_the_largest_resident_grid_runs_and_one_block_more_is_refused() -> None:
    sms = cupy.cuda.Device().attributes["MultiProcessorCount"]
    start = np.arange(sms * 1024, dtype=np.int32) % 7
    values = cupy.asarray(np.concatenate([start, start]))
    options: Any = {"shared_mem": 200 * 1024, "cooperative": True}

    kernel()(sms, 1024, (values, STEPS), **options)

    result = values.get().reshape(2, -1)[STEPS % 2]
    assert np.array_equal(result, expected(start, 1024))
    with pytest.raises(LaunchError, match=f"holds {sms} of neighbours"):
        kernel()(sms + 1, 64, (values, 0), **options)


def test_launches_on_two_streams_have_barriers_of_their_own() -> None:
    start = np.arange(8 * 64, dtype=np.int32) % 7
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    values = [cupy.asarray(np.concatenate([start, start])) for _ in streams]
    cupy.cuda.Device().synchronize()

    for _ in range(50):
        for held, stream in zip(values, streams, strict=True):
            kernel()(8, 64, (held, 2), cooperative=True, stream=stream)
    cupy.cuda.Device().synchronize()

    assert np.array_equal(values[0].get(), values[1].get())
