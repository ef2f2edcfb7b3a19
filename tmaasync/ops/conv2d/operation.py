"""ops.conv2d."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element, element
from tmaasync._tile.window import Padding, PerSide
from tmaasync.errors import ArrayTypeError
from tmaasync.ops._epilogue import Activation, BiasSide, Epilogue
from tmaasync.ops._launches import LaunchCache, Repeatable, one_array
from tmaasync.ops._results import empty_rows, rows_maker
from tmaasync.ops.conv2d.arguments import OUTPUTS, Place, Views, check_output, window_over
from tmaasync.ops.conv2d.plan import plan_for

__all__ = ["conv2d"]

_LAUNCHES = LaunchCache()


def conv2d(  # noqa: PLR0913 - what a convolution has
    images: Any,
    filters: Any,
    *,
    bias: Any = None,
    stride: PerSide = 1,
    padding: Padding = 0,
    dilation: PerSide = 1,
    relu: bool = False,
    out: Any = None,
    dtype: object = None,
    stream: object = None,
) -> Any:
    """Convolve images with filters: a product of the filters with every patch, summed in fp32.

    ``out[n, p, q, k] = sum(images[n, p * stride + r * dilation - padding, ..., c] * filters[k, r,
    s, c])`` over r, s and c, with zeros around the images; then the bias, then ReLU, then one
    rounding. Like every framework's convolution it does not flip the filters. On the arrays' GPU,
    or, in host memory, on the emulator.

    Images or filters that TMA cannot read (the channels not contiguous, or strides or an address
    off multiples of 16 bytes) are copied first; an output that it cannot write is written through a
    copy.

    Args:
        images: [N, H, W, C], bfloat16 or float16; C a multiple of 8. Of torch's ``channels_last``
            images pass ``images.permute(0, 2, 3, 1)``.
        filters: [K, R, S, C], of the same type and device.
        bias: [K], of the same type or float32.
        stride: Pixels from one output to the next, 1 to 8: one number, or (down, across).
        padding: Zeros around the images: one number, (top and bottom, left and right), or ((top,
            bottom), (left, right)).
        dilation: Pixels from one tap to the next: one number, or (down, across).
        relu: Whether negative results become 0.
        out: Where to: [N, P, Q, K]. By default a new array of the framework of ``images``; where K
            elements are no multiple of 16 bytes its pixels are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else of
            ``images``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes, window or ``out`` are not as described; every broken rule.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import numpy as np
    >>> images, filters = np.ones((1, 4, 4, 8), np.float16), np.ones((8, 3, 3, 8), np.float16)
    >>> conv2d(images, filters, padding=1)[0, :, :, 0]
    array([[32., 48., 48., 32.],
           [48., 72., 72., 48.],
           [48., 72., 72., 48.],
           [32., 48., 48., 32.]], dtype=float16)
    """
    is_new = out is None
    arrays: tuple[Any, ...]
    if bias is None:
        arrays = (images, filters) if is_new else (images, filters, out)
    else:
        arrays = (images, filters, bias) if is_new else (images, filters, bias, out)
    steps = (_frozen(stride), _frozen(padding), _frozen(dilation))
    option = (steps, relu, dtype, bias is None, is_new)
    done = _LAUNCHES.run(arrays, option, stream)
    if done is not None:
        return done[-1]
    views = Views.of(images, filters, bias)
    window = window_over(views, stride, padding, dilation)
    shape = (
        views.images.shape[0],
        *window.outputs(views.images.shape[1:3]),
        views.filters.shape[0],
    )
    if is_new:
        out = empty_rows(views.images, shape, _output_type(views.images, dtype))
    target = _arrays.view(out, argument="out")
    check_output(target, views, shape, None if dtype is None else element(dtype))
    epilogue = Epilogue(
        BiasSide.NONE if bias is None else BiasSide.COLUMNS,
        Activation.RELU if relu else Activation.NONE,
    )
    plan = plan_for(views.places, Place.of(target), is_new, window, epilogue)
    plan.run(views, target, stream)
    if plan.is_direct:
        frameworks = (*views.frameworks, target.framework)
        make = one_array(rows_maker(views.images, target)) if is_new else None
        _LAUNCHES.remember(arrays, option, Repeatable(plan.aim, make), frameworks, target.device)
    return out


def _frozen(value: Any) -> Any:
    """The argument as a key."""
    if type(value) is int:  # as a rule; to look for two other types costs four times as much
        return value
    return tuple(map(_frozen, value)) if isinstance(value, tuple | list) else value


def _output_type(images: ArrayView, dtype: object) -> Element:
    of = images.element if dtype is None else element(dtype)
    if of.name not in OUTPUTS:
        raise ArrayTypeError(f"dtype is {of}; the output can be {', '.join(OUTPUTS)}. Pass one.")
    return of
