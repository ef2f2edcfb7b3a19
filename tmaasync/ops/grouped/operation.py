"""ops.grouped_matmul."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync.ops._launches import LaunchCache, Repeatable, one_array
from tmaasync.ops._results import rows_maker
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.grouped.arguments import check_operands, check_output, new_output
from tmaasync.ops.grouped.offsets import Offsets
from tmaasync.ops.grouped.plan import plan_for

__all__ = ["grouped_matmul"]

_LAUNCHES = LaunchCache()


def grouped_matmul(
    a: Any,
    b: Any,
    offsets: Any,
    *,
    out: Any = None,
    dtype: object = None,
    stream: object = None,
) -> Any:
    """Multiply groups of rows by a matrix each: ``out[rows of g] = a[rows of g] @ b[g]``, in fp32.

    Groups have any number of rows, none included, and lie one after the other; nothing is padded.
    Group g has the rows from ``offsets[g - 1]``, or 0, up to ``offsets[g]``. Rows behind the last
    group are not written: in a new output they are uninitialised.

    Rows of ``a`` that TMA cannot read (K not contiguous, no multiple of 16 bytes apart, or not
    starting at one) are copied into some that it can, and so are matrices of ``b`` of which neither
    side is contiguous. An output that TMA cannot write (the same, or rows that do not end at a
    multiple of 16 bytes) is written through a copy.

    Args:
        a: [T, K], bfloat16 or float16, on a GPU, or in host memory for the emulator.
        b: [G, K, N], of the same type and device, with K or N contiguous: for matrices stored as
            [G, N, K] pass ``b.swapaxes(1, 2)``.
        offsets: [G], integers that do not decrease, the last at most T. On the device of ``a`` they
            are used as they are, without waiting for them: a group that ends before it starts has
            no rows, and none has rows behind T; a debug build traps. In host memory they are
            checked.
        out: Where to; [T, N]. By default a new array of the framework of ``a``; where N elements
            are no multiple of 16 bytes its rows are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else of
            ``a``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: The shapes do not fit, offsets describe no such groups, or ``out`` is not as
            described.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    is_new = out is None
    option = (dtype, is_new)
    arrays = (a, b, offsets) if is_new else (a, b, offsets, out)
    done = _LAUNCHES.run(arrays, option, stream)
    if done is not None:
        return done[3]
    rows, matrices = _arrays.view(a, argument="a"), _arrays.view(b, argument="b")
    check_operands(rows, matrices)
    ends = Offsets.of(offsets, matrices.shape[0], rows.shape[0], rows.device)
    if is_new:
        out = new_output(rows, matrices, dtype)
    target = _arrays.view(out, argument="out")
    check_output(target, rows, matrices, dtype)
    if target.is_empty or matrices.is_empty:
        return out
    layout = Matrix.of(target)._replace(owns_padding=is_new)
    plan = plan_for(Matrix.of(rows), Matrix.of(matrices), layout)
    frameworks = plan.run(rows, matrices, target, ends, stream)
    if plan.is_direct and ends.is_in_place:
        make = one_array(rows_maker(rows, target)) if is_new else None
        _LAUNCHES.remember(arrays, option, Repeatable(plan.aim, make), frameworks, rows.device)
    return out
