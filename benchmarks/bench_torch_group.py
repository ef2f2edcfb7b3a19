"""The operators of `tmaasync.torch` with ``group=``, one process per GPU: section ``torch_group``.

Two GPUs or more, bfloat16. In interleaved rounds, by CUDA events on the slowest rank, next to ours:

* matmuls: NCCL and ``torch.mm`` (cuBLAS) one after the other, torch's fused symmetric-memory
  operators as in bench_rank_matmuls.py, and ``torch.mm`` alone;
* collectives: NCCL's;
* ring attention, forward and with its gradients: `tmaasync.torch.attention` of the whole sequence
  on every GPU (``one_gpu``). With P ranks a speed of P is perfect;
* all-to-all: NCCL's ``all_to_all_single``, padded to the most rows of any rank for any expert, and
  with the exact rows of each rank (see bench_all_to_all.py).

``host_us`` is the host's time of a call, which does not wait for the GPU: the median, on the
slowest rank. Every result of ours is compared once: matmuls in float32, attention with torch's
FlashAttention, what only moves or adds whole numbers exactly. NVLink multicast is off.

Rows are recorded one by one. A section that fails or exceeds its limit prints why, and the ones
after it run in new processes.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from bench_all_to_all import CASES, drawn_counts
from bench_peers import summary
from bench_rank_matmuls import (
    CHECKED_ROWS,
    MAX_CALLS,
    SHAPES,
    SIZES_KIB,
    SLICE_S,
    AllGatherMatmul,
    MatmulAllReduce,
    MatmulReduceScatter,
    Problem,
    slowest_rank,
)
from race import circumstances
from result_files import RESULTS, Row, Section, name_in_paths, write_part
from torch.nn.attention import SDPBackend, sdpa_kernel

from tmaasync import torch as operators

Work = Callable[[], Any]

TOKENS = ((32768, True), (32768, False), (65536, True))  # and whether causal
HEADS = (32, 8, 8)  # of q, k, v
HEAD_DIM = 128
START_S = 60  # of processes, their imports and NCCL


class Rank(NamedTuple):
    """The number of this process, and of all."""

    rank: int
    ranks: int


class Case(NamedTuple):
    """What is timed, by candidate; ``check`` calls ours, and returns whether it is right."""

    name: str
    reference: str
    works: Mapping[str, Work]
    check: Callable[[], bool]


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Return normal numbers, equal on all ranks."""
    torch.manual_seed(seed)
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def are_close(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Compare the norm of the error with the norm of the result."""
    return all(
        one.shape == other.shape
        and float((one.float() - other.float()).norm() / other.float().norm()) <= 2**-6
        for one, other in zip(found, wanted, strict=True)
    )


# --- matmuls ----------------------------------------------------------------------------------


def all_gather_matmul(own: Rank) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        yield column_parallel(own, *shape)


def column_parallel(own: Rank, m: int, n: int, k: int) -> Case:
    rank, ranks = own
    shards = [drawn(each, m // ranks, k) for each in range(ranks)]
    a, b = shards[rank], drawn(ranks + rank, n // ranks, k).T
    gathered, out = a.new_empty(m, k), a.new_empty(m, n // ranks)

    def with_nccl() -> None:
        dist.all_gather_into_tensor(gathered, a)
        torch.mm(gathered, b, out=out)

    def wanted(rows: slice) -> torch.Tensor:
        return torch.cat(shards)[rows].float() @ b.float()

    ours = functools.partial(operators.all_gather_matmul, a, b)
    return matmul_case(AllGatherMatmul, own, (m, n, k), (ours, with_nccl, wanted))


def matmul_reduce(kind: type[MatmulReduceScatter], own: Rank) -> Iterator[Case]:
    for shape in SHAPES[1:]:
        yield row_parallel(kind, own, *shape)


def row_parallel(kind: type[MatmulReduceScatter], own: Rank, m: int, n: int, k: int) -> Case:
    (rank, ranks), is_whole = own, kind is MatmulAllReduce
    a = [drawn(each, m, k // ranks) for each in range(ranks)]
    b = [drawn(ranks + each, n, k // ranks).T for each in range(ranks)]
    part, out = a[0].new_empty(m, n), a[0].new_empty(m // ranks, n)

    def with_nccl() -> None:
        torch.mm(a[rank], b[rank], out=part)
        if is_whole:
            dist.all_reduce(part)
        else:
            dist.reduce_scatter_tensor(out, part)

    def wanted(rows: slice) -> torch.Tensor:
        first = 0 if is_whole else rank * len(out)
        chosen = slice(first + rows.start, first + rows.stop)
        parts = (x[chosen].float() @ y.float() for x, y in zip(a, b, strict=True))
        return sum(parts, torch.zeros((), device=part.device))

    operator = operators.matmul_all_reduce if is_whole else operators.matmul_reduce_scatter
    ours = functools.partial(operator, a[rank], b[rank])
    return matmul_case(kind, own, (m, n, k), (ours, with_nccl, wanted))


def matmul_case(
    kind: type[Problem],
    own: Rank,
    shape: tuple[int, int, int],
    calls: tuple[Work, Work, Callable[[slice], torch.Tensor]],
) -> Case:
    """Return a case; ``calls`` are ours, NCCL's and cuBLAS's, and rows of the result."""
    ours, with_nccl, wanted = calls

    def check() -> bool:
        found = ours()
        rows = len(found)
        ends = (
            slice(0, min(CHECKED_ROWS, rows)),
            slice(max(rows - CHECKED_ROWS, 0), rows),
        )
        return are_close([found[one] for one in ends], [wanted(one) for one in ends])

    m, n, k = shape
    works = {"tmaasync": ours, "nccl_cublas": with_nccl, **fused(kind, shape, own)}
    name = f"{kind.section}, {own.ranks} ranks, M={m} N={n} K={k}"
    return Case(name, "nccl_cublas", works, check)


def fused(kind: type[Problem], shape: tuple[int, int, int], own: Rank) -> dict[str, Work]:
    """Return torch's fused operator and cuBLAS's share of it, on other operands; none without."""
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415

    try:
        name = dist.group.WORLD.group_name
        if hasattr(symmetric, "enable_symm_mem_for_group"):
            symmetric.enable_symm_mem_for_group(name)
        both = kind.fused(*shape, own.ranks, name)
        both[0]()
    except (AttributeError, RuntimeError) as error:
        print(f"no fused operator for {kind.section}: {error}", flush=True)
        return {}
    return dict(zip(("torch_fused", "cublas_alone"), both, strict=True))


# --- collectives ------------------------------------------------------------------------------


def collectives(own: Rank) -> Iterator[Case]:
    rank, ranks = own
    for kib in SIZES_KIB[::2]:
        rows = (kib << 10) // 2 // 1024
        # Whole numbers, of which bfloat16 holds every sum.
        every = [(drawn(each, rows, 1024) * 4).round().clamp(-16, 16) for each in range(ranks)]
        own_rows = slice(rank * rows // ranks, (rank + 1) * rows // ranks)
        mine, total = every[rank], sum(every, torch.zeros_like(every[0]))
        part, shard, summed = mine[own_rows], torch.empty_like(mine[own_rows]), mine.clone()
        gathered = torch.cat([one.chunk(ranks)[each] for each, one in enumerate(every)])
        size = f"{ranks} ranks, {f'{kib >> 10} MiB' if kib >= 1024 else f'{kib} KiB'} in all"
        nccls: list[tuple[str, torch.Tensor, torch.Tensor, Work]] = [
            (
                *("all_gather", part, gathered),
                functools.partial(dist.all_gather_into_tensor, torch.empty_like(mine), part),
            ),
            (
                *("reduce_scatter", mine, total[own_rows]),
                functools.partial(dist.reduce_scatter_tensor, shard, mine),
            ),
            ("all_reduce", mine, total, functools.partial(dist.all_reduce, summed)),
        ]
        for name, given, wanted, nccl in nccls:
            ours = functools.partial(getattr(operators, name), given)
            check = functools.partial(is_equal, ours, wanted)
            yield Case(f"{name}, {size}", "nccl", {"tmaasync": ours, "nccl": nccl}, check)


def is_equal(call: Work, wanted: torch.Tensor) -> bool:
    return torch.equal(call(), wanted)


# --- ring attention ---------------------------------------------------------------------------


def ring_attention(own: Rank, *, backward: bool) -> Iterator[Case]:
    for tokens, causal in TOKENS:
        yield ring_case(own, tokens, causal, backward)


def ring_case(own: Rank, tokens: int, causal: bool, backward: bool) -> Case:
    whole = [
        drawn(seed, 1, tokens, heads, HEAD_DIM).requires_grad_(backward)
        for seed, heads in enumerate(HEADS)
    ]
    share = functools.partial(share_of, own, causal)
    shards = [share(one.detach()).requires_grad_(backward) for one in whole]
    ring: Callable[..., Any] = functools.partial(operators.ring_attention, causal=causal)
    alone: Callable[..., Any] = functools.partial(operators.attention, causal=causal)
    torchs: Callable[..., Any] = functools.partial(flash, causal)
    if backward:
        grad = drawn(len(HEADS), *whole[0].shape)
        ring = functools.partial(gradients, ring, share(grad))
        alone, torchs = (functools.partial(gradients, one, grad) for one in (alone, torchs))

    def check() -> bool:
        found, wanted = ring(*shards), torchs(*whole)
        if not backward:
            found, wanted = [found], [wanted]
        return are_close(found, [share(one) for one in wanted])

    works = {
        "tmaasync": functools.partial(ring, *shards),
        "one_gpu": functools.partial(alone, *whole),
    }
    name = f"ring_attention{' and its gradients' if backward else ''}, {own.ranks} ranks"
    mask = "causal, " if causal else ""
    title = f"{name}, {mask}{tokens} tokens, {HEADS[0]} heads over {HEADS[1]} of {HEAD_DIM}"
    return Case(title, "one_gpu", works, check)


def share_of(own: Rank, causal: bool, whole: torch.Tensor) -> torch.Tensor:
    """Return this rank's positions, with ``causal`` in zigzag."""
    if not causal:
        return whole.chunk(own.ranks, 1)[own.rank].contiguous()
    chunks = whole.chunk(2 * own.ranks, 1)
    return torch.cat([chunks[own.rank], chunks[-1 - own.rank]], 1)


def gradients(call: Callable[..., Any], grad: torch.Tensor, *given: torch.Tensor) -> Any:
    return torch.autograd.grad(call(*given), given, grad)


def flash(causal: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return torch's FlashAttention, with a copy of the keys and values for each head."""
    copies = q.shape[2] // k.shape[2]
    heads = [q, *(one.repeat_interleave(copies, 2) for one in (k, v))]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        attended = torch.nn.functional.scaled_dot_product_attention(
            *(one.transpose(1, 2) for one in heads), is_causal=causal
        )
    return attended.transpose(1, 2)


# --- all-to-all -------------------------------------------------------------------------------


def all_to_all(own: Rank) -> Iterator[Case]:
    for case in (CASES[0], CASES[3]):
        for skewed in (False, True):
            moves = Moves(own, case, skewed)
            yield moves.dispatch()
            yield moves.combine()


class Moves:
    """This rank's tokens in the order of their experts, and how many go to each."""

    def __init__(self, own: Rank, case: tuple[str, int, int, int, int], skewed: bool) -> None:
        (self.rank, self.ranks), (name, tokens, self.hidden, experts, top_k) = own, case
        self.counts = drawn_counts(case, self.ranks, skewed)  # by rank and expert
        by_rank = self.counts.view(self.ranks, self.ranks, -1).sum(2)
        self.rows = [tokens * top_k] * self.ranks
        self.room = int(by_rank.sum(0).max())
        self.sent, self.received = by_rank[self.rank].tolist(), by_rank[:, self.rank].tolist()
        self.tokens = drawn(self.rank, self.rows[0], self.hidden)
        self.given = self.counts[self.rank].to("cuda", torch.int32)
        self.exact = self.tokens.new_zeros(sum(self.received), self.hidden)
        padded = self.tokens.new_zeros(int(self.counts.max()) * experts, self.hidden)
        self.padded = functools.partial(dist.all_to_all_single, torch.empty_like(padded), padded)
        self.title = (
            f"{self.ranks} ranks, {name}, {'skewed' if skewed else 'even'}: {tokens} tokens of "
            f"{self.hidden}, {experts} experts, top {top_k}"
        )

    def dispatched(self) -> Any:
        return operators.all_to_all(self.tokens, self.given, rows=self.rows, room=self.room)

    def case(self, name: str, ours: Work, exact: Work, check: Callable[[], bool]) -> Case:
        works: dict[str, Work] = {"tmaasync": ours, "nccl_padded": self.padded, "nccl_exact": exact}
        return Case(f"all_to_all, {name}, {self.title}", "nccl_padded", works, check)

    def dispatch(self) -> Case:
        exact = functools.partial(
            dist.all_to_all_single, self.exact, self.tokens, self.received, self.sent
        )
        return self.case("dispatch", self.dispatched, exact, self.is_packed)

    def combine(self) -> Case:
        packed, _ = self.dispatched()
        ours = functools.partial(
            operators.all_to_all, packed, self.given, rows=self.rows, combine=True
        )
        back = torch.empty_like(self.tokens)
        exact = functools.partial(
            dist.all_to_all_single, back, self.exact, self.sent, self.received
        )
        return self.case("combine", ours, exact, functools.partial(is_equal, ours, self.tokens))

    def is_packed(self) -> bool:
        experts = self.counts.shape[1] // self.ranks
        owned = range(self.rank * experts, (self.rank + 1) * experts)
        parts = [
            drawn(rank, self.rows[rank], self.hidden).split(own.tolist())
            for rank, own in enumerate(self.counts)
        ]
        wanted = torch.cat([part[expert] for expert in owned for part in parts])
        ends = self.counts.sum(0)[owned.start : owned.stop].cumsum(0)
        packed, found = self.dispatched()
        return torch.equal(packed[: len(wanted)], wanted) and torch.equal(found.cpu().long(), ends)


# --- sections ---------------------------------------------------------------------------------


SECTIONS: dict[str, Callable[[Rank], Iterator[Case]]] = {
    "all_gather_matmul": all_gather_matmul,
    "matmul_reduce_scatter": functools.partial(matmul_reduce, MatmulReduceScatter),
    "matmul_all_reduce": functools.partial(matmul_reduce, MatmulAllReduce),
    "ring_attention": functools.partial(ring_attention, backward=False),
    "ring_attention_backward": functools.partial(ring_attention, backward=True),
    "all_to_all": all_to_all,
    "collectives": collectives,
}


def timed(case: Case, rounds: int) -> Row:
    """Check a case, and time its candidates in rounds."""
    if not case.check():
        raise RuntimeError(f"{case.name}: the result is wrong")
    for work in case.works.values():
        work()
    slowest_us = max(slowest_rank(work, 1)[0] for work in case.works.values())
    calls = max(1, min(MAX_CALLS, int(SLICE_S * 1e6 / slowest_us)))
    on_gpu: dict[str, list[float]] = {name: [] for name in case.works}
    on_host: dict[str, list[float]] = {name: [] for name in case.works}
    for number in range(rounds + 1):
        for name in list(case.works) if number % 2 else reversed(list(case.works)):
            us, host_us = slowest_rank(case.works[name], calls)
            if number:  # the first round warms up
                on_gpu[name].append(us)
                on_host[name].append(host_us)
    medians = {name: round(statistics.median(us), 1) for name, us in on_host.items()}
    found = summary(on_gpu, case.reference)
    return {"case": case.name, **found, "host_us": medians, "rounds": rounds}


def run(rank: int, ranks: int, sections: list[str], folder: str, arguments: Any) -> None:
    """Measure sections in one process of a group; rank 0 records the rows."""
    faulthandler.dump_traceback_later(START_S, exit=True)
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    measured = circumstances() if rank == 0 else {}
    for section in sections:
        seconds = min(arguments.limit, arguments.end - time.time())
        faulthandler.dump_traceback_later(max(seconds, 0.1), exit=True)
        if rank == 0:
            (Path(folder) / section).touch()
        for case in SECTIONS[section](Rank(rank, ranks)):
            row = timed(case, arguments.rounds)
            if rank == 0:
                keep(row, case.reference, measured)
            del case
            torch.cuda.empty_cache()
    faulthandler.dump_traceback_later(START_S, exit=True)
    dist.destroy_process_group()


def keep(row: Row, reference: str, measured: dict[str, Any]) -> None:
    speed = row[f"speed_over_{reference}"]["tmaasync"]["median"]
    print(
        f"{row['case']}: {speed:.2f} x {reference}, us {row['us']}, host {row['host_us']}",
        flush=True,
    )
    path = RESULTS / name_in_paths(measured["gpu"]) / "torch_group.jsonl"
    write_part(path, Section(measured, [row]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2)
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--limit", type=float, default=60, help="seconds of a section")
    parser.add_argument("--total", type=float, default=200, help="seconds of all sections")
    arguments = parser.parse_args()
    arguments.end = time.time() + arguments.total
    if torch.cuda.device_count() < arguments.ranks:
        raise SystemExit(f"this needs {arguments.ranks} GPUs")
    os.environ.setdefault("TMAASYNC_BUDGET_SECONDS", "20")
    left = arguments.sections
    while left and time.time() < arguments.end:
        with tempfile.TemporaryDirectory() as folder:
            given = arguments.ranks, left, folder, arguments
            try:
                processes.spawn(run, given, nprocs=arguments.ranks)
                begun = left
            except (processes.ProcessRaisedException, processes.ProcessExitedException) as error:
                begun = [one for one in left if (Path(folder) / one).exists()]
                print(f"{begun[-1:] or 'the start'} failed: {error}", flush=True)
            left = left[len(begun) :] if begun else []
    if left:
        print(f"left out: {left}", flush=True)


if __name__ == "__main__":
    main()
