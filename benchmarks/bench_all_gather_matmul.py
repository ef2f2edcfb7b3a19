"""ops.all_gather_matmul and ops.all_gather. Writes sections "all_gather_matmul" and "all_gather".

One process with two GPUs or more. A is [M / P, K] on each of P ranks, B is [K, N / P], bfloat16.
Next to ours, in interleaved rounds: NCCL's all-gather and then ``torch.mm`` (cuBLAS), and
``torch.mm`` of gathered rows alone, which no overlap can beat; each also as a CUDA graph per rank,
without the host's work. The slowest rank counts. The results of every shape are compared with
cuBLAS's. NVLink multicast is off.

Then, in processes of their own, torch's fused symmetric-memory operator
(``torch.ops.symm_mem.fused_all_gather_matmul``) over the same shapes, where torch has it. It needs
a process per GPU, so it is not interleaved with the others but with ``torch.mm`` of gathered rows.
Every wait has a budget, and the whole run a limit. ``--ranks 4`` takes fewer GPUs than there are.
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


class Problem:
    """Operands and outputs of all ranks."""

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        self.world, ranks = world, len(world)

        def drawn(rows: int, columns: int) -> list[torch.Tensor]:
            return [
                torch.randn(rows, columns, dtype=torch.bfloat16, device=f"cuda:{device}")
                for device in world.devices
            ]

        self.a, self.w = drawn(m // ranks, k), drawn(n // ranks, k)
        self.b = [one.T for one in self.w]
        self.gathered = world.zeros((m, k), torch.bfloat16)
        self.out = world.zeros((m, n // ranks), torch.bfloat16)
        self.theirs = world.zeros((m, n // ranks), torch.bfloat16)
        world.settle()

    def ours(self) -> None:
        ops.all_gather_matmul(self.a, self.b, out=self.out, streams=self.world.streams)

    def multiply(self) -> None:
        for rank, stream in enumerate(self.world.streams):
            with torch.cuda.device(self.world.devices[rank]), torch.cuda.stream(stream):
                torch.mm(self.gathered[rank], self.b[rank], out=self.theirs[rank])

    def nccl_then_multiply(self) -> None:
        nccl.all_gather(self.a, self.gathered, streams=self.world.streams)
        self.multiply()

    def check(self) -> None:
        self.world.settle()
        self.nccl_then_multiply()
        self.ours()
        self.world.settle()
        for ours, theirs in zip(self.out, self.theirs, strict=True):
            scale = float(theirs.abs().max())
            if not float((ours.float() - theirs.float()).abs().max()) <= 2**-7 * scale:
                raise SystemExit("all_gather_matmul is wrong")


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
    world: World, rounds: int, fused: dict[str, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    for m, n, k in SHAPES:
        case = f"{len(world)} ranks, M={m} N={n} K={k}"
        problem = Problem(world, m, n, k)
        problem.check()
        works = {
            "tmaasync": problem.ours,
            "nccl_cublas": problem.nccl_then_multiply,
            "cublas_alone": problem.multiply,
        }
        candidates = with_graphs(world, works)
        row = {"case": case, **interleaved(world, candidates, rounds, "nccl_cublas")}
        row["us"] |= {name: round(us, 1) for name, us in fused.get(case, {}).items()}
        problem.check()
        print(case, row["us"], flush=True)
        yield row
        del problem, candidates
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


def time_fused(rank: int, ranks: int, rounds: int, store: str, results: Any) -> None:
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
        gathered = torch.randn(m, k, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(n // ranks, k, dtype=torch.bfloat16, device="cuda").T
        own, fused = gathered[: m // ranks], torch.ops.symm_mem.fused_all_gather_matmul
        calls = {
            "torch_fused": functools.partial(fused, own, [b], 0, name, return_A=False),
            "cublas_next_to_torch_fused": functools.partial(torch.mm, gathered, b),
        }
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


def fused_times(ranks: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return microseconds by case and candidate; none, with a message, if torch lacks it."""
    spawn, found = processes.get_context("spawn"), {}
    with tempfile.TemporaryDirectory() as folder:
        results = spawn.Queue()
        store = str(Path(folder) / "store")
        started = [
            spawn.Process(
                target=time_fused, args=(rank, ranks, rounds, store, results), daemon=True
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
    fused = {} if arguments.no_fused else fused_times(ranks, arguments.rounds)
    world = World.of(range(ranks))
    enable_peer_access(range(ranks))
    print(record("all_gather", list(gather_rows(world, arguments.rounds))))
    rows = []
    for row in matmul_rows(world, arguments.rounds, fused):
        rows.append(row)
        print(record("all_gather_matmul", rows), flush=True)


if __name__ == "__main__":
    main()
