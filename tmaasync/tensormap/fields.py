"""Fields of the two kinds of tensor map, as frozen values without any rule."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from tmaasync._elements import element, packed_element
from tmaasync._hardware import MAX_BOX_SIDE, MAX_IM2COL_PIXELS, WIDE_MAP_ARCHS
from tmaasync.errors import ArrayTypeError
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle

MODE_ARGUMENTS = {
    "interleave": Interleave,
    "swizzle": Swizzle,
    "l2_promotion": L2Promotion,
    "oob_fill": OOBFill,
}
MODES = (DataType, *MODE_ARGUMENTS.values())


class Side(NamedTuple):
    """One extent of the box as the rules see it: its argument, its value, and its limit."""

    argument: str
    value: int
    limit: int


@dataclass(frozen=True, slots=True, repr=False)
class MapFields(ABC):
    """Fields that both kinds of map have."""

    RANKS: ClassVar[range]
    IS_IM2COL: ClassVar[bool]

    address: int
    dtype: DataType
    shape: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_strides: tuple[int, ...] = field(default=(), kw_only=True)
    interleave: Interleave = field(default=Interleave.NONE, kw_only=True)
    swizzle: Swizzle = field(default=Swizzle.NONE, kw_only=True)
    l2_promotion: L2Promotion = field(default=L2Promotion.NONE, kw_only=True)
    oob_fill: OOBFill = field(default=OOBFill.ZERO, kw_only=True)
    arch: str = field(default="sm_90a", kw_only=True)

    def __post_init__(self) -> None:
        """Convert NumPy integers to int, sequences to tuples and names to modes.

        What cannot be converted stays as it is: `violations` reports it.
        """
        for item in fields(self):
            value = getattr(self, item.name)
            object.__setattr__(self, item.name, _field_value(item.name, value))
        if not self.element_strides:
            object.__setattr__(self, "element_strides", tuple(1 for _ in _elements(self.shape)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._arguments())})"

    def _arguments(self) -> Iterator[str]:
        """Yield the arguments as source text, without default values."""
        for item in sorted(fields(self), key=operator.attrgetter("kw_only")):
            value = getattr(self, item.name)
            is_default = type(value) is type(item.default) and value == item.default
            if is_default or (item.name == "element_strides" and set(_elements(value)) == {1}):
                continue
            is_address = item.name == "address" and isinstance(value, int)
            yield f"{item.name}={hex(value) if is_address else _text(value)}"

    @property
    def rank(self) -> int:
        """Dimensions of the tensor."""
        return len(self.shape)

    @property
    @abstractmethod
    def sides(self) -> tuple[Side, ...]:
        """The extents that one instruction moves, innermost last."""

    @abstractmethod
    def with_sides(self, values: Sequence[int]) -> Self:
        """Return the same spec with other `sides`."""

    @property
    @abstractmethod
    def box_shape_moved(self) -> tuple[int, ...]:
        """Elements that land in shared memory along each of the `sides`."""

    @property
    def box_bytes(self) -> int:
        """Bytes that one load writes to shared memory and credits to the barrier.

        The full box, elements out of bounds included: TMA fills and credits them. With element
        strides it counts ``ceil(side / element stride)`` elements a side (cuda.h), and the
        innermost side whole, because the hardware ignores the innermost stride.
        """
        return math.prod(self.box_shape_moved) * self.dtype.bits // 8

    @property
    def has_wide_maps(self) -> bool:
        """True if the architecture has packed types and swizzles of larger atoms."""
        return self.arch in WIDE_MAP_ARCHS

    @property
    def smem_alignment(self) -> int:
        """Bytes to which the box must be aligned in shared memory: 128, or eight swizzled rows."""
        return self.swizzle.alignment

    @property
    def swizzle_span_bytes(self) -> int:
        """Bytes of one swizzled row, 16 without swizzle: the most the innermost side may take."""
        return self.swizzle.span_bytes


@dataclass(frozen=True, slots=True, repr=False)
class TiledFields(MapFields):
    """The fields of a tiled map; `TensorMapSpec` documents them."""

    RANKS = range(1, 6)
    IS_IM2COL = False

    box_shape: tuple[int, ...]

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides of the box."""
        return tuple(
            Side(f"box_shape[{dim}]", side, MAX_BOX_SIDE) for dim, side in enumerate(self.box_shape)
        )

    def with_sides(self, values: Sequence[int]) -> Self:
        """Return the same spec with another box."""
        return replace(self, box_shape=tuple(values))

    @property
    def box_shape_moved(self) -> tuple[int, ...]:
        """Elements that land in shared memory, outermost first; less than the box under strides."""
        strides = (*self.element_strides[:-1], 1)
        return tuple(
            -(-side // stride) for side, stride in zip(self.box_shape, strides, strict=True)
        )


@dataclass(frozen=True, slots=True, repr=False)
class Im2colFields(MapFields):
    """The fields of an im2col map; `Im2colSpec` documents them."""

    RANKS = range(3, 6)
    IS_IM2COL = True

    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]
    channels_per_pixel: int
    pixels_per_column: int
    wide: str = field(default="", kw_only=True)

    @property
    def sides(self) -> tuple[Side, ...]:
        """Pixels, then channels."""
        return (
            Side("pixels_per_column", self.pixels_per_column, MAX_IM2COL_PIXELS),
            Side("channels_per_pixel", self.channels_per_pixel, MAX_BOX_SIDE),
        )

    def with_sides(self, values: Sequence[int]) -> Self:
        """Return the same spec with other numbers of pixels and channels."""
        pixels, channels = values
        return replace(self, pixels_per_column=pixels, channels_per_pixel=channels)

    @property
    def box_shape_moved(self) -> tuple[int, ...]:
        """Pixels and channels: element strides choose which pixels, not how many."""
        return (self.pixels_per_column, self.channels_per_pixel)

    @property
    def spatial_dims(self) -> tuple[int, ...]:
        """The dimensions that the corners refer to, between batch and channels.

        An interleaved map has its channel groups second, the channels of one group inside the
        innermost elements, and therefore ends with its spatial dimensions (measured: the driver
        applies the corners to them).
        """
        first = 1 if self.interleave is Interleave.NONE else 2
        return tuple(range(first, first + self.rank - 2))


def _field_value(name: str, value: Any) -> Any:
    """Return a field's value: modes and types by their names, the rest as `normalised`."""
    if not isinstance(value, str):
        return normalised(value)
    if name == "dtype":
        try:
            return (packed_element(value) or element(value)).data_type
        except ArrayTypeError:
            return value
    mode = MODE_ARGUMENTS[name].named(value) if name in MODE_ARGUMENTS else None
    return value if mode is None else mode


def normalised(value: Any) -> Any:
    """Return integers of any kind as int and sequences as tuples; other values as they are."""
    if isinstance(value, (int, str, bytes)):
        return value
    try:
        return operator.index(value)
    except TypeError:
        pass
    is_array = hasattr(value, "__array__") and not isinstance(value, type) and value.ndim > 0
    if is_array or isinstance(value, Sequence):
        return tuple(normalised(item) for item in value)
    return value


def _elements(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else ()


def _text(value: object) -> str:
    return str(value) if isinstance(value, MODES) else repr(value)
