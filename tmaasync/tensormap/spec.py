"""The two kinds of tensor map, with their rules, bytes and remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tmaasync.errors import TensorMapError, Violation
from tmaasync.tensormap import encoding, hazards, remedy, rules
from tmaasync.tensormap.fields import Im2colFields, MapFields, TiledFields


class Spec(MapFields):
    """Methods of both kinds of map."""

    __slots__ = ()

    def violations(self) -> tuple[Violation, ...]:
        """Return every rule of the driver that the spec breaks.

        These are the rules that ``cuTensorMapEncodeTiled`` and ``...Im2col`` enforced on an H200
        (driver 580.159, 60,000 specs): the rules in cuda.h, plus the shared-memory limit,
        which it does not. Modes of sm_100 are refused by name.
        """
        return rules.violations(self)

    def hazards(self) -> tuple[Violation, ...]:
        """Return the hazards: maps that the driver accepts and the hardware treats unexpectedly.

        None of them makes `encode` fail. Empty if there are `violations`.
        """
        return hazards.hazards(self)

    def coordinate_violations(
        self, coordinates: Sequence[int], *, store: bool = False
    ) -> tuple[Violation, ...]:
        """Return the rules that one copy's coordinates, or the spec itself, break.

        Args:
            coordinates: The start of the box in elements, outermost dimension first (the device
                takes them innermost first).
            store: Whether the copy writes global memory.
        """
        return hazards.coordinate_violations(self, coordinates, store=store)

    def check_coordinates(self, coordinates: Sequence[int], *, store: bool = False) -> None:
        """Raise if a copy at these coordinates would kill the kernel; see `coordinate_violations`.

        Raises:
            TensorMapError: A coordinate breaks a rule; every one is listed.
        """
        TensorMapError.raise_for(self.coordinate_violations(coordinates, store=store))

    def check(self) -> None:
        """Raise if the driver would refuse the spec.

        Raises:
            TensorMapError: With every violation and its remedy.
        """
        TensorMapError.raise_for(self.violations())

    def explain(self) -> remedy.Explanation[Self]:
        """Return all violations, the hazards, and the nearest legal spec; ``print`` the result."""
        return remedy.explain(self)

    def encode(self) -> bytes:
        """Return the 128 bytes, as the driver would write them.

        Raises:
            TensorMapError: The spec is illegal.
        """
        self.check()
        return encoding.encode(self)

    @staticmethod
    def decode(data: bytes) -> TensorMapSpec | Im2colSpec:
        """Return the spec of 128 bytes, of the kind that their bits name.

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
class TensorMapSpec(Spec, TiledFields):
    """A tiled tensor map: the arguments of one ``cuTensorMapEncodeTiled`` call.

    Everything per dimension runs outermost first, like a NumPy shape. Making a spec never fails:
    `violations` lists the rules that it breaks, `explain` proposes a legal one, `check` and
    `encode` raise. NumPy integers and any sequence are accepted, and names of modes and element
    types (``swizzle="128B"``, ``dtype="bf16"``), which become members. Maps of gather4 and scatter4
    are tiled maps whose box has one row.

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
        arch: The architecture whose rules hold. ``"sm_100a"`` and ``"sm_103a"`` have packed types
            and swizzles of larger atoms; their bytes are for the emulator, and were not run on a
            chip.

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


@dataclass(frozen=True, slots=True, repr=False)
class Im2colSpec(Spec, Im2colFields):
    """An im2col tensor map: the arguments of one ``cuTensorMapEncodeIm2col`` call.

    For convolutions over (N, [D, [H,]] W, C) tensors of rank 3 to 5; with an interleave over
    (N, C/8, [D, [H,]] W). One instruction moves ``channels_per_pixel`` channels of
    ``pixels_per_column`` pixels, taken from the bounding box between the corners row by row and
    image by image. Order, units and errors are as in `TensorMapSpec`.

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
        arch: As in `TensorMapSpec`.
        wide: ``"w"`` and ``"w128"``: the mode of ``cuTensorMapEncodeIm2colWide``, for ``im2col::w``
            and ``im2col::w::128`` of sm_100a. A column runs along the width alone: the other
            corners are 0, and the corners of the width take 16 bits. The halos of a load are not
            counted in `box_bytes`. Emulated, and not run on a chip.

    Sources: cuda.h on ``cuTensorMapEncodeIm2col``; verdicts and bytes of driver 580.159 on an H200.
    """
