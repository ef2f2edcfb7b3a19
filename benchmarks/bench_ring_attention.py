"""ops.ring_attention over the throughput of as many single GPUs: the section ``ring_attention``,
and with ``--backward`` its gradients: ``ring_attention_backward``.

One process with two GPUs or more, bfloat16, 32 query heads and 8 KV heads of 128. Next to ours, in
interleaved rounds: `ops.attention` of the whole sequence on every GPU at once (``one_gpu``), and
`ops.attention` of each rank's share with all keys already on its GPU (``share``), which no overlap
can beat. The slowest rank counts. Speeds are over ``one_gpu``: with P ranks, P is perfect. Ours is
also called as a CUDA graph per rank. Results are compared with ``one_gpu``.

``--tokens 32768 65536`` chooses lengths, ``--heads`` and ``--kv-heads`` the heads, ``--ranks 2``
takes fewer GPUs than there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from bench_peers import World
from race import record
from rank_race import Work, captured, interleaved

from tmaasync import enable_peer_access, ops

TOKENS = (32768, 65536, 131072, 262144)
HEAD_DIM = 128
ROUNDS = 3


class Problem:
    """A sequence on every GPU, and each rank's zigzag or contiguous share of it."""

    def __init__(self, world: World, tokens: int, heads: int, kv_heads: int, causal: bool) -> None:
        self.world, self.causal, ranks = world, causal, len(world)
        torch.manual_seed(tokens)
        whole = [
            torch.randn(1, tokens, each, HEAD_DIM, dtype=torch.bfloat16, device=world.devices[0])
            for each in (heads, kv_heads, kv_heads)
        ]
        self.whole = [[one.to(f"cuda:{device}") for one in whole] for device in world.devices]
        self.chunks = [[rank, 2 * ranks - 1 - rank] if causal else [rank] for rank in world.ranks]
        self.length = tokens // ranks // len(self.chunks[0])
        self.own = [
            [self.share(one, rank) for rank, one in enumerate(each)]
            for each in zip(*self.whole, strict=True)
        ]
        self.out = [torch.zeros_like(one) for one in self.own[0]]
        self.outs = [torch.zeros_like(each[0]) for each in self.whole]
        self.shares = [torch.zeros_like(one) for one in self.out]
        world.settle()

    def share(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        chunks = whole.split(self.length, 1)
        return torch.cat([chunks[chunk] for chunk in self.chunks[rank]], 1)

    def ring(self) -> None:
        ops.ring_attention(*self.own, causal=self.causal, out=self.out, streams=self.world.streams)

    def one_gpu(self) -> None:
        for (q, k, v), out, stream in zip(self.whole, self.outs, self.world.streams, strict=True):
            ops.attention(q, k, v, causal=self.causal, out=out, stream=stream)

    def alone(self) -> None:
        """Attend to keys that are all there, in a call for each chunk."""
        for rank, (stream, out) in enumerate(zip(self.world.streams, self.shares, strict=True)):
            _, k, v = self.whole[rank]
            for at, chunk in enumerate(self.chunks[rank]):
                rows = slice(at * self.length, (at + 1) * self.length)
                end = (chunk + 1) * self.length if self.causal else k.shape[1]
                ops.attention(
                    self.own[0][rank][:, rows], k[:, :end], v[:, :end],
                    causal=self.causal, out=out[:, rows], stream=stream,
                )  # fmt: skip

    def check(self) -> None:
        for rank, (found, whole) in enumerate(zip(self.out, self.outs, strict=True)):
            wanted = self.share(whole, rank)
            off = (found - wanted).abs() / (1 + wanted.abs())
            if not off.max().item() <= 2.0**-6:
                raise SystemExit(f"rank {rank}: off by {off.max().item()}")

    def candidates(self) -> dict[str, Work]:
        return {"tmaasync": self.ring, "one_gpu": self.one_gpu, "share": self.alone}

    def works(self) -> dict[str, Work]:
        """Return the candidates, each called once."""
        found = self.candidates()
        for work in found.values():
            work()
        self.world.settle()
        self.check()
        found["tmaasync_graph"] = captured(self.world, self.ring)
        return found


class Backward(Problem):
    """The gradients of a problem: on each rank its share, on every GPU of the whole sequence."""

    def __init__(self, world: World, tokens: int, heads: int, kv_heads: int, causal: bool) -> None:
        super().__init__(world, tokens, heads, kv_heads, causal)
        streams = world.streams
        dout = torch.randn_like(self.whole[0][0])
        self.douts = [dout.to(f"cuda:{device}") for device in world.devices]
        self.dout = [self.share(one, rank) for rank, one in enumerate(self.douts)]
        self.gradients = [[torch.zeros_like(one) for one in each] for each in self.own]
        self.wanted = [[torch.zeros_like(one) for one in each] for each in self.whole]
        world.settle()
        _, self.lse = ops.ring_attention(
            *self.own, causal=causal, out=self.out, return_lse=True, streams=streams
        )
        self.lses = [
            ops.attention(*each, causal=causal, out=out, return_lse=True, stream=stream)[1]
            for each, out, stream in zip(self.whole, self.outs, streams, strict=True)
        ]
        world.settle()

    def candidates(self) -> dict[str, Work]:
        return {"tmaasync": self.ring, "one_gpu": self.one_gpu}

    def ring(self) -> None:
        dq, dk, dv = self.gradients
        ops.ring_attention_backward(
            *(self.dout, *self.own, self.out, self.lse),
            causal=self.causal, dq=dq, dk=dk, dv=dv, streams=self.world.streams,
        )  # fmt: skip

    def one_gpu(self) -> None:
        for rank, stream in enumerate(self.world.streams):
            dq, dk, dv = self.wanted[rank]
            ops.attention_backward(
                *(self.douts[rank], *self.whole[rank], self.outs[rank], self.lses[rank]),
                causal=self.causal, dq=dq, dk=dk, dv=dv, stream=stream,
            )  # fmt: skip

    def check(self) -> None:
        for rank, wanted in enumerate(self.wanted):
            for found, whole in zip(self.gradients, wanted, strict=True):
                own = self.share(whole, rank).float()
                off = (found[rank].float() - own).norm() / own.norm()
                if not off.item() <= 2.0**-6:
                    raise SystemExit(f"rank {rank}: gradients off by {off.item()} of their norm")


def rows(world: World, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    heads, kv_heads = arguments.heads, arguments.kv_heads
    for tokens in arguments.tokens:
        for causal in (True, False):
            kind = Backward if arguments.backward else Problem
            problem = kind(world, tokens, heads, kv_heads, causal)
            row = interleaved(world, problem.works(), 1, ROUNDS, "one_gpu")
            problem.check()
            mask = "causal, " if causal else ""
            of_heads = f"{heads} heads over {kv_heads} of {HEAD_DIM}"
            case = f"{len(world)} ranks, {mask}{tokens} tokens, {of_heads}"
            multiplied = 10 if arguments.backward else 4
            flop = multiplied * tokens**2 * heads * HEAD_DIM // (2 if causal else 1)
            tflops = {name: round(flop / us / 1e6 / len(world)) for name, us in row["us"].items()}
            tflops["one_gpu"] *= len(world)
            yield {"case": case, **row, "tflops_per_gpu": tflops}
            del problem
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--backward", action="store_true")
    arguments = parser.parse_args()
    devices = range(min(torch.cuda.device_count(), arguments.ranks))
    if len(devices) < 2:
        raise SystemExit("this needs two GPUs or more")
    enable_peer_access(devices)
    found = []
    for row in rows(World.of(devices), arguments):
        found.append(row)
        speeds = row["speed_over_one_gpu"]
        of_perfect = {name: round(one["median"] / len(devices), 3) for name, one in speeds.items()}
        print(
            row["case"], row["us"], row["tflops_per_gpu"], "of P x one GPU:", of_perfect, flush=True
        )
        record("ring_attention_backward" if arguments.backward else "ring_attention", found)


if __name__ == "__main__":
    main()
