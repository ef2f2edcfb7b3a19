"""Block-scaled matmuls of torch's float4_e2m1fn_x2 and float8_e8m0fnu, on an emulated chip."""

from __future__ import annotations

import pytest
import torch

from tmaasync import emulate, ops

VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decoded(packed: torch.Tensor) -> torch.Tensor:
    """Return float4 in bytes as [rows, K]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()
    return torch.where(codes > 7, -VALUES[codes & 7], VALUES[codes & 7]).double()


pytestmark = pytest.mark.skipif(
    not hasattr(torch, "float4_e2m1fn_x2"), reason="a torch without float4"
)


def scaled(rows: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return packed float4 with factors of E8M0, as [rows, K]."""
    return decoded(rows) * (2.0 ** (factors.double() - 127)).repeat_interleave(32, 1)


def test_types_of_torch_are_taken_as_they_are() -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(0, 256, (rows, 80), dtype=torch.uint8) for rows in (140, 72))
    of_a, of_b = (torch.randint(125, 130, (rows, 5), dtype=torch.uint8) for rows in (140, 72))

    with emulate.chip("sm_100a"):
        c = ops.scaled_matmul(
            a.view(torch.float4_e2m1fn_x2),
            b.view(torch.float4_e2m1fn_x2).T,
            of_a.view(torch.float8_e8m0fnu),
            of_b.view(torch.float8_e8m0fnu).T,
            dtype=torch.float32,
        )

    assert torch.equal(c.double(), scaled(a, of_a) @ scaled(b, of_b).T)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_groups_are_torchs(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    a, b = (torch.randint(0, 256, shape, dtype=torch.uint8) for shape in ((200, 80), (3, 72, 80)))
    of_a, of_b = (
        torch.randint(125, 130, shape, dtype=torch.uint8) for shape in ((200, 5), (3, 72, 5))
    )
    ends = [60, 60, 200]

    with emulate.chip("sm_100a"):
        c = ops.scaled_grouped_matmul(
            a.view(torch.float4_e2m1fn_x2),
            b.view(torch.float4_e2m1fn_x2).swapaxes(1, 2),
            of_a.view(torch.float8_e8m0fnu),
            (of_b.view(torch.float8_e8m0fnu).swapaxes(1, 2), torch.full((3,), 0.5)),
            torch.tensor(ends, dtype=dtype),
            dtype=torch.float32,
        )

    for start, end, matrix, factors in zip([0, *ends], ends, b, of_b, strict=False):
        expected = scaled(a[start:end], of_a[start:end]) @ scaled(matrix, factors).T
        assert torch.equal(c[start:end].double(), expected / 2)
