"""Random matmuls of every type with epilogues; every array lies among NaNs."""

from __future__ import annotations

from typing import Any

import pytest
from parity.backends import Cuda
from parity.random_matmuls import KINDS, OTHER_TYPES, Kind, problem

from tmaasync import ops

pytest.importorskip("cupy")


@pytest.mark.parametrize("kind", [*KINDS, *OTHER_TYPES], ids=str)
def test_random_matmuls(kind: Kind) -> None:
    for number in range(16):
        problem(number, 1200, [kind]).check(Cuda())


def test_torch_has_float8_of_its_own_and_scales_that_change_on_the_device() -> None:
    torch: Any = pytest.importorskip("torch")
    a = torch.randn(300, 272, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(144, 272, device="cuda").to(torch.float8_e4m3fn)
    bias = torch.randn(144, device="cuda").bfloat16()
    scales = [torch.ones(1, device="cuda"), torch.ones((), device="cuda")]
    out = torch.empty(300, 144, dtype=torch.bfloat16, device="cuda")

    for scale in (0.5, 2.0, 3.0):  # from the second on by the plan of the first
        scales[0].fill_(scale)
        scales[1].fill_(scale + 1)
        ops.matmul(a, b.T, scale_a=scales[0], scale_b=scales[1], bias=bias, out=out)
        wanted = scale * (scale + 1) * (a.double() @ b.double().T) + bias
        assert ((out.double() - wanted).norm() / wanted.norm()).item() < 4e-3


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8", "bfloat16"])
def test_torch_tensors_that_are_copied_first(dtype: str) -> None:
    torch: Any = pytest.importorskip("torch")
    a, b = (
        torch.randint(-3, 4, shape, device="cuda").float().to(getattr(torch, dtype))
        for shape in ((70, 77), (77, 90))
    )

    got = ops.matmul(a, b, dtype="int32" if dtype == "int8" else "float32")

    assert torch.equal(got.double(), a.double() @ b.double())
