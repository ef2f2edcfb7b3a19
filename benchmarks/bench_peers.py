"""TMA to and from a peer's memory, and signals. Writes sections "peers" and "signals".

One process with two GPUs or more. TMA loads from a peer (pull), stores to it (push) and adds to it,
by a number of CTAs of one thread each: over one link; by all ranks at once, each to the next; and
by all ranks at once, each to all others. Next to it copy engines (``cuMemcpyAsync``) copy as many
bytes, and NCCL broadcasts over one link; between all ranks it gathers, or reduces and scatters. Its
NVLink multicast is off. What TMA moves is checked, after several launches of every row. Then
signals: there and back, barriers over all ranks, and hand-overs whose every byte is checked. All
GPUs are measured, and of them worlds of 2, 4 and 8. Barriers are measured for more ranks too: those
share the GPUs, each with streams of its own. Every wait has a budget, and the whole run a limit.

``--ranks 4`` runs the code of four ranks on any number of GPUs, with NCCL only where no ranks share
a GPU. If they do, they share its links, and nothing is recorded.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import numpy as np
import torch
from race import record
from torch.cuda import nccl

from tmaasync import Kernel, Signals, TMATensorTileArray, create_tma_tile, enable_peer_access

SOURCE = Path(__file__).with_suffix(".cu")
CTAS, CTAS_OF_ALL, CTAS_A_PEER = (4, 8, 16, 32, 132), (16, 32), (4, 8, 16)
TILE = (64, 128)  # bfloat16: 16 KiB
KINDS = ("pull", "push", "push and add")  # in the order of the kernel's
WORLDS = (2, 4, 8)
ROUNDS, CALLS = 20_000, 3
LIMIT_S, BUDGET_S = 300, 5.0

HAND_BLOCKS, HAND_THREADS, HAND_TILE = 16, 128, (8, 128)

Work = Callable[[], Any]


@dataclass(frozen=True)
class World:
    """The device of each rank, its main stream, and a stream of its own for each peer."""

    devices: tuple[int, ...]
    streams: tuple[torch.cuda.Stream, ...]
    to_peers: tuple[tuple[torch.cuda.Stream, ...], ...]

    @classmethod
    def of(cls, devices: Sequence[int]) -> World:
        def streams(device: int, count: int) -> tuple[torch.cuda.Stream, ...]:
            return tuple(torch.cuda.Stream(device) for _ in range(count))

        return cls(
            tuple(devices),
            tuple(streams(device, 1)[0] for device in devices),
            tuple(streams(device, len(devices) - 1) for device in devices),
        )

    def __len__(self) -> int:
        return len(self.devices)

    @property
    def ranks(self) -> range:
        return range(len(self))

    @property
    def gpus(self) -> int:
        return len(set(self.devices))

    @property
    def shares_gpus(self) -> bool:
        return self.gpus < len(self)

    def of_ranks(self, ranks: int) -> World:
        """Return a world of this number of ranks, which take the GPUs in turn."""
        return World.of([self.devices[rank % len(self)] for rank in range(ranks)])

    def peers_of(self, rank: int) -> list[int]:
        return [(rank + distance) % len(self) for distance in range(1, len(self))]

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> list[torch.Tensor]:
        return [torch.zeros(*shape, dtype=dtype, device=f"cuda:{one}") for one in self.devices]

    def signals(self, count: int) -> Signals:
        pads = self.zeros((count,), torch.int32)
        self.settle()
        return Signals(pads, budget_seconds=BUDGET_S)

    def settle(self) -> None:
        for device in set(self.devices):
            torch.cuda.synchronize(device)


def worlds_of(world: World) -> list[int]:
    """Return how many ranks to measure, the whole world last."""
    return sorted({len(world), *(ranks for ranks in WORLDS if ranks <= len(world))})


# --- bandwidth --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrays:
    """For each rank an array to send, and an inbox with a slot for the array of each rank."""

    world: World
    own: list[torch.Tensor]
    inboxes: list[torch.Tensor]

    @classmethod
    def of(cls, world: World, size_bytes: int) -> Arrays:
        rows = size_bytes // 2 // TILE[1] // TILE[0] * TILE[0]
        return cls(
            world,
            world.zeros((rows, TILE[1]), torch.bfloat16),
            world.zeros((len(world) * rows, TILE[1]), torch.bfloat16),
        )

    def slot(self, rank: int, number: int) -> torch.Tensor:
        return self.inboxes[rank].chunk(len(self.world))[number]

    def numbers(self, rank: int) -> torch.Tensor:
        """Differ from row to row and from rank to rank.

        The sum of 5 and the numbers of 8 ranks is below 256, so that bfloat16 holds it.
        """
        return (torch.arange(self.own[rank].shape[0]) * (rank + 1)).remainder(29).bfloat16()

    def fill(self) -> None:
        for rank, array in enumerate(self.own):
            array[:] = self.numbers(rank)[:, None].to(array.device)
            self.inboxes[rank].fill_(5)
        self.world.settle()


@dataclass(frozen=True)
class Pattern:
    """Which ranks move their arrays, how, and whether to one peer or to all of them."""

    arrays: Arrays
    kind: str
    active: tuple[int, ...]
    to_all: bool = False

    @property
    def world(self) -> World:
        return self.arrays.world

    def peers_of(self, rank: int) -> list[int]:
        peers = self.world.peers_of(rank)
        return peers if self.to_all else peers[:1]

    def transfer(self, rank: int, peer: int) -> tuple[int, int, int]:
        """Return the source's rank, the target's, and the slot of the target's inbox."""
        source, target = (peer, rank) if self.kind == "pull" else (rank, peer)
        return source, target, target if self.kind == "push and add" else source

    def by_tma(self, ctas: int, *, static_schedule: bool = False) -> list[Work]:
        """Prepare a launch of each active rank, with some CTAs for each of its peers."""
        own, inboxes = (
            TMATensorTileArray([create_tma_tile(array, TILE) for array in each])
            for each in (self.arrays.own, self.arrays.inboxes)
        )
        kernel = Kernel(SOURCE, "move", types={"Tile": own[0]})
        tiles, kind = self.arrays.own[0].shape[0] // TILE[0], KINDS.index(self.kind)
        ranks = len(self.world)
        counters = self.world.zeros((ranks, 2), torch.int32)
        self.world.settle()
        return [
            kernel.prepare(
                (ctas, len(self.peers_of(rank))),
                1,
                (own, inboxes, counters[rank], rank, ranks, tiles, kind, static_schedule),
                device=self.world.devices[rank],
                stream=self.world.streams[rank],
            )
            for rank in self.active
        ]

    def by_copy_engine(self) -> list[Work]:
        """Copy as many bytes, those for each peer on a stream of their own."""
        signals, world = self.world.signals(1), self.world

        def copy(rank: int) -> None:
            main = world.streams[rank]
            peers = self.peers_of(rank)
            streams = world.to_peers[rank][: len(peers)]
            for peer, stream in zip(peers, streams, strict=True):
                source, target, number = self.transfer(rank, peer)
                slot = self.arrays.slot(target, number)
                stream.wait_stream(main)
                signals.stream_copy(rank, slot, self.arrays.own[source], stream=stream)
            for stream in streams:
                main.wait_stream(stream)

        return [functools.partial(copy, rank) for rank in self.active]

    def by_nccl(self) -> list[Work]:
        """Return the collective that moves as many bytes over each link; none for a ring."""
        own, inboxes, streams = self.arrays.own, self.arrays.inboxes, self.world.streams
        is_ring = not self.to_all and len(self.active) == len(self.world)
        if self.world.shares_gpus or is_ring:
            return []
        if not self.to_all:
            collective = lambda: nccl.broadcast(own, streams=streams)  # noqa: E731
        elif self.kind == "push and add":
            collective = lambda: nccl.reduce_scatter(inboxes, own, streams=streams)  # noqa: E731
        else:
            collective = lambda: nccl.all_gather(own, inboxes, streams=streams)  # noqa: E731
        try:
            collective()
        except RuntimeError as error:
            print(f"no NCCL: {error}", flush=True)
            return []
        self.world.settle()
        return [collective]

    def check(self, works: Sequence[Work]) -> None:
        """Compare every slot of every inbox with the numbers sent there; the others hold 5."""
        arrays, world = self.arrays, self.world
        arrays.fill()
        for work in works:
            work()
        world.settle()
        wanted = torch.full((len(world), len(world), arrays.own[0].shape[0]), 5.0)
        for rank in self.active:
            for peer in self.peers_of(rank):
                source, target, number = self.transfer(rank, peer)
                before = wanted[target, number] if self.kind == "push and add" else 0
                wanted[target, number] = arrays.numbers(source) + before
        for rank, number in itertools.product(world.ranks, world.ranks):
            slot = arrays.slot(rank, number)
            if not bool((slot == wanted[rank, number].bfloat16().to(slot.device)[:, None]).all()):
                raise SystemExit(
                    f"{self.kind}, ranks {self.active}: slot {number} of rank {rank} is wrong"
                )

    def rows(self, case: str, ctas: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
        others = {"copy_engine": self.by_copy_engine(), "nccl": self.by_nccl()}
        sent_bytes = self.arrays.own[0].nbytes * len(self.peers_of(self.active[0]))
        for count in ctas:
            ours = {"tmaasync": self.by_tma(count)}
            if not self.to_all:
                ours["static_schedule"] = self.by_tma(count, static_schedule=True)
            timed = compared(self.world, {**ours, **others}, rounds)
            for works in ours.values():
                self.check(works)
            throughput = {name: round(sent_bytes / us / 1e3, 1) for name, us in timed["us"].items()}
            row = {"case": case.format(count), "bytes": sent_bytes, "gb_per_s": throughput, **timed}
            print(f"{row['case']:52s} {throughput}", flush=True)
            yield row


def compared(world: World, candidates: dict[str, list[Work]], rounds: int) -> dict[str, Any]:
    """Time the candidates in turn; one without work is left out."""
    found: dict[str, list[float]] = {name: [] for name, works in candidates.items() if works}
    for _ in range(rounds):
        for name, values in found.items():
            values.append(microseconds(world, candidates[name]))
    return {**summary(found, "copy_engine"), "rounds": rounds, "calls_per_slice": CALLS}


def summary(found: dict[str, list[float]], reference: str) -> dict[str, Any]:
    """Return the median microseconds of each candidate, and its speed over the reference's."""
    ratios = {
        name: [theirs / own for own, theirs in zip(values, found[reference], strict=True)]
        for name, values in found.items()
    }
    return {
        "us": {name: round(statistics.median(values), 1) for name, values in found.items()},
        f"speed_over_{reference}": {
            name: {
                "median": round(statistics.median(values), 4),
                "min": round(min(values), 4),
                "max": round(max(values), 4),
            }
            for name, values in ratios.items()
        },
    }


def microseconds(world: World, works: Sequence[Work]) -> float:
    """Time a call of all works, by events on the stream of each rank: the slowest rank's counts."""

    def recorded() -> list[torch.cuda.Event]:
        events = [torch.cuda.Event(enable_timing=True) for _ in world.ranks]
        for event, stream in zip(events, world.streams, strict=True):
            event.record(stream)
        return events

    for work in works:
        work()
    starts = recorded()
    for _ in range(CALLS):
        for work in works:
            work()
    ends = recorded()
    world.settle()
    elapsed = (start.elapsed_time(end) for start, end in zip(starts, ends, strict=True))
    return max(elapsed) * 1e3 / CALLS


def bandwidths(world: World, rounds: int, size_bytes: int) -> Iterator[dict[str, Any]]:
    pair = Arrays.of(world.of_ranks(2), size_bytes)
    for kind in KINDS:
        active = (1,) if kind == "pull" else (0,)
        yield from Pattern(pair, kind, active).rows(f"{kind}, {{}} CTAs", CTAS, rounds)
    del pair  # frees its memory
    for ranks in worlds_of(world):
        some = world.of_ranks(ranks)
        everybody = tuple(some.ranks)
        for to_all, ctas in ((False, CTAS_OF_ALL), (True, CTAS_A_PEER)):
            arrays = Arrays.of(some, size_bytes // 4 if to_all else size_bytes)
            where = "all peers, {} CTAs a peer" if to_all else "next rank, {} CTAs"
            for kind in KINDS:
                pattern = Pattern(arrays, kind, everybody, to_all)
                yield from pattern.rows(f"{ranks} ranks, {kind}, {where}", ctas, rounds)


# --- signals ----------------------------------------------------------------------------------


def together(world: World, launches: Sequence[Work], signals: Signals) -> float:
    """Seconds from the first launch to the end of all."""
    world.settle()
    start = time.perf_counter()
    for launch in launches:
        launch()
    signals.synchronize()
    return time.perf_counter() - start


def rounds_us(name: str, world: World, threads: int) -> dict[str, Any]:
    tile = create_tma_tile(world.zeros(TILE, torch.bfloat16)[0], TILE)
    kernel = Kernel(SOURCE, name, types={"Tile": tile})
    found = []
    for _ in range(5):
        timed = {}
        for count in (ROUNDS // 10, ROUNDS):
            signals = world.signals(16)
            launches = [
                kernel.prepare(1, threads, (own, np.uint32(count)), stream=stream)
                for own, stream in zip(signals, world.streams, strict=True)
            ]
            timed[count] = together(world, launches, signals)
        # The host's part is in both.
        found.append((timed[ROUNDS] - timed[ROUNDS // 10]) / (ROUNDS - ROUNDS // 10) * 1e6)
    return {
        "us": round(statistics.median(found), 3),
        "us_min": round(min(found), 3),
        "us_max": round(max(found), 3),
        "ranks": len(world),
        "rounds_per_launch": ROUNDS,
    }


def hand_overs(world: World, wanted: int, *, by_tma: bool) -> dict[str, Any]:
    arrays = world.zeros((HAND_BLOCKS * HAND_TILE[0], HAND_TILE[1]), torch.int32)
    tiles = TMATensorTileArray([create_tma_tile(array, HAND_TILE) for array in arrays])
    kernel = Kernel(SOURCE, "hand_over", types={"Tile": tiles[0]})
    wrong = world.zeros((1,), torch.int32)
    rounds = -(-wanted // (HAND_BLOCKS * len(world)))
    signals = world.signals(2 * HAND_BLOCKS)
    launches = [
        kernel.prepare(
            HAND_BLOCKS,
            HAND_THREADS,
            (own, tiles, arrays[rank], np.uint32(rounds), by_tma, wrong[rank]),
            stream=world.streams[rank],
        )
        for rank, own in enumerate(signals)
    ]
    seconds = together(world, launches, signals)
    return {
        "hand_overs": rounds * HAND_BLOCKS * len(world),
        "bytes_each": HAND_TILE[0] * HAND_TILE[1] * 4,
        "wrong_elements": sum(int(one.item()) for one in wrong),
        "seconds": round(seconds, 3),
        "us_per_round": round(seconds / rounds * 1e6, 3),
        "ranks": len(world),
    }


def probes(world: World, wanted: int) -> Iterator[dict[str, Any]]:
    yield {"probe": "a signal to a peer and back", **rounds_us("ping", world.of_ranks(2), 1)}
    for ranks in sorted({len(world), *WORLDS}):
        some = world.of_ranks(ranks)
        where = f", {-(-ranks // some.gpus)} a GPU" if some.shares_gpus else ""
        timed = rounds_us("barriers", some, 32)
        yield {"probe": f"a barrier over {ranks} ranks{where}", **timed}
    for by_tma in (True, False):
        how = "TMA loads" if by_tma else "ordinary loads"
        row = hand_overs(world, wanted, by_tma=by_tma)
        if row["wrong_elements"]:
            raise SystemExit(f"a hand-over was stale: {row}")
        yield {"probe": f"TMA stores handed over to {how}", **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hand-overs", type=int, default=1_000_000)
    parser.add_argument("--mib", type=int, default=512, help="of an array that goes over one link")
    parser.add_argument("--ranks", type=int, help="2 to 8; by default one per GPU")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    # So that no rank's launch queues up after a rank that waits for it, where they share a GPU.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    devices = torch.cuda.device_count()
    ranks = arguments.ranks or devices
    if not 2 <= ranks <= max(WORLDS) or not devices:
        raise SystemExit(f"this needs 2 to 8 GPUs, or one and --ranks; the process sees {devices}")
    world = World.of(range(devices)).of_ranks(ranks)
    if world.gpus > 1:
        enable_peer_access(range(world.gpus))
    signals = []
    for row in probes(world, arguments.hand_overs):
        print(row, flush=True)
        signals.append(row)
    if not world.shares_gpus:
        print(record("signals", signals))
    rows = list(bandwidths(world, arguments.rounds, arguments.mib << 20))
    if not world.shares_gpus:
        print(record("peers", rows))


if __name__ == "__main__":
    main()
