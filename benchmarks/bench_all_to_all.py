"""ops.all_to_all next to NCCL: the sections ``moe_dispatch`` and ``moe_combine``.

One process with two GPUs or more, bfloat16. Each token goes to ``top_k`` of the experts, and a
rank's rows are in the order of the experts, as after a permutation. ``even`` draws all experts
alike, ``skewed`` by a Zipf law of exponent 0.5. Next to ours, in interleaved rounds:

* ``nccl_padded``: ``ncclSend`` and ``ncclRecv`` of the most rows that any rank sends to any expert,
  for every expert: what a host that does not wait for counts can call. Its rows are padded before
  and packed after, which is not timed.
* ``nccl_exact``: sends of exactly the rows for each rank, whose numbers the host knows; its rows
  are in the order of the ranks they come from, and sorting them by expert is not timed.

Each also as a CUDA graph per rank. The slowest rank counts. Results are compared with torch's
indexing before and after. NVLink multicast is off; NCCL is called through ctypes, since
`torch.cuda.nccl` has no send.

``--cases`` chooses cases by their beginnings, ``--ranks 2`` takes fewer GPUs than there are.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import torch
from bench_peers import World
from race import record
from rank_race import Work, interleaved, with_graphs

from tmaasync import enable_peer_access, ops

LIMIT_S = 400
CASES = (  # tokens of a rank, hidden size, experts, top_k
    ("DeepSeek-V3", 4096, 7168, 256, 8),
    ("DeepSeek-V3", 128, 7168, 256, 8),
    ("Mixtral", 8192, 4096, 8, 2),
    ("Mixtral", 1024, 4096, 8, 2),
    ("Qwen3-235B", 4096, 4096, 128, 8),
    ("Qwen3-235B", 128, 4096, 128, 8),
)
MAX_CALLS = 10
_UINT8 = 1  # ncclUint8


def drawn_counts(case: tuple[str, int, int, int, int], ranks: int, skewed: bool) -> torch.Tensor:
    """Return how many rows each rank sends to each expert; equal calls return equal counts."""
    _, tokens, _, experts, top_k = case
    torch.manual_seed(tokens + experts)
    weights = 1 / torch.arange(1.0, experts + 1).sqrt() if skewed else torch.ones(experts)
    weights = weights[torch.randperm(experts)].expand(tokens, -1)
    chosen = [torch.multinomial(weights, top_k).flatten() for _ in range(ranks)]
    return torch.stack([torch.bincount(one, minlength=experts) for one in chosen])


class Nccl:
    """Communicators of all ranks of this process."""

    def __init__(self, world: World) -> None:
        self.library, self.world = ctypes.CDLL("libnccl.so.2"), world
        self.communicators = (ctypes.c_void_p * len(world))()
        devices = (ctypes.c_int * len(world))(*world.devices)
        self.call("ncclCommInitAll", self.communicators, len(world), devices)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def all_to_all(
        self, sent: list[list[torch.Tensor]], received: list[list[torch.Tensor]]
    ) -> None:
        """Send ``sent[rank][peer]`` into ``received[peer][rank]``, on the ranks' streams."""
        self.call("ncclGroupStart")
        for rank, stream in enumerate(self.world.streams):
            for name, tensors in (("ncclSend", sent[rank]), ("ncclRecv", received[rank])):
                for peer, one in enumerate(tensors):
                    self.call(
                        name, ctypes.c_void_p(one.data_ptr()), ctypes.c_size_t(one.nbytes), _UINT8,
                        peer, ctypes.c_void_p(self.communicators[rank]),
                        ctypes.c_void_p(stream.cuda_stream),
                    )  # fmt: skip
        self.call("ncclGroupEnd")


class Problem:
    """Tokens in the order of their experts, packed rows, and what NCCL sends and receives."""

    def __init__(
        self, world: World, nccl: Nccl, case: tuple[str, int, int, int, int], skewed: bool
    ) -> None:
        self.world, self.nccl, ranks = world, nccl, len(world)
        _, tokens, hidden, experts, top_k = case
        self.counts = drawn_counts(case, ranks, skewed)
        rows = tokens * top_k
        self.tokens, self.packed, self.back = (
            world.zeros((count, hidden), torch.bfloat16)
            for count in (rows, int(self.by_rank().sum(0).max()), rows)
        )
        for one in self.tokens:
            one.normal_()
        self.given = [
            own.to(one.device, torch.int32)
            for own, one in zip(self.counts, self.tokens, strict=True)
        ]
        self.ends = world.zeros((experts // ranks,), torch.int32)
        # NCCL's tokens, and the rows that it moves from them.
        sizes = self.by_rank().tolist()
        self.sent = [one.split(own) for one, own in zip(self.tokens, sizes, strict=True)]
        self.exact = [
            one[: sum(own)].split(own)
            for one, own in zip(
                world.zeros((int(self.by_rank().sum(0).max()), hidden), torch.bfloat16),
                self.by_rank().T.tolist(),
                strict=True,
            )
        ]
        self.padded_rows = int(self.counts.max()) * experts
        self.padded = [
            [one.chunk(ranks) for one in world.zeros((self.padded_rows, hidden), torch.bfloat16)]
            for _ in range(2)
        ]
        world.settle()

    def by_rank(self) -> torch.Tensor:
        """Return how many rows each rank sends to each."""
        ranks = len(self.world)
        return self.counts.view(ranks, ranks, -1).sum(2)

    def dispatch(self) -> None:
        streams = self.world.streams
        ops.all_to_all(self.tokens, self.given, self.packed, ends=self.ends, streams=streams)

    def combine(self) -> None:
        streams = self.world.streams
        ops.all_to_all(self.packed, self.given, self.back, combine=True, streams=streams)

    def works(self, section: str) -> dict[str, Work]:
        """Return the candidates; NCCL's padded all-to-all is the same both ways."""
        nccl, (outbox, inbox) = self.nccl, self.padded
        sent, received = self.sent, self.exact
        if section == "moe_combine":
            sent, received = received, sent
        ours: Callable[[], None] = self.dispatch if section == "moe_dispatch" else self.combine
        return {
            "tmaasync": ours,
            "nccl_padded": lambda: nccl.all_to_all(outbox, inbox),
            "nccl_exact": lambda: nccl.all_to_all(sent, received),
        }

    def check(self) -> None:
        """Compare the packed rows with torch's, and what came back with the tokens."""
        for one in (*self.packed, *self.back):
            one.zero_()
        self.world.settle()
        self.dispatch()
        self.combine()
        self.world.settle()
        owned = self.counts.shape[1] // len(self.world)
        for rank, found in enumerate(self.packed):
            parts = [
                one.split(own.tolist()) for one, own in zip(self.tokens, self.counts, strict=True)
            ]
            experts = range(rank * owned, (rank + 1) * owned)
            wanted = torch.cat([part[e].to(found.device) for e in experts for part in parts])
            ends = self.counts.sum(0)[rank * owned : (rank + 1) * owned].cumsum(0)
            is_right = (
                torch.equal(found[: len(wanted)], wanted)
                and torch.equal(self.ends[rank].cpu().long(), ends)
                and torch.equal(self.back[rank], self.tokens[rank])
            )
            if not is_right:
                raise SystemExit(f"rank {rank}: wrong rows")


def rows(
    world: World, nccl: Nccl, rounds: int, chosen: list[str] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    for case in CASES:
        name, tokens, hidden, experts, top_k = case
        if chosen and not any(name.startswith(one) for one in chosen):
            continue
        for skewed in (False, True):
            problem = Problem(world, nccl, case, skewed)
            problem.check()
            remote = int(problem.by_rank().fill_diagonal_(0).sum(1).max())
            title = (
                f"{len(world)} ranks, {name}, {'skewed' if skewed else 'even'}: {tokens} tokens of "
                f"{hidden}, {experts} experts, top {top_k}"
            )
            for section in ("moe_dispatch", "moe_combine"):
                candidates = with_graphs(world, problem.works(section), MAX_CALLS)
                found = interleaved(world, candidates, MAX_CALLS, rounds, "nccl_padded")
                moved = remote * hidden * 2
                speeds = {key: round(moved / us / 1e3, 1) for key, us in found["us"].items()}
                yield section, {"case": title, **found, "gb_per_s": speeds}
                problem.check()
                del candidates
            del problem
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--cases", nargs="*")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    devices = range(min(torch.cuda.device_count(), arguments.ranks))
    if len(devices) < 2:
        raise SystemExit("this needs two GPUs or more")
    enable_peer_access(devices)
    world = World.of(devices)
    found: dict[str, list[dict[str, Any]]] = {"moe_dispatch": [], "moe_combine": []}
    for section, row in rows(world, Nccl(world), arguments.rounds, arguments.cases):
        found[section].append(row)
        print(section, row["case"], row["us"], row["gb_per_s"], flush=True)
        record(section, found[section])


if __name__ == "__main__":
    main()
