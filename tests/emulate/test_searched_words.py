"""Without an option, the first words that a launch accesses are searched for races."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tmaasync import EmulatedFault, EmulatedRace, Kernel
from tmaasync.emulate import SEARCHED_WORDS, scheduled

SOURCE = """
extern "C" __global__ void late(int* out, int words) {
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
        out[blockIdx.x * 1024 + i % 1024 + 1] = i % 1024;
    }
    __syncthreads();
    WRITE
}
"""


def without_option(run: Callable[[], Any]) -> Any:
    """Run with the schedule of a user; the tests' own is another (conftest.py)."""
    return contextvars.Context().run(run)


def launch(words: int, blocks: int = 1, write: str = "out[0] = threadIdx.x;") -> Any:
    out = np.zeros(blocks * 1024 + 1, np.int32)
    Kernel(SOURCE.replace("WRITE", write), "late")(blocks, 32, (out, words))
    return out


def test_a_race_is_found_without_an_option() -> None:
    with pytest.raises(EmulatedRace, match="a race on"):
        without_option(lambda: launch(1024))


def test_after_its_first_words_a_launch_is_searched_on_request() -> None:
    words = SEARCHED_WORDS + 32

    assert without_option(lambda: launch(words))[1] == 0
    with pytest.raises(EmulatedRace, match="a race on"):
        launch(words)


def test_accesses_outside_every_array_are_found_after_the_first_words_too() -> None:
    with pytest.raises(EmulatedFault, match="lies in none of the launch's arrays"):
        without_option(
            lambda: launch(SEARCHED_WORDS + 32, write="if (threadIdx.x == 0) out[1025] = 0;")
        )


def test_blocks_after_the_first_words_run_to_their_end() -> None:
    write = "if (threadIdx.x == 0) atomicAdd(out, 1);"

    out = without_option(lambda: launch(SEARCHED_WORDS // 4, 6, write))

    assert out[0] == 6


def test_the_search_can_be_turned_off() -> None:
    def unsearched() -> Any:
        with scheduled(races=False):
            return launch(1024)

    assert without_option(unsearched)[1024] == 1023


# The environment is read when the module is imported.
ENVIRONMENT = """
import importlib, os
import tmaasync.emulate.launch.schedule as module
def print_of(name, value):
    os.environ[name] = value
    try:
        schedule = importlib.reload(module).current_schedule()
        relaxed = schedule.tolerated(is_ptx=False, has_tensor_memory=False)
        print(schedule.races, *sorted(relaxed))
    except Exception as error:
        print(error)
    del os.environ[name]
for value in ("", "0", "1", "yes"):
    print_of("TMAASYNC_RACES", value)
for value in ("store-at-exit, pdl-wait", "pdl-waits"):
    print_of("TMAASYNC_TOLERATE", value)
"""


def test_the_environment_turns_it_on_and_off_and_names_relaxed_rules() -> None:
    command = [sys.executable, "-c", ENVIRONMENT]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    default, off, on, other, rules, wrong = ran.stdout.splitlines()

    assert default == "None tcgen05-fence tcgen05-pair-start tcgen05-proxy-fence"
    assert off.startswith("False")
    assert on == "True"
    assert "TMAASYNC_RACES is 'yes'; it must be 1" in other
    assert rules == "None pdl-wait store-at-exit"
    assert "Did you mean 'pdl-wait'" in wrong
