"""Matmuls of several GPUs and plain collectives: the sections of `SECTIONS` in the results.

One process with two GPUs or more, bfloat16. Next to ours, in interleaved rounds: NCCL and
``torch.mm`` (cuBLAS) one after the other, and ``torch.mm`` alone, which no overlap can beat; each
also as a CUDA graph per rank, without the host's work. The collectives run next to NCCL's. The
slowest rank counts. Every result of ours is compared with a sum in float32. NVLink multicast is
off.

Then, in processes of their own, torch's fused symmetric-memory operators
(``torch.ops.symm_mem.fused_all_gather_matmul`` and ``fused_matmul_reduce_scatter``; for the
all-reduce ``torch.mm`` and ``two_shot_all_reduce_``) over the same shapes, where torch has them.
They need a process per GPU, so they are not interleaved with the others but with ``torch.mm`` of
the same matrices.

Every wait has a budget, every section a limit in seconds (``--limit``), after which its remaining
rows are left out and named, and the whole run a limit. Results are recorded after each row; a table
comes last. ``--ranks 4`` takes fewer GPUs than there are.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.multiprocessing as processes
from bench_peers import World
from race import record
from rank_race import Work, interleaved, with_graphs
from torch.cuda import nccl

from tmaasync import enable_peer_access, ops

LIMIT_S, FUSED_LIMIT_S = 500, 60
SHAPES = (  # M, N, K of the whole problem
    (128, 8192, 8192),
    (512, 8192, 8192),
    (2048, 8192, 8192),
    (8192, 8192, 8192),
    (8192, 28672, 8192),
    (8192, 8192, 28672),
    (16384, 16384, 16384),
)
# The second linear layers of Llama-70B's and -405B's attention and MLP that are not among them.
ROW_PARALLEL = (
    *SHAPES,
    (128, 8192, 28672),
    (2048, 8192, 28672),
    (16384, 8192, 8192),
    (128, 16384, 16384),
    (2048, 16384, 16384),
    (128, 16384, 53248),
    (2048, 16384, 53248),
    (8192, 16384, 53248),
)
SIZES_KIB = (64, 256, 1024, 4096, 16384, 65536, 262144)
MAX_CALLS = 10
SLICE_S = 0.015  # of the calls of one candidate, which are made four times in a round
FLOP_PER_S = 6e14
CHECKED_ROWS = 512  # at the beginning and at the end of an output


class AllGatherMatmul:
    """Operands and outputs of all ranks: A is [M / P, K] on each of P ranks, B is [K, N / P]."""

    section = "all_gather_matmul"
    shapes = SHAPES

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

    def expected(self, rank: int, rows: slice) -> torch.Tensor:
        """Return rows of a rank's result in float32, of what NCCL has gathered."""
        return self.gathered[rank][rows].float() @ self.b[rank].float()

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
    shapes = ROW_PARALLEL

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

    def expected(self, rank: int, rows: slice) -> torch.Tensor:
        """Return rows of a rank's result in float32."""
        first = rank * len(self.out[rank])
        return sum_of_parts(self, rank, slice(first + rows.start, first + rows.stop))

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


class MatmulAllReduce(MatmulReduceScatter):
    """Operands and outputs of all ranks: A is [M, K / P], B is [K / P, N], the sum [M, N]."""

    section = "matmul_all_reduce"
    shapes = ROW_PARALLEL

    def __init__(self, world: World, m: int, n: int, k: int) -> None:
        super().__init__(world, m, n, k)
        self.out, self.theirs = (world.zeros((m, n), torch.bfloat16) for _ in range(2))
        world.settle()

    def ours(self) -> None:
        ops.matmul_all_reduce(self.a, self.b, out=self.out, streams=self.world.streams)

    def with_nccl(self) -> None:
        self.multiply()
        nccl.all_reduce(self.partial, self.theirs, streams=self.world.streams)

    def expected(self, rank: int, rows: slice) -> torch.Tensor:
        """Return rows of a rank's result in float32."""
        return sum_of_parts(self, rank, rows)

    @staticmethod
    def fused(m: int, n: int, k: int, ranks: int, group: str) -> tuple[Work, Work]:
        """Return a matmul and torch's all-reduce on this process's rank, and cuBLAS's share."""
        import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

        a = torch.randn(m, k // ranks, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(n, k // ranks, dtype=torch.bfloat16, device="cuda").T
        out = symmetric.empty(m, n, dtype=torch.bfloat16, device="cuda")
        symmetric.rendezvous(out, group)
        reduce = torch.ops.symm_mem.two_shot_all_reduce_

        def both() -> None:
            torch.mm(a, b, out=out)
            reduce(out, "sum", group)

        return both, functools.partial(torch.mm, a, b)


Problem = AllGatherMatmul | MatmulReduceScatter
PROBLEMS: tuple[type[Problem], ...] = (MatmulAllReduce, MatmulReduceScatter, AllGatherMatmul)


def sum_of_parts(problem: MatmulReduceScatter, rank: int, rows: slice) -> torch.Tensor:
    device = problem.out[rank].device
    parts = (
        a[rows].to(device).float() @ b.to(device).float()
        for a, b in zip(problem.a, problem.b, strict=True)
    )
    return sum(parts, torch.zeros((), device=device))


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
        count = len(ours)
        for rows in (
            slice(0, min(CHECKED_ROWS, count)),
            slice(max(count - CHECKED_ROWS, 0), count),
        ):
            expected = problem.expected(rank, rows)
            scale = float(expected.abs().max())
            if not float((ours[rows].float() - expected).abs().max()) <= 2**-7 * scale:
                raise SystemExit(f"{problem.section} is wrong")
        is_whole = problem.section == "matmul_all_reduce"
        if is_whole and not torch.equal(ours, problem.out[0].to(ours.device)):
            raise SystemExit(f"{problem.section}: ranks differ")


def matmul_rows(
    kind: type[Problem], world: World, rounds: int, fused: dict[str, dict[str, float]]
) -> Iterator[dict[str, Any]]:
    for m, n, k in kind.shapes:
        case = f"{len(world)} ranks, M={m} N={n} K={k}"
        problem = kind(world, m, n, k)
        check(problem)
        works = {
            "tmaasync": problem.ours,
            "nccl_cublas": problem.with_nccl,
            "cublas_alone": problem.multiply,
        }
        seconds = 2 * m * n * k / len(world) / FLOP_PER_S
        calls = max(1, min(MAX_CALLS, int(SLICE_S / seconds)))
        candidates = with_graphs(world, works, calls)
        row = {"case": case, **interleaved(world, candidates, calls, rounds, "nccl_cublas")}
        row["us"] |= {name: round(us, 1) for name, us in fused.get(case, {}).items()}
        check(problem)
        yield row
        del problem, candidates, works
        torch.cuda.empty_cache()


def gather_rows(world: World, rounds: int) -> Iterator[dict[str, Any]]:
    for kib in SIZES_KIB:
        rows = (kib << 10) // 2 // 1024 // len(world)
        own = world.zeros((rows, 1024), torch.bfloat16)
        out, theirs = (world.zeros((rows * len(world), 1024), torch.bfloat16) for _ in range(2))
        yield collective_row(
            (world, kib, rounds), (own, out, theirs),
            functools.partial(ops.all_gather, own, out=out, streams=world.streams),
            functools.partial(nccl.all_gather, own, theirs, streams=world.streams),
        )  # fmt: skip


def sum_rows(world: World, rounds: int, *, everywhere: bool) -> Iterator[dict[str, Any]]:
    """Time the all-reduce, or else the reduce-scatter."""
    ours = ops.all_reduce if everywhere else ops.reduce_scatter
    nccls = nccl.all_reduce if everywhere else nccl.reduce_scatter
    for kib in SIZES_KIB:
        rows = (kib << 10) // 2 // 1024
        own = world.zeros((rows, 1024), torch.bfloat16)
        shape = (rows if everywhere else rows // len(world)), 1024
        out, theirs = (world.zeros(shape, torch.bfloat16) for _ in range(2))
        yield collective_row(
            (world, kib, rounds), (own, out, theirs),
            functools.partial(ours, own, out=out, streams=world.streams),
            functools.partial(nccls, own, theirs, streams=world.streams),
        )  # fmt: skip


def collective_row(
    given: tuple[World, int, int], arrays: tuple[list[torch.Tensor], ...], ours: Work, nccls: Work
) -> dict[str, Any]:
    """Check one collective against NCCL's, and time both.

    Args:
        given: The world, the KiB of the whole array, and the rounds.
        arrays: Of all ranks: the operands, our outputs, and NCCL's.
        ours: Our call.
        nccls: NCCL's call.
    """
    (world, kib, rounds), (own, out, theirs) = given, arrays
    for rank, one in enumerate(own):  # whole numbers, of which every sum is exact
        one[:] = torch.arange(len(one), device=one.device)[:, None] % 20 + rank
    world.settle()
    ours()
    nccls()
    world.settle()
    if not all(torch.equal(one, two) for one, two in zip(out, theirs, strict=True)):
        raise SystemExit(f"a collective of {kib} KiB is wrong")
    candidates = with_graphs(world, {"tmaasync": ours, "nccl": nccls}, MAX_CALLS)
    size = f"{kib >> 10} MiB" if kib >= 1024 else f"{kib} KiB"
    case = f"{len(world)} ranks, {size} in all"
    return {"case": case, **interleaved(world, candidates, MAX_CALLS, rounds, "nccl")}


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
    for m, n, k in kind.shapes[: len(SHAPES)]:
        both = kind.fused(m, n, k, ranks, name)
        calls = dict(zip(("torch_fused", "cublas_next_to_torch_fused"), both, strict=True))
        found: dict[str, list[float]] = {candidate: [] for candidate in calls}
        for number in range(rounds + 1):
            for candidate, call in calls.items():
                us, _ = slowest_rank(call)
                if number:
                    found[candidate].append(us)
        if rank == 0:
            medians = {candidate: statistics.median(us) for candidate, us in found.items()}
            results.put((f"{ranks} ranks, M={m} N={n} K={k}", medians))
    dist.destroy_process_group()


def slowest_rank(call: Work, calls: int = MAX_CALLS) -> tuple[float, float]:
    """Return the microseconds of a call, and of them the host's, on the slowest of all ranks.

    The host's are the median over the calls.
    """
    import torch.distributed as dist  # noqa: PLC0415

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.barrier()
    start.record()
    ends = [time.perf_counter()]
    for _ in range(calls):
        call()
        ends.append(time.perf_counter())
    end.record()
    torch.cuda.synchronize()
    host_s = statistics.median(last - first for first, last in itertools.pairwise(ends))
    us = torch.tensor([start.elapsed_time(end) * 1e3 / calls, host_s * 1e6], device="cuda")
    dist.all_reduce(us, dist.ReduceOp.MAX)
    on_gpu, on_host = us.tolist()
    return on_gpu, on_host


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


# --- sections ---------------------------------------------------------------------------------


SECTIONS = (*("all_reduce", "reduce_scatter", *(kind.section for kind in PROBLEMS), "all_gather"),)


def rows_of(
    section: str, world: World, rounds: int, fused: dict[str, dict[str, dict[str, float]]]
) -> Iterator[dict[str, Any]]:
    if section == "all_gather":
        return gather_rows(world, rounds)
    if section in ("all_reduce", "reduce_scatter"):
        return sum_rows(world, rounds, everywhere=section == "all_reduce")
    kind = next(kind for kind in PROBLEMS if kind.section == section)
    return matmul_rows(kind, world, rounds, fused.get(section, {}))


def within(rows: Iterator[dict[str, Any]], section: str, limit_s: float) -> list[dict[str, Any]]:
    """Return the rows that end before the limit, but for the last one; each is recorded."""
    start, found = time.monotonic(), []
    for row in rows:
        found.append(row)
        print(section, row["case"], row["us"], flush=True)
        record(section, found)
        if time.monotonic() - start > limit_s:
            print(f"{section}: stopped after {len(found)} rows, {limit_s} s", flush=True)
            break
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """Yield a line per row: microseconds as CUDA graphs, and speeds over NCCL by graph and host."""
    for section, rows in found.items():
        yield f"{section}: ours us, peer us, ratio (graphs); ratio from the host; torch us"
        for row in rows:
            us, peer = row["us"], "nccl" if "nccl" in row["us"] else "nccl_cublas"
            ours, theirs = us.get("tmaasync_graph"), us.get(f"{peer}_graph")
            graphs = f"{ours} {theirs} {theirs / ours:.2f}" if ours and theirs else "no graph"
            host = f"{us[peer] / us['tmaasync']:.2f}"
            yield f"  {row['case']}: {graphs}; {host}; {us.get('torch_fused', '-')}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, help="2 to 8; by default one per GPU")
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--limit", type=float, default=90, help="seconds of a section")
    parser.add_argument("--total", type=float, default=430, help="seconds of all sections")
    parser.add_argument("--no-fused", action="store_true", help="leave out torch's operators")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.total
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    devices = torch.cuda.device_count()
    ranks = arguments.ranks or min(devices, 8)
    if not 2 <= ranks <= devices:
        raise SystemExit(f"this needs 2 to 8 GPUs, and the process sees {devices}")
    measured = [kind for kind in PROBLEMS if kind.section in arguments.sections]
    fused = {
        kind.section: fused_times(kind, ranks, arguments.rounds)
        for kind in ([] if arguments.no_fused else measured)
    }
    world = World.of(range(ranks))
    enable_peer_access(range(ranks))
    found = {}
    for section in arguments.sections:
        limit_s = min(arguments.limit, end - time.monotonic())
        if limit_s <= 0:
            print(f"{section}: left out, {arguments.total} s are over", flush=True)
            continue
        rows = rows_of(section, world, arguments.rounds, fused)
        found[section] = within(rows, section, limit_s)
    print("\n".join(table(found)), flush=True)


if __name__ == "__main__":
    main()
