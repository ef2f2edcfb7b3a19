"""The window of a convolution filter: its taps, strides, dilations and corners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tmaasync._kinds import as_int, is_integer, is_sequence, shown
from tmaasync._tile.cut import per_side_violations, sides_of
from tmaasync.errors import TensorMapError, Violation

PerSide = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Window:
    """One number per spatial dimension, outermost first."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]

    @property
    def reaches(self) -> tuple[int, ...]:
        """Pixels from the first tap to the last."""
        return _reaches(self.taps, self.dilations)

    def outputs(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Positions of the filter along each dimension."""
        corners = zip(extents, self.lower_corner, self.upper_corner, self.strides, strict=True)
        return tuple(-(-(extent + up - low) // stride) for extent, low, up, stride in corners)

    def first_pixel(self, outputs: Sequence[int]) -> tuple[int, ...]:
        """Return the pixel under the first tap of an output pixel; it may be outside the images."""
        starts = zip(self.lower_corner, outputs, self.strides, strict=True)
        return tuple(low + output * stride for low, output, stride in starts)

    def folded(self, extent: int, fold: int) -> Window:
        """Return the window over pixels of which ``fold`` along the last dimension are one.

        It has the same outputs. The fold divides the extent and the stride of that dimension, and
        there is no dilation; the first tap comes ``lower_corner % fold`` pixels into the first.
        """
        low, stride = self.lower_corner[-1] // fold, self.strides[-1] // fold
        outputs = -(-(extent + self.upper_corner[-1] - self.lower_corner[-1]) // self.strides[-1])
        taps = -(-(self.lower_corner[-1] % fold + self.taps[-1]) // fold)
        return Window(
            (*self.taps[:-1], taps),
            (*self.strides[:-1], stride),
            self.dilations,
            (*self.lower_corner[:-1], low),
            (*self.upper_corner[:-1], low + (outputs - 1) * stride + 1 - extent // fold),
        )


def window_of(
    spatial: int,
    taps: tuple[int, ...],
    stride: PerSide,
    dilation: PerSide,
    padding: Padding,
    lower: Sequence[int] | None = None,
    upper: Sequence[int] | None = None,
) -> Window:
    """Return the window of a filter over images with this number of spatial dimensions.

    Arguments as in `create_tma_tile_im2col`; the corners, if given, replace the padding.

    Raises:
        TensorMapError: An argument has the wrong number of entries, or entries out of range.
    """
    lower = None if lower is None else sides_of("lower_corner", lower)
    upper = None if upper is None else sides_of("upper_corner", upper)
    strides, dilations = _per_dimension(stride, spatial), _per_dimension(dilation, spatial)
    pairs = _padding_pairs(padding, spatial)
    per_side = {"filter_shape": taps, "stride": strides, "dilation": dilations}
    found = [
        violation
        for argument, values in per_side.items()
        for violation in _spatial_violations(spatial, argument, values)
    ]
    TensorMapError.raise_for([*found, *_corner_violations(spatial, padding, pairs, lower, upper)])
    # A single tap has no next one.
    dilations = tuple(1 if tap == 1 else one for tap, one in zip(taps, dilations, strict=True))
    if lower is not None and upper is not None:
        return Window(taps, strides, dilations, tuple(lower), tuple(upper))
    lower = tuple(-before for before, _ in pairs)
    reaches = _reaches(taps, dilations)
    upper = tuple(after - reach for (_, after), reach in zip(pairs, reaches, strict=True))
    return Window(taps, strides, dilations, lower, upper)


def _reaches(taps: Sequence[int], dilations: Sequence[int]) -> tuple[int, ...]:
    return tuple((tap - 1) * step for tap, step in zip(taps, dilations, strict=True))


def _per_dimension(value: PerSide, spatial: int) -> tuple[int, ...]:
    values = value if is_sequence(value) else (value,) * spatial
    return tuple(map(as_int, values))


def _padding_pairs(padding: Padding, spatial: int) -> tuple[tuple[int, int], ...]:
    sides: Sequence[Any] = padding if is_sequence(padding) else (padding,) * spatial
    pairs = (side if is_sequence(side) else (side, side) for side in sides)
    return tuple(tuple(map(as_int, pair)) for pair in pairs)


# --- what a window must be --------------------------------------------------------------------


def _spatial_violations(
    spatial: int, argument: str, values: tuple[Any, ...]
) -> Iterator[Violation]:
    if len(values) != spatial:
        yield Violation(
            argument,
            values,
            f"the images have {spatial} spatial dimensions and need one number for each",
            f"Pass {spatial} numbers, outermost first",
        )
        return
    yield from per_side_violations(spatial, argument, values)


def _corner_violations(
    spatial: int,
    padding: Padding,
    pairs: Sequence[Sequence[int]],
    lower: Sequence[int] | None,
    upper: Sequence[int] | None,
) -> Iterator[Violation]:
    if (lower is None) != (upper is None):
        yield Violation(
            "lower_corner and upper_corner",
            (lower, upper),
            "the bounding box has both",
            "Pass both, or padding",
        )
    if len(pairs) != spatial or not all(map(_is_pair, pairs)):
        yield Violation(
            "padding",
            shown(padding),
            f"it is a number of pixels, 0 or more, for each of {spatial} spatial dimensions, or a "
            "pair (before, after)",
            "Pass numbers of pixels. To crop, slice the images",
        )
    elif lower is not None and any(map(any, pairs)):
        rule, remedy = "lower_corner and upper_corner replace it", "Leave it out, or the corners"
        yield Violation("padding", shown(padding), rule, remedy)
    for argument, corner in (("lower_corner", lower), ("upper_corner", upper)):
        if corner is not None and len(corner) != spatial:
            yield Violation(
                argument,
                corner,
                f"the images have {spatial} spatial dimensions and need one number for each",
                f"Pass {spatial} numbers, outermost first",
            )
        for dim, pixel in enumerate(corner or ()):
            if not is_integer(pixel):
                rule = "it must be an integer"
                yield Violation(f"{argument}[{dim}]", shown(pixel), rule, "Pass a number of pixels")


def _is_pair(pair: Sequence[object]) -> bool:
    return len(pair) == 2 and all(is_integer(side) and side >= 0 for side in pair)
