"""The vendor's enumerations, under the vendor's numbers.

Every value is the one ``cuda.h`` (CUDA 13) gives the enumerator of the same name, so a member can
be handed to the driver as it is; `SwizzleMode` and `ReduceOp` are of the PTX ISA. Members print as
``Swizzle.B128``, not as their number. Every function that takes a mode of a tensor map also takes
its short name: ``"128B"`` for ``Swizzle.B128``, ``"none"``, ``"nan"``.
"""

from __future__ import annotations

import functools
import re
from enum import Enum, IntEnum
from typing import Literal, Self

from tmaasync.errors import ArgumentError, Violation

__all__ = [
    "CachePolicy",
    "DataType",
    "Interleave",
    "InterleaveName",
    "L2Promotion",
    "L2PromotionName",
    "Mode",
    "OOBFill",
    "OOBFillName",
    "ReduceOp",
    "Swizzle",
    "SwizzleMode",
    "SwizzleName",
    "Tcgen05SwizzleMode",
]

SwizzleName = Literal[
    "none", "32B", "64B", "128B", "128B_ATOM_32B", "128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"
]
"""Short names of the members of `Swizzle`; sm_90 has the first four."""

InterleaveName = Literal["none", "16B", "32B"]
"""Short names of the members of `Interleave`."""

L2PromotionName = Literal["none", "64B", "128B", "256B"]
"""Short names of the members of `L2Promotion`."""

OOBFillName = Literal["zero", "nan"]
"""Short names of the members of `OOBFill`."""


class _NamedIntEnum(IntEnum):
    # An enumeration hashes its name, in Python; a cached tile is looked up by five of these.
    __hash__ = int.__hash__

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)


class Mode(_NamedIntEnum):
    """A mode of a tensor map, which has a short name next to the vendor's.

    Equal to its number, as enumerations of the CUDA bindings look it up by that, but not to another
    mode of the same number: the cache of tiles would take ``swizzle=L2Promotion.B128`` for
    ``Swizzle.B64``.
    """

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mode) and type(other) is not type(self):
            return False
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    @property
    def short_name(self) -> str:
        """The name without the enumeration: ``128B``, ``none``, ``nan``."""
        name, is_width = re.subn(r"^B(\d+)", r"\1B", self.name)
        return name if is_width else name.lower()

    @classmethod
    @functools.lru_cache(maxsize=256)
    def named(cls, name: str) -> Self | None:
        """Return the member of this name, of Python, C++ or the vendor, in any case; else None."""
        wanted = re.sub(r"^K?(\d+)B", r"B\1", name.upper()).removeprefix("K")
        return cls.__members__.get(wanted)

    @classmethod
    def of(cls, value: object, argument: str) -> Self:
        """Return the member that an argument gives, by itself or by its name.

        Raises:
            ArgumentError: It is neither a member nor the name of one.
        """
        if isinstance(value, cls):
            return value
        found = cls.named(value) if isinstance(value, str) else None
        if found is None:
            raise ArgumentError.of([cls.violation(value, argument)])
        return found

    @classmethod
    def violation(cls, value: object, argument: str) -> Violation:
        """Return the broken rule of an argument that is neither a member nor a name."""
        names = ", ".join(member.short_name for member in cls if not _exists_later(member))
        if isinstance(value, str):
            rule, remedy = "no mode has this name", f"Pass one of {names}"
        else:
            kind = cls.__name__
            rule = f"it must be a member of {kind}, or its name"
            remedy = f"Pass one of {names}, or a member of {kind}"
        return Violation(argument, repr(value), rule, remedy)


def _exists_later(mode: Mode) -> bool:
    return isinstance(mode, Swizzle) and mode.needs_sm_100


class DataType(_NamedIntEnum):
    """``CUtensorMapDataType``: how the hardware reads one element of the tensor.

    The type decides the element's width, what zero fill and NaN fill write, and the arithmetic of a
    reduction. The last three are packed types that only sm_100 and later can read.
    """

    UINT8 = 0
    UINT16 = 1
    UINT32 = 2
    INT32 = 3
    UINT64 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BFLOAT16 = 9
    FLOAT32_FTZ = 10
    TFLOAT32 = 11
    TFLOAT32_FTZ = 12
    PACKED_16U4_ALIGN8B = 13
    PACKED_16U4_ALIGN16B = 14
    PACKED_16U6_ALIGN16B = 15

    @property
    def itemsize(self) -> int:
        """Bytes of one element; the packed types of sm_100 have none and raise ``ValueError``."""
        try:
            return _ITEMSIZE[self.value]
        except IndexError:
            raise ValueError(
                f"{self} packs several elements into a byte and has no item size"
            ) from None

    @property
    def bits(self) -> int:
        """Bits of one element in global memory.

        >>> DataType.FLOAT16.bits, DataType.PACKED_16U6_ALIGN16B.bits
        (16, 6)
        """
        if not self.needs_sm_100:
            return 8 * self.itemsize
        return 6 if self is DataType.PACKED_16U6_ALIGN16B else 4

    @property
    def has_gaps(self) -> bool:
        """True if 16 elements take 16 bytes of shared memory, of which some are unused."""
        return self > DataType.PACKED_16U4_ALIGN8B

    @property
    def is_float(self) -> bool:
        """True if the type can be filled with NaN out of bounds."""
        return DataType.FLOAT16 <= self <= DataType.TFLOAT32_FTZ

    @property
    def needs_sm_100(self) -> bool:
        """True if only sm_100 and later can read the type."""
        return self >= DataType.PACKED_16U4_ALIGN8B


_ITEMSIZE = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)


class Interleave(Mode):
    """``CUtensorMapInterleave``: channel-interleaved layouts (NC/8HWC8, NC/16HWC16)."""

    NONE = 0
    B16 = 1
    B32 = 2


class Swizzle(Mode):
    """``CUtensorMapSwizzle``: how 16-byte chunks are permuted on their way into shared memory.

    The last three permute larger atoms and exist on sm_100 and later only.
    """

    NONE = 0
    B32 = 1
    B64 = 2
    B128 = 3
    B128_ATOM_32B = 4
    B128_ATOM_32B_FLIP_8B = 5
    B128_ATOM_64B = 6

    @property
    def span_bytes(self) -> int:
        """Bytes of one swizzled row: 16 for ``NONE``, else 32, 64 or 128."""
        return 128 if self >= Swizzle.B128 else 16 << self.value

    @property
    def alignment(self) -> int:
        """Shared-memory alignment at which the pattern starts from its first row.

        128 for ``NONE`` (the least a tensor copy accepts), else eight rows of the span.
        """
        return 128 if self is Swizzle.NONE else 8 * self.span_bytes

    @property
    def needs_sm_100(self) -> bool:
        """True if only sm_100 and later have the mode."""
        return self >= Swizzle.B128_ATOM_32B


class SwizzleMode(_NamedIntEnum):
    """The layout field of a matrix descriptor of ``wgmma`` (PTX ISA, "matrix descriptor").

    The same patterns as `Swizzle`, numbered from the widest.
    """

    NONE = 0
    B128 = 1
    B64 = 2
    B32 = 3

    @classmethod
    def from_swizzle(cls, swizzle: Swizzle | SwizzleName) -> SwizzleMode:
        """Return the number under which ``wgmma`` knows the swizzle that a tile was loaded with.

        Raises:
            ArgumentError: ``swizzle`` names no mode.
            ValueError: The swizzle exists on sm_100 and later only.

        >>> print(SwizzleMode.from_swizzle(Swizzle.B32), int(SwizzleMode.from_swizzle(Swizzle.B32)))
        SwizzleMode.B32 3
        """
        mode = Swizzle.of(swizzle, "swizzle")
        if mode.needs_sm_100:
            raise ValueError(f"{mode} exists on sm_100 and later; wgmma is of sm_90")
        return cls(-mode.value % 4)

    @property
    def swizzle(self) -> Swizzle:
        """The tensor map's name of the pattern."""
        return Swizzle(-self.value % 4)

    @property
    def swizzle_byte_size(self) -> int:
        """Bytes of one swizzled row; 1 for ``NONE``."""
        return 1 if self is SwizzleMode.NONE else self.swizzle.span_bytes

    @property
    def swizzle_atom_size(self) -> int:
        """Units of 16 bytes in one swizzled row; 1 for ``NONE``."""
        return self.swizzle.span_bytes // 16


class Tcgen05SwizzleMode(_NamedIntEnum):
    """The layout field of a matrix descriptor of ``tcgen05`` (PTX ISA, "matrix descriptor")."""

    NONE = 0
    B128_ATOM_32B = 1
    B128 = 2
    B64 = 4
    B32 = 6

    @classmethod
    def from_swizzle(cls, swizzle: Swizzle | SwizzleName) -> Tcgen05SwizzleMode:
        """Return the number under which ``tcgen05`` knows the swizzle of a tile.

        Raises:
            ArgumentError: ``swizzle`` names no mode, or one that tcgen05 does not read.

        >>> int(Tcgen05SwizzleMode.from_swizzle("128B"))
        2
        """
        mode = Swizzle.of(swizzle, "swizzle")
        found = cls.__members__.get(mode.name)
        if found is None:
            raise ArgumentError.broken(
                "swizzle", mode, "tcgen05 reads no operand with it", "Use Swizzle.B128"
            )
        return found

    @property
    def swizzle(self) -> Swizzle:
        """The tensor map's name of the pattern."""
        return Swizzle[self.name]


class L2Promotion(Mode):
    """``CUtensorMapL2promotion``: the granule in which L2 fetches the bytes of a load.

    With ``B256``, data read once comes from memory 3 to 10 % slower than with ``B128`` or less.
    GEMMs that read operands repeatedly from L2 gain up to 2 % (``benchmarks/bench_reads.py`` on an
    H200).
    """

    NONE = 0
    B64 = 1
    B128 = 2
    B256 = 3


class OOBFill(Mode):
    """``CUtensorMapFloatOOBfill``: what a load writes for elements out of bounds.

    ``NAN`` is NaN_REQUEST_ZERO_FMA: a NaN which the tensor cores treat as zero.
    """

    ZERO = 0
    NAN = 1


class CachePolicy(Enum):
    """L2 eviction policies, as ``createpolicy.fractional`` makes them for a whole access."""

    EVICT_NORMAL = 0x1000000000000000
    EVICT_FIRST = 0x12F0000000000000
    EVICT_LAST = 0x14F0000000000000


class ReduceOp(_NamedIntEnum):
    """The operations of ``cp.reduce.async.bulk.tensor`` (PTX ISA, data movement instructions)."""

    ADD = 0
    MIN = 1
    MAX = 2
    INC = 3
    DEC = 4
    AND = 5
    OR = 6
    XOR = 7
