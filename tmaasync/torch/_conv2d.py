"""The operator ``tmaasync::conv2d``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from tmaasync import ops
from tmaasync.errors import ArgumentError
from tmaasync.ops._conv2d import Views, checked, window_over
from tmaasync.ops._gemm.epilogue import activation_of
from tmaasync.torch._plain import TEXT_OR_NONE
from tmaasync.torch._registry import define, register_autocast
from tmaasync.torch._stand_ins import stand_ins
from tmaasync.torch._tensors import require_tensors, require_tensors_or_none, torchs_type

_MOST_PIXELS = (1 << 31) - 1


def conv2d(  # noqa: PLR0913 - the parameters of a convolution
    images: Any,
    filters: Any,
    *,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    activation: str | None = None,
    out: Any = None,
    dtype: Any = None,
) -> Any:
    """Convolve images with filters, both channels-last.

    This is `tmaasync.ops.conv2d` as the operator ``torch.ops.tmaasync.conv2d``. Its output is
    contiguous. It has no backward.

    Args:
        images: [N, H, W, C]. For torch's ``channels_last`` images pass
            ``images.permute(0, 2, 3, 1)``.
        filters: [K, R, S, C].
        bias: [K].
        stride: As in `tmaasync.ops.conv2d`. The operator takes one or two numbers.
        padding: As in `tmaasync.ops.conv2d`. The operator takes a list of two or four numbers: top
            and bottom, left and right; or top, bottom, left, right.
        dilation: As in `tmaasync.ops.conv2d`. The operator takes one or two numbers.
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        out: The output, [N, P, Q, K].
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``images``.

    Returns:
        The output.
    """
    require_tensors(images=images, filters=filters)
    require_tensors_or_none(bias=bias, out=out)
    operator = torch.ops.tmaasync.conv2d
    window = [list(_flat(one)) for one in (stride, padding, dilation)]
    if not all(type(one) is int and 0 <= one <= _MOST_PIXELS for one in chain(*window)):
        _check_window(images, filters, bias, stride, padding, dilation)
    if type(activation) not in TEXT_OR_NONE:
        activation_of(activation)
    options = {"activation": activation, "dtype": torchs_type(dtype)}
    if out is None:
        return operator.default(images, filters, bias, *window, **options)
    operator.out(images, filters, bias, *window, **options, out=out)
    return out


def _check_window(images: Any, filters: Any, bias: Any, *window: Any) -> None:
    views = stand_ins(images=images, filters=filters, bias=bias)
    if views is not None:
        window_over(Views.of(**views), *window)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _run(  # noqa: PLR0913 - the arguments of the operator
    images: Any,
    filters: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    *,
    activation: str | None = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    (top, bottom), (left, right) = _sides(padding)
    result = ops.conv2d(
        images,
        filters,
        bias=bias,
        stride=_pair("stride", stride),
        padding=((top, bottom), (left, right)),
        dilation=_pair("dilation", dilation),
        activation=activation,
        dtype=dtype,
        out=out,
    )
    return result if out is not None else result.contiguous()


def _pair(name: str, numbers: Sequence[int]) -> tuple[int, int]:
    if len(numbers) not in (1, 2):
        rule, remedy = "it must have one or two numbers", "Pass one for rows and one for columns"
        raise ArgumentError.broken(name, list(numbers), rule, remedy)
    return numbers[0], numbers[-1]


def _sides(padding: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    if len(padding) == 4:
        top, bottom, left, right = padding
        return (top, bottom), (left, right)
    down, across = _pair("padding", padding)
    return (down, down), (across, across)


def _fake(  # noqa: PLR0913 - the arguments of the operator
    images: Any,
    filters: Any,
    bias: Any = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    *,
    activation: str | None = None,
    dtype: Any = None,
    out: Any = None,
) -> Any:
    (top, bottom), (left, right) = _sides(padding)
    steps, gaps = _pair("stride", stride), _pair("dilation", dilation)
    views = stand_ins(images=images, filters=filters, bias=bias, out=out)
    activation_of(activation)
    if views is not None:
        checked(**views, steps=(steps, ((top, bottom), (left, right)), gaps), dtype=dtype)
    extents = [
        (size + before + after - step * (taps - 1) - 1) // pixels + 1
        for size, (before, after), step, taps, pixels in zip(
            images.shape[1:3],
            ((top, bottom), (left, right)),
            gaps,
            filters.shape[1:3],
            steps,
            strict=True,
        )
    ]
    return images.new_empty((images.shape[0], *extents, filters.shape[0]), dtype=dtype)


define(
    "conv2d",
    "Tensor images, Tensor filters, Tensor? bias=None, int[2] stride=1, "
    "int[] padding=[0, 0], int[2] dilation=1, *, str? activation=None, ScalarType? dtype=None",
    _run,
    _fake,
)
register_autocast("conv2d", operands=2)
