"""The state of a pipeline in kernels, against its twin in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tmaasync import Kernel, PipelineState

STEPS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;
using State = PipelineState<STAGES>;

__device__ void put(unsigned*& out, const State& state) {
    *out++ = state.index;
    *out++ = state.phase;
    *out++ = state.count;
}

extern "C" __global__ void steps(unsigned* out) {
    for (State state : {State::for_producer(), State::for_consumer()}) {
        for (int i = 0; i < 7; ++i) {
            put(out, state);
            i == 3 ? state.advance(4) : state.step();
        }
        put(out, state.next());
    }
}
"""


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_a_state_steps_as_its_twin_does(backend: Any, stages: int) -> None:
    expected = []
    for state in (PipelineState.for_producer(stages), PipelineState.for_consumer(stages)):
        for i in range(7):
            expected += [state.index, state.phase, state.count]
            state.advance(4) if i == 3 else state.step()
        state.step()
        expected += [state.index, state.phase, state.count]
    found = backend.array(np.full(len(expected), 99, np.uint32))

    Kernel(STEPS, "steps", constants={"STAGES": stages}, debug=True)(1, 1, (found,))

    assert backend.host(found).tolist() == expected
