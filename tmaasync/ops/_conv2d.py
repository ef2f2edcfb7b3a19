"""ops.conv2d: an implicit GEMM (conv2d.cu) whose patches TMA gathers with im2col maps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._tile.window import Padding, PerSide, Window, window_of
from tmaasync.errors import ArgumentError, ArrayTypeError, TensorMapError, Violation
from tmaasync.kernel import Launch
from tmaasync.ops._allocation import Output, contiguous_copy, reached_output
from tmaasync.ops._call_cache import Binding, CallCache
from tmaasync.ops._extents import check_extents
from tmaasync.ops._gemm.config import Occupancy, PersistentWork, TileConfig
from tmaasync.ops._gemm.conv2d_forms import (
    Conv2dForm,
    FoldedConvolution,
    can_fold,
    ranked_conv2d_forms,
)
from tmaasync.ops._gemm.conv2d_tiles import Conv2dArguments, conv2d_kernel, conv2d_tiles
from tmaasync.ops._gemm.epilogue import BiasSide, Epilogue, activation_of
from tmaasync.ops._gemm.legal_tiles import Problem
from tmaasync.ops._gemm.tensor_memory import runs_on_tensor_memory, tensor_memory_config
from tmaasync.ops._gemm.tiles import prepared_persistent
from tmaasync.ops._layouts import (
    Layout,
    Operand,
    check_output,
    check_type,
    is_apart,
    refuse_overlap,
    with_merged_dims,
)
from tmaasync.ops._operation import Operation

__all__ = [
    "Conv2d",
    "FoldedConvolution",
    "Views",
    "can_fold",
    "checked",
    "conv2d",
    "window_over",
]

_OPERANDS = ("bfloat16", "float16")
_OUTPUTS = ("bfloat16", "float16", "float32")
_CALLS = CallCache()


def conv2d(  # noqa: PLR0913 - the parameters of a convolution
    images: Any,
    filters: Any,
    *,
    bias: Any = None,
    stride: PerSide = 1,
    padding: Padding = 0,
    dilation: PerSide = 1,
    activation: str | None = None,
    out: Any = None,
    dtype: object = None,
    stream: object = None,
) -> Any:
    """Convolve images with filters: an implicit GEMM of patches and filters, in fp32.

    ``out[n, p, q, k] = sum(images[n, p * stride + r * dilation - padding, ..., c] * filters[k, r,
    s, c])`` over r, s and c, with zero padding; then bias, activation and one rounding. As in
    deep-learning frameworks, it is a cross-correlation: filters are not mirrored. It runs on the
    arrays' GPU, or on the emulator for arrays in host memory.

    Images or filters that TMA cannot read (channels not contiguous, or an address or stride that is
    not a multiple of 16 bytes) are read from staging copies. An output that TMA cannot store is
    written through a staging copy.

    Output pixels of the batch, filters, and elements of a filter may be up to 2^31 - 2^18
    (2,147,221,504) each.

    Args:
        images: [N, H, W, C], bfloat16 or float16; C is a multiple of 8. For torch's
            ``channels_last`` images pass ``images.permute(0, 2, 3, 1)``.
        filters: [K, R, S, C], of the same type and device.
        bias: [K], of the same type or float32.
        stride: Pixels between outputs, 1 to 8: one number, or (down, across).
        padding: Zeros around the images: one number, (top and bottom, left and right), or ((top,
            bottom), (left, right)).
        dilation: Pixels between filter taps: one number, or (down, across).
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``, as in `matmul`.
        out: The output, [N, P, Q, K]. By default a new array of the framework of ``images``; if K
            elements are not a multiple of 16 bytes, pixels are padded and it is not contiguous.
        dtype: Output type: bfloat16, float16 or float32; by default the type of ``out``, else
            of ``images``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes, window or ``out`` are invalid; every broken rule is listed.
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
    function = activation_of(activation)
    is_new = out is None
    arrays: tuple[Any, ...]
    if bias is None:
        arrays = (images, filters) if is_new else (images, filters, out)
    else:
        arrays = (images, filters, bias) if is_new else (images, filters, bias, out)
    steps = (_frozen(stride), _frozen(padding), _frozen(dilation))
    option = (steps, function, dtype, bias is None, is_new)
    done = _CALLS.run(arrays, option, stream)
    if done is not None:
        return done[-1]
    views, window, output = checked(images, filters, bias, (stride, padding, dilation), out, dtype)
    epilogue = Epilogue(
        BiasSide.NONE if bias is None else BiasSide.COLUMNS,
        function,
    )
    operands = views.named.values()
    operation = _CALLS.operation(Conv2d, output.layout, window, epilogue, *map(Layout.of, operands))
    operation.run(views, output.view, stream)
    operation.remember_in(_CALLS, arrays, option, operands, output)
    return output.array


def _frozen(value: Any) -> Any:
    if type(value) is int:  # the common case; checking two other types costs four times as much
        return value
    return tuple(map(_frozen, value)) if isinstance(value, tuple | list) else value


# --- checks of the arrays ---------------------------------------------------------------------


class Views(NamedTuple):
    images: ArrayView
    filters: ArrayView
    bias: ArrayView | None

    @classmethod
    def of(cls, images: Any, filters: Any, bias: Any) -> Views:
        """Return views of the operands, checked against each other."""
        views = cls(
            _arrays.view(images, argument="images"),
            _arrays.view(filters, argument="filters"),
            None if bias is None else _arrays.view(bias, argument="bias"),
        )
        ArgumentError.raise_for(_rank_violations(views))
        _check_types(views)
        ArgumentError.raise_for(_shape_violations(views))
        return views

    @property
    def named(self) -> dict[str, ArrayView]:
        views = {"images": self.images, "filters": self.filters}
        return views if self.bias is None else {**views, "bias": self.bias}


def checked(
    images: Any,
    filters: Any,
    bias: Any,
    steps: tuple[PerSide, Padding, PerSide],
    out: Any,
    dtype: object,
) -> tuple[Views, Window, Output]:
    """Check the arguments of a call, and make its output if ``out`` is None.

    ``steps`` holds the stride, the padding and the dilation.
    """
    views = Views.of(images, filters, bias)
    window = window_over(views, *steps)
    images, filters, _ = views
    shape = (images.shape[0], *window.outputs(images.shape[1:3]), filters.shape[0])
    depth = math.prod(filters.shape[1:])
    check_extents(output_pixels=math.prod(shape[:3]), filters=shape[3], filter_elements=depth)
    output = Output.of(out, images, shape, _OUTPUTS, images.element if dtype is None else dtype)
    check_output(output.view, shape, images.device, _OUTPUTS, dtype, what="convolution")
    refuse_overlap("out", output.view, views.named, may_share_rows=True)
    return views, window, output


def _rank_violations(views: Views) -> Iterator[Violation]:
    wanted = {
        "images": (4, "[N, H, W, C]", "For NCHW images pass images.permute(0, 2, 3, 1)"),
        "filters": (4, "[K, R, S, C]", "For KCRS filters pass filters.permute(0, 2, 3, 1)"),
        "bias": (1, "[K]", "Flatten it"),
    }
    for name, view in views.named.items():
        rank, shape, remedy = wanted[name]
        if view.ndim != rank:
            yield Violation(f"{name}.shape", view.shape, f"it must be {shape}", remedy)


def _check_types(views: Views) -> None:
    images, filters, bias = views
    for name, view in (("images", images), ("filters", filters)):
        check_type(name, view.element, _OPERANDS)
    if filters.element is not images.element:
        raise ArrayTypeError.broken(
            "filters",
            f"{filters.element} and images {images.element}",
            "the tensor cores take one type",
            "Convert one of them",
            verb="holds",
        )
    if bias is not None and bias.element.name not in {"float32", images.element.name}:
        raise ArrayTypeError.broken(
            "bias",
            bias.element,
            f"it must hold float32 or {images.element}",
            "Convert it",
            verb="holds",
        )
    _arrays.common_device(views.named)


def _shape_violations(views: Views) -> Iterator[Violation]:
    images, filters, bias = views
    channels = images.shape[3]
    if filters.shape[3] != channels:
        yield Violation(
            "filters.shape[3]",
            filters.shape[3],
            f"images have {channels} channels, and every filter sees all of them",
            "Pass filters [K, R, S, C]; of a convolution in groups one group after the other",
        )
    if channels == 0 or channels % 8:
        yield Violation(
            "images.shape[3]",
            channels,
            "TMA reads channels in units of 16 bytes, 8 of them",
            f"Pad images and filters with zeros to {max(8, -(-channels // 8) * 8)} channels",
        )
    for dim in (1, 2):
        if images.shape[dim] == 0:
            rule = "there are no pixels to convolve"
            yield Violation(f"images.shape[{dim}]", 0, rule, "Pass images of a pixel or more")
    if bias is not None and bias.shape != filters.shape[:1]:
        rule = f"there are {filters.shape[0]} filters, and each has one"
        yield Violation("bias.shape", bias.shape, rule, f"Pass {filters.shape[:1]}")


# --- the window -------------------------------------------------------------------------------

_MAX_STRIDE = 8
_CORNERS = range(-128, 128)  # bounding-box corners of an im2col map of rank 4
_SIDES = ("height", "width")


def window_over(views: Views, stride: PerSide, padding: Padding, dilation: PerSide) -> Window:
    """Return the filters' window; errors use the names of the convolution's arguments."""
    taps = views.filters.shape[1:3]
    try:
        window = window_of(2, taps, stride, dilation, padding)
    except TensorMapError as error:
        raise ArgumentError.of(map(_renamed, error.violations)) from None
    ArgumentError.raise_for(_window_violations(window, views.images.shape[1:3]))
    return window


def _renamed(violation: Violation) -> Violation:
    for dim in (0, 1):
        if violation.argument == f"filter_shape[{dim}]":
            return replace(violation, argument=f"filters.shape[{dim + 1}]")
    return violation


def _window_violations(window: Window, extents: Sequence[int]) -> Iterator[Violation]:
    outputs = window.outputs(extents)
    for dim, side in enumerate(_SIDES):
        stride, before = window.strides[dim], -window.lower_corner[dim]
        reach = window.reaches[dim]
        after = window.upper_corner[dim] + reach
        if stride > _MAX_STRIDE:
            rule = f"TMA steps over images by 1 to {_MAX_STRIDE} pixels"
            remedy = "Use a divisor of it that is in range, and slice every n-th output"
            yield Violation(f"stride[{dim}]", stride, rule, remedy)
        if -before not in _CORNERS:
            rule = f"TMA starts at most {-_CORNERS.start} pixels before the images"
            yield Violation(f"padding[{dim}]", (before, after), rule, "Pad the images themselves")
        if after - reach not in _CORNERS:
            rule = (
                f"filters reach {reach} pixels along the {side}, and TMA allows padding after the "
                f"images from {max(0, reach + _CORNERS.start)} to {reach + _CORNERS.stop - 1}"
            )
            remedy = "Pad the images themselves, or use a smaller filter or dilation"
            yield Violation(f"padding[{dim}]", (before, after), rule, remedy)
        if outputs[dim] < 1:
            rule = (
                f"with dilation {window.dilations[dim]} filters span {reach + 1} pixels, and the "
                f"padded images have {extents[dim] + before + after}"
            )
            remedy = "Use a smaller filter, or more padding"
            yield Violation(f"filters.shape[{dim + 1}]", window.taps[dim], rule, remedy)


# --- the operation ----------------------------------------------------------------------------

_MAX_STRIDE_BYTES = 1 << 40
_OUT = 2  # index among the kernel's parameters


class Conv2d(Operation):
    """A convolution as an implicit GEMM: [pixels, taps and channels] by [filters]."""

    def __init__(self, out: Layout, window: Window, epilogue: Epilogue, *operands: Layout) -> None:
        """Check and store the layouts; operands are images, filters and a bias, if any."""
        super().__init__(out.device)
        spans = [layout.span_bytes for layout in operands]
        self._spans = (*spans[:_OUT], out.span_bytes, *spans[_OUT:])
        self._window = window
        self._epilogue = epilogue
        self._out = _pixel_rows(out)
        self._needs_staging = self._out.is_staged or not all(map(_is_reachable, operands))

    def run(self, views: Views, out: ArrayView, stream: object) -> None:
        if out.is_empty:
            return
        handle = self.ordered((*views.named.values(), out), stream)
        reached = Views(
            _reached(views.images, handle),
            _reached(views.filters, handle),
            None if views.bias is None else _reached(views.bias, handle),
        )
        with reached_output(self._out, out, handle) as target:
            rows = self._out.rows.over(target)
            launch = self.prepared(lambda: self._prepare(reached, rows))
            bias = () if reached.bias is None else (reached.bias.address,)
            addresses = (reached.images.address, reached.filters.address, rows.address, *bias)
            launch.launch_at(addresses, handle)

    def bind(self, addresses: Sequence[int], *numbers: Any) -> Binding | None:
        """See `Operation`. Addresses: images, filters, a bias if any, out."""
        images, filters, *bias, out = addresses
        pointers = (images, filters, out, *bias)
        if self._launch is None or not is_apart(_OUT, pointers, self._spans):
            return None
        return self._launch, pointers

    def _config_for(
        self, form: Conv2dForm, images: ArrayView, m: int, k: int, occupancy: Occupancy
    ) -> TileConfig:
        name = images.element.name
        if not runs_on_tensor_memory(self.backend, name):
            return self.fitted(form.config)
        depth = math.prod(self._window.taps) * images.shape[3]
        problem = Problem(m, k, depth, 1, name, name, "nt", m_major=False, on_lines=True)
        return tensor_memory_config(problem, occupancy)

    def _prepare(self, views: Views, out: ArrayView) -> Launch:
        images, filters, bias = views
        m, k = out.shape
        occupancy = Occupancy.of(self.backend)
        form, *_ = ranked_conv2d_forms(
            images.shape,
            k,
            self._window,
            occupancy,
            can_fold=can_fold(images, filters),
            epilogue_depth=self._epilogue.depth,
            activation=self._epilogue.activation.name.lower(),
        )
        config = self._config_for(form, images, m, k, occupancy)
        window, offset = self._window, None
        if form.fold > 1:
            images, filters, window, offset = FoldedConvolution.of(
                images, filters, window, form.fold
            )
        tiles = conv2d_tiles(images, filters, out, window, config, form.channels_per_box)
        bias_type = (images if bias is None else bias).element.cuda_type
        types = [tile.cuda_type for tile in tiles]
        kernel = conv2d_kernel(types, bias_type, self._epilogue, config, offset)
        arguments = Conv2dArguments(
            *tiles, bias=0 if bias is None else bias, m=m, n=k, k=tiles.patches.matrix_shape[1]
        )
        work = PersistentWork(m, arguments.k, config.clusters(m, k))
        return prepared_persistent(kernel, arguments, config, work, occupancy)


def _is_reachable(operand: Layout) -> bool:
    """Return whether the kernel can read an operand without a staging copy."""
    *outer, last = operand.strides_bytes
    is_dense = last == operand.element.itemsize or operand.shape[-1] == 1
    has_steps = all(0 <= one < _MAX_STRIDE_BYTES and one % TMA_ALIGNMENT == 0 for one in outer)
    return is_dense and operand.is_aligned and has_steps


def _reached(view: ArrayView, stream: int) -> ArrayView:
    return view if _is_reachable(Layout.of(view)) else contiguous_copy(view, stream)


def _pixel_rows(out: Layout) -> Operand:
    """Return the output as TMA stores it: a matrix with one row per pixel."""
    (pixels,) = with_merged_dims(
        out._replace(shape=out.shape[:3], strides_bytes=out.strides_bytes[:3])
    )
    row_bytes = pixels.strides_bytes[0] if pixels.shape else 0  # irrelevant for a single row
    rows = out._replace(
        shape=(math.prod(out.shape[:3]), out.shape[3]),
        strides_bytes=(row_bytes, out.strides_bytes[3]),
    )
    if len(pixels.shape) > 1:
        return Operand(rows.padded(), is_staged=True)
    return Operand.of_output(rows)
