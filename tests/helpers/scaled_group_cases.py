"""Block-scaled FP8 operators of a process group, in one of its processes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scaled_ranks
import torch
from rank_of_process import BF16, UNEVEN, Ranks, refuses
from torch.utils.flop_counter import FlopCounterMode

from tmaasync import torch as operators


def check(ranks: Ranks) -> None:
    """Block-scaled FP8: sums are exact, and rounded once where the output has 16 bits."""
    mine, rng = ranks.rank, np.random.default_rng(ranks.count)  # equal on all ranks
    for k, n, rows, columns in [
        (160, 136, None, 128),
        (300, 20, list(UNEVEN[: ranks.count]), 1),
        (300, 20, list(UNEVEN[: ranks.count]), 1),  # a call that was made before
    ]:
        counts = [24] * ranks.count if rows is None else rows
        widths = [n + 8 * rank for rank in range(ranks.count)]
        shards = scaled_ranks.drawn_shards(rng, counts, k, widths, columns)
        found = operators.all_gather_scaled_matmul(
            *scaled_operands(ranks, shards), rows=rows, dtype=torch.float32
        )
        assert np.array_equal(found.cpu().numpy(), scaled_ranks.multiplied(*shards)[mine])
        depths = [k + 16 * rank for rank in range(ranks.count)]
        parts = scaled_ranks.drawn_parts(rng, sum(counts), depths, n, columns)
        found = operators.scaled_matmul_reduce_scatter(
            *scaled_operands(ranks, parts), rows=rows, dtype=torch.float32
        )
        start, total = sum(counts[:mine]), sum(scaled_ranks.terms(*parts))
        assert found.is_contiguous()
        assert np.array_equal(found.cpu().numpy(), total[start : start + counts[mine]])

    alike = scaled_ranks.drawn_parts(rng, 40, [300] * ranks.count, 136)
    operands = scaled_operands(ranks, alike)
    for operator in (operators.all_gather_scaled_matmul, operators.scaled_matmul_reduce_scatter):
        refused(ranks, operator, *operands)
        counted_and_compiled(ranks, operator, *operands)


def refused(ranks: Ranks, operator: Any, a: Any, b: Any, scale_a: Any, scale_b: Any) -> None:
    needs_grad = scale_a.clone().requires_grad_()
    for wrong, words in (
        ((a, b, scale_a.double(), scale_b), "scale_a is a tensor of torch.float64"),
        ((a, b, scale_a[:, :1], scale_b), r"scale_a\.shape is"),
        ((a.float(), b, scale_a, scale_b), "float8_e4m3fn or"),
        ((a, b, needs_grad, scale_b), "scale_a is a tensor of .* that requires grad"),
        ((a, b, scale_a if ranks.rank else needs_grad, scale_b), "scale_a.* that requires grad"),
    ):
        refuses(functools.partial(operator, *wrong), words)
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"scale_a is a tensor of .* that requires grad"):
        compiled(a, b, needs_grad, scale_b)


def counted_and_compiled(
    ranks: Ranks, operator: Any, a: Any, b: Any, scale_a: Any, scale_b: Any
) -> None:
    with FlopCounterMode(display=False) as counter:
        found = operator(a, b, scale_a, scale_b)
    assert found.dtype == BF16
    gathers = operator is operators.all_gather_scaled_matmul
    m = a.shape[0] * (ranks.count if gathers else 1)
    assert counter.get_total_flops() == 2 * m * a.shape[1] * b.shape[1]
    again = torch.compile(operator, fullgraph=True, backend="aot_eager")
    assert torch.equal(again(a, b, scale_a, scale_b), found)
    with torch.no_grad():
        assert torch.equal(operator(a, b, scale_a.clone().requires_grad_(), scale_b), found)


def scaled_operands(ranks: Ranks, lists: tuple[list[Any], ...]) -> list[Any]:
    """Return this rank's tensors of a, b, scale_a and scale_b."""
    own = [one[ranks.rank] for one in lists]
    kinds = {scaled_ranks.E4M3: torch.float8_e4m3fn, scaled_ranks.E5M2: torch.float8_e5m2}
    a, b = (
        torch.from_numpy(np.ascontiguousarray(one).view(np.uint8)).view(kinds[one.dtype.type])
        for one in (own[0], own[1].T)
    )
    scale_a = torch.from_numpy(np.ascontiguousarray(own[2].T)).T
    given = a, b.T, scale_a, torch.from_numpy(own[3])
    return [one.to(ranks.device) for one in given]
