"""All-gather, reduce-scatter, all-reduce and all-to-all of a group, in one of its processes."""

from __future__ import annotations

from typing import Any

import torch
from rank_of_process import BF16, UNEVEN, Ranks, is_close

from tmaasync import torch as operators


def check(ranks: Ranks) -> None:
    for dtype, inner, counts in [
        (BF16, (64,), [24] * ranks.count),
        (torch.float32, (3, 5), list(UNEVEN[: ranks.count])),
        (torch.float32, (), [3] * ranks.count),
        (BF16, (0, 2), [3] * ranks.count),
    ]:
        forward_and_backward(ranks, dtype, inner, counts)
    transposed(ranks)
    scalars(ranks)
    fp8_tokens(ranks)


def forward_and_backward(
    ranks: Ranks, dtype: Any, inner: tuple[int, ...], counts: list[int]
) -> None:
    total, mine = sum(counts), ranks.rank
    start, end = sum(counts[:mine]), sum(counts[: mine + 1])
    parts = ranks.draw(*((count, *inner) for count in counts), dtype=dtype)
    part = parts[mine].clone().requires_grad_()
    whole = operators.all_gather(part, rows=counts)
    assert whole.is_contiguous()
    assert torch.equal(whole, torch.cat(parts))
    grads = ranks.draw(*[(total, *inner)] * ranks.count, dtype=dtype)
    whole.backward(grads[mine])
    summed = sum(one.double() for one in grads)
    assert is_close(part.grad, summed[start:end], 0.0)

    term = grads[mine].clone().requires_grad_()
    scattered = operators.reduce_scatter(term, rows=counts)
    scattered.backward(parts[mine])
    assert scattered.is_contiguous()
    assert is_close(scattered, summed[start:end], 0.0)
    assert torch.equal(term.grad, torch.cat(parts))
    term.grad = None
    reduced = operators.all_reduce(term)
    reduced.backward(grads[0])
    assert reduced.is_contiguous()
    assert is_close(reduced, summed, 0.0)
    assert torch.equal(term.grad, grads[0])


def transposed(ranks: Ranks) -> None:
    """Columns are contiguous in tensors and in gradients."""
    mine, rows = ranks.rank, 8
    drawn = [one.T for one in ranks.draw(*[(24, rows * ranks.count)] * ranks.count)]
    part = drawn[mine][:rows].detach().requires_grad_()
    whole = operators.all_gather(part)
    whole.backward(drawn[mine])
    summed = sum(one.double() for one in drawn)
    own = slice(mine * rows, (mine + 1) * rows)
    assert torch.equal(whole, torch.cat([one[:rows] for one in drawn]))
    assert is_close(part.grad, summed[own], 0.0)
    assert is_close(operators.reduce_scatter(drawn[mine]), summed[own], 0.0)
    assert is_close(operators.all_reduce(drawn[mine]), summed, 0.0)


def scalars(ranks: Ranks) -> None:
    drawn = ranks.draw(*[()] * ranks.count, dtype=torch.float32)
    own = drawn[ranks.rank].clone().requires_grad_()
    found = operators.all_reduce(own)
    found.backward()
    assert is_close(found, sum(one.double() for one in drawn), 0.0)
    assert own.grad == 1


def fp8_tokens(ranks: Ranks) -> None:
    """Each rank has an expert, and 4 tokens for each."""
    tokens = ranks.draw(*[(5, 4 * ranks.count)] * ranks.count, dtype=torch.float8_e4m3fn)
    counts = torch.full((ranks.count,), 4, dtype=torch.int32, device=ranks.device)
    found, _ = operators.all_to_all(tokens[ranks.rank].T, counts, room=4 * ranks.count)
    own = slice(4 * ranks.rank, 4 * (ranks.rank + 1))
    assert found.is_contiguous()
    assert torch.equal(found.float(), torch.cat([one.T[own].float() for one in tokens]))
