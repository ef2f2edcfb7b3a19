"""Block-scaled FP8 matmuls of several GPUs: ``all_gather_scaled_matmul`` and
``scaled_matmul_reduce_scatter`` in the results.

One process with two GPUs or more; scales of 1 x 128 of A and 128 x 128 of B. Next to ours, in
interleaved rounds, each also as a CUDA graph per rank: NCCL and torch's ``scaled_mm`` (cuBLAS) one
after the other, NCCL and `ops.scaled_matmul`, and both GEMMs alone, which no overlap can beat. A
gather by NCCL moves bytes and scales, and a copy then puts the scales in the order that the GEMMs
read. Where torch refuses block scales, its rows are left out. The slowest rank counts. Every result
of ours is compared with a sum in float32. NVLink multicast is off.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from bench_peers import World
from bench_rank_matmuls import LIMIT_S, MAX_CALLS, SHAPES, SLICE_S, check, within
from bench_scaled_matmul import by_blocks, by_rows
from bench_scaled_matmul import drawn as drawn_on_device
from rank_race import Work, interleaved, with_graphs
from torch.cuda import nccl

from tmaasync import enable_peer_access, ops

FLOP_PER_S = 1e15
ROW_PARALLEL = (*SHAPES, (128, 8192, 28672), (2048, 8192, 28672), (2048, 16384, 53248))
BYTES = torch.uint8  # of NCCL, which has no FP8

Tensors = list[torch.Tensor]
Multiply = Callable[..., torch.Tensor]


def by_torch(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
) -> torch.Tensor:
    functional = torch.nn.functional
    kinds = functional.ScalingType
    return functional.scaled_mm(
        a,
        b,
        scale_a,
        kinds.BlockWise1x128,
        scale_b,
        kinds.BlockWise128x128,
        output_dtype=torch.bfloat16,
    )


class Problem:
    """Operands and outputs of all ranks; ``whole`` is what each rank's GEMM alone multiplies."""

    section: str
    shapes: tuple[tuple[int, int, int], ...]
    call: Callable[..., Any]

    def __init__(
        self, world: World, left: tuple[int, int], right: tuple[int, int], rows: int
    ) -> None:
        """Quantise A [M, K] and B [N, K] of these shapes, for outputs of ``rows``."""
        self.world = world
        of_a = self.each(lambda _: by_rows(drawn_on_device(*left)))
        of_b = self.each(lambda _: by_blocks(drawn_on_device(*right)))
        self.a, self.scale_a = ([one[part] for one in of_a] for part in range(2))
        self.b, self.scale_b = ([one[part].T for one in of_b] for part in range(2))
        self.out = world.zeros((rows, right[0]), torch.bfloat16)
        self.theirs = world.zeros((rows, right[0]), torch.bfloat16)

    def each(self, work: Callable[[int], Any]) -> list[Any]:
        """Return what the work makes on each rank's device and stream."""
        found = []
        for rank, stream in enumerate(self.world.streams):
            with torch.cuda.device(self.world.devices[rank]), torch.cuda.stream(stream):
                found.append(work(rank))
        return found

    def ours(self) -> None:
        operands = self.a, self.b, self.scale_a, self.scale_b
        type(self).call(*operands, out=self.out, streams=self.world.streams)

    def whole(self) -> tuple[Tensors, Tensors]:
        """Return A and its scales, as the GEMM of each rank takes them."""
        raise NotImplementedError

    def multiply(self, gemm: Multiply) -> Tensors:
        a, scales = self.whole()
        return self.each(lambda rank: gemm(a[rank], self.b[rank], scales[rank], self.scale_b[rank]))

    def in_turn(self, gemm: Multiply) -> None:
        """Run NCCL and a GEMM one after the other."""
        raise NotImplementedError

    def with_nccl(self) -> None:
        self.in_turn(ops.scaled_matmul)

    def works(self) -> dict[str, Work]:
        """Return the candidates, without torch's if it refuses the case."""
        found: dict[str, Work] = {
            "tmaasync": self.ours,
            "nccl_scaled_matmul": self.with_nccl,
            "scaled_matmul_alone": functools.partial(self.multiply, ops.scaled_matmul),
        }
        try:
            self.multiply(by_torch)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            print(f"{self.section}: torch refuses: {str(error).splitlines()[0]}", flush=True)
        else:
            found["nccl_cublas"] = functools.partial(self.in_turn, by_torch)
            found["cublas_alone"] = functools.partial(self.multiply, by_torch)
        return found


class AllGather(Problem):
    """A is [M / P, K] on each of P ranks, B is [K, N / P]."""

    section = "all_gather_scaled_matmul"
    shapes = SHAPES
    call = ops.all_gather_scaled_matmul

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        ranks = len(world)
        super().__init__(world, (m // ranks, k), (n // ranks, k), m)
        self.bytes = world.zeros((m, k), BYTES)
        self.parts = world.zeros((ranks, k // 128, m // ranks), torch.float32)
        self.scales = world.zeros((k // 128, m), torch.float32)
        world.settle()

    def whole(self) -> tuple[Tensors, Tensors]:
        return [one.view(self.a[0].dtype) for one in self.bytes], [one.T for one in self.scales]

    def in_turn(self, gemm: Multiply) -> None:
        streams = self.world.streams
        nccl.all_gather([one.view(BYTES) for one in self.a], self.bytes, streams=streams)
        nccl.all_gather([one.T for one in self.scale_a], self.parts, streams=streams)

        def in_order(rank: int) -> None:
            blocks, rows = self.scales[rank].shape
            of_ranks = self.scales[rank].view(blocks, len(self.world), rows // len(self.world))
            of_ranks.copy_(self.parts[rank].transpose(0, 1))

        self.each(in_order)
        self.multiply(gemm)

    def expected(self, rank: int, rows: slice) -> torch.Tensor:
        """Return rows of a rank's result in float32, of what NCCL has gathered."""
        a, scales = self.whole()
        left = spread(a[rank][rows], scales[rank][rows])
        return left @ spread(self.b[rank].T, self.scale_b[rank].T, rows=128).T


class ReduceScatter(Problem):
    """A is [M, K / P] on each of P ranks, B is [K / P, N]."""

    section = "scaled_matmul_reduce_scatter"
    shapes = ROW_PARALLEL
    call = ops.scaled_matmul_reduce_scatter

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        ranks = len(world)
        super().__init__(world, (m, k // ranks), (n, k // ranks), m // ranks)
        world.settle()

    def whole(self) -> tuple[Tensors, Tensors]:
        return self.a, self.scale_a

    def in_turn(self, gemm: Multiply) -> None:
        nccl.reduce_scatter(self.multiply(gemm), self.theirs, streams=self.world.streams)

    def expected(self, rank: int, rows: slice) -> torch.Tensor:
        """Return rows of a rank's result in float32."""
        device, first = self.out[rank].device, rank * len(self.out[rank])
        rows = slice(first + rows.start, first + rows.stop)
        total = torch.zeros((), device=device)
        for a, b, scale_a, scale_b in zip(self.a, self.b, self.scale_a, self.scale_b, strict=True):
            right = spread(b.T, scale_b.T, rows=128).to(device)
            total = total + spread(a[rows], scale_a[rows]).to(device) @ right.T
        return total


def spread(quantised: torch.Tensor, scales: torch.Tensor, *, rows: int = 1) -> torch.Tensor:
    """Dequantise to float32; a scale is for ``rows`` rows and 128 columns."""
    whole = scales.repeat_interleave(rows, 0).repeat_interleave(128, 1)
    return quantised.float() * whole[: quantised.shape[0], : quantised.shape[1]]


def rows_of(kind: type[AllGather | ReduceScatter], world: World, rounds: int) -> Iterator[Any]:
    for m, n, k in kind.shapes:
        problem: Any = kind(world, m, n, k)
        check(problem)
        works = problem.works()
        reference = "nccl_cublas" if "nccl_cublas" in works else "nccl_scaled_matmul"
        seconds = 2 * m * n * k / len(world) / FLOP_PER_S
        calls = max(1, min(MAX_CALLS, int(SLICE_S / seconds)))
        candidates = with_graphs(world, works, calls)
        case = f"{len(world)} ranks, M={m} N={n} K={k}"
        yield {"case": case, **interleaved(world, candidates, calls, rounds, reference)}
        check(problem)
        del problem, candidates, works
        torch.cuda.empty_cache()


def report(row: dict[str, Any]) -> str:
    us = row["us"]
    ours = us.get("tmaasync_graph", us["tmaasync"])
    names = ("nccl_cublas", "nccl_scaled_matmul", "cublas_alone", "scaled_matmul_alone")
    peers = {name: us.get(f"{name}_graph", us.get(name)) for name in names}
    speeds = ", ".join(f"{name} {one} ({one / ours:.2f})" for name, one in peers.items() if one)
    return f"  {row['case']}: {ours} us; {speeds}"


def main() -> None:
    kinds = {kind.section: kind for kind in (ReduceScatter, AllGather)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, help="2 to 8; by default one per GPU")
    parser.add_argument("--sections", nargs="*", choices=list(kinds), default=list(kinds))
    parser.add_argument("--limit", type=float, default=100, help="seconds of a section")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    devices, start = torch.cuda.device_count(), time.monotonic()
    ranks = arguments.ranks or min(devices, 8)
    if not 2 <= ranks <= devices:
        raise SystemExit(f"this needs 2 to 8 GPUs, and the process sees {devices}")
    world = World.of(range(ranks))
    enable_peer_access(range(ranks))
    for section in arguments.sections:
        rows = rows_of(kinds[section], world, arguments.rounds)
        print(section, flush=True)
        print("\n".join(map(report, within(rows, section, arguments.limit))), flush=True)
    print(f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
