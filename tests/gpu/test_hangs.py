"""Kernels that hang on the chip: who waits for what, and what the context is good for after."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.planted_hangs import HANGS, MEASURED, line_of

from tmaasync import Kernel, ops

cupy = pytest.importorskip("cupy")

SCRIPT = Path(__file__).with_name("planted_hangs.py")
SILENCE_SECONDS = 20
OTHERS = ("many blocks", "a graph")


@functools.cache
def outcomes() -> dict[str, dict[str, Any]]:
    """Return the report of each hang; after one that nothing ends there are no more."""
    with subprocess.Popen(
        [sys.executable, str(SCRIPT)], stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            for line in process.stdout or ():
                lines.put(line)

        reader = threading.Thread(target=read)
        reader.start()
        found: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(queue.Empty):
            while len(found) < 1 + len(HANGS) + len(OTHERS):
                # The first line takes as long as two compilers.
                report = json.loads(lines.get(timeout=SILENCE_SECONDS if found else 90))
                found[report["name"]] = report
        process.kill()
        reader.join()
    return found


def outcome(name: str) -> dict[str, Any]:
    found = outcomes()
    assert name in found, f"{name}: the kernel did not end; before it came {list(found)}"
    return found[name]


def test_the_kernel_is_right_without_a_plant() -> None:
    assert outcome("NOTHING")["is_right_after"]


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_names_barrier_and_line(name: str) -> None:
    hang, report = HANGS[name], outcome(name)

    assert report["kind"] == "HangError", report
    waits = [wait for wait in report["waits"] if wait["barrier_offset"] == hang.offset]
    assert waits, report["message"]
    for wait in waits:
        assert wait["barrier_name"] in (hang.barrier, None)
        assert wait["source"] == f"kernel.cu:{line_of(hang.code)}"
        assert wait["phase"] == hang.phase
        assert (wait["missing_arrivals"], wait["missing_bytes"]) == (
            hang.missing_arrivals,
            hang.missing_bytes,
        )
        assert hang.cause in wait["cause"]
        assert hang.rank in (None, wait["cta_rank"])


@pytest.mark.parametrize("name", [*HANGS, *OTHERS])
def test_a_hang_ends_soon_and_the_next_launch_is_right(name: str) -> None:
    report = outcome(name)

    assert report["kind"] == "HangError", report
    assert report["seconds"] < 2
    assert report["is_right_after"]


def test_barriers_have_the_names_of_the_source() -> None:
    pytest.importorskip("elftools")
    if shutil.which("c++") is None:
        pytest.skip("names come from a C++ compiler")

    for name, hang in HANGS.items():
        assert hang.barrier in {wait["barrier_name"] for wait in outcome(name)["waits"]}


def test_the_report_shows_the_line_and_the_function() -> None:
    (first,) = [
        wait
        for wait in outcome("MORE_BYTES")["waits"]
        if wait["function"] == "read_tiles" and wait["cta_rank"] == 0
    ]

    assert first["code"] == "shared.full[place.index].wait(place.phase);"
    assert first["threads"] == [*range(32, 96)]
    assert 0.2 <= first["waited_seconds"] < 0.4


WORDS = """
#include <tmaasync/tmaasync.cuh>
using namespace tmaasync;

// The word after a number of steps from the start: taking it is the last use of a barrier.
extern "C" __global__ void words(u64* out) {
    __shared__ SharedMemBarrier barrier;
    for (int steps = 0; steps < 8; ++steps) {
        barrier.init(5);
        if (steps > 0) barrier.expect_tx(1000);
        if (steps > 1) barrier.arrive(2);
        if (steps > 2) barrier.complete_transaction(0, 1024);
        if (steps > 3) barrier.arrive(3);
        if (steps > 4) barrier.expect_tx(1000024);
        if (steps > 5) barrier.complete_transaction(0, 1000000);
        if (steps > 6) barrier.complete_transaction(0, 1048575);
        out[steps] = instrument::mbarrier_last_word(barrier.address());
    }
}
"""


def test_the_bits_of_a_barrier_are_what_the_report_takes_them_for() -> None:
    out = cupy.zeros(8, np.uint64)

    Kernel(WORDS, "words", debug=True)(1, 1, (out,))

    assert [hex(word) for word in cupy.asnumpy(out).tolist()] == [*map(hex, MEASURED)]


def test_debug_builds_of_the_shipped_kernels_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMAASYNC_DEBUG", "1")
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in [(640, 520), (520, 776)])

    got = cupy.asnumpy(ops.matmul(cupy.asarray(a), cupy.asarray(b)))

    assert (got == a.astype(np.float64) @ b.astype(np.float64)).all()
