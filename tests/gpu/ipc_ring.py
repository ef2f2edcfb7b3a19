"""A ring of processes that reach each other's arrays through handles of CUDA IPC."""

from __future__ import annotations

import functools
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tmaasync import Kernel, Signals, TMATensorTileArray, create_tma_tile, enable_peer_access

SOURCE = Path(__file__).parents[1] / "parity" / "peers.cu"
ROWS, COLUMNS, TILE_ROWS = 200, 64, 32  # the last tile is partly out of bounds
BLOCKS = -(-ROWS // TILE_ROWS)
ROUNDS = 40


def tile_of(array: Any) -> Any:
    return create_tma_tile(array, (TILE_ROWS, COLUMNS))


@functools.cache
def kernel_of(name: str, *, debug: bool = False) -> Kernel:
    import cupy  # noqa: PLC0415

    tile = tile_of(cupy.zeros((ROWS, COLUMNS), cupy.float32))
    return Kernel(SOURCE, name, types={"Tile": tile}, debug=debug)


def shift(tile: Any, *, debug: bool = False) -> Kernel:
    return Kernel(SOURCE, "shift", types={"Tile": tile}, debug=debug)


def main(rank: int, ranks: int, pipe: Connection) -> None:
    """Shift the arrays of all ranks, and send what went wrong, else "right"."""
    import cupy  # noqa: PLC0415

    devices = [one % cupy.cuda.runtime.getDeviceCount() for one in range(ranks)]
    enable_peer_access(sorted(set(devices)))
    with cupy.cuda.Device(devices[rank]), cupy.cuda.using_allocator(None):  # not from a memory pool
        mine = cupy.full((ROWS, COLUMNS), 100 + rank, cupy.float32)
        pad = cupy.zeros(2 * BLOCKS, cupy.uint32)
        cupy.cuda.Device().synchronize()

        def everybodys(own: Any) -> Any:
            pipe.send(own)
            return pipe.recv()

        def opened(handle: bytes, like: Any) -> Any:
            address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
            memory = cupy.cuda.UnownedMemory(address, like.nbytes, None)
            return cupy.ndarray(like.shape, like.dtype, cupy.cuda.MemoryPointer(memory, 0))

        def of_all_ranks(own: Any, handles: list[bytes]) -> list[Any]:
            return [
                own if one == rank else opened(handle, own) for one, handle in enumerate(handles)
            ]

        handles = everybodys(
            [cupy.cuda.runtime.ipcGetMemHandle(one.data.ptr) for one in (mine, pad)]
        )
        arrays, pads = (
            of_all_ranks(own, [both[index] for both in handles])
            for index, own in enumerate((mine, pad))
        )
        tiles = TMATensorTileArray([tile_of(array) for array in arrays])
        signals = Signals(pads, budget_seconds=30)
        launch = shift(tiles[0]).prepare(
            BLOCKS, 1, (signals[rank], tiles, np.uint32(1), ROUNDS), device=devices[rank]
        )
        everybodys("ready")
        launch()
        signals.synchronize()
        wrong = int((mine != 100 + (rank - ROUNDS) % ranks).sum())
        everybodys("right" if wrong == 0 else f"{wrong} elements are wrong")
