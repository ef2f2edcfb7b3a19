"""Random products of every type with epilogues; every array lies among NaNs."""

from __future__ import annotations

import pytest
from parity.backends import Cuda
from parity.random_products import KINDS, OTHER_TYPES, Kind, problem

pytest.importorskip("cupy")


@pytest.mark.parametrize("kind", [*KINDS, *OTHER_TYPES], ids=str)
def test_random_products(kind: Kind) -> None:
    for number in range(16):
        problem(number, 1200, [kind]).check(Cuda())
