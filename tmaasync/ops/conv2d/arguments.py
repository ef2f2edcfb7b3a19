"""What a convolution is given, checked in its own words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import Element
from tmaasync._tile.window import Padding, PerSide, Window, window_of
from tmaasync.errors import ArgumentError, ArrayTypeError, TensorMapError, Violation
from tmaasync.ops._overlap import refuse_overlap
from tmaasync.ops._plans import Layout

__all__ = ["GRANULE_BYTES", "OUTPUTS", "Place", "Views", "check_output", "window_over"]

GRANULE_BYTES = 16
_OPERANDS = ("bfloat16", "float16")
OUTPUTS = ("bfloat16", "float16", "float32")


class Views(NamedTuple):
    """The operands."""

    images: ArrayView
    filters: ArrayView
    bias: ArrayView | None

    @classmethod
    def of(cls, images: Any, filters: Any, bias: Any) -> Views:
        """Look at the operands and check that they fit each other."""
        views = cls(
            _arrays.view(images, argument="images"),
            _arrays.view(filters, argument="filters"),
            None if bias is None else _arrays.view(bias, argument="bias"),
        )
        _refuse([*_rank_violations(views)])
        _check_types(views)
        _refuse([*_shape_violations(views)])
        return views

    @property
    def given(self) -> dict[str, ArrayView]:
        """By the name of their argument."""
        views = {"images": self.images, "filters": self.filters}
        return views if self.bias is None else {**views, "bias": self.bias}

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Whose arrays they are."""
        return tuple(view.framework for view in self.given.values())

    @property
    def places(self) -> tuple[Place, ...]:
        """What a plan depends on."""
        return tuple(map(Place.of, self.given.values()))


class Place(NamedTuple):
    """How an array lies, but for its exact address."""

    layout: Layout
    bytes_off_granule: int

    @classmethod
    def of(cls, view: ArrayView) -> Place:
        """That of an array."""
        return cls(Layout.of(view), view.address % GRANULE_BYTES)


def _refuse(violations: Sequence[Violation]) -> None:
    if violations:
        raise ArgumentError("\n".join(map(str, violations)))


def _rank_violations(views: Views) -> Iterator[Violation]:
    wanted = {
        "images": (4, "[N, H, W, C]", "Of NCHW images pass images.permute(0, 2, 3, 1)"),
        "filters": (4, "[K, R, S, C]", "Of KCRS filters pass filters.permute(0, 2, 3, 1)"),
        "bias": (1, "[K]", "Flatten it"),
    }
    for name, view in views.given.items():
        rank, shape, remedy = wanted[name]
        if view.ndim != rank:
            yield Violation(f"{name}.shape", view.shape, f"it must be {shape}", remedy)


def _check_types(views: Views) -> None:
    images, filters, bias = views
    for name, view in (("images", images), ("filters", filters)):
        if view.element.name not in _OPERANDS:
            raise ArrayTypeError(
                f"{name} holds {view.element}; the kernel multiplies {' and '.join(_OPERANDS)}. "
                "Convert it with astype."
            )
    if filters.element is not images.element:
        raise ArrayTypeError(
            f"filters holds {filters.element} and images {images.element}; the tensor cores take "
            "one type. Convert one of them."
        )
    if bias is not None and bias.element.name not in {"float32", images.element.name}:
        raise ArrayTypeError(
            f"bias holds {bias.element}; it must hold float32 or {images.element}. Convert it."
        )
    _arrays.common_device(views.given)


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


def check_output(
    out: ArrayView, views: Views, shape: tuple[int, ...], wanted: Element | None
) -> None:
    """Check that the output is one for these operands.

    Raises:
        ArgumentError: It cannot be written, has another shape or device, or overlaps an operand.
        ArrayTypeError: It has another type.
    """
    _arrays.require_writable(out, "out")
    device = views.images.device
    if out.shape != shape or out.device != device:
        raise ArgumentError(
            f"out has shape {out.shape} on device {out.device}; the convolution has shape {shape} "
            f"on device {device}. Pass such an array, or none to get one."
        )
    if out.element.name not in OUTPUTS or wanted not in {None, out.element}:
        raise ArrayTypeError(
            f"out holds {out.element}; it must hold {wanted or ' or '.join(OUTPUTS)}. "
            "Leave out dtype= or out=."
        )
    refuse_overlap(out, views.given)


# --- the window -------------------------------------------------------------------------------

_MAX_STRIDE = 8
_CORNERS = range(-128, 128)  # of an im2col map of rank 4
_SIDES = ("height", "width")


def window_over(views: Views, stride: PerSide, padding: Padding, dilation: PerSide) -> Window:
    """What the filters see; checked in the words of a convolution.

    Raises:
        ArgumentError: Every rule that stride, padding, dilation or the filters' taps break.
    """
    taps = views.filters.shape[1:3]
    try:
        window = window_of(2, taps, stride, dilation, padding)
    except TensorMapError as error:
        _refuse([_renamed(violation) for violation in error.violations])
        raise
    _refuse([*_window_violations(window, views.images.shape[1:3])])
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
            rule = f"TMA walks images in steps of 1 to {_MAX_STRIDE} pixels"
            remedy = "Use a divisor of it that is in range, and slice every n-th output"
            yield Violation(f"stride[{dim}]", stride, rule, remedy)
        if -before not in _CORNERS:
            rule = f"TMA starts at most {-_CORNERS.start} pixels in front of the images"
            yield Violation(f"padding[{dim}]", (before, after), rule, "Pad the images themselves")
        if after - reach not in _CORNERS:
            rule = (
                f"filters reach {reach} pixels along the {side}, and TMA allows padding behind the "
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
