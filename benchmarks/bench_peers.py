"""TMA to and from a peer's memory, and signals. Writes sections "peers" and "signals".

One process with two GPUs or more. TMA loads from a peer (pull), stores to it (push) and adds to it,
by a number of CTAs of one thread each, next to the copy engine (``cudaMemcpyPeerAsync``) and NCCL's
broadcast. Then signals: there and back, barriers over all ranks, and hand-overs whose every byte is
checked. Every wait has a budget, and the whole run a limit.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import numpy as np
import torch
from race import record

from tmaasync import Kernel, Signals, TMATensorTileArray, create_tma_tile, enable_peer_access

SOURCE = Path(__file__).with_suffix(".cu")
CTAS = (4, 8, 16, 32, 132)
TILE = (64, 128)  # bfloat16: 16 KiB
BYTES = 512 << 20
LIMIT_S, BUDGET_S = 150, 5.0

HAND_BLOCKS, HAND_THREADS, HAND_TILE = 16, 128, (8, 128)
LATENCY_ROUNDS, BARRIER_ROUNDS = 20_000, 20_000


def times(run: Callable[[], Any], device: int, calls: int) -> float:
    """Microseconds of a call, by events on a device's current stream."""
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        run()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3 / calls


# --- bandwidth --------------------------------------------------------------------------------


def mover(arrays: Sequence[torch.Tensor], ctas: int, **how: Any) -> Callable[[], None]:
    """Prepare a launch that moves all of one rank's array to another's."""
    source, target, on = how["source"], how["target"], how["on"]
    tiles = [create_tma_tile(array, TILE) for array in arrays]
    kernel = Kernel(SOURCE, "move", types={"Tile": tiles[0]})
    both = TMATensorTileArray(tiles)
    count = arrays[0].shape[0] // TILE[0]
    args = (both, both, source, target, count, how.get("adds", False))
    return kernel.prepare(ctas, 1, args, device=on)


def nccl_broadcast(arrays: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    try:
        from torch.cuda import nccl  # noqa: PLC0415

        run = lambda: nccl.broadcast(list(arrays[:2]))  # noqa: E731
        run()
    except (ImportError, RuntimeError) as error:
        print(f"no NCCL: {error}", flush=True)
        return None
    return run


def bandwidths(rounds: int) -> list[dict[str, Any]]:
    shape = BYTES // 2 // TILE[1], TILE[1]
    arrays = [torch.zeros(shape, dtype=torch.bfloat16, device=f"cuda:{i}") for i in range(2)]
    arrays[0].fill_(1)
    settle()
    others: dict[str, tuple[Callable[[], Any], int]] = {
        "copy_engine": (lambda: arrays[1].copy_(arrays[0], non_blocking=True), 0)
    }
    nccl = nccl_broadcast(arrays)
    if nccl is not None:
        others["nccl"] = (nccl, 0)
    kinds = {
        "pull": {"source": 0, "target": 1, "on": 1},
        "push": {"source": 0, "target": 1, "on": 0},
        "push and add": {"source": 0, "target": 1, "on": 0, "adds": True},
    }
    rows = []
    for name, how in kinds.items():
        for ctas in CTAS:
            check_moved(arrays, how)
            candidates = {"tmaasync": (mover(arrays, ctas, **how), how["on"]), **others}
            rows.append(compared(f"{name}, {ctas} CTAs", candidates, rounds))
            print(f"{rows[-1]['case']:24s} {rows[-1]['gb_per_s']}", flush=True)
    return rows


def check_moved(arrays: Sequence[torch.Tensor], how: dict[str, Any]) -> None:
    """A move by 16 CTAs leaves every element right, with numbers that differ from row to row."""
    numbers = torch.arange(arrays[0].shape[0], device="cuda:0").remainder(199).bfloat16()
    arrays[0][:] = numbers[:, None]
    start = 5 if how.get("adds") else 0
    arrays[1].fill_(start)
    settle()
    mover(arrays, 16, **how)()
    settle()
    wanted = (numbers + start).to("cuda:1")
    if not bool((arrays[1] == wanted[:, None]).all()):
        raise SystemExit(f"{how} left wrong elements")
    arrays[0].fill_(0)
    settle()


def compared(
    case: str, candidates: dict[str, tuple[Callable[[], Any], int]], rounds: int
) -> dict[str, Any]:
    calls, found = 3, {name: [] for name in candidates}
    for _ in range(rounds):
        for name, (run, device) in candidates.items():
            found[name].append(times(run, device, calls))
            settle()
    us = {name: statistics.median(values) for name, values in found.items()}
    ratios = {
        name: [theirs / ours for ours, theirs in zip(values, found["copy_engine"], strict=True)]
        for name, values in found.items()
    }
    return {
        "case": case,
        "bytes": BYTES,
        "us": {name: round(value, 1) for name, value in us.items()},
        "gb_per_s": {name: round(BYTES / value / 1e3, 1) for name, value in us.items()},
        "speed_over_copy_engine": {
            name: {
                "median": round(statistics.median(values), 4),
                "min": round(min(values), 4),
                "max": round(max(values), 4),
            }
            for name, values in ratios.items()
        },
        "rounds": rounds,
        "calls_per_slice": calls,
    }


def settle() -> None:
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


# --- signals ----------------------------------------------------------------------------------


def new_signals(ranks: int, count: int) -> Signals:
    pads = [torch.zeros(count, dtype=torch.int32, device=f"cuda:{rank}") for rank in range(ranks)]
    settle()
    return Signals(pads, budget_seconds=BUDGET_S)


def together(launches: Sequence[Callable[[], None]], signals: Signals) -> float:
    """Seconds from the first launch to the end of all."""
    settle()
    start = time.perf_counter()
    for launch in launches:
        launch()
    signals.synchronize()
    return time.perf_counter() - start


def rounds_us(name: str, ranks: int, threads: int, rounds: int) -> dict[str, Any]:
    tile = create_tma_tile(torch.zeros(TILE, dtype=torch.bfloat16, device="cuda:0"), TILE)
    kernel = Kernel(SOURCE, name, types={"Tile": tile})
    found = []
    for _ in range(5):
        signals = new_signals(ranks, 16)
        timed = {}
        for count in (rounds // 10, rounds):
            signals = new_signals(ranks, 16)
            args = [(own, np.uint32(1), count) for own in signals]
            launches = [kernel.prepare(1, threads, each) for each in args]
            timed[count] = together(launches, signals)
        # The host's part is in both.
        found.append((timed[rounds] - timed[rounds // 10]) / (rounds - rounds // 10) * 1e6)
    return {
        "us": round(statistics.median(found), 3),
        "us_min": round(min(found), 3),
        "us_max": round(max(found), 3),
        "ranks": ranks,
        "rounds_per_launch": rounds,
    }


def hand_overs(ranks: int, by_tma: bool, wanted: int) -> dict[str, Any]:
    shape = HAND_BLOCKS * HAND_TILE[0], HAND_TILE[1]
    arrays = [torch.zeros(shape, dtype=torch.int32, device=f"cuda:{rank}") for rank in range(ranks)]
    tiles = TMATensorTileArray([create_tma_tile(array, HAND_TILE) for array in arrays])
    kernel = Kernel(SOURCE, "hand_over", types={"Tile": tiles[0]})
    wrong = [torch.zeros(1, dtype=torch.int32, device=f"cuda:{rank}") for rank in range(ranks)]
    rounds = -(-wanted // (HAND_BLOCKS * ranks))
    signals = new_signals(ranks, 2 * HAND_BLOCKS)
    launches = [
        kernel.prepare(
            HAND_BLOCKS,
            HAND_THREADS,
            (own, tiles, arrays[rank], np.uint32(1), rounds, by_tma, wrong[rank]),
        )
        for rank, own in enumerate(signals)
    ]
    seconds = together(launches, signals)
    tile_bytes = HAND_TILE[0] * HAND_TILE[1] * 4
    return {
        "hand_overs": rounds * HAND_BLOCKS * ranks,
        "bytes_each": tile_bytes,
        "wrong_elements": sum(int(one.item()) for one in wrong),
        "seconds": round(seconds, 3),
        "us_per_round": round(seconds / rounds * 1e6, 3),
        "ranks": ranks,
    }


def probes(ranks: int, wanted: int) -> list[dict[str, Any]]:
    rows = [
        {
            "probe": "a signal to a peer and back",
            **rounds_us("ping", 2, 1, LATENCY_ROUNDS),
        }
    ]
    for count in sorted({2, ranks}):
        timed = rounds_us("barriers", count, 32, BARRIER_ROUNDS)
        rows.append({"probe": f"a barrier over {count} ranks", **timed})
    for by_tma in (True, False):
        how = "TMA loads" if by_tma else "ordinary loads"
        row = hand_overs(ranks, by_tma, wanted)
        rows.append({"probe": f"TMA stores handed over to {how}", **row})
    for row in rows:
        print(row, flush=True)
    if any(row.get("wrong_elements") for row in rows):
        raise SystemExit("a hand-over was stale")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hand-overs", type=int, default=1_000_000)
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    ranks = torch.cuda.device_count()
    if ranks < 2:
        raise SystemExit(f"this needs two GPUs, and the process sees {ranks}")
    enable_peer_access(range(ranks))
    print(record("signals", probes(ranks, arguments.hand_overs)))
    print(record("peers", bandwidths(arguments.rounds)))


if __name__ == "__main__":
    main()
