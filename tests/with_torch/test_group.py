"""Operators of a process group on tensors in host memory: gloo, and the emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

import torch_ranks  # noqa: E402

pytestmark = pytest.mark.timeout(300)


# A process takes seconds to import torch: each has several cases, and names the last that passed.
def test_two_ranks(tmp_path: Path) -> None:
    cases = ["forward_and_backward", "ring", "exchange", "compiled", "refusals", "flops"]
    torch_ranks.run(2, "cpu", tmp_path, *cases)


def test_four_ranks_two_nodes_some_groups_and_a_rank_that_comes_late_or_dies(
    tmp_path: Path,
) -> None:
    cases = ["collectives", "exchange", "nodes", "subgroups", "missing"]
    torch_ranks.run(4, "cpu", tmp_path, *cases)


def test_the_example_trains_as_with_torch(tmp_path: Path) -> None:
    torch_ranks.run_example(2, "cpu", tmp_path)
