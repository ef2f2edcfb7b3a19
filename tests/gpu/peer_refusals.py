"""What a user of two GPUs gets wrong, in a process whose contexts may die; a JSON line for each."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable
from pathlib import Path

import cupy
import numpy as np

from tmaasync import Kernel, Signals, TMAError, create_tma_tile, enable_peer_access
from tmaasync.tile import TMATensorTileArray

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"


def report(case: str, act: Callable[[], object]) -> None:
    try:
        act()
        words = "nothing is refused"
    except TMAError as error:
        words = str(error)
    sys.stdout.write(json.dumps({case: words}) + "\n")
    sys.stdout.flush()


def main() -> None:
    faulthandler.dump_traceback_later(120, exit=True)
    arrays = []
    for device in range(2):
        with cupy.cuda.Device(device):
            arrays.append(cupy.zeros((64, 64), cupy.float32))
    tiles = [create_tma_tile(array, (32, 64)) for array in arrays]
    pull = Kernel(SOURCE, "pull", types={"Tile": tiles[0]})
    args = (TMATensorTileArray(tiles), tiles[0], 1)
    report("no access", lambda: pull(2, 1, args))

    enable_peer_access([0, 1])
    report("access", lambda: pull(2, 1, args))
    with cupy.cuda.Device(1), cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        pooled = create_tma_tile(cupy.zeros((64, 64), cupy.float32), (32, 64))
    report("a pool", lambda: pull(2, 1, (TMATensorTileArray([tiles[0], pooled]), tiles[0], 1)))

    pads = []
    for device in range(2):
        with cupy.cuda.Device(device):
            pads.append(cupy.zeros(16, cupy.uint32))
    done = cupy.zeros(1, cupy.int32)
    signals = Signals(pads, budget_seconds=0.3)
    wait = Kernel(SOURCE, "wait_for", types={"Tile": tiles[0]}, debug=False)
    hanging = (signals[0], np.uint32(7), np.uint32(2), done)
    wait(1, 1, hanging)
    report("a release build hangs", signals.synchronize)
    report("its next launch", lambda: wait(1, 1, hanging))


if __name__ == "__main__":
    main()
