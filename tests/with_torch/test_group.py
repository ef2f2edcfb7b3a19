"""Operators of a process group on tensors in host memory: gloo, and the emulator."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

import torch_ranks  # noqa: E402

from tmaasync.torch._group_calls import Launched, can_move  # noqa: E402

pytestmark = pytest.mark.timeout(300)


# A process takes seconds to import torch: each has several cases, and names the last that passed.
def test_two_ranks(tmp_path: Path) -> None:
    cases = [
        "forward_and_backward",
        "scaled",
        "ring",
        "exchange",
        "compiled",
        "ordered",
        "refusals",
        "flops",
    ]
    torch_ranks.run(2, "cpu", tmp_path, *cases)


def test_four_ranks_two_nodes_some_groups_and_a_rank_that_comes_late_or_dies(
    tmp_path: Path,
) -> None:
    cases = ["collectives", "exchange", "nodes", "subgroups", "missing"]
    torch_ranks.run(4, "cpu", tmp_path, *cases)


def test_the_example_trains_as_with_torch(tmp_path: Path) -> None:
    torch_ranks.run_example(2, "cpu", tmp_path)


class _Pair(NamedTuple):
    first: int
    second: int


def test_a_later_launch_moves_the_addresses_that_lie_in_its_tensors() -> None:
    seen: list[Any] = []
    launch: Any = SimpleNamespace(launch_at=lambda *given: seen.append(given))
    workspace: Any = SimpleNamespace(
        signals=SimpleNamespace(check=lambda: None), lock=contextlib.nullcontext()
    )
    addresses = (1000, 1063, 5000), _Pair(2000, 3)
    launched = Launched([(workspace, launch, addresses)], [(1000, 1063), (2000, 2063), (0, -1)])
    launched.run([1000, 2000, 0], 7)
    launched.run([9000, 2064, 0], 8)
    assert seen == [(addresses, 7), ([[9000, 9063, 5000], _Pair(2064, 3)], 8)]


@pytest.mark.parametrize(
    ("addresses", "spans", "can"),
    [
        ((1000, 1063, (2000,)), [(1000, 1063), (2000, 2063), (0, -1)], True),
        ((1000, 1063, (2000,)), [(1000, 1063), (1063, 2063)], False),  # which one is 1063 of?
        ((900, (2000,)), [(1000, 1063), (2000, 2063)], False),  # a ragged map starts before 1000
    ],
)
def test_tensors_may_move_if_each_address_says_of_which_it_is(
    addresses: Any, spans: Any, can: bool
) -> None:
    assert can_move(addresses, spans) is can
