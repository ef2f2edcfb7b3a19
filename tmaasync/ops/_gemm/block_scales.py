"""Operands with scale factors for blocks of K: MXFP8, MXFP4 and NVFP4, and the factors' layouts."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._hardware import TMA_ALIGNMENT
from tmaasync._kinds import shown
from tmaasync.errors import ArgumentError, ArrayTypeError, Violation
from tmaasync.ops._allocation import contiguous_copy, empty, in_order, indexable
from tmaasync.ops._extents import check_extents

ATOM_ROWS, ATOM_FACTORS = 128, 4
ATOM_BYTES = ATOM_ROWS * ATOM_FACTORS
LAYOUTS = ("rows", "swizzled")
_OPERANDS = ("a", "b", "scale_a", "scale_b")
_E4M3, _E5M2, _E8M0 = "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"
FLOAT4 = "float4_e2m1fn"
FACTORS = (_E8M0, _E4M3)
_STAGE_BYTES = 128  # of a row of a or b
_FLOAT_SCALES = (
    "; and float8 with float32 scales for 128, which are rows without a scale of the whole matrix"
)
_SHORT_NAMES = {
    "e4m3": _E4M3,
    "e5m2": _E5M2,
    "e2m1": FLOAT4,
    "float4_e2m1fn_x2": FLOAT4,
    "e8m0": _E8M0,
}
_CUDA_TYPES = {
    _E4M3: "tmaasync::float8_e4m3",
    _E5M2: "tmaasync::float8_e5m2",
    FLOAT4: "tmaasync::float4_e2m1",
}
_BYTE, _WORD = element("uint8"), element("uint32")


class Format(NamedTuple):
    """A format of block-scaled operands (OCP Microscaling Formats; NVIDIA's NVFP4).

    Attributes:
        name: Its name.
        operands: Element types of a and b.
        factor: Type of the scale factors.
        block: Elements along K with one scale factor.
        per_byte: Elements of a byte of a row.
    """

    name: str
    operands: tuple[str, ...]
    factor: str
    block: int
    per_byte: int

    @property
    def stage_factors(self) -> int:
        """Scale factors of a row in a stage of the kernel."""
        return _STAGE_BYTES * self.per_byte // self.block


FORMATS = (
    Format("MXFP8", (_E4M3, _E5M2), _E8M0, 32, 1),
    Format("MXFP4", (FLOAT4,), _E8M0, 32, 2),
    Format("NVFP4", (FLOAT4,), _E4M3, 16, 2),
)


def type_name(dtype: object) -> str:
    """Return a type's name, whichever library it is of; the text of any other value.

    >>> type_name("e2m1"), type_name(np.dtype("float32"))
    ('float4_e2m1fn', 'float32')
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    text = dtype if isinstance(dtype, str) else name or str(dtype).removeprefix("torch.")
    return _SHORT_NAMES.get(str(text), str(text))


def type_of(array: Any, dtype: object) -> str:
    """Return the name of the type that an array is read as: ``dtype``, or its own."""
    return type_name(getattr(array, "dtype", "") if dtype is None else dtype)


def bytes_of(array: Any, argument: str) -> ArrayView:
    """Return the view of the bytes of an array of one-byte elements, whatever type they have."""
    own = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if own == FLOAT4:
        rule = "it holds one element in a byte, and the tensor cores read two"
        remedy = f'Pack pairs, low bits first, and pass the bytes with {argument}_dtype="{own}"'
        raise ArrayTypeError.broken(f"{argument}.dtype", own, rule, remedy)
    # TMA's table of types has neither E8M0 nor torch's pairs of float4.
    if isinstance(array, np.ndarray) and array.dtype.itemsize == 1:
        array = array.view(np.uint8)
    elif type(array).__module__.partition(".")[0] == "torch" and array.element_size() == 1:
        array = array.view(sys.modules["torch"].uint8)
    return _arrays.view(array, dtype=_BYTE, argument=argument)


class Blocks(NamedTuple):
    """The checked operands of a block-scaled GEMM, as bytes.

    Attributes:
        a: [M, K / per_byte].
        b: [K / per_byte, N]; of a grouped GEMM [G, K / per_byte, N].
        scale_a: [M, K / block], or swizzled atoms.
        scale_b: [K / block, N] or [G, K / block, N], or swizzled atoms.
        types: Element types of a and b.
        format: Their format.
        swizzled: Whether the scale factors are swizzled atoms.
    """

    a: ArrayView
    b: ArrayView
    scale_a: ArrayView
    scale_b: ArrayView
    types: tuple[str, str]
    format: Format
    swizzled: bool

    @property
    def views(self) -> tuple[ArrayView, ...]:
        return self[:4]

    @property
    def named(self) -> dict[str, ArrayView]:
        return dict(zip(_OPERANDS, self.views, strict=True))

    @property
    def factors(self) -> int:
        """Scale factors of a row."""
        return self.a.shape[1] * self.format.per_byte // self.format.block

    def atom_rows(self, name: str) -> int | None:
        """Return the rows of atoms of swizzled factors; None where the rows of groups decide."""
        if name == "scale_a":
            return None if self.b.ndim == 3 else -(-self.a.shape[0] // ATOM_ROWS)
        *groups, _, n = self.b.shape
        return math.prod(groups) * -(-n // ATOM_ROWS)

    @classmethod
    def of(
        cls,
        arrays: tuple[Any, Any, Any, Any],
        dtypes: tuple[object, ...],
        layout: str,
        *,
        is_grouped: bool = False,
    ) -> Blocks:
        """Check the operands.

        Args:
            arrays: a, b, scale_a, scale_b.
            dtypes: Types to read a, b and the scales as; None for their own.
            layout: One of `LAYOUTS`.
            is_grouped: Whether there is a matrix of B for each group of rows of A.
        """
        types = [type_of(*one) for one in zip(arrays, (*dtypes, dtypes[2]), strict=True)]
        form = format_of(*types)
        a, b, scale_a, scale_b = (bytes_of(*one) for one in zip(arrays, _OPERANDS, strict=True))
        found = cls(a, b, scale_a, scale_b, (types[0], types[1]), form, layout == "swizzled")
        _arrays.common_device(found.named)
        ArgumentError.raise_for(_rank_violations(found, is_grouped))
        ArgumentError.raise_for(_shape_violations(found))
        (m, width), (*groups, _, n) = found.a.shape, found.b.shape
        check_extents(M=m, N=n, K=width * form.per_byte, G=max(groups, default=1))
        return found


def format_of(a: str, b: str, scale_a: str, scale_b: str) -> Format:
    """Return the format of operands and scale factors of these types.

    Raises:
        ArrayTypeError: There is none.
    """
    for form in FORMATS:
        if {a, b} <= set(form.operands) and scale_a == scale_b == form.factor:
            return form
    legal = "; ".join(
        f"{form.name}: {' and '.join(form.operands)} with {form.factor} for {form.block} elements"
        for form in FORMATS
    )
    raise ArrayTypeError.broken(
        "a, b, scale_a, scale_b",
        f"{a}, {b}, {scale_a}, {scale_b}",
        f"block-scaled formats are {legal}{_FLOAT_SCALES}",
        "Convert them; of arrays of bytes pass a_dtype=, b_dtype= and scale_dtype=",
        verb="hold",
    )


def _rank_violations(blocks: Blocks, is_grouped: bool) -> Iterator[Violation]:
    for name, view in blocks.named.items():
        dims = 3 if is_grouped and name.endswith("b") else 2
        if view.ndim != dims and not (blocks.swizzled and name.startswith("scale")):
            remedy = "Reshape it, or loop over the others"
            if name.startswith("scale"):
                remedy = 'Reshape it, or pass scale_layout="swizzled" for atoms of 128 x 4'
            rule = f"it must have {dims} dimensions"
            yield Violation(f"{name}.shape", view.shape, rule, remedy)


def _shape_violations(blocks: Blocks) -> Iterator[Violation]:
    form = blocks.format
    (m, width), (*groups, depth, n) = blocks.a.shape, blocks.b.shape
    if depth != width:
        rule = f"a has shape {blocks.a.shape}, so b must have {width} rows"
        if form.per_byte > 1:
            rule += f" of bytes with {form.per_byte} elements"
        remedy = "For matrices stored as [N, K] pass b." + ("swapaxes(1, 2)" if groups else "T")
        yield Violation("b.shape", blocks.b.shape, rule, remedy)
    if width * form.per_byte % form.block:
        rule = f"{form.name} has a scale factor for each {form.block} elements of K"
        remedy = f"Pad a and b with zeros to a multiple of {form.block}"
        yield Violation("K", width * form.per_byte, rule, remedy)
        return
    factors = blocks.factors
    shapes = {"scale_a": (m, factors), "scale_b": (*groups, factors, n)}
    for name, shape in shapes.items():
        view = blocks.named[name]
        if blocks.swizzled:
            yield from _atom_violations(name, view, blocks.atom_rows(name), factors)
        elif view.shape != shape:
            rule = f"there is a scale factor for each {form.block} elements of K ({form.name})"
            remedy = f'Pass shape {shape}, or scale_layout="swizzled" for atoms of 128 x 4'
            yield Violation(f"{name}.shape", view.shape, rule, remedy)


def _atom_violations(
    name: str, view: ArrayView, atom_rows: int | None, factors: int
) -> Iterator[Violation]:
    row_bytes = -(-factors // ATOM_FACTORS) * ATOM_BYTES
    count = int(np.prod(view.shape))
    if count != row_bytes * (count // row_bytes if atom_rows is None else atom_rows):
        several = f"multiples of {row_bytes}" if atom_rows is None else f"{row_bytes * atom_rows}"
        rule = (
            f"swizzled factors, here {factors} of a row, fill whole atoms of 128 rows by 4: "
            f"{several} bytes"
        )
        yield Violation(f"{name}.shape", view.shape, rule, "Pad rows to 128 and factors to 4")
    if not _arrays.is_contiguous(view):
        rule = "swizzled factors are contiguous"
        yield Violation(f"{name}.strides", view.strides_bytes, rule, "Copy it")


def check_layout(layout: object) -> str:
    """Return how the scale factors lie in memory.

    Raises:
        ArgumentError: It is none of `LAYOUTS`.
    """
    if isinstance(layout, str) and layout in LAYOUTS:
        return layout
    raise ArgumentError.broken(
        "scale_layout",
        shown(layout),
        "scale factors are rows, or swizzled in atoms of 128 x 4",
        f"Pass {' or '.join(map(repr, LAYOUTS))}",
    )


# --- the swizzled layout ----------------------------------------------------------------------


def swizzled(factors: ArrayView, stream: int, *, transposes: bool) -> ArrayView:
    """Return the factors [..., rows, K / block] in atoms, padded with zeros, in stream order.

    In an atom the byte of row r and factor k is ``r % 32 * 16 + r // 32 * 4 + k`` (cuBLAS, "1D
    Block Scaling Factors Layout"). Atoms follow one another along K.
    """
    owner = indexable(factors)
    with in_order(factors.framework, factors.device, stream):
        rows = owner.swapaxes(-2, -1) if transposes else owner
        *outer, height, width = (int(side) for side in rows.shape)
        high, wide = -(-height // ATOM_ROWS), -(-width // ATOM_FACTORS)
        padded = empty(factors, (*outer, high * ATOM_ROWS, wide * ATOM_FACTORS), _BYTE)
        padded[...] = 0
        padded[..., :height, :width] = rows
        result = empty(factors, (*outer, high, wide, 32, 4, ATOM_FACTORS), _BYTE)
        cut = padded.reshape(*outer, high, 4, 32, wide, ATOM_FACTORS)
        result[...] = cut.swapaxes(-4, -2)
    return _arrays.view(result)


def reached_atoms(
    blocks: Blocks, factors: ArrayView, stream: int, *, transposes: bool
) -> ArrayView:
    """Return the factors of one side in atoms that TMA can read, as `as_atoms`."""
    if not blocks.swizzled:
        factors = swizzled(factors, stream, transposes=transposes)
    elif factors.address % TMA_ALIGNMENT:
        factors = contiguous_copy(factors, stream)
    return as_atoms(factors, blocks.factors)


def as_atoms(view: ArrayView, factors: int) -> ArrayView:
    """Return swizzled bytes as words: [rows / 128, factors / 4, 128]."""
    wide = -(-factors // ATOM_FACTORS)
    count = math.prod(view.shape) * view.element.itemsize // (wide * ATOM_BYTES)
    shape = (count, wide, ATOM_BYTES // _WORD.itemsize)
    strides = (shape[1] * ATOM_BYTES, ATOM_BYTES, _WORD.itemsize)
    return view._replace(shape=shape, strides_bytes=strides, element=_WORD)


def cuda_type(name: str) -> str:
    """Return how the kernel spells a type of operands."""
    return _CUDA_TYPES[name]
