"""Convolutions on the chip: real sizes, torch, streams, and plans found again."""

from __future__ import annotations

from typing import Any

import pytest

from tmaasync import ops

torch = pytest.importorskip("torch")

# Error of one rounding to the output type, relative to the Frobenius norm, with room.
TOLERANCE = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 2e-5}


def draw(*shape: int, dtype: Any = torch.bfloat16, seed: int = 0) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=generator).to(dtype)


def reference(images: Any, filters: Any, bias: Any, **window: Any) -> Any:
    """In float64, of the rounded operands."""
    nchw = (array.double().permute(0, 3, 1, 2) for array in (images, filters))
    wide = None if bias is None else bias.double()
    return torch.nn.functional.conv2d(*nchw, wide, **window).permute(0, 2, 3, 1)


def error(got: Any, wanted: Any) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("n", "c", "k", "side", "window"),
    [
        (8, 128, 128, 28, {"padding": 1}),
        (16, 256, 256, 14, {"padding": 1}),
        (2, 320, 320, 64, {"padding": 1}),
        (4, 640, 640, 32, {"padding": 1}),
        (4, 1280, 1280, 16, {"padding": 1}),
        (4, 256, 512, 56, {"padding": 1, "stride": 2}),
        (3, 72, 200, 33, {"padding": (2, 4), "dilation": (2, 4)}),
    ],
)
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_layers_of_networks(
    n: int, c: int, k: int, side: int, window: dict[str, Any], out: Any
) -> None:
    images, filters = draw(n, side, side, c), draw(k, 3, 3, c, seed=1)
    bias = draw(k, dtype=torch.float32, seed=2)
    wanted = reference(images, filters, bias, **window)

    got = ops.conv2d(images, filters, bias=bias, dtype=str(out).removeprefix("torch."), **window)

    assert got.dtype == out
    assert got.shape == wanted.shape
    assert error(got, wanted) < TOLERANCE[out]


def test_channels_last_images_go_in_and_out_as_they_are() -> None:
    images = draw(4, 64, 20, 20).to(memory_format=torch.channels_last)
    filters = draw(96, 64, 3, 3, seed=1).to(memory_format=torch.channels_last)

    got = ops.conv2d(images.permute(0, 2, 3, 1), filters.permute(0, 2, 3, 1), padding=1)

    wanted = torch.nn.functional.conv2d(images.double(), filters.double(), padding=1)
    assert error(got.permute(0, 3, 1, 2), wanted) < TOLERANCE[torch.bfloat16]


def test_copies_are_made_in_the_order_of_the_stream() -> None:
    images, filters = draw(2, 64, 40, 40), draw(33, 64, 3, 3, seed=1)  # channels first
    out = torch.full((2, 38, 38, 33), torch.nan, device="cuda").bfloat16()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        images.mul_(2)
    ops.conv2d(images.permute(0, 2, 3, 1), filters.permute(0, 2, 3, 1), out=out, stream=stream)
    torch.cuda.synchronize()

    wanted = reference(images.permute(0, 2, 3, 1), filters.permute(0, 2, 3, 1), None)
    assert error(out, wanted) < TOLERANCE[torch.bfloat16]
