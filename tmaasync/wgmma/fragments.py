"""Fragments of a warpgroup's threads: accumulators, and A where it is in registers.

``fragment.cuh`` has the same for kernels. Source: PTX ISA, "Register Fragments" of
``wgmma.mma_async``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tmaasync._hardware import WARP_THREADS, WARPGROUP_THREADS, WARPGROUP_WARPS
from tmaasync._kinds import check_integers
from tmaasync.errors import ArgumentError
from tmaasync.wgmma.forms import INSTRUCTION_M, operand_element

_Indices = npt.NDArray[np.int64]

_MAX_COLUMNS = 256
_REGISTERS_OF_A = 4
_REGISTER_BYTES = 4


def accumulator_fragment(columns: int) -> tuple[_Indices, _Indices]:
    """Return row and column of every accumulator of a thread, for 64 rows and ``columns``.

    float32 and int32 accumulators take a register each; float16 ones 2 i and 2 i + 1 share register
    i, the first in its low half.

    Args:
        columns: N of the instruction, a multiple of 8.

    Returns:
        Rows and columns, both [128 threads, columns / 2].

    Raises:
        ArgumentError: The columns are no multiple of 8.

    >>> rows, columns = accumulator_fragment(16)
    >>> list(zip(rows[5].tolist(), columns[5].tolist()))
    [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    """
    check_integers(columns=columns)
    if columns < 8 or columns % 8 or columns > _MAX_COLUMNS:
        raise ArgumentError.broken(
            "columns",
            columns,
            f"an instruction has 8 to {_MAX_COLUMNS}, in blocks of 8",
            "Use a multiple of 8",
        )
    thread = np.arange(WARPGROUP_THREADS)[:, None]
    i = np.arange(columns // 2)[None, :]
    return _warp_row(thread) + i // 2 % 2 * 8, i // 4 * 8 + thread % 4 * 2 + i % 2


def a_fragment(dtype: object) -> tuple[_Indices, _Indices]:
    """Return row and k of every element of A that a thread holds for one instruction.

    The four registers hold four bytes each, in the order of the elements: of 16-bit types elements
    2 r and 2 r + 1 are in register r, of 8-bit types 4 r to 4 r + 3, of TF32 element r.

    Args:
        dtype: Type of A's elements, as in `mma_form`.

    Returns:
        Rows and k, both [128 threads, 16 bytes of elements].

    Raises:
        ArgumentError: The tensor cores do not multiply the type.

    >>> rows, k = a_fragment("float16")
    >>> list(zip(rows[5].tolist(), k[5].tolist()))
    [(1, 2), (1, 3), (9, 2), (9, 3), (1, 10), (1, 11), (9, 10), (9, 11)]
    """
    itemsize = operand_element(dtype, "dtype").itemsize
    held = _REGISTER_BYTES // itemsize
    thread = np.arange(WARPGROUP_THREADS)[:, None]
    i = np.arange(_REGISTERS_OF_A * held)[None, :]
    register = i // held
    return (
        _warp_row(thread) + register % 2 * 8,
        thread % 4 * held + register // 2 * 4 * held + i % held,
    )


def _warp_row(thread: _Indices) -> _Indices:
    return thread // WARP_THREADS * (INSTRUCTION_M // WARPGROUP_WARPS) + thread % WARP_THREADS // 4
