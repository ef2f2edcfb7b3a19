"""ops.scaled_matmul."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._elements import element
from tmaasync.ops._launches import LaunchCache, Repeatable, one_array
from tmaasync.ops._results import rows_maker
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.scaled_gemm.arguments import Operands, check_output, new_output
from tmaasync.ops.scaled_gemm.plan import plan_for

__all__ = ["scaled_matmul"]

_LAUNCHES = LaunchCache()
_USUAL_OUTPUT = "bfloat16"


def scaled_matmul(  # noqa: PLR0913 - what such a product has
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    *,
    out: Any = None,
    dtype: object = None,
    a_dtype: object = None,
    b_dtype: object = None,
    stream: object = None,
) -> Any:
    """Multiply fp8 matrices whose scales belong to blocks of 128 along K.

    ``out[m, n] = sum(scale_a[m, k // 128] * a[m, k] * b[k, n] * scale_b[k // 128, n // 128])`` over
    k; or with ``scale_b[k // 128, n]``. The tensor cores sum the products of a block of 128 k; the
    blocks are scaled and added in fp32, then rounded once.

    Read as they lie: ``a`` and ``b.T`` with K contiguous and rows that start at multiples of 16
    bytes, ``scale_a`` and a ``scale_b`` of every column with M and N contiguous and a multiple of 4
    scales apart, a ``scale_b`` of 128 columns with either side so. All else is copied first.
    These are the layouts of torch's ``scaled_mm`` with BlockWise1x128 and BlockWise128x128, but for
    1 x 128 scales of b, which are [N, K / 128] there: pass their ``.T``.

    Args:
        a: [M, K], float8_e4m3fn or float8_e5m2, on a GPU, or in host memory for the emulator.
        b: [K, N], one of these types, on the same device; of a matrix [N, K] pass ``b.T``.
        scale_a: [M, ceil(K / 128)], float32.
        scale_b: [ceil(K / 128), ceil(N / 128)] or [ceil(K / 128), N], float32; its shape tells
            which. Of the former K may be padded to a multiple of 4 scales.
        out: Where to; [M, N]. By default a new array of the framework of ``a``; where N elements
            are no multiple of 16 bytes its rows are padded, so it is not contiguous.
        dtype: Of the output: bfloat16, float16 or float32; by default that of ``out``, else
            bfloat16.
        a_dtype: Read ``a`` as this type of the same width, for arrays that cannot say what they
            hold, such as float8 in a CuPy array of uint8.
        b_dtype: The same of ``b``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: Shapes or devices do not fit, or ``out`` is not as described.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.

    >>> import ml_dtypes, numpy as np
    >>> a, b = (np.ones(shape, ml_dtypes.float8_e4m3fn) for shape in ((2, 256), (8, 256)))
    >>> scale_a = np.array([[1, 2], [3, 4]], np.float32)
    >>> scaled_matmul(a, b.T, scale_a, np.ones((2, 1), np.float32), dtype="float32")[:, 0]
    array([384., 896.], dtype=float32)
    """
    is_new = out is None
    option = (dtype, a_dtype, b_dtype, is_new)
    arrays = (a, b, scale_a, scale_b) if is_new else (a, b, scale_a, scale_b, out)
    done = _LAUNCHES.run(arrays, option, stream)
    if done is not None:
        return done[4]
    operands = Operands.of(a, b, scale_a, scale_b, (a_dtype, b_dtype))
    if is_new:
        out = new_output(operands, _USUAL_OUTPUT if dtype is None else dtype)
    target = _arrays.view(out, argument="out")
    check_output(target, operands, None if dtype is None else element(dtype))
    matrix = Matrix.of(target)._replace(owns_padding=is_new)
    plan = plan_for(tuple(map(Matrix.of, operands)), matrix, operands.column_scales)
    plan.run(operands, target, stream)
    if plan.is_direct:
        frameworks = tuple(view.framework for view in (*operands, target))
        repeatable = Repeatable(
            plan.aim, one_array(rows_maker(operands.a, target)) if is_new else None
        )
        _LAUNCHES.remember(arrays, option, repeatable, frameworks, target.device)
    return out
