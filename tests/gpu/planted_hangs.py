"""Plant one hang after the other, in one process, and print the outcome of each as a line of JSON.

Run in a process of its own, which can be killed where nothing else ends a kernel:
``python tests/gpu/planted_hangs.py``. After each hang the same kernel runs without one.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from parity.backends import Cuda
from parity.planted_hangs import HANGS, PlantedHangs

from tmaasync import HangError, TMAError

BUDGET_SECONDS = 0.2
BLOCKS = 600  # more than run at once
OTHERS = ("many blocks", "a graph")


def tell(name: str, **what: Any) -> None:
    sys.stdout.write(json.dumps({"name": name, **what}) + "\n")
    sys.stdout.flush()


def caught(run: Callable[[], object]) -> dict[str, Any]:
    """What the hang became, and after how long."""
    start = time.perf_counter()
    try:
        run()
        error: TMAError | None = None
    except TMAError as raised:
        error = raised
    seconds = time.perf_counter() - start
    waits = error.waits if isinstance(error, HangError) else ()
    return {
        "kind": type(error).__name__,
        "message": str(error),
        "seconds": seconds,
        "waits": [dataclasses.asdict(wait) for wait in waits],
    }


def replayed(planted: PlantedHangs) -> None:
    """A hang in a replayed graph, which the next launch reports."""
    stream = cupy.cuda.Stream(non_blocking=True)
    sums = cupy.zeros((2, 6, 64), cupy.float32)
    with stream:
        stream.begin_capture()
        planted.launch("NO_RELEASE", sums)
        graph = stream.end_capture()
        graph.launch(stream)
        stream.synchronize()
        planted.launch("NOTHING", sums)


def main(names: list[str]) -> None:
    planted = PlantedHangs(Cuda(), debug=True, budget_seconds=BUDGET_SECONDS)
    is_right = planted.run()
    caught(lambda: planted.run("NO_RELEASE"))  # the names of barriers are compiled the first time
    tell("NOTHING", kind="None", is_right_after=is_right)
    for name in names:
        if name == "many blocks":
            result = caught(lambda: planted.run("NO_RELEASE", blocks=BLOCKS))
        elif name == "a graph":
            result = caught(lambda: replayed(planted))
        else:
            result = caught(lambda name=name: planted.run(name))  # type: ignore[misc]
        tell(name, **result, is_right_after=planted.run() and planted.run(blocks=BLOCKS))


if __name__ == "__main__":
    main(sys.argv[1:] or [*HANGS, *OTHERS])
