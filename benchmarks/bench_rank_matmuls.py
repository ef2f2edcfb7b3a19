"""Matmuls of several GPUs and ops.all_gather: sections "all_gather_matmul",
"matmul_reduce_scatter" and "all_gather" of the results.

One process with two GPUs or more, bfloat16. Next to ours, in interleaved rounds: NCCL and
``torch.mm`` (cuBLAS) one after the other, and ``torch.mm`` alone, which no overlap can beat; each
also as a CUDA graph per rank, without the host's work. The slowest rank counts. Every result of
ours is compared with a sum in float32. NVLink multicast is off.

Then, in processes of their own, torch's fused symmetric-memory operators
(``torch.ops.symm_mem.fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter``) over the same
shapes, where torch has them. They need a process per GPU, so they are not interleaved with the
others but with ``torch.mm`` of the same matrices. Every wait has a budget, and the whole run a
limit. ``--ranks 4`` takes fewer GPUs than there are.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast

import torch
import torch.multiprocessing as processes
from bench_peers import World, microseconds, summary
from race import record
from torch.cuda import nccl

from tmaasync import enable_peer_access, ops

LIMIT_S, FUSED_LIMIT_S = 500, 120
SHAPES = (  # M, N, K of the whole problem
    (128, 8192, 8192),
    (512, 8192, 8192),
    (2048, 8192, 8192),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
    (16384, 16384, 16384),
)
GATHERED_MIB = (1, 16, 128, 512)
CALLS = 10

Work = Callable[[], Any]


class AllGatherMatmul:
    """Operands and outputs of all ranks: A is [M / P, K] on each of P ranks, B is [K, N / P]."""

    section = "all_gather_matmul"

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        self.world, ranks = world, len(world)
        self.a, self.w = drawn(world, m // ranks, k), drawn(world, n // ranks, k)
        self.b = [one.T for one in self.w]
        self.gathered = world.zeros((m, k), torch.bfloat16)
        self.out = world.zeros((m, n // ranks), torch.bfloat16)
        self.theirs = world.zeros((m, n // ranks), torch.bfloat16)
        world.settle()

    def ours(self) -> None:
        ops.all_gather_matmul(self.a, self.b, out=self.out, streams=self.world.streams)

    def multiply(self) -> None:
        multiply(self.world, self.gathered, self.b, self.theirs)

    def with_nccl(self) -> None:
        nccl.all_gather(self.a, self.gathered, streams=self.world.streams)
        self.multiply()

    def expected(self, rank: int) -> torch.Tensor:
        """Return a rank's result in float32, of the rows that NCCL has gathered."""
        return self.gathered[rank].float() @ self.b[rank].float()

    @staticmethod
    def fused(m: int, n: int, k: int, ranks: int, group: str) -> tuple[Work, Work]:
        """Return torch's fused operator on this process's rank, and cuBLAS's share of it."""
        gathered = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(n // ranks, k, dtype=torch.bfloat16, device="cuda").T
        operator, own = torch.ops.symm_mem.fused_all_gather_matmul, gathered[: m // ranks]
        return (
            functools.partial(operator, own, [b], 0, group, return_A=False),
            functools.partial(torch.mm, gathered, b),
        )


class MatmulReduceScatter:
    """Operands and outputs of all ranks: A is [M, K / P] on each of P ranks, B is [K / P, N]."""

    section = "matmul_reduce_scatter"

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        self.world, ranks = world, len(world)
        self.a, self.w = drawn(world, m, k // ranks), drawn(world, n, k // ranks)
        self.b = [one.T for one in self.w]
        self.partial = world.zeros((m, n), torch.bfloat16)
        self.out = world.zeros((m // ranks, n), torch.bfloat16)
        self.theirs = world.zeros((m // ranks, n), torch.bfloat16)
        world.settle()

    def ours(self) -> None:
        ops.matmul_reduce_scatter(self.a, self.b, out=self.out, streams=self.world.streams)

    def multiply(self) -> None:
        multiply(self.world, self.a, self.b, self.partial)

    def with_nccl(self) -> None:
        self.multiply()
        nccl.reduce_scatter(self.partial, self.theirs, streams=self.world.streams)

    def expected(self, rank: int) -> torch.Tensor:
        """Return a rank's result in float32."""
        own = self.out[rank]
        rows = slice(rank * len(own), (rank + 1) * len(own))
        total = torch.zeros(own.shape, device=own.device)
        for a, b in zip(self.a, self.b, strict=True):
            total += a[rows].to(own.device).float() @ b.to(own.device).float()
        return total

    @staticmethod
    def fused(m: int, n: int, k: int, ranks: int, group: str) -> tuple[Work, Work]:
        """Return torch's fused operator on this process's rank, and cuBLAS's share of it."""
        a = torch.randn(m, k // ranks, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(n, k // ranks, dtype=torch.bfloat16, device="cuda").T
        operator = torch.ops.symm_mem.fused_matmul_reduce_scatter
        return (
            functools.partial(operator, a, b, "sum", 0, group),
            functools.partial(torch.mm, a, b),
        )


Problem = AllGatherMatmul | MatmulReduceScatter
PROBLEMS = (AllGatherMatmul, MatmulReduceScatter)


def drawn(world: World, rows: int, columns: int) -> list[torch.Tensor]:
    return [
        torch.randn(rows, columns, dtype=torch.bfloat16, device=f"cuda:{device}")
        for device in world.devices
    ]


def multiply(
    world: World, a: list[torch.Tensor], b: list[torch.Tensor], out: list[torch.Tensor]
) -> None:
    for rank, stream in enumerate(world.streams):
        with torch.cuda.device(world.devices[rank]), torch.cuda.stream(stream):
            torch.mm(a[rank], b[rank], out=out[rank])


def check(problem: Problem) -> None:
    problem.world.settle()
    problem.with_nccl()
    problem.ours()
    problem.world.settle()
    for rank, ours in enumerate(problem.out):
        expected = problem.expected(rank)
        scale = float(expected.abs().max())
        if not float((ours.float() - expected).abs().max()) <= 2**-7 * scale:
            raise SystemExit(f"{problem.section} is wrong")


def with_graphs(world: World, works: dict[str, Work]) -> dict[str, Work]:
    """Return ``CALLS`` calls of each work, and their replay from a CUDA graph per rank."""
    candidates = {}
    for name, work in works.items():
        candidates[name] = functools.partial(repeat, work)
        try:
            candidates[f"{name}_graph"] = captured(world, candidates[name])
        except RuntimeError as error:  # torch cannot capture it
            print(f"no graph of {name}: {error}", flush=True)
    return candidates


def repeat(work: Work) -> None:
    for _ in range(CALLS):
        work()


def captured(world: World, work: Work) -> Work:
    """Return the replay of each rank's part of the work, which was called before."""
    graphs = [torch.cuda.CUDAGraph() for _ in world.ranks]
    for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
    work()
    for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
        with torch.cuda.device(device), torch.cuda.stream(stream):
            graph.capture_end()

    def replay() -> None:
        for device, stream, graph in zip(world.devices, world.streams, graphs, strict=True):
            with torch.cuda.device(device), torch.cuda.stream(stream):
                graph.replay()

    return replay


def interleaved(
    world: World, candidates: dict[str, Work], rounds: int, reference: str
) -> dict[str, Any]:
    """Return the medians, and the speeds over the reference's, in rounds of all candidates.

    Each candidate makes ``CALLS`` calls.
    """
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for number in range(rounds + 1):
        for name in list(candidates) if number % 2 else reversed(list(candidates)):
            us = microseconds(world, [candidates[name]]) / CALLS
            if number:  # the first round warms up
                found[name].append(us)
    return {**summary(found, reference), "rounds": rounds, "ranks": len(world)}


def matmul_rows(
    kind: type[Problem], world: World, rounds: int, fused: dict[str, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        case = f"{len(world)} ranks, M={m} N={n} K={k}"
        problem = kind(world, m, n, k)
        check(problem)
        works = {
            "tmaasync": problem.ours,
            "nccl_cublas": problem.with_nccl,
            "cublas_alone": problem.multiply,
        }
        candidates = with_graphs(world, works)
        row = {"case": case, **interleaved(world, candidates, rounds, "nccl_cublas")}
        row["us"] |= {name: round(us, 1) for name, us in fused.get(case, {}).items()}
        check(problem)
        print(kind.section, case, row["us"], flush=True)
        yield row
        del problem, candidates, works
        torch.cuda.empty_cache()


def gather_rows(world: World, rounds: int) -> Iterator[dict[str, Any]]:
    for mib in GATHERED_MIB:
        rows = (mib << 20) // 2 // 1024 // len(world)
        own = world.zeros((rows, 1024), torch.bfloat16)
        out, theirs = (world.zeros((rows * len(world), 1024), torch.bfloat16) for _ in range(2))
        for rank, one in enumerate(own):
            one[:] = torch.arange(rows, device=one.device)[:, None] % 200 + rank
        world.settle()
        ours = functools.partial(ops.all_gather, own, out=out, streams=world.streams)
        nccls = functools.partial(nccl.all_gather, own, theirs, streams=world.streams)
        ours()
        nccls()
        world.settle()
        if not all(torch.equal(one, two) for one, two in zip(out, theirs, strict=True)):
            raise SystemExit("all_gather is wrong")
        candidates = with_graphs(world, {"tmaasync": ours, "nccl": nccls})
        row = {
            "case": f"{len(world)} ranks, {mib} MiB in all",
            **interleaved(world, candidates, rounds, "nccl"),
        }
        print(row["case"], row["us"], flush=True)
        yield row


# --- torch's fused operator -------------------------------------------------------------------


def time_fused(
    rank: int, kind: type[Problem], ranks: int, rounds: int, store: str, results: Any
) -> None:
    """Time the operator in one process of `ranks`; rank 0 sends the medians of the slowest rank."""
    faulthandler.dump_traceback_later(FUSED_LIMIT_S, exit=True)
    import torch.distributed as dist  # noqa: PLC0415
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=ranks)
    name = dist.group.WORLD.group_name
    if hasattr(symmetric, "enable_symm_mem_for_group"):
        symmetric.enable_symm_mem_for_group(name)
    for m, n, k in SHAPES:
        both = kind.fused(m, n, k, ranks, name)
        calls = dict(zip(("torch_fused", "cublas_next_to_torch_fused"), both, strict=True))
        found: dict[str, list[float]] = {candidate: [] for candidate in calls}
        for number in range(rounds + 1):
            for candidate, call in calls.items():
                us = slowest_rank(call)
                if number:
                    found[candidate].append(us)
        if rank == 0:
            medians = {candidate: statistics.median(us) for candidate, us in found.items()}
            results.put((f"{ranks} ranks, M={m} N={n} K={k}", medians))
    dist.destroy_process_group()


def slowest_rank(call: Work) -> float:
    """Return the microseconds of a call on the slowest of the processes' ranks."""
    import torch.distributed as dist  # noqa: PLC0415

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    us = torch.tensor([start.elapsed_time(end) * 1e3 / CALLS], device="cuda")
    dist.all_reduce(us, dist.ReduceOp.MAX)
    return float(us)


def fused_times(kind: type[Problem], ranks: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds by case and candidate; none, with a message, if torch lacks it."""
    spawn, found = processes.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        results = spawn.Queue()
        store = str(Path(folder) / "store")
        started = [
            spawn.Process(
                target=time_fused, args=(rank, kind, ranks, rounds, store, results), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(FUSED_LIMIT_S + 10)
            process.kill()
        while not results.empty():
            case, medians = results.get()
            found[case] = medians
    if len(found) < len(SHAPES):
        print(f"torch's fused operator measured {len(found)} of {len(SHAPES)} shapes", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", type=int, help="2 to 8; by default one per GPU")
    parser.add_argument("--no-fused", action="store_true", help="leave out torch's operator")
    arguments = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    devices = torch.cuda.device_count()
    ranks = arguments.ranks or min(devices, 8)
    if not 2 <= ranks <= devices:
        raise SystemExit(f"this needs 2 to 8 GPUs, and the process sees {devices}")
    fused = {
        kind.section: {} if arguments.no_fused else fused_times(kind, ranks, arguments.rounds)
        for kind in PROBLEMS
    }
    world = World.of(range(ranks))
    enable_peer_access(range(ranks))
    print(record("all_gather", list(gather_rows(world, arguments.rounds))))
    for kind in PROBLEMS:
        rows = []
        for row in matmul_rows(kind, world, arguments.rounds, fused[kind.section]):
            rows.append(row)
            print(record(kind.section, rows), flush=True)


if __name__ == "__main__":
    main()
