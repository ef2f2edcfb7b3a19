"""Calls of a process group in compiled code, whose sizes differ between ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config  # not imported by torch

from tmaasync import torch as operators


def check(rank: int, device: str) -> None:
    """Inductor sorts by the bytes that calls hold; all ranks keep the order of the program."""
    few, many = [1, 3000], [3000, 1]
    x, y = (
        torch.ones(rows[rank], columns, dtype=torch.bfloat16, device=device)
        for rows, columns in ((few, 32), (many, 48))
    )

    def gathered(x: Any, y: Any) -> Any:
        first = operators.all_gather(y, rows=many).sum()
        square = (y @ y.T).sum()
        second = operators.all_gather(x, rows=few).sum()
        return first, square, operators.all_gather(x * 3, rows=few).sum(), second

    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        compiled = torch.compile(gathered, fullgraph=True)
        torch.testing.assert_close(compiled(x, y), gathered(x, y))
