"""One of the processes of a group that calls the operators of `tmaasync.torch` with ``group=``.

    python torch_ranks.py RANK RANKS STORE DEVICE CASE...

DEVICE is ``cpu``, for gloo and the emulator, or ``cuda``, for NCCL and a GPU each. It prints
"right" at its end. The cases are the functions below that begin with ``check_``.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import collective_cases
import exchange_cases
import node_cases
import numpy as np
import ordered_cases
import pytest
import ring_cases
import scaled_group_cases
import torch
import torch.distributed as dist
from rank_of_process import BF16, UNEVEN, Ranks, is_close, leaves, refuses
from torch.utils.flop_counter import FlopCounterMode

from tmaasync import BackendError, HangError
from tmaasync import torch as operators

SECONDS = 240


def oracle(kind: str, a: list[Any], b: list[Any]) -> list[Any]:
    """Return the outputs of all ranks in float64; a gradient can flow back through them."""
    if kind == "all_gather_matmul":
        return [torch.cat(a) @ one for one in b]
    total = sum(x @ y for x, y in zip(a, b, strict=True))
    return [total] * len(a)


def check_forward_and_backward(ranks: Ranks) -> None:
    for dtype, k, n, rows in [
        (BF16, 64, 96, None),
        (torch.float16, 52, 20, UNEVEN[: ranks.count]),
        (BF16, 128, 64, [200] * ranks.count),
    ]:
        counts = list(rows) if rows is not None else [24] * ranks.count
        gathered(ranks, dtype, k, n, counts, rows)
        scattered(ranks, dtype, k, n, counts, rows)
        reduced(ranks, dtype, k, n, sum(counts))


def gathered(ranks: Ranks, dtype: Any, k: int, n: int, counts: list[int], rows: Any) -> None:
    a = ranks.draw(*((count, k) for count in counts), dtype=dtype)
    weights = ranks.draw(*((n + 8 * rank, k) for rank in range(ranks.count)), dtype=dtype)
    grads = ranks.draw(*((sum(counts), one.shape[0]) for one in weights), dtype=dtype)
    x, w = a[ranks.rank].clone().requires_grad_(), weights[ranks.rank].clone().requires_grad_()
    out = operators.all_gather_matmul(x, w.T, rows=rows)
    out.backward(grads[ranks.rank])

    xs, ws = leaves(a, weights)
    wanted = oracle("all_gather_matmul", xs, [one.T for one in ws])
    loss = sum((one * grad.double()).sum() for one, grad in zip(wanted, grads, strict=True))
    loss.backward()
    assert out.is_contiguous()
    assert is_close(out, wanted[ranks.rank])
    assert is_close(x.grad, xs[ranks.rank].grad, 2.0)
    assert is_close(w.grad, ws[ranks.rank].grad, 2.0)


def scattered(ranks: Ranks, dtype: Any, k: int, n: int, counts: list[int], rows: Any) -> None:
    total = sum(counts)
    a = ranks.draw(*((total, k + 8 * rank) for rank in range(ranks.count)), dtype=dtype)
    weights = ranks.draw(*((n, one.shape[1]) for one in a), dtype=dtype)
    grads = ranks.draw(*((count, n) for count in counts), dtype=dtype)
    x, w = a[ranks.rank].clone().requires_grad_(), weights[ranks.rank].clone().requires_grad_()
    out = operators.matmul_reduce_scatter(x, w.T, rows=rows)
    out.backward(grads[ranks.rank])

    xs, ws = leaves(a, weights)
    wanted = oracle("sum", xs, [one.T for one in ws])[0]
    (wanted * torch.cat(grads).double()).sum().backward()
    start = sum(counts[: ranks.rank])
    assert out.is_contiguous()
    assert is_close(out, wanted[start : start + counts[ranks.rank]], 4.0)
    assert is_close(x.grad, xs[ranks.rank].grad)
    assert is_close(w.grad, ws[ranks.rank].grad, 2.0)


def reduced(ranks: Ranks, dtype: Any, k: int, n: int, m: int) -> None:
    a = ranks.draw(*((m, k + 8 * rank) for rank in range(ranks.count)), dtype=dtype)
    weights = ranks.draw(*((n, one.shape[1]) for one in a), dtype=dtype)
    (grad,) = ranks.draw((m, n), dtype=dtype)
    x, w = a[ranks.rank].clone().requires_grad_(), weights[ranks.rank].clone().requires_grad_()
    out = operators.matmul_all_reduce(x, w.T)
    out.backward(grad)

    xs, ws = leaves(a, weights)
    wanted = oracle("sum", xs, [one.T for one in ws])[0]
    wanted.backward(grad.double())
    assert is_close(out, wanted, 4.0)
    assert is_close(x.grad, xs[ranks.rank].grad)
    assert is_close(w.grad, ws[ranks.rank].grad, 2.0)


def check_collectives(ranks: Ranks) -> None:
    collective_cases.check(ranks)


def check_scaled(ranks: Ranks) -> None:
    scaled_group_cases.check(ranks)


def check_ring(ranks: Ranks) -> None:
    """Attention to the keys of all ranks, and its gradients."""
    for causal, dtype, sizes in [
        (True, BF16, (1, 8, 4, 2, 64)),
        (False, torch.float16, (2, 10, 2, 2, 72)),
    ]:
        batch, length, heads, kv_heads, head_dim = sizes
        positions = length * ranks.count * (1 if ranks.is_emulated else 40)
        shapes = ((batch, positions, one, head_dim) for one in (heads, heads, kv_heads, kv_heads))
        drawn = ranks.draw(*shapes, dtype=dtype)
        dout, *whole = ((4 * one).float().cpu().numpy() for one in drawn)
        grad, *own = (part(ranks, one, causal, dtype) for one in (dout, *whole))
        packed = torch.cat(own, 2).requires_grad_()  # its parts have gaps between positions
        q, k, v = packed.split([heads, kv_heads, kv_heads], 2)
        out, lse = operators.ring_attention(
            q, k, v, causal=causal, return_lse=True, deterministic=not causal
        )
        out.backward(grad)
        grads = packed.grad.split([heads, kv_heads, kv_heads], 2)
        found = [everywhere(ranks, one) for one in (out, lse, *grads)]
        ring_cases.check(found[0], whole, causal=causal, lse=found[1])
        ring_cases.check_gradients(found[2:], dout, whole, causal=causal)


def part(ranks: Ranks, whole: Any, causal: bool, dtype: Any) -> Any:
    own = ring_cases.shards(whole, ranks.count, causal=causal)[ranks.rank]
    return torch.from_numpy(own).to(dtype).to(ranks.device)


def everywhere(ranks: Ranks, tensor: Any) -> list[Any]:
    """Return the arrays of all ranks."""
    found: list[Any] = [None] * ranks.count
    dist.all_gather_object(found, tensor.detach().float().cpu().numpy())
    return [np.asarray(one) for one in found]


def check_exchange(ranks: Ranks) -> None:
    """Tokens go to their experts and back, and so do gradients; the first time some lack room."""
    rng, mine = np.random.default_rng(ranks.count), ranks.rank
    most = 30 if ranks.is_emulated else 300
    for inner, dtype, owned, spare in [((5,), torch.float32, 2, -3), ((3, 64), BF16, 3, 5)]:
        counts = exchange_cases.drawn_counts(rng, ranks.count, owned * ranks.count, most)
        rows = [int(one.sum()) + rank for rank, one in enumerate(counts)]  # the last go nowhere
        moves = Moves(counts, spare)
        own = torch.from_numpy(counts[mine]).to(ranks.device)
        tokens = ranks.draw(*((one, *inner) for one in rows), dtype=dtype)
        grads = ranks.draw(*[(moves.room, *inner)] * ranks.count, dtype=dtype)
        packed = moves.sent(tokens)

        leaf = tokens[mine].clone().requires_grad_()
        found, ends = operators.all_to_all(leaf, own, rows=rows, room=moves.room)
        found.backward(grads[mine])
        assert torch.equal(found, packed[mine])
        wanted_ends = exchange_cases.packed_ends(counts)[mine]
        assert ends.tolist() == np.minimum(wanted_ends, moves.room).tolist()
        assert torch.equal(leaf.grad, moves.sent_back(grads, tokens)[mine])

        leaf = found.detach().requires_grad_()
        returned = operators.all_to_all(leaf, own, rows=rows, combine=True)
        returned.backward(tokens[mine])
        assert torch.equal(returned, moves.sent_back(packed, tokens)[mine])
        assert torch.equal(leaf.grad, packed[mine])


class Moves:
    """The rows that a dispatch moves: owner, packed row, source rank, row of its tokens."""

    def __init__(self, counts: Any, spare: int) -> None:
        rows = [[(rank, row) for row in range(own.sum())] for rank, own in enumerate(counts)]
        packed = exchange_cases.packed([np.array(one).reshape(-1, 2) for one in rows], counts)
        self.room = max(map(len, packed)) + spare
        self.all = [
            (owner, to, *map(int, source))
            for owner, sources in enumerate(packed)
            for to, source in enumerate(sources[: self.room])
        ]

    def sent(self, tokens: list[Any]) -> list[Any]:
        packed = [one.new_zeros((self.room, *one.shape[1:])) for one in tokens]
        for owner, to, rank, row in self.all:
            packed[owner][to] = tokens[rank][row]
        return packed

    def sent_back(self, packed: list[Any], like: list[Any]) -> list[Any]:
        tokens = [torch.zeros_like(one) for one in like]
        for owner, to, rank, row in self.all:
            tokens[rank][row] = packed[owner][to]
        return tokens


def check_compiled(ranks: Ranks) -> None:
    x = ranks.draw(*[(32, 64)] * ranks.count)[ranks.rank].requires_grad_()
    up, down = (ranks.draw(*[(64, 64)] * ranks.count)[ranks.rank].requires_grad_() for _ in "ud")

    counts = torch.tensor([32 // ranks.count] * ranks.count, dtype=torch.int32)
    counts = counts.to(ranks.device)

    def layer(x: Any, up: Any, down: Any) -> Any:
        heads = x.view(1, 32, 1, 64)
        x = operators.ring_attention(heads, heads, heads, causal=True, deterministic=True).view_as(
            x
        )
        hidden = torch.relu(operators.all_gather_matmul(x, up.T, group=dist.group.WORLD))
        out = operators.matmul_reduce_scatter(hidden, down.T)
        packed, _ = operators.all_to_all(out, counts, room=64)
        return operators.all_to_all(packed, counts, rows=[32] * ranks.count, combine=True)

    found = []
    for call in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        out = call(x, up, down)
        out.float().square().sum().backward()
        found.append([out.detach(), x.grad, up.grad, down.grad])
        x.grad = up.grad = down.grad = None
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def check_subgroups(ranks: Ranks) -> None:
    """Groups of all ranks but the last, and of the last, work next to the group of all."""
    members = [list(range(ranks.count - 1)), [ranks.count - 1]]
    groups = [dist.new_group(one) for one in members]
    mine = int(ranks.rank == ranks.count - 1)
    a = ranks.draw(*[(16, 32)] * ranks.count)
    (b,) = ranks.draw((32, 8))
    found = operators.all_gather_matmul(a[ranks.rank], b, group=groups[mine])
    whole = operators.all_gather_matmul(a[ranks.rank], b)
    assert is_close(found, torch.cat([a[one] for one in members[mine]]).double() @ b.double())
    assert is_close(whole, torch.cat(a).double() @ b.double())


def check_nodes(ranks: Ranks) -> None:
    node_cases.check(ranks)


def check_ordered(ranks: Ranks) -> None:
    ordered_cases.check(ranks.rank, ranks.device)


def check_flops(ranks: Ranks) -> None:
    """Each of the matmuls of forward and backward counts what this rank multiplies."""
    counts = list(UNEVEN[: ranks.count])
    m, k, n = sum(counts), 64, 48
    a = ranks.draw((counts[ranks.rank], k), (m, k))
    x, whole = (one.requires_grad_() for one in a)
    (w,) = ranks.draw((k, n))
    w.requires_grad_()
    calls: list[tuple[Callable[[], Any], int]] = [
        (lambda: operators.all_gather_matmul(x, w, rows=counts), 3),
        (lambda: operators.matmul_reduce_scatter(whole, w, rows=counts), 3),
        (lambda: operators.matmul_all_reduce(whole, w), 3),
        (lambda: operators.all_gather(x, rows=counts), 0),
    ]
    for call, matmuls in calls:
        with FlopCounterMode(display=False) as counter:
            call().float().sum().backward()
        assert counter.get_total_flops() == matmuls * 2 * m * k * n
    (heads,) = ranks.draw((2, 16, 3, 64))
    with FlopCounterMode(display=False) as counter:
        operators.ring_attention(*[heads.requires_grad_()] * 3).float().sum().backward()
    assert counter.get_total_flops() == (2 + 5) * 2 * 2 * 3 * 64 * 16 * (16 * ranks.count)


def check_missing(ranks: Ranks) -> None:
    """The last rank comes too late, or never: all end with an error that names it."""
    a, b = ranks.draw((16, 32), (32, 8))
    os.environ["TMAASYNC_BUDGET_SECONDS"] = "2"
    missing = ranks.count - 1
    start = time.monotonic()
    if ranks.rank == missing:
        time.sleep(6)
        refuses(lambda: operators.matmul_all_reduce(a, b), rf"rank {missing} made it later")
    else:
        with pytest.raises(BackendError, match=f"rank {missing} did not make this call"):
            operators.matmul_all_reduce(a, b)
        assert time.monotonic() - start < 6
    dist.barrier()
    if ranks.rank != missing:
        start = time.monotonic()
        with pytest.raises(BackendError, match=f"rank {missing} did not make this call"):
            operators.all_gather_matmul(a, b)
        assert time.monotonic() - start < 6
    end()


def check_hang(ranks: Ranks) -> None:
    """The last rank leaves out a later call: the kernels of the others end within their budget."""
    os.environ["TMAASYNC_BUDGET_SECONDS"] = "3"
    a, b = ranks.draw((16, 32), (32, 8))
    operators.matmul_all_reduce(a, b)
    torch.cuda.synchronize()
    if ranks.rank == ranks.count - 1:
        time.sleep(10)
        end()
    operators.matmul_all_reduce(a, b)
    time.sleep(6)
    with pytest.raises(HangError, match="a wait took longer than budget_seconds=3"):
        operators.matmul_all_reduce(a, b)
    end()


def check_refusals(ranks: Ranks) -> None:
    a, b = ranks.draw((16, 32), (32, 8))
    wrong = b[:16] if ranks.rank == 0 else b
    refuses(lambda: operators.matmul_reduce_scatter(a, wrong), "a has 32 columns, so b has as many")
    short = a[: 8 * (ranks.rank + 1)]
    refuses(lambda: operators.matmul_all_reduce(short, b), "different calls")
    cut = 16 * (ranks.rank + 1)
    refuses(lambda: operators.all_gather_matmul(a[:, :cut], b[:cut]), "different calls")
    refuses(lambda: operators.matmul_reduce_scatter(a, b[:, : cut // 4]), "different calls")
    refuses(lambda: operators.all_gather_matmul(a, b, rows=[1]), "rows is a list of 1")
    refuses(lambda: operators.all_gather(a.int()), "it holds bfloat16, float16 or float32")
    refuses(lambda: operators.all_gather_matmul(a, b, group=3), "it must be a process group")
    q, k = ranks.draw((1, 16, 4, 64), (1, 16, 3, 64))
    refuses(lambda: operators.ring_attention(q, k, k), "k has 3 heads")
    refuses(
        lambda: operators.ring_attention(q[:, :5], q[:, :5], q[:, :5], causal=True),
        "two chunks",
    )
    counts = torch.full((ranks.count,), 4, dtype=torch.int32, device=ranks.device)
    refuses(lambda: operators.all_to_all(a, counts[:-1], room=64), "own equally many experts")
    refuses(lambda: operators.all_to_all(a, counts.float(), room=64), "counts")
    refuses(lambda: operators.all_to_all(a, counts), "room is None")
    refuses(lambda: operators.all_to_all(a, counts, combine=True), "a combine takes rows")
    refuses(lambda: operators.all_to_all(a, counts, room=64 + ranks.rank), "different calls")
    other = q[:, : 8 * (ranks.rank + 1)]
    refuses(lambda: operators.ring_attention(other, other, other), "different calls")
    wrong_kinds(ranks, a, q, counts)
    assert operators.matmul_all_reduce(a, b).shape == (16, 8)  # the group is as good as new


def wrong_kinds(ranks: Ranks, a: Any, q: Any, counts: Any) -> None:
    untyped: Any = operators
    for rows in (5, "ab", [8.0] * ranks.count, [None] * ranks.count):
        given = partial(untyped.all_gather, a, rows=rows)
        refuses(given, "rows is .* they are integers")
    refuses(lambda: untyped.all_to_all(a, counts, room=1.5), "room is 1.5; it must be an integer")
    refuses(lambda: untyped.ring_attention(q, q, q, scale="x"), "scale is 'x'")
    assert len(untyped.all_gather(a, rows=(16 for _ in range(ranks.count)))) == 16 * ranks.count


def check_graphs(ranks: Ranks) -> None:
    """A CUDA graph of both matmuls, replayed with other values."""
    a = ranks.draw(*[(64, 128)] * ranks.count)
    b = ranks.draw(*[(128, 64)] * ranks.count)
    x, w = a[ranks.rank].clone(), b[ranks.rank]

    def layer() -> Any:
        hidden = operators.all_gather_matmul(x, w)
        heads = x.view(1, 64, 2, 64)
        attended = operators.ring_attention(heads, heads, heads, causal=True)
        return operators.matmul_all_reduce(hidden, w.T), operators.all_gather(x), attended

    layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer()
    for _ in range(3):
        x.copy_(ranks.draw(*[(64, 128)] * ranks.count)[ranks.rank])
        graph.replay()
        assert all(map(torch.equal, captured, layer()))


def check_many_calls(ranks: Ranks) -> None:
    """Calls of different shapes follow each other without a wait of the host, on two streams.

    Every other call has its operands at other addresses than the one before.
    """
    calls, streams = [], [torch.cuda.current_stream(), torch.cuda.Stream()]
    shapes = [(64, 256, 128), (700, 512, 256), (130, 128, 1024), (1, 64, 64)]
    operands = []
    for m, k, n in shapes:
        a = ranks.draw(*[(m, k)] * ranks.count)
        b = ranks.draw(*[(k, n)] * ranks.count)
        c = ranks.draw(*[(m * ranks.count, k)] * ranks.count)
        operands.append((a, b, c))
    torch.cuda.synchronize()
    for number in range(120):
        mine = [each[ranks.rank] for each in operands[number % len(shapes)]]
        with torch.cuda.stream(streams[number // 7 % 2]):
            if number % 2:
                mine = [one.clone() for one in mine]
            calls.append((number % len(shapes), [call(*mine) for call in _CALLS]))
    torch.cuda.synchronize()
    for number, found in calls:
        a, b, c = operands[number]
        own = slice(ranks.rank * len(a[0]), (ranks.rank + 1) * len(a[0]))
        total = sum(x.double() @ y.double() for x, y in zip(c, b, strict=True))
        summed = sum(one.double() for one in c)
        wanted = torch.cat(a).double() @ b[ranks.rank].double(), total[own], total
        for one, exact in zip(found, (*wanted, torch.cat(a), summed[own], summed), strict=True):
            assert is_close(one, exact, 4.0)


_CALLS: tuple[Callable[..., Any], ...] = (
    lambda a, b, c: operators.all_gather_matmul(a, b),
    lambda a, b, c: operators.matmul_reduce_scatter(c, b),
    lambda a, b, c: operators.matmul_all_reduce(c, b),
    lambda a, b, c: operators.all_gather(a),
    lambda a, b, c: operators.reduce_scatter(c),
    lambda a, b, c: operators.all_reduce(c),
)


def main(rank: int, count: int, store: str, device: str, cases: list[str]) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    torch.set_num_threads(1)
    where = torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(rank)
        where = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(store, count),
        rank=rank,
        world_size=count,
        device_id=where if device == "cuda" else None,
    )
    for case in cases:
        torch.manual_seed(0)
        globals()[f"check_{case}"](Ranks(rank, count, where))
        sys.stdout.write(f"{case}\n")
        sys.stdout.flush()
    dist.barrier()
    end()


def end() -> None:
    sys.stdout.write("right\n")
    sys.stdout.flush()
    # Python's end aborted some runs of gloo, after all was compared.
    os._exit(0)


def run(count: int, device: str, folder: Path, *cases: str) -> None:
    """Run cases in processes, and check that all of them say "right"."""
    store = str(folder / "store")
    commands = [
        [sys.executable, __file__, str(rank), str(count), store, device, *cases]
        for rank in range(count)
    ]
    for out, errors in ended(commands, device):
        assert out.splitlines()[-1:] == ["right"], out + errors


def run_example(count: int, device: str, folder: Path) -> None:
    """Run the example under torchrun; every rank prints how the loss fell."""
    example = Path(__file__).parents[2] / "examples" / "tensor_parallel_mlp.py"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--log-dir", str(folder)]
    command = [*torchrun, "--standalone", f"--nproc-per-node={count}", str(example)]
    ((out, errors),) = ended([command], device)
    assert all(f"rank {rank} of {count}" in out for rank in range(count)), out + errors


def ended(commands: list[list[str]], device: str) -> list[tuple[str, str]]:
    """Run processes at once, and return what they print and their errors."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    if device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", "TMAASYNC_BUDGET_SECONDS": "120"}
    started = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    try:
        return [process.communicate(timeout=SECONDS + 20) for process in started]
    finally:
        for process in started:
            process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
