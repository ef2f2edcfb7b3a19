"""Layout of a ``wgmma`` operand, or of a slice of one, in shared memory.

An operand lies as TMA loads a matrix in boxes one span wide: ``[panels][rows][span]``, where the
span is 128, 64 or 32 bytes under a swizzle and 16 without. ``wgmma_operand.cuh`` holds the same
arithmetic for kernels. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tmaasync._elements import Element
from tmaasync._hardware import MATRIX_DESCRIPTOR_UNIT, MAX_SHARED_BYTES
from tmaasync._kinds import check_flags, check_integers, is_integer, shown
from tmaasync.errors import ArgumentError, Violation
from tmaasync.modes import Swizzle, SwizzleMode, SwizzleName, Tcgen05SwizzleMode
from tmaasync.wgmma.descriptor import MatrixDescriptor
from tmaasync.wgmma.forms import (
    INSTRUCTION_K_BYTES,
    INSTRUCTION_M,
    MmaForm,
    instruction_n,
    mma_form,
    operand_element,
)

__all__ = [
    "WGMMADescriptorParams",
    "compute_a_descriptor_params",
    "compute_b_descriptor_params",
]

_GROUP_ROWS = 8  # after which a swizzle repeats
_WHOLE = slice(None)
_MAX_SIDE = MAX_SHARED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WGMMADescriptorParams:
    """All that the descriptors of one operand have in common, and where each instruction starts.

    Args:
        swizzle_mode: As the descriptor numbers it.
        leading_byte_offset: In bytes; the descriptor holds a sixteenth of it.
        stride_byte_offset: In bytes, likewise.
        swizzle_atom_elems: Elements of one span.
        k_atom_size: Instructions along K in one span; at least 1.
        elems_in_bytes: Bytes of one element.
        is_k_major: Whether K is the contiguous side in shared memory; else it is M or N.
        panel_bytes: Bytes of a panel: every row of the buffer, one span wide. A slice of a buffer
            has the panels of the whole.
        slice_start: First element of the slice along M or N, and along K.
    """

    descriptor_type: ClassVar[type[MatrixDescriptor]] = MatrixDescriptor

    swizzle_mode: SwizzleMode | Tcgen05SwizzleMode
    leading_byte_offset: int
    stride_byte_offset: int
    swizzle_atom_elems: int
    k_atom_size: int
    elems_in_bytes: int
    is_k_major: bool
    panel_bytes: int
    slice_start: tuple[int, int] = (0, 0)

    @property
    def slice_byte_offset(self) -> int:
        """Start of the slice's first instruction, in bytes from the start of the buffer."""
        return self.start_bytes()

    @property
    def alignment(self) -> int:
        """Alignment of the buffer's address in bytes."""
        return self.swizzle_mode.swizzle.alignment

    def start_bytes(self, step: int = 0, first: int = 0) -> int:
        """Return the start of an instruction's operand, in bytes from the start of the buffer.

        Args:
            step: Which instruction along K.
            first: Its first row of M or N, counted from the start of the slice; a multiple of 8.
        """
        check_integers(step=step, first=first)
        span = self.swizzle_atom_elems * self.elems_in_bytes
        of_mn, of_k = self.slice_start[0] + first, self.slice_start[1]
        of_k += step * INSTRUCTION_K_BYTES // self.elems_in_bytes
        row, column = (of_mn, of_k) if self.is_k_major else (of_k, of_mn)
        panel, within = divmod(column, self.swizzle_atom_elems)
        return panel * self.panel_bytes + row * span + within * self.elems_in_bytes

    def descriptor(self, address: int, step: int = 0, first: int = 0) -> MatrixDescriptor:
        """Return the descriptor of one instruction's operand.

        Args:
            address: Shared-memory address of the buffer in bytes.
            step: As in `start_bytes`.
            first: As in `start_bytes`.

        Raises:
            ArgumentError: The swizzle does not start from its first row at this address.
        """
        check_integers(address=address)
        if address % self.alignment:
            raise ArgumentError.broken(
                "address",
                address,
                f"under {self.swizzle_mode.swizzle} an operand starts at a multiple of "
                f"{self.alignment}",
                "Align the buffer, as Tile::Shared does",
            )
        return self.descriptor_type(
            address=address + self.start_bytes(step, first),
            leading_bytes=self.leading_byte_offset,
            stride_bytes=self.stride_byte_offset,
            swizzle=self.swizzle_mode.swizzle,
        )


def compute_a_descriptor_params(
    shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName,
    is_k_major: bool = True,
    m: slice = _WHOLE,
    k: slice = _WHOLE,
) -> WGMMADescriptorParams:
    """Return the descriptor parameters of A in a buffer of shared memory.

    Args:
        shape: The buffer's sides: (M, K), or (K, M) without ``is_k_major``.
        dtype: Type of its elements, anything that `create_tma_tile` takes as a dtype.
        swizzle: Its swizzle. Without a swizzle the boxes are 16 bytes wide, as
            `create_tensor_tile` makes them.
        is_k_major: Whether K is the contiguous side.
        m: Rows of A to multiply: a multiple of 64 of them, from a multiple of 8 on.
        k: Slice along K: whole instructions, 32 bytes each.

    Raises:
        ArgumentError: The numbers break rules; every one is listed with a remedy.
        ArrayTypeError: ``dtype`` names no element type.

    >>> params = compute_a_descriptor_params((128, 128), "bfloat16", swizzle=Swizzle.B128)
    >>> params.stride_byte_offset, params.start_bytes(step=4), params.start_bytes(first=64)
    (1024, 16384, 8192)
    """
    buffer = _buffer(shape, dtype, swizzle, is_k_major)
    along_m, along_k = _part("m", m, buffer.extent), _part("k", k, buffer.depth)
    ArgumentError.raise_for(
        [
            *_buffer_violations(buffer, "M"),
            *_part_violations("m", along_m, buffer.extent, (_GROUP_ROWS, INSTRUCTION_M)),
            *_depth_violations(buffer, along_k),
            *_panel_violations(buffer, "m", along_m, INSTRUCTION_M),
        ]
    )
    return _params(buffer, along_m, along_k)


def compute_b_descriptor_params(
    shape: Sequence[int],
    dtype: object,
    *,
    swizzle: Swizzle | SwizzleName,
    is_k_major: bool = True,
    n: slice = _WHOLE,
    k: slice = _WHOLE,
    columns: int | None = None,
) -> WGMMADescriptorParams:
    """Return the descriptor parameters of B in a buffer of shared memory.

    Args:
        shape: The buffer's sides: (N, K), or (K, N) without ``is_k_major``.
        dtype: As in `compute_a_descriptor_params`.
        swizzle: As in `compute_a_descriptor_params`.
        is_k_major: Whether K is the contiguous side.
        n: Which columns of the output: a multiple of 8 of them, from a multiple of 8 on.
        k: As in `compute_a_descriptor_params`.
        columns: N of one instruction; by default what `instruction_n` chooses.

    Raises:
        ArgumentError: As `compute_a_descriptor_params`.
        ArrayTypeError: ``dtype`` names no element type.
    """
    buffer = _buffer(shape, dtype, swizzle, is_k_major)
    along_n, along_k = _part("n", n, buffer.extent), _part("k", k, buffer.depth)
    ArgumentError.raise_for(
        [
            *_buffer_violations(buffer, "N"),
            *_part_violations("n", along_n, buffer.extent, (_GROUP_ROWS, _GROUP_ROWS)),
            *_depth_violations(buffer, along_k),
        ]
    )
    width = columns
    if width is None:
        width = instruction_n(len(along_n), buffer.form, panel=buffer.panel_of_mn)
    buffer.form.check_columns(width, "columns")
    ArgumentError.raise_for(
        [*_columns_violations(along_n, width), *_panel_violations(buffer, "n", along_n, width)]
    )
    return _params(buffer, along_n, along_k)


# --- what an operand must be ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Buffer:
    """Shared memory with an operand in it: rows, outermost first, of several panels."""

    element: Element
    swizzle: Swizzle
    is_k_major: bool
    rows: int
    columns: int

    @property
    def extent(self) -> int:
        """Elements along M or N."""
        return self.rows if self.is_k_major else self.columns

    @property
    def depth(self) -> int:
        """Elements along K."""
        return self.columns if self.is_k_major else self.rows

    @property
    def span(self) -> int:
        """Elements of a row in one panel."""
        return self.swizzle.span_bytes // self.element.itemsize

    @property
    def panel_of_mn(self) -> int:
        """Elements of M or N after which the next panel begins; 8 where panels run along K."""
        return _GROUP_ROWS if self.is_k_major else self.span

    @property
    def form(self) -> MmaForm:
        """A form with this operand type; all of them have the same shapes."""
        return mma_form(self.element)


def _buffer(
    shape: Sequence[int], dtype: object, swizzle: Swizzle | SwizzleName, is_k_major: bool
) -> _Buffer:
    check_flags(is_k_major=is_k_major)
    found, mode = operand_element(dtype, "dtype"), Swizzle.of(swizzle, "swizzle")
    if mode.needs_sm_100:
        raise ArgumentError.broken(
            "swizzle", mode, "it exists on sm_100 and later", "Use Swizzle.B128"
        )
    if not are_two_sides(shape):
        raise ArgumentError.broken(
            "shape",
            shown(shape),
            f"an operand has two sides, outermost first, from 1 to {_MAX_SIDE} (shared memory)",
            "Pass (M, K) of A or (N, K) of B, reversed where M or N is contiguous",
        )
    return _Buffer(found, mode, is_k_major, *shape)


def are_two_sides(shape: object) -> bool:
    sides = tuple(shape) if isinstance(shape, Sequence) else ()
    return len(sides) == 2 and all(is_integer(side) and 1 <= side <= _MAX_SIDE for side in sides)


def _is_slice(part: object) -> bool:
    bounds = (part.start, part.stop, part.step) if isinstance(part, slice) else ("",)
    return all(bound is None or is_integer(bound) for bound in bounds)


def _part(argument: str, part: slice, extent: int) -> range:
    if not _is_slice(part):
        rule, remedy = "it must be a slice of integers", "Pass slice(start, stop)"
        raise ArgumentError.broken(argument, shown(part), rule, remedy)
    start = 0 if part.start is None else part.start
    stop = extent if part.stop is None else part.stop
    if part.step not in (None, 1) or not 0 <= start < stop <= extent:
        raise ArgumentError.broken(
            argument,
            part,
            f"it must be a contiguous part of the {extent} elements of that side",
            f"Pass slice(start, stop) with 0 <= start < stop <= {extent}",
        )
    return range(start, stop)


def _buffer_violations(buffer: _Buffer, side: str) -> Iterator[Violation]:
    if not buffer.is_k_major and buffer.element.itemsize != 2:
        yield Violation(
            "is_k_major",
            False,
            f"only 16-bit operands may have {side} contiguous, and {buffer.element} has "
            f"{8 * buffer.element.itemsize} bits",
            "Lay the operand out with K contiguous: transpose it in global memory",
        )
    if buffer.columns % buffer.span:
        yield Violation(
            "shape[1]",
            buffer.columns,
            f"under {buffer.swizzle} rows are made of panels of {buffer.span} elements, "
            f"{buffer.swizzle.span_bytes} bytes",
            f"Pad it to {_up(buffer.columns, buffer.span)}, or use a narrower swizzle",
        )
    if buffer.rows % _GROUP_ROWS:
        yield Violation(
            "shape[0]",
            buffer.rows,
            "rows come in groups of 8",
            f"Pad it to {_up(buffer.rows, _GROUP_ROWS)}",
        )


def _part_violations(
    argument: str, part: range, extent: int, multiples: tuple[int, int]
) -> Iterator[Violation]:
    start, count = multiples
    if part.start % start:
        yield Violation(
            f"{argument}.start",
            part.start,
            f"an unaligned slice cannot be described: it starts at a multiple of {start}",
            f"Start at {part.start // start * start}, or load the slice into a buffer of its own",
        )
    if len(part) % count:
        yield Violation(
            argument,
            f"{part.start} to {part.stop}, {len(part)} of {extent}",
            f"instructions take multiples of {count}",
            f"Take {_up(len(part), count)}, and let TMA fill the rest with zeros",
        )


def _depth_violations(buffer: _Buffer, part: range) -> Iterator[Violation]:
    deep = INSTRUCTION_K_BYTES // buffer.element.itemsize
    return _part_violations("k", part, buffer.depth, (deep, deep))


def _columns_violations(part: range, columns: int) -> Iterator[Violation]:
    if len(part) % columns:
        yield Violation(
            "columns",
            columns,
            f"whole instructions cover the {len(part)} columns of n",
            f"Use a divisor, such as {instruction_n(len(part))}",
        )


def _panel_violations(
    buffer: _Buffer, argument: str, part: range, extent: int
) -> Iterator[Violation]:
    """Check that with M or N contiguous an instruction starts with a panel or lies inside one."""
    panel = buffer.panel_of_mn
    for start in range(part.start, part.stop, extent):
        if start % panel and start % panel + extent > panel:
            yield Violation(
                argument,
                f"{part.start} to {part.stop}",
                f"the instruction for {start} to {start + extent} starts inside a panel of "
                f"{panel} elements and leaves it",
                f"Start at a multiple of {panel}, or use a narrower swizzle",
            )
            return


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def panel_offsets(
    rows: int, swizzle: Swizzle, *, is_k_major: bool, group_rows: int = _GROUP_ROWS
) -> tuple[int, int, int]:
    """Return leading and stride byte offset of a buffer, and the bytes of a panel."""
    panel_bytes = rows * swizzle.span_bytes
    group_bytes = group_rows * swizzle.span_bytes
    is_swizzled = swizzle is not Swizzle.NONE
    # Swizzled rows of K need no leading distance. Without swizzle the two distances are exchanged.
    leading = MATRIX_DESCRIPTOR_UNIT if is_swizzled and is_k_major else panel_bytes
    if not is_swizzled and not is_k_major:
        return group_bytes, panel_bytes, panel_bytes
    return leading, group_bytes, panel_bytes


def _params(buffer: _Buffer, along_mn: range, along_k: range) -> WGMMADescriptorParams:
    leading, stride, panel_bytes = panel_offsets(
        buffer.rows, buffer.swizzle, is_k_major=buffer.is_k_major
    )
    return WGMMADescriptorParams(
        swizzle_mode=SwizzleMode.from_swizzle(buffer.swizzle),
        leading_byte_offset=leading,
        stride_byte_offset=stride,
        swizzle_atom_elems=buffer.span,
        k_atom_size=max(buffer.swizzle.span_bytes // INSTRUCTION_K_BYTES, 1),
        elems_in_bytes=buffer.element.itemsize,
        is_k_major=buffer.is_k_major,
        panel_bytes=panel_bytes,
        slice_start=(along_mn.start, along_k.start),
    )
