"""Groups that span nodes: the ranks of one host declared as two nodes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from rank_of_process import UNEVEN, Ranks, is_close, leaves, refuses

from tmaasync import torch as operators


def check(ranks: Ranks) -> None:
    """Two nodes of half of the ranks each give what one group gives, with gradients."""
    names = ("node", "gpu")
    mesh = dist.init_device_mesh(ranks.device.type, (2, ranks.count // 2), mesh_dim_names=names)
    for rows in (None, list(UNEVEN[: ranks.count])):
        counts = rows or [24] * ranks.count
        a = ranks.draw(*((count, 64) for count in counts))
        b = ranks.draw(*[(64, 40)] * ranks.count)
        grads = ranks.draw(*((count, 40) for count in counts))
        leaf = [each[ranks.rank].clone().requires_grad_() for each in (a, b)]
        whole = operators.all_gather_matmul(*leaf, group=mesh, rows=rows)
        total = operators.reduce_scatter(whole, group=mesh, rows=rows)
        total.backward(grads[ranks.rank])
        xs, ws = leaves(a, b)
        wanted = sum(torch.cat(xs) @ one for one in ws)
        wanted.backward(torch.cat(grads).double())
        start = sum(counts[: ranks.rank])
        assert is_close(total, wanted[start : start + counts[ranks.rank]], 4.0)
        assert is_close(leaf[0].grad, xs[ranks.rank].grad, 2.0)
        assert is_close(leaf[1].grad, ws[ranks.rank].grad, 2.0)

        scattered = operators.matmul_reduce_scatter(torch.cat(a), leaf[1], group=mesh, rows=rows)
        assert is_close(scattered, wanted[start : start + counts[ranks.rank]], 4.0)
        transposed = a[ranks.rank].T.contiguous().T
        assert torch.equal(operators.all_gather(transposed, group=mesh, rows=rows), torch.cat(a))
    Refused(ranks, mesh).check()


class Refused:
    """Calls that all ranks refuse before rows move; else the next call would be wrong.

    Each call is the first of its kind, since later ones are not compared.
    """

    def __init__(self, ranks: Ranks, mesh: Any) -> None:
        self.ranks, self.mesh = ranks, mesh
        self.even = [24] * ranks.count
        self.columns = itertools.count(72, 8)

    def operands(self) -> tuple[Any, Any, Any]:
        k = next(self.columns)
        left, whole, right = self.ranks.draw((24, k), (sum(self.even), k), (k, 40))
        return left, whole, right

    def check(self) -> None:
        for refused in (self.on_one_rank, self.between_nodes):
            refused()
            a, _, b = self.operands()
            found = operators.all_gather_matmul(a, b, group=self.mesh)
            assert is_close(found, torch.cat([a] * self.ranks.count).double() @ b.double())

    def on_one_rank(self) -> None:
        mesh, is_last = self.mesh, self.ranks.rank == self.ranks.count - 1
        who = f"of rank {self.ranks.count - 1}"
        a, whole, b = self.operands()
        right = b.float() if is_last else b
        refuses(lambda: operators.all_gather_matmul(a, right, group=mesh), f"b {who}")
        left = a.int() if is_last else a
        refuses(lambda: operators.all_gather(left, group=mesh), f"tensor {who}")
        short = whole[1:] if is_last else whole
        refuses(lambda: operators.reduce_scatter(short, group=mesh, rows=self.even), f"rows {who}")
        cut = b[8:] if is_last else b
        refuses(lambda: operators.matmul_reduce_scatter(whole, cut, group=mesh), f"b {who}")
        refuses(lambda: operators.all_gather(a, group=mesh, rows=[1]), "of rank 0 is a list of 1")
        refuses(lambda: operators.all_gather(a, group=mesh["gpu"]), "two: nodes")
        refuses(lambda: operators.all_reduce(a, group=mesh), "reduce_scatter, all_gather")

    def between_nodes(self) -> None:
        mesh, is_second = self.mesh, self.ranks.rank >= self.ranks.count // 2
        a, whole, _ = self.operands()
        rows = [*self.even[:-1], 25]  # right on the first node alone
        given = self.even if is_second else rows
        narrow, typed, fewer = (a[:, 8:], a.half(), whole[24:]) if is_second else (a, a, whole)
        calls = [
            lambda: operators.all_gather(a, group=mesh, rows=given),
            lambda: operators.all_gather(narrow, group=mesh),
            lambda: operators.all_gather(typed, group=mesh),
            lambda: operators.reduce_scatter(fewer, group=mesh),
        ]
        for call in calls:
            refuses(call, "different calls")
