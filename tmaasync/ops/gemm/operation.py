"""ops.matmul."""

from __future__ import annotations

from typing import Any

from tmaasync import _arrays
from tmaasync._arrays import ArrayView
from tmaasync._elements import element
from tmaasync._streams import stream_of
from tmaasync.ops._copies import in_order
from tmaasync.ops._launches import LaunchCache, Repeatable, one_array
from tmaasync.ops._results import empty_rows, rows_maker
from tmaasync.ops.gemm.arguments import check_places, new_output
from tmaasync.ops.gemm.extras import PLAIN, ExtraForm, Extras, ExtraViews
from tmaasync.ops.gemm.matrix import Matrix
from tmaasync.ops.gemm.plan import plan_for
from tmaasync.ops.gemm.types import Reading

__all__ = ["matmul"]

_AS_THEY_ARE = Reading()
_LAUNCHES = LaunchCache()
_LAUNCHES_WITH_EXTRAS = LaunchCache()
"""Apart from the plain ones: a cache guesses by the second array, and weights may serve in both."""


def matmul(  # noqa: PLR0913 - what a product with an epilogue has
    a: Any,
    b: Any,
    *,
    alpha: float = 1.0,
    c: Any = None,
    beta: float = 1.0,
    bias: Any = None,
    activation: str | None = None,
    scale_a: Any = None,
    scale_b: Any = None,
    out: Any = None,
    dtype: object = None,
    precision: str | None = None,
    a_dtype: object = None,
    b_dtype: object = None,
    stream: object = None,
) -> Any:
    """Multiply two matrices, or batches of them: ``a @ b``, and do what often follows it.

    ``out = activation(alpha * scale_a * scale_b * (a @ b) + beta * c + bias)``, computed in fp32
    and rounded once.

    Operands are two of one type of bfloat16, float16 and float32 (as tf32), or any two of
    float8_e4m3fn and float8_e5m2, or any two of int8 and uint8. Products are added up by the tensor
    cores: in fp32; of float8 with about 14 bits of fraction, which is torch's
    ``use_fast_accum=True``; of integers in int32, which cannot overflow while K is at most 131,071
    (of two uint8 33,025).

    Operands of 16 bits may lie with either side contiguous, so ``matmul(a, b.T)`` is the product
    with a matrix stored as [N, K]. Of all other types the tensor cores read K contiguous: [M, K]
    and [N, K]. What lies otherwise, or where TMA cannot read it (rows that are no multiple of 16
    bytes apart, or do not start at one), is copied first; an output that TMA cannot write (the
    same, or rows that do not end at a multiple of 16 bytes) is written through a copy.

    Args:
        a: [M, K], on a GPU, or in host memory for the emulator; or a batch, [B, M, K]. More
            dimensions have to be reshaped into these.
        b: [K, N], on the same device; or a batch, [B, K, N]. One matrix, or a batch of one, goes
            with every matrix of a batch on the other side.
        alpha: A factor of the product.
        c: Of the output's shape and type, added to the product; it may be ``out``. Copied first if
            TMA cannot read it, or if its columns are contiguous where those of ``out`` are not.
        beta: A factor of ``c``; with 0 that is not read.
        bias: [N], of float32 or the type of the output or of 16-bit operands, added to every row.
        activation: ``"relu"``; ``"gelu"``, by erf, to 1e-6; ``"gelu_tanh"``, its usual
            approximation by tanh; ``"silu"``.
        scale_a: A factor of ``a``: a number, or an array of one float32 on the same device, which
            the kernel reads, so that the host does not wait for it.
        scale_b: The same of ``b``.
        out: Where to; [M, N], or [B, M, N] if either operand is a batch. By default a new array of
            the framework of ``a``; where N elements are no multiple of 16 bytes its rows are
            padded, so it is not contiguous. It overlaps nothing that is read, but may be ``c``.
        dtype: Of the output: bfloat16, float16 or float32; of integers int32. By default that of
            ``out``, else of ``a``; of float8 bfloat16.
        precision: ``"tf32"`` has float32 operands rounded to the nearest tf32, which has 10 bits of
            fraction; without it they are refused.
        a_dtype: Read ``a`` as this type of the same width, for arrays that cannot say what they
            hold, such as float8 in a CuPy array of uint8.
        b_dtype: The same of ``b``.
        stream: By default the current stream of the arrays' framework.

    Returns:
        The output.

    Raises:
        ArgumentError: The shapes or types do not fit, ``out`` is not as described, or a factor is
            not finite.
        ArrayTypeError: A type that the kernel does not have.
        BackendError: The GPU is older than sm_90; or, for host arrays, there is no C++ compiler.
    """
    has_factors = not (type(alpha) is type(beta) is float and alpha == beta == 1)
    if has_factors or not (
        c is bias is activation is scale_a is scale_b is a_dtype is b_dtype is precision is None
    ):
        extras = Extras.of(alpha, c, beta, bias, activation, scale_a, scale_b)
        reading = Reading.given(a_dtype, b_dtype, precision)
        arrays, option = _sought(a, b, out, dtype, extras, reading)
        done = _LAUNCHES_WITH_EXTRAS.run(arrays, option, stream, extras.numbers)
        return _multiply(a, b, out, dtype, extras, reading, stream) if done is None else done[-1]
    arrays = (a, b) if out is None else (a, b, out)
    done = _LAUNCHES.run(arrays, (dtype, out is None), stream)
    return _multiply(a, b, out, dtype, PLAIN, _AS_THEY_ARE, stream) if done is None else done[2]


def _sought(
    a: Any, b: Any, out: Any, dtype: object, extras: Extras, reading: Reading
) -> tuple[tuple[Any, ...], tuple[object, ...]]:
    """What the launch of a product with extras is found by: arrays, the output last, and option."""
    arrays = (a, b, *extras.arrays)
    option = (dtype, out is None, extras.form, reading)
    return arrays if out is None else (*arrays, out), option


def _multiply(
    a: Any, b: Any, out: Any, dtype: object, extras: Extras, reading: Reading, stream: object
) -> Any:
    """The product of arrays that no plan is known for."""
    left = reading.of(_arrays.view(a, dtype=reading.a, argument="a"))
    right = reading.of(_arrays.view(b, dtype=reading.b, argument="b"))
    if left.shape[1:] and left.shape[-1] == 0 and right.shape[-2:-1] == (0,):
        # There is nothing to add up, which zeros do too.
        a = _zeros(left, (*left.shape[:-1], 8), stream)
        b = _zeros(right, (*right.shape[:-2], 8, right.shape[-1]), stream)
        reading = Reading(left.element, right.element)
        return _multiply(a, b, out, dtype, extras, reading, stream)
    more = ExtraViews.of(extras)
    is_new = out is None
    if is_new:
        out = new_output(left, right, dtype)
    target = _arrays.view(out, argument="out")
    _arrays.require_writable(target, "out")
    wanted = None if dtype is None else element(dtype)
    matrix = Matrix.of(target)._replace(owns_padding=is_new)
    form = ExtraForm.of(extras, more)
    plan = plan_for(Matrix.of(left), Matrix.of(right), matrix, wanted, form)
    check_places(target, left, right, more)
    plan.run(left, right, target, stream, more, extras)
    if plan.is_direct:
        views = (left, right, target, *more.given.values())
        frameworks = tuple(view.framework for view in views)
        repeatable = Repeatable(plan.aim, one_array(rows_maker(left, target)) if is_new else None)
        if extras is PLAIN and reading is _AS_THEY_ARE:
            arrays = (a, b) if is_new else (a, b, out)
            _LAUNCHES.remember(arrays, (dtype, is_new), repeatable, frameworks, target.device)
        else:
            found_by = _sought(a, b, None if is_new else out, dtype, extras, reading)
            _LAUNCHES_WITH_EXTRAS.remember(*found_by, repeatable, frameworks, target.device)
    return out


def _zeros(like: ArrayView, shape: tuple[int, ...], stream: object) -> Any:
    """Zero bits in elements as wide, in the order of the product's stream."""
    handle = stream_of((like.framework,), like.device, stream)
    with in_order(like.framework, like.device, handle):
        array = empty_rows(like, shape, element(f"int{8 * like.element.itemsize}"))
        array[...] = 0
        return array
