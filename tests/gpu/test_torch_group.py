"""Operators of a process group, one process per GPU, and the example that trains with them.

timeout 600 python -m pytest -m gpu -p no:benchmark tests/gpu/test_torch_group.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
torch_ranks: Any = pytest.importorskip("torch_ranks")
pytest.importorskip("torch.distributed._symmetric_memory")

CASES = [
    *("forward_and_backward", "scaled", "ring", "exchange", "collectives", "compiled", "refusals"),
    *("subgroups", "graphs", "nodes"),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [2, 4, 8])
@pytest.mark.parametrize("case", [*CASES, "many_calls", "flops", "missing", "hang"])
def test_operators_of_a_group(processes: int, case: str, tmp_path: Path) -> None:
    if torch.cuda.device_count() < processes:
        pytest.skip(f"a group of {processes} processes needs as many GPUs")
    torch_ranks.run(processes, "cuda", tmp_path, case)


@pytest.mark.timeout(300)
def test_the_example_trains_as_with_torch(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("a tensor-parallel MLP needs 2 GPUs")
    torch_ranks.run_example(2, "cuda", tmp_path)
