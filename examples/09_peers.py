"""Step 9: add the arrays of all GPUs, in a ring of TMA stores over NVLink."""

import contextlib
import sys
from pathlib import Path

import numpy as np

from tmaasync import (
    Kernel,
    Signals,
    TMATensorTileArray,
    create_tma_tile,
    emulate,
    enable_peer_access,
)

GPU = "--gpu" in sys.argv
if GPU:
    import cupy

ROWS, COLUMNS, TILE_ROWS = 50, 64, 16
BLOCKS = -(-ROWS // TILE_ROWS)


def main(ranks):
    with contextlib.nullcontext() if GPU else emulate.devices(ranks) as world:

        def on(rank, values):
            if not GPU:
                return world[rank].array(values)
            with cupy.cuda.Device(rank):
                return cupy.asarray(values)

        enable_peer_access(range(ranks))
        # Side 0 of an inbox is the step of the ring.
        x = np.random.default_rng(0).integers(-9, 9, (ranks, 1, ROWS, COLUMNS)).astype(np.float32)
        inbox, zeros = np.zeros((ranks, ROWS, COLUMNS), np.float32), np.zeros_like(x[0])
        totals = [on(rank, zeros) for rank in range(ranks)]

        def tiles_of(arrays):
            return [create_tma_tile(array, (1, TILE_ROWS, COLUMNS)) for array in arrays]

        inboxes = TMATensorTileArray(tiles_of(on(rank, inbox) for rank in range(ranks)))
        mine, total = tiles_of(map(on, range(ranks), x)), tiles_of(totals)
        signals = Signals([on(rank, np.zeros(BLOCKS, np.uint32)) for rank in range(ranks)])

        kernel = Kernel(
            Path(__file__).with_suffix(".cu"), "sum_over_ranks", types={"Tile": inboxes[0]}
        )
        # Prepare all launches first: a running rank waits for peers that are not launched yet.
        launches = [
            kernel.prepare(BLOCKS, 1, (signals[rank], inboxes, mine[rank], total[rank]))
            for rank in range(ranks)
        ]
        for launch in launches:
            launch()
        signals.synchronize()

    results = [array.get() if GPU else array for array in totals]
    if not all(np.array_equal(result, x.sum(axis=0)) for result in results):
        raise SystemExit("a total is wrong")
    print(f"{ranks} ranks: every total is right")


if __name__ == "__main__":
    main(ranks=cupy.cuda.runtime.getDeviceCount() if GPU else 4)
