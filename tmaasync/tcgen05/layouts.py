"""Layouts of ``tcgen05.mma`` in tensor memory: D, scale factors, sparse metadata.

Source: PTX ISA, "Data path layout organization" and "Scale factor layout"; CUTLASS,
``mma_traits_sm100.hpp``, where the ISA has figures alone.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tmaasync._kinds import check_integers
from tmaasync.errors import ArgumentError
from tmaasync.tcgen05.forms import MmaForm

__all__ = [
    "accumulator_layout",
    "scale_factor_layout",
    "scale_factor_offsets",
    "sparse_metadata_layout",
]

_Indices = npt.NDArray[np.int64]
_LANES = 32  # of one warp
_ATOM_ROWS, _ATOM_SCALES = 128, 4


def accumulator_layout(form: MmaForm, m: int, n: int) -> tuple[str, _Indices, _Indices, _Indices]:
    """Return where D is: the layout's letter, and the place of each element.

    A float16 element has the low half of its word.

    Args:
        form: The form, from `mma_form`.
        m: Rows of D, of both CTAs of a pair.
        n: Columns of D.

    Returns:
        The letter of the PTX ISA, and CTA of the pair, lane and column after D's address, each
        [m, n].

    Raises:
        ArgumentError: No instruction of the form has this shape.

    >>> from tmaasync.tcgen05 import mma_form
    >>> letter, cta, lane, column = accumulator_layout(mma_form("bf16", cta_group=2), 128, 64)
    >>> letter, int(cta[70, 40]), int(lane[70, 40]), int(column[70, 40])
    ('B', 1, 70, 8)
    """
    ArgumentError.raise_for(form.shape_violations(m, n))
    letter = _letter(form, m)
    row, column = np.indices((m, n))
    of_cta = m // 2 if form.cta_group == 2 else m
    cta, row = np.divmod(row, of_cta)
    if letter in "CF":
        return letter, cta, row // 16 * _LANES + row % 16, column
    splits = {"B": 2, "E": 2, "G": 4}.get(letter, 1)
    part, column = np.divmod(column, n // splits)
    return letter, cta, row + part * of_cta, column


def _letter(form: MmaForm, m: int) -> str:
    if form.cta_group == 2:
        return "A" if m == 256 else "C" if form.is_sparse else "B"
    if m == 64:
        return "E" if form.is_ws else "F"
    return "D" if m == 128 else "G"


def scale_factor_layout(
    rows: int, scales: int = _ATOM_SCALES
) -> tuple[_Indices, _Indices, _Indices]:
    """Return where the scale factors of A's rows, or B's columns, are in tensor memory.

    All four groups of 32 lanes need the same: ``tcgen05.cp.32x128b.warpx4`` copies them there.

    Args:
        rows: Rows of A in the CTA, or columns of B: a multiple of 32.
        scales: Scale factors along K, at most 4.

    Returns:
        Lane in its group of 32, column after the address, and byte of the word; each
        [rows, scales].

    Raises:
        ArgumentError: The rows are no multiple of 32, or there are more than 4 scale factors.
    """
    _check_scales(rows, scales, _LANES)
    row, scale = np.indices((rows, scales))
    return row % _LANES, row // _LANES, scale


def scale_factor_offsets(rows: int, scales: int = _ATOM_SCALES) -> _Indices:
    """Return the byte of each scale factor in shared memory, ready to be copied to tensor memory.

    128 rows and 4 scale factors make an atom of 512 bytes (cuBLAS and CUTLASS have the same); atoms
    follow one another along K, then along the rows.

    Args:
        rows: Rows of A, or columns of B: a multiple of 128.
        scales: Scale factors along K: a multiple of 4.

    Returns:
        Bytes from the start, [rows, scales].

    Raises:
        ArgumentError: A side is no multiple of the atom's.

    >>> int(scale_factor_offsets(128)[33, 2])
    22
    """
    check_integers(rows=rows, scales=scales)
    if scales < 1 or scales % _ATOM_SCALES:
        rule, remedy = "an atom has 4 scale factors along K", "Pad them to a multiple of 4"
        raise ArgumentError.broken("scales", scales, rule, remedy)
    _check_scales(rows, _ATOM_SCALES, _ATOM_ROWS)
    row, scale = np.indices((rows, scales))
    atom = row // _ATOM_ROWS * (scales // _ATOM_SCALES) + scale // _ATOM_SCALES
    within = row % _LANES * 16 + row % _ATOM_ROWS // _LANES * 4 + scale % _ATOM_SCALES
    offsets: _Indices = atom * _ATOM_ROWS * _ATOM_SCALES + within
    return offsets


def _check_scales(rows: int, scales: int, granule: int) -> None:
    check_integers(rows=rows, scales=scales)
    if rows < granule or rows % granule:
        rule, remedy = f"rows come in groups of {granule}", f"Pad to a multiple of {granule}"
        raise ArgumentError.broken("rows", rows, rule, remedy)
    if not 1 <= scales <= _ATOM_SCALES:
        rule, remedy = "a word has 1 to 4 scale factors", "Use a further word for the others"
        raise ArgumentError.broken("scales", scales, rule, remedy)


def sparse_metadata_layout(form: MmaForm) -> tuple[_Indices, _Indices]:
    """Return where the sparse metadata of 128 rows of A is in tensor memory.

    Four bits select the stored elements of a group along K: 2 elements of tf32, 8 of packed
    4-bit elements, else 4.

    Args:
        form: A sparse form.

    Returns:
        Lane, and first bit of the lane's words, each [128, groups along K].

    Raises:
        ArgumentError: The form is not sparse.
    """
    if not form.is_sparse:
        rule, remedy = "dense forms have no metadata", "Pass mma_form(..., is_sparse=True)"
        raise ArgumentError.broken("form", form.kind, rule, remedy)
    group = {"tf32": 2, "mxf4": 8, "mxf4nvf4": 8}.get(form.kind, 4)
    row, index = np.indices((_ATOM_ROWS, form.k // group))
    if form.kind not in ("f16", "tf32"):
        return row, index * 4
    half, within = np.divmod(index, 4)
    return row // 16 * 16 + row % 8 + 8 * half, row // 8 % 2 * 16 + within * 4
