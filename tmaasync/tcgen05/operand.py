"""Layout of an operand of ``tcgen05.mma`` in shared memory, and the 64 bits that describe it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tmaasync import wgmma
from tmaasync._kinds import check_flags, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.modes import Swizzle, SwizzleName, Tcgen05SwizzleMode
from tmaasync.tcgen05.forms import ELEMENT_BITS, operand_name
from tmaasync.wgmma.forms import INSTRUCTION_K_BYTES
from tmaasync.wgmma.operand import are_two_sides, panel_offsets

__all__ = ["MatrixDescriptor", "Tcgen05DescriptorParams", "compute_descriptor_params"]

_VERSION = 1
_GROUP_ROWS = 8
_GROUP_ROWS_OF_32_BITS = 4  # of K, where M or N is contiguous


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixDescriptor(wgmma.MatrixDescriptor):
    """The 64 bits by which ``tcgen05`` reads an operand (PTX ISA, "shared memory descriptor").

    It has the fields of `wgmma.MatrixDescriptor`, in other bits.

    >>> operand = MatrixDescriptor(address=0, leading_bytes=16, stride_bytes=1024, swizzle="128B")
    >>> hex(operand.encode())
    '0x4000404000010000'
    """

    def encode(self) -> int:
        """Return the descriptor as an integer.

        Raises:
            ArgumentError: A field is no multiple of 16 or too large, or tcgen05 lacks the swizzle.
        """
        layout = Tcgen05SwizzleMode.from_swizzle(self.swizzle)
        return self.encode_offsets() | _VERSION << 46 | layout << 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcgen05DescriptorParams(wgmma.WGMMADescriptorParams):
    """As `wgmma.WGMMADescriptorParams`, of an operand of ``tcgen05.mma``.

    Elements of 4 and 6 bits count as the containers that they fill: a byte each, as a tile of
    ``16U4_ALIGN16B`` or ``16U6_ALIGN16B`` has them. With ``is_packed`` a byte has two elements.
    """

    descriptor_type: ClassVar[type[wgmma.MatrixDescriptor]] = MatrixDescriptor


def compute_descriptor_params(
    shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName,
    is_k_major: bool = True,
    is_packed: bool = False,
) -> Tcgen05DescriptorParams:
    """Return the descriptor parameters of A or B in a buffer of shared memory.

    Args:
        shape: The buffer's sides in elements: (M or N, K), reversed without ``is_k_major``. Of a
            pair of CTAs each has half of A's rows, and half of B's columns.
        dtype: Type of its elements, as in `mma_form`.
        swizzle: Its swizzle. Without a swizzle the boxes are 16 bytes wide.
        is_k_major: Whether K is the contiguous side.
        is_packed: Two elements of 4 bits in a byte, for the kinds mxf4 and mxf4nvf4.

    Raises:
        ArgumentError: The numbers break rules; every one is listed with a remedy.

    >>> params = compute_descriptor_params((128, 64), "bf16", swizzle="128B")
    >>> hex(params.descriptor(1024, step=1).encode())
    '0x4000404000010042'
    """
    check_flags(is_k_major=is_k_major, is_packed=is_packed)
    name, mode = operand_name(dtype, "dtype"), Tcgen05SwizzleMode.from_swizzle(swizzle)
    if not are_two_sides(shape):
        raise ArgumentError.broken(
            "shape",
            shown(shape),
            "an operand has two sides, outermost first",
            "Pass (M, K) of A or (N, K) of B, reversed where M or N is contiguous",
        )
    ArgumentError.raise_for(_type_violations(name, mode, is_k_major, is_packed))
    itemsize = max(ELEMENT_BITS[name], 8) // 8
    rows, columns = shape[0], shape[1] // 2 if is_packed else shape[1]
    span = mode.swizzle.span_bytes // itemsize
    group = _GROUP_ROWS_OF_32_BITS if not is_k_major and itemsize == 4 else _GROUP_ROWS
    ArgumentError.raise_for(_side_violations(shape, rows, columns, span, group))
    leading, stride, panel_bytes = panel_offsets(
        rows, mode.swizzle, is_k_major=is_k_major, group_rows=group
    )
    return Tcgen05DescriptorParams(
        swizzle_mode=mode,
        leading_byte_offset=leading,
        stride_byte_offset=stride,
        swizzle_atom_elems=span,
        k_atom_size=max(mode.swizzle.span_bytes // INSTRUCTION_K_BYTES, 1),
        elems_in_bytes=itemsize,
        is_k_major=is_k_major,
        panel_bytes=panel_bytes,
    )


def _type_violations(
    name: str, mode: Tcgen05SwizzleMode, is_k_major: bool, is_packed: bool
) -> Iterator[Violation]:
    if is_packed and ELEMENT_BITS[name] != 4:
        rule = "only elements of 4 bits are packed"
        yield Violation("is_packed", True, rule, "Pass False")
    if is_packed and not is_k_major:
        rule = "packed elements have K contiguous"
        yield Violation("is_k_major", False, rule, "Lay the operand out with K contiguous")
    if is_k_major or is_packed:
        return
    has_atoms = mode is Tcgen05SwizzleMode.B128_ATOM_32B
    if has_atoms != (ELEMENT_BITS[name] == 32):
        legal = "B128_ATOM_32B alone" if ELEMENT_BITS[name] == 32 else "every other swizzle"
        rule = f"{name} with M or N contiguous takes {legal}"
        remedy = "Use it in the tensor map too" if ELEMENT_BITS[name] == 32 else "Use Swizzle.B128"
        yield Violation("swizzle", mode.swizzle, rule, remedy)


def _side_violations(
    shape: Sequence[int], rows: int, columns: int, span: int, group: int
) -> Iterator[Violation]:
    if columns % span or not columns:
        each = shape[1] // columns if columns else 1
        rule = f"rows are made of panels of {span * each} elements"
        remedy = f"Pad it to {-(-max(columns, 1) // span) * span * each}, or use a narrower swizzle"
        yield Violation("shape[1]", shape[1], rule, remedy)
    if rows % group:
        remedy = f"Pad it to {-(-rows // group) * group}"
        yield Violation("shape[0]", rows, f"rows come in groups of {group}", remedy)
