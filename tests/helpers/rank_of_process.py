"""This process's rank in a group, the tensors of all ranks, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tmaasync import ArgumentError

BF16 = torch.bfloat16
UNEVEN = (40, 0, 72, 9)


class Ranks:
    """This process's rank, the device of its tensors, and the tensors of all ranks."""

    def __init__(self, rank: int, count: int, device: Any) -> None:
        self.rank, self.count, self.device = rank, count, device
        self.generator = torch.Generator().manual_seed(count)  # equal on all ranks

    @property
    def is_emulated(self) -> bool:
        return bool(self.device.type == "cpu")

    def draw(self, *shapes: Sequence[int], dtype: Any = BF16) -> list[Any]:
        """Return a tensor of each rank, equal on all ranks."""
        return [
            (torch.randn(shape, generator=self.generator) / 4).to(dtype).to(self.device)
            for shape in shapes
        ]


def is_close(found: Any, wanted: Any, scale: float = 1.0) -> bool:
    """Compare with float64; ``scale`` is the size of what a rank rounds before the sum."""
    error = (found.double() - wanted).abs()
    return found.shape == wanted.shape and bool((error <= 2**-7 * (wanted.abs() + scale)).all())


def leaves(*lists: list[Any]) -> list[list[Any]]:
    """Return float64 copies that collect gradients."""
    return [[one.detach().double().requires_grad_() for one in each] for each in lists]


def refuses(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        call()
