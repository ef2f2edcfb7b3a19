"""One of the processes of a ring over symmetric memory; prints what went wrong, else "right"."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from tmaasync import Kernel, Signals
from tmaasync.torch import symmetric_buffers, symmetric_tiles

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
ROWS, COLUMNS, TILE_ROWS, ROUNDS, LAUNCHES = 200, 64, 32, 200, 2
BLOCKS = -(-ROWS // TILE_ROWS)


def main(rank: int, ranks: int, store: str, debug: bool) -> None:
    faulthandler.dump_traceback_later(100, exit=True)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    mine = symmetric_memory.empty(ROWS, COLUMNS, dtype=torch.float32, device=f"cuda:{rank}")
    pad = symmetric_memory.empty(2 * BLOCKS, dtype=torch.int32, device=f"cuda:{rank}")
    mine.fill_(100 + rank)
    pad.zero_()
    tiles = symmetric_tiles(mine, (TILE_ROWS, COLUMNS))
    signals = Signals(symmetric_buffers(pad), budget_seconds=5)
    shift = Kernel(SOURCE, "shift", types={"Tile": tiles[0]}, debug=debug)
    launches = [
        shift.prepare(
            BLOCKS, 1, (signals[rank], tiles, np.uint32(1 + number * ROUNDS), ROUNDS), device=rank
        )
        for number in range(LAUNCHES)
    ]
    torch.cuda.synchronize()
    dist.barrier()  # the memory of all ranks has its values
    for launch in launches:
        launch()
    signals.synchronize()
    expected = 100 + (rank - ROUNDS * LAUNCHES) % ranks
    wrong = int((mine != expected).sum())
    dist.barrier()
    sys.stdout.write("right\n" if wrong == 0 else f"{wrong} elements are wrong\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "debug")
