"""The two kinds of tensor map as frozen values."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple, Self

from tmaasync._hardware import MAX_BOX_SIDE
from tmaasync.errors import TensorMapError, Violation
from tmaasync.modes import DataType, Interleave, L2Promotion, OOBFill, Swizzle
from tmaasync.tensormap import encoding, form, hazards, remedy, rules

__all__ = ["Im2colSpec", "Side", "Spec", "TensorMapSpec"]


class Side(NamedTuple):
    """One extent of the box as the rules see it: its argument, its value, and its limit."""

    argument: str
    value: int
    limit: int


@dataclass(frozen=True, slots=True, repr=False)
class Spec(ABC):
    """What both kinds of map have in common."""

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

    def __post_init__(self) -> None:
        """Turn NumPy integers into int and sequences into tuples; `violations` judges the rest."""
        for item in fields(self):
            value = getattr(self, item.name)
            object.__setattr__(self, item.name, form.normalised(value))
        if not self.element_strides:
            object.__setattr__(self, "element_strides", tuple(1 for _ in _elements(self.shape)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._arguments())})"

    def _arguments(self) -> Iterator[str]:
        """The arguments as source text, without those that say what they say by default."""
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
        """The same spec with other `sides`."""

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
        return math.prod(self.box_shape_moved) * self.dtype.itemsize

    @property
    def smem_alignment(self) -> int:
        """Bytes to which the box must be aligned in shared memory: 128, or eight swizzled rows."""
        return self.swizzle.alignment

    @property
    def swizzle_span_bytes(self) -> int:
        """Bytes of one swizzled row, 16 without swizzle: the most the innermost side may take."""
        return self.swizzle.span_bytes

    def violations(self) -> tuple[Violation, ...]:
        """Every rule of the driver that the spec breaks.

        These are the rules that ``cuTensorMapEncodeTiled`` and ``...Im2col`` enforced on an H200
        (driver 580.159, 60,000 specs): those that cuda.h states, plus the shared-memory limit,
        which it does not. Modes of sm_100 are refused by name.
        """
        return rules.violations(self)

    def hazards(self) -> tuple[Violation, ...]:
        """What the driver accepts and the hardware punishes, or does otherwise than it reads.

        Nothing here makes `encode` fail. Empty while `violations` is not.
        """
        return hazards.hazards(self)

    def coordinate_violations(
        self, coordinates: Sequence[int], *, store: bool = False
    ) -> tuple[Violation, ...]:
        """What the hardware would not survive in one copy's coordinates, or in the spec itself.

        Args:
            coordinates: Where the box starts, in elements, outermost dimension first (the device
                takes them innermost first).
            store: Whether the copy writes global memory.
        """
        return hazards.coordinate_violations(self, coordinates, store=store)

    def check_coordinates(self, coordinates: Sequence[int], *, store: bool = False) -> None:
        """Raise if a copy at these coordinates would kill the kernel; see `coordinate_violations`.

        Raises:
            TensorMapError: A coordinate breaks a rule; all are listed.
        """
        TensorMapError.raise_for(self.coordinate_violations(coordinates, store=store))

    def check(self) -> None:
        """Raise if the driver would refuse the spec.

        Raises:
            TensorMapError: With every violation and its remedy.
        """
        TensorMapError.raise_for(self.violations())

    def explain(self) -> remedy.Explanation[Self]:
        """All violations, the hazards, and the nearest legal spec, as a value that prints well."""
        return remedy.explain(self)

    def encode(self) -> bytes:
        """The 128 bytes, as the driver would write them.

        Raises:
            TensorMapError: The spec is illegal.
        """
        self.check()
        return encoding.encode(self)

    @staticmethod
    def decode(data: bytes) -> TensorMapSpec | Im2colSpec:
        """The spec that 128 bytes hold: of whichever kind they say they are.

        Encoding the result gives ``data`` back bit for bit.

        Args:
            data: A ``CUtensorMap``: bytes, or anything with the buffer protocol.

        Raises:
            TensorMapError: Not 128 bytes, or not a tensor map of sm_90.
        """
        is_im2col, arguments = encoding.decode(data)
        spec = Im2colSpec(**arguments) if is_im2col else TensorMapSpec(**arguments)
        encoding.check_round_trip(spec, data)
        return spec


@dataclass(frozen=True, slots=True, repr=False)
class TensorMapSpec(Spec):
    """A tiled tensor map: the arguments of one ``cuTensorMapEncodeTiled`` call.

    Everything per dimension runs outermost first, like a NumPy shape. Making a spec never fails:
    `violations` says what is wrong with it, `explain` what would be right, `check` and `encode`
    raise. NumPy integers and any sequence are accepted. Gather, scatter and im2col-wide maps need
    sm_100 and have no spec.

    Args:
        address: Where the tensor starts in global memory, in bytes; a multiple of 16, of 32 with
            ``Interleave.B32``.
        dtype: How one element is read.
        shape: Elements per dimension, 1 to 2**32 each, 1 to 5 dimensions.
        strides_bytes: Bytes from one index to the next, for every dimension but the innermost,
            which is contiguous. Multiples of 16 (32 with ``Interleave.B32``) below 2**40. 0 is
            legal, and so are strides that overlap.
        box_shape: Elements that one instruction spans, 1 to 256 per dimension. The innermost side
            takes a multiple of 16 bytes, and no more than the span of the swizzle. The whole box
            takes at most 228 KiB.
        element_strides: Every n-th element is taken, 1 to 8 per dimension; all 1 if not given. To
            load N elements make the box side N times the stride.
        interleave: Channel-interleaved layouts, for three dimensions or more.
        swizzle: How 16-byte chunks are permuted in shared memory.
        l2_promotion: What L2 fetches at least.
        oob_fill: What a load writes beyond the tensor; ``NAN`` for floating-point types only.

    Sources: cuda.h on ``cuTensorMapEncodeTiled``; verdicts and bytes of driver 580.159 on an H200.

    >>> import tmaasync
    >>> spec = TensorMapSpec(
    ...     0x7F0000000000, tmaasync.DataType.FLOAT16, (128, 511), (1022,), (64, 64)
    ... )
    >>> print(*spec.violations())
    strides_bytes[0] is 1022; it must be a multiple of 16 bytes. Pad that dimension to 1024 bytes.
    >>> spec.explain().proposal.strides_bytes
    (1024,)
    """

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
        """The same spec with another box."""
        return replace(self, box_shape=tuple(values))

    @property
    def box_shape_moved(self) -> tuple[int, ...]:
        """Elements that land in shared memory, outermost first; less than the box under strides."""
        strides = (*self.element_strides[:-1], 1)
        return tuple(
            -(-side // stride) for side, stride in zip(self.box_shape, strides, strict=True)
        )


@dataclass(frozen=True, slots=True, repr=False)
class Im2colSpec(Spec):
    """An im2col tensor map: the arguments of one ``cuTensorMapEncodeIm2col`` call.

    For convolutions over (N, [D, [H,]] W, C) tensors of rank 3 to 5; with an interleave over
    (N, C/8, [D, [H,]] W). One instruction moves ``channels_per_pixel`` channels of
    ``pixels_per_column`` pixels, which walk the bounding box between the corners row by row and
    image by image. What is said of `TensorMapSpec` about order, units and errors holds here too.

    Args:
        address: Where the tensor starts in global memory, in bytes; a multiple of 16, of 32 with
            ``Interleave.B32``.
        dtype: How one element is read.
        shape: Elements per dimension, 1 to 2**32 each; the spatial ones below 2**31, since the
            driver counts them in signed 32 bits.
        strides_bytes: For every dimension but the innermost; multiples of 16 (32) below 2**40.
        lower_corner: Where the bounding box starts, relative to the first pixel, one number per
            spatial dimension: ``-padding``. In [-2**15, 2**15) at rank 3, [-2**7, 2**7) at rank 4,
            [-2**4, 2**4) at rank 5.
        upper_corner: Where it ends, relative to the last pixel: ``padding - (filter - 1) *
            dilation``. In the same range; at least one pixel must be left between the corners.
        channels_per_pixel: 1 to 256; a multiple of 16 bytes, and no more than the swizzle's span.
        pixels_per_column: 1 to 1024.
        element_strides: 1 to 8 per dimension; the convolution's stride along the spatial ones.
        interleave: As in `TensorMapSpec`.
        swizzle: As in `TensorMapSpec`.
        l2_promotion: As in `TensorMapSpec`.
        oob_fill: As in `TensorMapSpec`.

    Sources: cuda.h on ``cuTensorMapEncodeIm2col``; verdicts and bytes of driver 580.159 on an H200.
    """

    RANKS = range(3, 6)
    IS_IM2COL = True

    lower_corner: tuple[int, ...]
    upper_corner: tuple[int, ...]
    channels_per_pixel: int
    pixels_per_column: int

    @property
    def sides(self) -> tuple[Side, ...]:
        """Pixels, then channels."""
        return (
            Side("pixels_per_column", self.pixels_per_column, rules.MAX_PIXELS),
            Side("channels_per_pixel", self.channels_per_pixel, MAX_BOX_SIDE),
        )

    def with_sides(self, values: Sequence[int]) -> Self:
        """The same spec with other numbers of pixels and channels."""
        pixels, channels = values
        return replace(self, pixels_per_column=pixels, channels_per_pixel=channels)

    @property
    def box_shape_moved(self) -> tuple[int, ...]:
        """Pixels and channels: element strides say which pixels, not how many."""
        return (self.pixels_per_column, self.channels_per_pixel)

    @property
    def spatial_dims(self) -> tuple[int, ...]:
        """Which dimensions the corners speak of: those between batch and channels.

        An interleaved map has its channel groups second, the channels of one group inside the
        innermost elements, and therefore ends with its spatial dimensions (measured: the driver
        holds the corners against those).
        """
        first = 1 if self.interleave is Interleave.NONE else 2
        return tuple(range(first, first + self.rank - 2))


def _elements(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else ()


def _text(value: object) -> str:
    return str(value) if isinstance(value, form.MODES) else repr(value)
